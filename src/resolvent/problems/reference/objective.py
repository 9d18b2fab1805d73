"""A weighted sum of losses of linear predictors, with a ridge, in NumPy and float64:

F(z) = sum_j omega_j phi_j(o_j + c_j . z) + kappa/2 |z|^2 + tilt . z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from resolvent.problems.compensated import predictors

Floats = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
BLOCK_NUMBERS = 1 << 18
"""Numbers in one block of weighted rows."""


class WeightedLoss(Protocol):
    """omega_j phi_j of every row j, as functions of the predictors t (n,)."""

    @property
    def curvature_rate(self) -> float | None:
        """M with |phi'''| <= M phi''; None where there is none."""

    @property
    def largest_curvature(self) -> Floats:
        """A bound on omega_j phi_j''."""

    def total(self, t: Floats) -> float:
        """sum_j omega_j phi_j(t_j)."""

    def slope(self, t: Floats) -> Floats:
        """omega_j phi_j'(t_j)."""

    def derivatives(self, t: Floats) -> tuple[Floats, Floats]:
        """omega_j phi_j'(t_j) and omega_j phi_j''(t_j)."""

    def slope_size(self, t: Floats) -> Floats:
        """What the rounding errors of the slopes are relative to."""
        return np.abs(self.slope(t))

    def least_curvature(self, t: Floats, reach: Floats) -> Floats:
        """A lower bound of omega_j phi_j'' within `reach` of t, where there is no `curvature_rate`."""
        return np.zeros_like(t)

    def shows_no_minimum(self, t: Floats) -> bool:
        """Whether the sum of the losses falls for ever in the direction of these predictors."""
        return False

    def why_no_minimum(self, C: Floats) -> str | None:
        """Why the sum of the losses has no minimiser over these rows, in words; None where it may have one."""
        return None


@dataclass(frozen=True, eq=False)
class Objective:
    """F: rows c_j (n, d), offsets o_j (n,), the weighted losses, kappa (a number or one per coordinate) and the tilt.

    `rotated` rows are coordinates in another basis: each is known to a unit in the last place of its length only.
    """

    C: Floats
    offset: Floats
    loss: WeightedLoss
    ridge: float | Floats
    rotated: bool = False
    tilt: Floats | None = None

    def predictors(self, z: Floats) -> Floats:
        t: Floats = self.offset + self.C @ z
        return t

    def predictor_sizes(self, z: Floats) -> Floats:
        """What the rounding errors of the predictors at z are relative to: |o_j| + |c_j| . |z|."""
        size = np.abs(self.offset)
        for part in self.blocks():
            size[part] += self.sizes(part) @ np.abs(z)
        return size

    @property
    def least_ridge(self) -> float:
        """F is strongly convex with this modulus, whatever the losses do."""
        return float(np.min(self.ridge))

    def pull(self, x: Floats, y: Floats) -> float:
        """x . K y, with K the ridge."""
        return float(self.ridge * (x @ y) if np.ndim(self.ridge) == 0 else (self.ridge * x) @ y)

    def value(self, z: Floats, t: Floats | None = None) -> float:
        """F(z), where the predictors are t, if these are known."""
        total = self.loss.total(self.predictors(z) if t is None else t) + self.pull(z, z) / 2
        return float(total if self.tilt is None else total + self.tilt @ z)

    def sharp_predictors(self, z: Floats) -> Floats:
        """As if in twice the precision: for long rows that nearly cancel in c . z."""
        return predictors(self.C, z, self.offset)

    def value_rounding(self, z: Floats, t: Floats, error: Floats) -> float:
        """A bound on the rounding error of the value at z, about, whose predictors t have these errors (n,)."""
        slope = np.abs(self.loss.slope(t))
        return float(slope @ (error + 4 * EPS * np.abs(t))) + 4 * EPS * (abs(self.loss.total(t)) + self.pull(z, z))

    def gradient(self, z: Floats, slope: Floats) -> Floats:
        """At z, where the losses have these slopes."""
        g: Floats = self.ridge * z + self.C.T @ slope
        return g if self.tilt is None else g + self.tilt

    def bends(self, curvature: Floats) -> Floats:
        """The diagonal of the Hessian where the losses have these curvatures."""
        diagonal = np.broadcast_to(self.ridge, self.C.shape[1]).copy()
        for part in self.blocks():
            diagonal += np.maximum(curvature[part], 0) @ self.C[part] ** 2
        return diagonal

    def sizes(self, part: slice) -> Floats:
        """What rounding errors of these rows are relative to, entry by entry."""
        size = np.abs(self.C[part])
        return np.broadcast_to(np.linalg.norm(size, axis=1)[:, None], size.shape) if self.rotated else size

    def blocks(self) -> Iterator[slice]:
        """The rows, a block at a time."""
        rows = max(1, BLOCK_NUMBERS // max(1, self.C.shape[1]))
        for first in range(0, len(self.C), rows):
            yield slice(first, first + rows)


def share_of_step(past: Callable[[float], bool]) -> float:
    """How much of a step to take: at most 1, and at least 0.9 of the way to the lowest point along it, never past it.

    `past` tells whether the lowest point lies before this share of the step. F is convex along the step, so this gains
    at least 0.9 of what the best share would.
    """
    if not past(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if past(middle) else (middle, high)
        if high - low <= 0.1 * low:
            break
    return low
