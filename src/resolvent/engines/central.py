"""What all engines have in common whose server, or process, holds the rows of every user: sums over users."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from resolvent.iteration.engine import Curvature, Look, Present, Traffic
from resolvent.iteration.facts import Facts, Memory
from resolvent.problems.problem import select


class CentralSums:
    """The verbs that need no users: sums over rows that are all here. There is nothing to open, and nothing moves."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._lam, self._root = facts.weights.unsqueeze(0), facts.weights.sqrt().unsqueeze(1)
        self._everyone = Present(None, facts.users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def traffic(self) -> Traffic | None:
        return None

    def present(self, who: Tensor | None) -> Present:
        return self._everyone if who is None else Present(who.to(self.facts.device), len(who))

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        if z.shape[0] == 1:
            return z
        return self._lam @ z if who is None else select(self._lam[0], who).unsqueeze(0) @ z[who]

    def gram(self, rows: Tensor) -> Tensor:
        if rows.shape[1] > 1:
            rows = rows * self._root
        flat = rows.flatten(1)
        return flat @ flat.T

    def every(self, flags: Tensor) -> bool:
        return bool(flags.all())

    def curvature(self, w: Tensor) -> Curvature | None:
        return None

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        return None
