"""Huber's robust regression: f_i(w) = sum_j h(a_ij . w - b_ij) + reg_i/2 |w|^2, a sum over user i's rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import real
from resolvent.problems.linear.loss import Loss
from resolvent.problems.linear.model import LinearModel


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
