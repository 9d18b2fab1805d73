"""Least squares over sparse rows: f_i(w) = 1/2 |A_i w - b_i|^2 as a linear model, without decompositions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resolvent.problems.linear.loss import Loss
from resolvent.problems.linear.model import LinearModel


class SparseLeastSquares(LinearModel):
    """What `LeastSquares` makes of sparse rows."""

    lipschitz: Tensor
    kind = "least-squares"

    def __init__(
        self,
        A: Any,
        b: Any,
        weights: Any = None,
        *,
        intercept: bool = False,
        penalty: Any = None,
        sample_weight: Any = None,
    ) -> None:
        own = {"intercept": intercept, "penalty": penalty, "sample_weight": sample_weight}
        super().__init__(SquareLoss, A, b, 0.0, weights, **own)


@dataclass(frozen=True, eq=False)
class SquareLoss(Loss):
    """(t - b)^2 / 2."""

    b: Tensor
    largest_curvature = 1.0
    curvature_rate = 0.0

    def value(self, t: Tensor) -> Tensor:
        return (t - self.b).square() / 2

    def slope(self, t: Tensor) -> Tensor:
        return t - self.b

    def slope_size(self, t: Tensor) -> Tensor:
        return t.abs() + self.b.abs()

    def curvature(self, t: Tensor) -> Tensor:
        return t.new_ones(t.shape)

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        return half_square


def half_square(h: Tensor) -> Tensor:
    return h * h / 2
