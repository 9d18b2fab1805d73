"""Support vectors: f_i(w) = sum_j max(0, 1 - b_ij a_ij . w)^2 + reg_i/2 |w|^2, a sum over user i's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.problems.linear.loss import Loss, check_labels
from resolvent.problems.linear.model import Classifier


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
