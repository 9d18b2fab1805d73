"""What engines know of their users without asking them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
