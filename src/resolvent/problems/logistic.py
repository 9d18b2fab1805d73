"""f_i(w) = sum_j log(1 + exp(-b_ij a_ij . w)) + reg_i/2 |w|^2, a sum over user i's rows, as in the paper's appendix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resolvent.problems.linear.loss import Loss, check_labels
from resolvent.problems.linear.model import Classifier
from resolvent.problems.reference.objective import Floats, WeightedLoss

FAR = 30.0
"""A margin that falls by more than this is far away."""
MAX_PROGRAM_SIZE = 1 << 20
"""Numbers in a linear program that is small enough to be solved for the sake of an explanation."""


class LogisticLoss(Loss):
    """log(1 + e^(-b t)) for labels b = -1 and +1."""

    largest_slope = 1.0
    largest_curvature = 0.25
    curvature_rate = 1.0
    least = 0.0

    def __init__(self, b: Tensor) -> None:
        self.b, self.minus_b = b, -b

    def check(self) -> None:
        check_labels(self.b)

    def value(self, t: Tensor) -> Tensor:
        return softplus(self.minus_b * t)

    def slope(self, t: Tensor) -> Tensor:
        return t.mul_(self.minus_b).sigmoid_().mul_(self.minus_b)

    def curvature(self, t: Tensor) -> Tensor:
        q = torch.sigmoid(t)  # whatever the label: phi'' is even
        return q * (1 - q)

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """phi(a + b h) - phi(a) - phi'(a) b h as a function of h, for phi(a) = log(1 + e^-a) of the margins a = b t.

        It is never negative, and nothing cancels. The difference of the first two terms is log1p(q expm1(-b h)) with
        q = sigmoid(-a). Below |h| = 1e-3 what is left after subtracting q b h would be rounding, and Taylor's formula
        to fifth order is good to 1e-12 relative. Where expm1 would overflow the two terms are far apart.
        """
        a = self.b * t
        q = torch.sigmoid(-a)
        v = q * (1 - q)
        odd = (2 * q - 1) * v
        c2, c3, c4, c5 = v / 2, odd / 6, (1 - 6 * v) * v / 24, (1 - 12 * v) * odd / 120

        def of(h: Tensor) -> Tensor:
            h = h * self.b
            near = h * h * (c2 + h * (c3 + h * (c4 + h * c5)))
            small = h.abs() < 1e-3
            if bool(small.all()):
                return near
            far = torch.where(h < -FAR, softplus(-a - h) - softplus(-a), torch.log1p(q * torch.expm1(-h)))
            return torch.where(small, near, far + q * h)

        return of

    def weighted(self, weight: Floats) -> WeightedLogistic:
        return WeightedLogistic(self.b.numpy(), weight)


class Logistic(Classifier):
    """Binary logistic regression over users of any sizes and weights, labels -1 and +1.

    `reg` is a number, or one per user; without it 1 / (users * rows_i), the paper's. With `intercept` there is one more
    parameter, the last, which neither `reg` nor `penalty` touches. `sample_weight`, in the shape of b, multiplies the
    rows' losses, and so does `class_weight`: "balanced", a dict by label, or one number per class, -1 first.
    """

    kind = "logistic"
    loss = LogisticLoss


@dataclass(frozen=True, eq=False)
class WeightedLogistic(WeightedLoss):
    """The same in NumPy with a weight per row, slopes and curvatures exact in both tails."""

    b: Floats
    weight: Floats
    curvature_rate = 1.0

    @property
    def largest_curvature(self) -> Floats:
        return self.weight / 4

    def total(self, t: Floats) -> float:
        return float(self.weight @ np.logaddexp(0, -self.b * t))

    def slope(self, t: Floats) -> Floats:
        return -self.b * (self.weight * sigmoid(-self.b * t))

    def derivatives(self, t: Floats) -> tuple[Floats, Floats]:
        m = self.b * t
        pull = self.weight * sigmoid(-m)
        return -self.b * pull, pull * sigmoid(m)

    def shows_no_minimum(self, t: Floats) -> bool:
        """Every row is on the right side: these predictors separate the data."""
        return bool((self.b * t > 0).all())

    def why_no_minimum(self, C: Floats) -> str | None:
        if separable(self.b[:, None] * C):
            return "the data are separable and reg is 0: f falls for ever along some direction and has no minimiser"
        return "no minimiser could be certified: the data are separable, or nearly so, and reg is 0"


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact in both tails."""
    return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x), exact in both tails."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def separable(C: Floats) -> bool:
    """Whether some w has c_j . w >= 0 for every row and > 0 for one, by a linear program. False where it is large."""
    if C.size > MAX_PROGRAM_SIZE:
        return False
    from scipy.optimize import linprog

    # The most of sum_j c_j . w over the box |w| <= 1 under c_j . w >= 0: zero exactly where there is no such w.
    solution = linprog(-C.sum(0), A_ub=-C, b_ub=np.zeros(len(C)), bounds=(-1, 1), method="highs")
    return bool(solution.status == 0 and -solution.fun > 1e-7)
