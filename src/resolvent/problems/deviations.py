"""Least absolute deviations: f_i(w) = |a_i.w - b_i|, one row per user. Convex, neither smooth nor strongly convex."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.problems.inputs import as_rows, as_tensor, as_weights, finite, refuse_shape
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.over_rows import WithMinimum
from resolvent.problems.pinball.minimum import PinballPool
from resolvent.problems.pinball.prox import Pinball
from resolvent.problems.problem import select
from resolvent.problems.reference import Minimum, Pool, Unknown


class AbsoluteDeviations(WithMinimum):
    """f_i(w) = |a_i.w - b_i| with A of shape (users, d) and b of shape (users,); a zero row is a constant.

    The minimiser and f* come from a linear program, solved when first asked for, and are certified by its duality gap.
    None without scipy or if HiGHS fails.
    """

    users: int
    dim: int
    weights: Tensor
    A: Tensor
    b: Tensor

    offers = frozenset({"value", "grad", "prox"})
    convex = True
    closed_form = True

    def __init__(self, A: Any, b: Any, weights: Any = None, *, penalty: Any = None) -> None:
        self.penalty = penalty
        A = finite(as_tensor(A, "A"), "A")
        if A.ndim != 2:
            refuse_shape("A", A, "(users, d), one row per user, is needed")
        b = finite(as_tensor(b, "b").to(A), "b")
        if b.shape != A.shape[:1]:
            refuse_shape("b", b, f"one number for each of the {len(A)} rows of A is needed")
        self.users, self.dim = A.shape
        self.A, self.b = A, b
        self.weights = as_weights(weights, self.users, A, torch.ones(self.users))
        size = A.square().sum(1)
        self._size = torch.where(size > 0, size, 1.0)  # |a_i|^2; any number will do where a_i = 0

    @property
    def intercepts(self) -> Tensor:
        """None of the parameters: there is no intercept."""
        return torch.arange(0, device=self.weights.device)

    @property
    def predictor(self) -> Predictor:
        """What says how a model of this problem predicts: the median."""
        return Predictor("quantile", self.dim, numbers={"q": 0.5})

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

    @cached_property
    def typical_eta(self) -> float:
        """How far users are from their kinks at the origin, over the length of their gradients: where to start."""
        far = (self.b.abs() / self._size)[(self.b != 0) & (self.weights > 0)]
        return float(far.median()) if len(far) else 1.0

    def pool(self) -> Pool | Unknown:
        if self.penalty is not None:
            return Unknown("the minimum of absolute deviations is sought without a penalty only")
        A, b, lam = (x.detach().cpu().double().numpy() for x in (self.A, self.b, self.weights))
        return PinballPool(Pinball(A, b, -lam, lam), np.zeros(self.dim))

    without_minimum = None

    def gaps(self, least: Minimum) -> Callable[[Tensor], Tensor]:
        """sum_i lambda_i (|r_i(w)| - |r_i(w*)|), term by term in float64 so that little cancels; never below 0."""
        A, b, lam = self.A.double(), self.b.double(), self.weights.double()
        lowest = (A @ torch.from_numpy(least.w).to(A) - b).abs()
        return lambda W: torch.stack([((A @ w - b).abs() - lowest) @ lam for w in W.double()]).clamp(min=0)
