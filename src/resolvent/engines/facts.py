"""What engines know of users who all live in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.iteration.engine import Present, Traffic


@dataclass(frozen=True, eq=False)
class ProblemFacts:
    """The facts of a problem whose users all live here. Whatever else the problem knows is a fact as well."""

    problem: Any
    operator: Any

    @property
    def users(self) -> int:
        return int(self.problem.users)

    @property
    def here(self) -> int:
        return self.users

    @property
    def dtype(self) -> torch.dtype:
        kind: torch.dtype = self.problem.weights.dtype
        return kind

    @property
    def device(self) -> torch.device:
        where: torch.device = self.problem.weights.device
        return where

    @property
    def start(self) -> Tensor | None:
        """Where the problem begins: a network where its module stands."""
        start: Tensor | None = getattr(self.problem, "start", None)
        return start

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)


class AllHere:
    """The verbs that need no users: there is nothing to open, nothing moves, and whoever is drawn is here."""

    def __init__(self, problem: Any, operator: Any) -> None:
        self.problem = problem
        self.facts = ProblemFacts(problem, operator)
        self._everyone, self._device = Present(None, problem.users), problem.weights.device

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def traffic(self) -> Traffic | None:
        return None

    def present(self, who: Tensor | None) -> Present:
        return self._everyone if who is None else Present(who.to(self._device), len(who))
