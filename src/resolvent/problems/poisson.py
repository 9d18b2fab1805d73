"""Poisson regression: f_i(w) = sum_j exp(a_ij . w) - b_ij a_ij . w + reg_i/2 |w|^2, a sum over user i's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.problems.linear.loss import Loss
from resolvent.problems.linear.model import LinearModel

NEAR = 1e-3
"""Up to this |h| the divergence is a series."""


class Poisson(LinearModel):
    """Counts b >= 0 with the mean exp(a . w): the likelihood up to a constant that depends on b alone.

    `reg` is a number, or one per user. The curvature has no bound, so there is no Lipschitz constant: prox schemes need
    none. Where exp overflows the value is infinite, and slopes stay finite: they are cut off at a huge number.
    """

    kind = "poisson"

    def __init__(
        self,
        A: Any,
        b: Any,
        reg: Any = 0.0,
        weights: Any = None,
        *,
        intercept: bool = False,
        penalty: Any = None,
        sample_weight: Any = None,
    ) -> None:
        own = {"intercept": intercept, "penalty": penalty, "sample_weight": sample_weight}
        super().__init__(PoissonLoss, A, b, reg, weights, **own)


@dataclass(frozen=True, eq=False)
class PoissonLoss(Loss):
    """e^t - b t for counts b >= 0."""

    b: Tensor
    curvature_rate = 1.0

    def check(self) -> None:
        if bool((self.b < 0).any()):
            refuse("b", "partly negative", "counts, or other numbers >= 0, are needed")

    def value(self, t: Tensor) -> Tensor:
        return t.exp() - self.b * t

    def slope(self, t: Tensor) -> Tensor:
        return t.exp_().clamp_(max=_most(t)).sub_(self.b)

    def slope_size(self, t: Tensor) -> Tensor:
        return t.exp().clamp(max=_most(t)) + self.b

    def curvature(self, t: Tensor) -> Tensor:
        return t.exp().clamp(max=_most(t))

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """e^t (e^h - 1 - h) as a function of h; a series where the terms would cancel."""
        mean = t.exp()

        def of(h: Tensor) -> Tensor:
            series = h * h * (1 / 2 + h * (1 / 6 + h * (1 / 24 + h / 120)))
            return mean * torch.where(h.abs() < NEAR, series, torch.expm1(h) - h)

        return of


def _most(t: Tensor) -> float:
    """The largest slope: products with it do not overflow."""
    return 1e200 if t.dtype == torch.float64 else 1e25
