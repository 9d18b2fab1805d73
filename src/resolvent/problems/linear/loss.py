"""What a linear model needs to know of its loss: phi(t) per row, a function of the predictor t = a . w and a target b.

A loss is an object made from the targets b, so that it can precompute from them. All of its methods work
element by element, on tensors of the shape of b.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError
from resolvent.problems.reference.objective import Floats, WeightedLoss

NEAR = 1e-3
"""Up to this |h| the remainder of exp is a series."""


class Loss:
    """phi of each row, for its target b. Convex, with a slope that is continuous."""

    b: Tensor
    largest_slope: Any = math.inf
    """A bound on |phi'|: a number."""
    largest_curvature: float = math.inf
    """A bound on phi''."""
    curvature_rate: float | None = None
    """M with |phi'''| <= M phi'', so that phi'' changes at most by the factor e^(M |h|) over a distance h; None where
    there is none, as where phi'' jumps."""
    least: float = -math.inf
    """A lower bound on phi: it helps to certify a minimum with a penalty."""

    def check(self) -> None:
        """Refuse targets that this loss cannot have. Here any number is a target."""

    def value(self, t: Tensor) -> Tensor:
        """phi(t)."""
        raise NotImplementedError

    def slope(self, t: Tensor) -> Tensor:
        """phi'(t). It may overwrite t."""
        raise NotImplementedError

    def slope_size(self, t: Tensor) -> Tensor:
        """What the rounding error of phi'(t) is relative to: |phi'(t)|, or more where terms of it cancel."""
        return self.slope(t.clone()).abs()

    def curvature(self, t: Tensor) -> Tensor:
        """phi''(t), or a generalised second derivative where phi'' jumps."""
        raise NotImplementedError

    def steepness(self, t: Tensor) -> Tensor:
        """|phi'(t)| of each row."""
        return self.slope(t).abs()

    def hessian(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """The product with the Hessian in t."""
        k = self.curvature(t)
        return lambda h: k * h

    def least_curvature(self, t: Tensor, reach: Tensor) -> Tensor:
        """A lower bound of phi'' within `reach` of t: where phi'' jumps, it lets minima be certified without a
        regulariser."""
        return torch.zeros_like(t)

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """The function h -> phi(t + h) - phi(t) - phi'(t) h, never negative, without cancellation for small h."""
        raise NotImplementedError

    def weighted(self, weight: Floats) -> WeightedLoss:
        """The same loss in NumPy, with a weight per row."""
        return InNumpy(self, weight)


@dataclass(frozen=True, eq=False)
class Weighted(Loss):
    """A loss times a weight per row. What bounds it over all rows is known to the model, by its rows."""

    loss: Loss
    weight: Tensor

    def value(self, t: Tensor) -> Tensor:
        return self.weight * self.loss.value(t)

    def slope(self, t: Tensor) -> Tensor:
        return self.weight * self.loss.slope(t)

    def slope_size(self, t: Tensor) -> Tensor:
        return self.weight * self.loss.slope_size(t)

    def curvature(self, t: Tensor) -> Tensor:
        return self.weight * self.loss.curvature(t)

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        plain = self.loss.divergence(t)
        return lambda h: self.weight * plain(h)


@dataclass(frozen=True, eq=False)
class InNumpy(WeightedLoss):
    """A loss with a weight omega_j per row, for certified minimisation."""

    loss: Loss
    weight: Floats

    @property
    def curvature_rate(self) -> float | None:
        return self.loss.curvature_rate

    @property
    def largest_curvature(self) -> Floats:
        return self.weight * self.loss.largest_curvature

    def total(self, t: Floats) -> float:
        return float(self.weight @ self.loss.value(torch.tensor(t)).numpy())

    def slope(self, t: Floats) -> Floats:
        return self._weighted(self.loss.slope(torch.tensor(t)))

    def derivatives(self, t: Floats) -> tuple[Floats, Floats]:
        return self.slope(t), self._weighted(self.loss.curvature(torch.tensor(t)))

    def slope_size(self, t: Floats) -> Floats:
        return self._weighted(self.loss.slope_size(torch.tensor(t)))

    def least_curvature(self, t: Floats, reach: Floats) -> Floats:
        return self._weighted(self.loss.least_curvature(torch.tensor(t), torch.tensor(reach)))

    def _weighted(self, each: Tensor) -> Floats:
        return np.asarray(self.weight * each.numpy(), np.float64)


def exp_remainder(h: Tensor) -> Tensor:
    """e^h - 1 - h, by a series where these terms would cancel."""
    series = h * h * (1 / 2 + h * (1 / 6 + h * (1 / 24 + h / 120)))
    return torch.where(h.abs() < NEAR, series, torch.expm1(h) - h)


def check_labels(b: Tensor) -> None:
    """Refuse labels other than -1 and +1."""
    if not bool((b.abs() == 1).all()):
        raise InputError("b holds other values than -1 and +1, but those are the two labels (0/1: use 2*b - 1)")
