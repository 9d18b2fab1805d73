"""Least absolute deviations: f_i(w) = |a_i.w - b_i|, one row per user. Convex, neither smooth nor strongly convex."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.problems.inputs import as_rows, as_tensor, as_weights, finite, points
from resolvent.problems.problem import select, short


class AbsoluteDeviations:
    """f_i(w) = |a_i.w - b_i| with A of shape (users, d) and b of shape (users,); a zero row is a constant.

    The minimiser and f* come from a linear program, solved when first asked for. They are exact to round-off, but where
    two vertices are nearly tied f* may be high by about 1e-10 of the data's size. None without scipy or if HiGHS fails.
    """

    users: int
    dim: int
    weights: Tensor
    A: Tensor
    b: Tensor

    offers = frozenset({"value", "grad", "prox"})
    convex = True
    closed_form = True
    lipschitz = None

    __repr__ = short

    def __init__(self, A: Any, b: Any, weights: Any = None, *, penalty: Any = None) -> None:
        self.penalty = penalty
        A = finite(as_tensor(A, "A"), "A")
        if A.ndim != 2:
            refuse("A", f"of shape {tuple(A.shape)}", "(users, d), one row per user, is needed")
        b = finite(as_tensor(b, "b").to(A), "b")
        if b.shape != A.shape[:1]:
            refuse("b", f"of shape {tuple(b.shape)}", f"one number for each of the {len(A)} rows of A is needed")
        self.users, self.dim = A.shape
        self.A, self.b = A, b
        self.weights = as_weights(weights, self.users, A)
        size = A.square().sum(1)
        self._size = torch.where(size > 0, size, 1.0)  # |a_i|^2; any number will do where a_i = 0

    def _residual(self, W: Tensor) -> Tensor:
        return (as_rows(W, self) * self.A).sum(1) - self.b

    def value(self, W: Tensor) -> Tensor:
        return self._residual(W).abs()

    def grad(self, W: Tensor) -> Tensor:
        """A subgradient: a_i sign(a_i.w - b_i), and 0 at the kink."""
        return self._residual(W).sign()[:, None] * self.A

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """u - a_i t, with t = (a_i.u - b_i)/|a_i|^2 taking u onto the kink unless |t| > eta, the longest step."""
        step = (self._residual(U) / self._size).clamp(-eta, eta)
        return as_rows(U, self) - step[:, None] * self.A

    def take(self, who: Tensor) -> AbsoluteDeviations:
        return AbsoluteDeviations(self.A[who], self.b[who], select(self.weights, who), penalty=self.penalty)

    @property
    def convexity(self) -> Tensor:
        return torch.zeros_like(self.weights)

    @cached_property
    def typical_eta(self) -> float:
        """How far users are from their kinks at the origin, over the length of their gradients: where to start."""
        far = (self.b.abs() / self._size)[(self.b != 0) & (self.weights > 0)]
        return float(far.median()) if len(far) else 1.0

    @cached_property
    def _star(self) -> Tensor | None:
        """The minimiser in float64, whatever the data are in: f* should not be rounded twice. None with a penalty."""
        if self.penalty is not None:
            return None
        A, b, lam = (x.detach().cpu().double().numpy() for x in (self.A, self.b, self.weights))
        w = weighted_deviations(A, b, lam)
        return None if w is None else torch.from_numpy(w).to(self.A.device)

    @property
    def minimiser(self) -> Tensor | None:
        return None if self._star is None else self._star.to(self.weights)

    @property
    def fstar(self) -> float | None:
        return None if self._star is None else float(self.weights.double() @ self._deviations(self._star))

    def gap(self, W: Tensor) -> Tensor | None:
        """sum_i lambda_i (|r_i(w)| - |r_i(w*)|), term by term in float64 so that little cancels; never below 0."""
        if self._star is None:
            return None
        least, lam = self._deviations(self._star), self.weights.double()
        gaps = [(self._deviations(w) - least) @ lam for w in points(W, self).double()]
        return torch.stack(gaps).clamp(min=0).to(self.weights)

    def _deviations(self, w: Tensor) -> Tensor:
        """|r_i(w)| in float64, (users,)."""
        return (self.A.double() @ w - self.b.double()).abs()


def weighted_deviations(A: Any, b: Any, lam: Any) -> Any:
    """argmin_w sum_i lam_i |a_i.w - b_i| from NumPy arrays, or None.

    With rows of length one and costs c_i = lam_i |a_i| the dual is small,

        max -b.y   subject to   A^T y = 0,  -c <= y <= c,

    and the multipliers of its d equations are w. Where |y_i| < c_i strictly the residual is zero, so w is made exact by
    solving those equations: HiGHS alone stops near 1e-10.
    """
    try:
        from scipy.optimize import linprog
    except ImportError:
        return None
    size = np.linalg.norm(A, axis=1)
    used = lam * size > 0
    if not used.any():
        return np.zeros(A.shape[1])
    A, b, cost = A[used] / size[used, None], b[used] / size[used], (lam * size)[used]
    # The tolerances of HiGHS are absolute, so let everything be of size one: columns, targets and costs.
    columns = np.linalg.norm(A, axis=0)
    columns[columns == 0] = 1.0
    unit = np.abs(b).max() or 1.0
    A, b, cost = A / columns, b / unit, cost / cost.max()
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    bounds = np.stack([-cost, cost], axis=1)
    found = linprog(b, A_eq=A.T, b_eq=np.zeros(A.shape[1]), bounds=bounds, method="highs", options=tight)
    if found.status != 0:
        return None
    w = found.eqlin.marginals
    exact = np.abs(found.x) < cost * (1 - 1e-8)
    polished = w + np.linalg.lstsq(A[exact], b[exact] - A[exact] @ w, rcond=None)[0]
    return unit / columns * min(w, polished, key=lambda v: float(cost @ np.abs(A @ v - b)))
