"""Any local operator on quadratics: a filter of their eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resolvent.iteration.engine import Ask, Memory, Spread
from resolvent.local.bound import mean_of_rows
from resolvent.problems.quadratic.affine import Affine


@dataclass(eq=False)
class Filter:
    """The operator that goes the share c(eta, s) of the way to the minimiser along each eigenvector, of eigenvalue s.

    Its maps are cached while eta stays the same.
    """

    problem: Any
    share: Callable[[float, Tensor], Tensor]
    steady: bool
    cached: tuple[float, Affine] | None = None

    def maps(self, eta: float) -> Affine:
        if self.cached is None or self.cached[0] != eta:
            self.cached = (eta, self.problem.filtered(lambda s: self.share(eta, s), self.steady))
        return self.cached[1]

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return self.maps(ask.eta)(u, ask.who), memory

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        if ask.who is not None:
            return mean_of_rows(self, self.problem.weights, ask, u, memory)
        maps = self.maps(ask.eta)
        return maps.mean(u), maps.spread, memory
