"""Least squares for the central solver: all users' rows as one small triangle, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from resolvent.problems.newton.objective import EPS, Floats, Objective

EXTENDED = 1 << 22
"""The most numbers for which a gradient is computed in extended precision, which is slow."""


@dataclass(frozen=True, eq=False)
class Squares:
    """(t - target)^2 / 2 of every row, as `WeightedLoss` has it."""

    target: Floats
    curvature_rate = 0.0

    @property
    def largest_curvature(self) -> Floats:
        return np.ones_like(self.target)

    def total(self, t: Floats) -> float:
        e = t - self.target
        return float(e @ e) / 2

    def slope(self, t: Floats) -> Floats:
        return np.asarray(t - self.target, np.float64)

    def derivatives(self, t: Floats) -> tuple[Floats, Floats]:
        return t - self.target, np.ones_like(t)

    def least_curvature(self, t: Floats, reach: Floats) -> Floats:
        return np.ones_like(t)

    def slope_size(self, t: Floats) -> Floats:
        return np.asarray(np.abs(t) + np.abs(self.target), np.float64)

    def gradient_and_rounding(self, C: Floats, offset: Floats, w: Floats) -> tuple[Floats, Floats] | None:
        """C^T (offset + C w - target) in extended precision, and a bound on its error; None where there is no such."""
        eps = float(np.finfo(np.longdouble).eps)
        if not eps < EPS / 1e3 or C.size > EXTENDED:
            return None
        rows = C.astype(np.longdouble)
        e = offset + rows @ w - self.target
        size = np.abs(offset) + np.abs(self.target) + np.abs(C) @ np.abs(w)
        return np.asarray(e @ rows, np.float64), (2 + len(w)) * eps * (size @ np.abs(C)) + EPS * np.abs(e @ rows)

    def shows_no_minimum(self, t: Floats) -> bool:
        return False

    def why_no_minimum(self, C: Floats) -> str | None:
        return None


def squares(users: Iterable[tuple[Floats, Floats, float]]) -> tuple[Floats, Floats, float]:
    """sum_i lambda_i |A_i w - b_i|^2 / 2 of users' (A, b, lambda), lambda > 0, as |C w - target|^2 / 2 + constant with
    at most d rows: C, target and the constant.

    The rows are triangularised one user after the other, the largest first: small ones retain their precision then.
    """
    scaled = [np.column_stack([A, b]) * np.sqrt(weight) for A, b, weight in users]
    scaled.sort(key=lambda rows: -float(np.abs(rows).max(initial=0)))
    d = scaled[0].shape[1] - 1
    R = np.zeros((0, d + 1))
    for rows in scaled:
        R = np.vstack([R, rows])
        if len(R) > d:
            R = np.asarray(np.linalg.qr(R, mode="r"))
    if len(R) <= d:
        return R[:, :d], R[:, d], 0.0
    return R[:d, :d], R[:d, d], float(R[d, d] ** 2) / 2


def as_objective(C: Floats, target: Floats) -> Objective:
    """|C w - target|^2 / 2."""
    return Objective(C, np.zeros(len(C)), Squares(target), 0.0, rotated=True)
