"""A penalty beside users who do not know of it: it is applied where they meet, and counts in every value."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from resolvent.iteration.engine import Engine, Look, Memory
from resolvent.iteration.penalties import Penalty, penalty_of


class WithPenalty:
    """The facts of a problem or of an engine, and a penalty."""

    def __init__(self, facts: Any, penalty: Penalty) -> None:
        self.without, self.penalty = facts, penalty

    def __getattr__(self, name: str) -> Any:
        if name == "without":  # not there yet, as where a copy is made
            raise AttributeError(name)
        return getattr(self.without, name)


class Penalising:
    """An engine whose values are those of f + g. The gap is not known: f* of the users is that of f alone."""

    def __init__(self, engine: Engine, penalty: Penalty) -> None:
        self.engine, self.facts = engine, WithPenalty(engine.facts, penalty)
        g = penalty_of(self.facts)
        assert g is not None
        self._g = g

    def __getattr__(self, name: str) -> Any:
        if name == "engine":
            raise AttributeError(name)
        return getattr(self.engine, name)

    def __enter__(self) -> Self:
        self.engine.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.__exit__(*error)

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        found = dict(self.engine.measure(w))
        if "value" in found:
            value = found["value"]
            found["value"] = value + self._g.value(w).to(value)
            found["gap"] = torch.full_like(value, torch.nan)
        return found

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        found = self.engine.inspect(w, p, memory, look)
        if found is None or "value" not in found:
            return found
        return found | {"value": found["value"] + float(self._g.value(w)[0]), "gap": float("nan")}
