"""Huber's regression, Poisson's, and support vectors: f_i(w) = sum_j phi(a_ij . w; b_ij) + reg_i/2 |w|^2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import real, refuse
from resolvent.problems.linear.loss import Loss, check_labels, exp_remainder
from resolvent.problems.linear.model import Classifier, LinearModel


class Huber(LinearModel):
    """h(r) = r^2 / 2 up to |r| = delta, and delta (|r| - delta / 2) beyond: outliers pull with the force delta only.

    `reg` is a number, or one per user.
    """

    lipschitz: Tensor
    kind = "huber"

    def __init__(
        self,
        A: Any,
        b: Any,
        delta: float = 1.35,
        reg: Any = 0.0,
        weights: Any = None,
        *,
        intercept: bool = False,
        penalty: Any = None,
        sample_weight: Any = None,
    ) -> None:
        delta = real(delta, "delta", lambda x: 0 < x < math.inf, "a finite number > 0 is needed")
        loss = partial(HuberLoss, delta=float(delta))
        own = {"intercept": intercept, "penalty": penalty, "sample_weight": sample_weight}
        super().__init__(loss, A, b, reg, weights, **own)

    @property
    def delta(self) -> float:
        return float(self.loss.keywords["delta"])  # type: ignore[attr-defined]

    def _numbers(self) -> dict[str, float]:
        return {"delta": self.delta}


@dataclass(frozen=True, eq=False)
class HuberLoss(Loss):
    """r^2 / 2 of the residual r = t - b up to |r| = delta, and linear beyond."""

    b: Tensor
    delta: float
    largest_curvature = 1.0
    least = 0.0

    @property
    def largest_slope(self) -> float:
        return self.delta

    def value(self, t: Tensor) -> Tensor:
        r = t - self.b
        near = r.clamp(-self.delta, self.delta)
        return near * (r - near / 2)

    def slope(self, t: Tensor) -> Tensor:
        return (t - self.b).clamp(-self.delta, self.delta)

    def curvature(self, t: Tensor) -> Tensor:
        return ((t - self.b).abs() <= self.delta).to(t)

    def least_curvature(self, t: Tensor, reach: Tensor) -> Tensor:
        return ((t - self.b).abs() + reach <= self.delta).to(t)

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """k (r - n + h - k / 2) as a function of h, with n the slope at t and n + k that at t + h."""
        n, inside = self.slope(t), self.curvature(t)

        def of(h: Tensor) -> Tensor:
            k = torch.where(inside * self.curvature(t + h) > 0, h, self.slope(t + h) - n)
            return k * (t - self.b - n + (h - k / 2))

        return of


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
        """e^t (e^h - 1 - h) as a function of h."""
        mean = t.exp()
        return lambda h: mean * exp_remainder(h)


def _most(t: Tensor) -> float:
    """The largest slope: products with it do not overflow."""
    return 1e200 if t.dtype == torch.float64 else 1e25


@dataclass(frozen=True, eq=False)
class SquaredHingeLoss(Loss):
    """max(0, 1 - b t)^2 for labels b = -1 and +1."""

    b: Tensor
    largest_curvature = 2.0
    least = 0.0

    def check(self) -> None:
        check_labels(self.b)

    def missing(self, t: Tensor) -> Tensor:
        """By how much the margin is below 1."""
        return (1 - self.b * t).clamp_min(0)

    def value(self, t: Tensor) -> Tensor:
        return self.missing(t).square()

    def slope(self, t: Tensor) -> Tensor:
        return -2 * self.b * self.missing(t)

    def curvature(self, t: Tensor) -> Tensor:
        return 2 * (self.b * t < 1).to(t)

    def least_curvature(self, t: Tensor, reach: Tensor) -> Tensor:
        return 2 * (self.b * t + reach < 1).to(t)

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """k^2 + 2 n max(0, b h - m) as a function of h, with m = 1 - b t, n = max(0, m) and n + k the same at t + h."""
        m = 1 - self.b * t
        n = m.clamp_min(0)

        def of(h: Tensor) -> Tensor:
            along = self.b * h
            k = torch.where((m > 0) & (along < m), -along, (m - along).clamp_min(0) - n)
            return k * k + 2 * n * (along - m).clamp_min(0)

        return of


class SquaredHinge(Classifier):
    """A linear support vector machine with the squared hinge loss, labels -1 and +1.

    `reg` is a number, or one per user; without it 1 / (users * rows_i), as for logistic regression.
    """

    kind = "squared-hinge"
    loss = SquaredHingeLoss
