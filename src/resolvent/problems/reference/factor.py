"""The Hessian of a weighted sum of losses, factorised so that no direction is lost beside rows of larger scale."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from resolvent.problems.reference.objective import Floats, Objective

WELL = 1e-3
"""Smallest pivot of a scaled Cholesky factorisation that is trusted."""


class Factor:
    """R with R^T R = Q = sum_j k_j c_j c_j^T + kappa I, up to an order of the columns, for curvatures k_j.

    By Cholesky where scaled columns are far from dependent. Else by QR of the rows with pivoting, the largest rows
    first: small rows then retain their own precision beside large ones.
    """

    def __init__(self, objective: Objective, curvature: Floats) -> None:
        self.order: Any = slice(None)
        R = self._cholesky(objective, curvature)
        if R is None:
            R, self.order = self._qr(objective, curvature)
        self.R = R

    @staticmethod
    def _cholesky(objective: Objective, curvature: Floats) -> Floats | None:
        d = objective.C.shape[1]
        H = objective.ridge * np.eye(d)
        for part in objective.blocks():
            rows = objective.C[part] * np.sqrt(curvature[part, None])
            H += rows.T @ rows  # NumPy computes half of it, since it is symmetric
        size = np.sqrt(H.diagonal())
        if not (np.isfinite(size).all() and (size > 0).all()):
            return None
        try:
            L = np.linalg.cholesky(H / size / size[:, None])
        except np.linalg.LinAlgError:
            return None
        return np.asarray((L * size[:, None]).T, np.float64) if L.diagonal().min() > WELL else None

    @staticmethod
    def _qr(objective: Objective, curvature: Floats) -> tuple[Floats, Any]:
        from scipy.linalg import qr

        d = objective.C.shape[1]
        rows = np.vstack([np.sqrt(curvature)[:, None] * objective.C, np.sqrt(objective.ridge) * np.eye(d)])
        rows = rows[np.argsort(-np.abs(rows).max(1), kind="stable")]
        R, order = qr(rows, mode="r", pivoting=True, overwrite_a=True, check_finite=False)
        return R[:d], order

    def half(self, g: Floats) -> Floats:
        """R^-T g, for one vector or for columns: |R^-T g| is the norm of g under Q^-1."""
        from scipy.linalg import solve_triangular

        y: Floats = solve_triangular(self.R, g[self.order], trans="T", check_finite=False)
        return y

    def back(self, y: Floats) -> Floats:
        """R^-1 y, so that back(half(g)) = Q^-1 g."""
        from scipy.linalg import solve_triangular

        h = np.empty_like(y)
        h[self.order] = solve_triangular(self.R, y, check_finite=False)
        return h

    @cached_property
    def _inverse(self) -> Floats:
        return self.back(np.eye(len(self.R)))

    def lengths(self, rows: Floats) -> tuple[Floats, Floats]:
        """|R^-T c| and |Q^-1 c| of each row c."""
        if isinstance(self.order, slice):  # well-conditioned: a product is as precise as a solve, and faster
            halves = rows @ self._inverse
            return np.linalg.norm(halves, axis=1), np.linalg.norm(halves @ self._inverse.T, axis=1)
        columns = self.half(rows.T)
        return np.linalg.norm(columns, axis=0), np.linalg.norm(self.back(columns), axis=0)
