"""f_i(w) = 1/2 |A_i w - b_i|^2, a sum over user i's rows, as in the paper's appendix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import flag
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.compensated import predictors
from resolvent.problems.inputs import FLOAT, as_rows, as_weights
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.over_rows import OverRows
from resolvent.problems.penalised import Penalised, least
from resolvent.problems.penalised.squares import as_objective, squares
from resolvent.problems.problem import select
from resolvent.problems.products import rows_times, times_rows
from resolvent.problems.quadratic.affine import Affine, prox_share
from resolvent.problems.quadratic.decomposition import decompose
from resolvent.problems.quadratic.jacobi import EASY
from resolvent.problems.quadratic.pooled import Pooled, balanced, pooled
from resolvent.problems.rows import as_data
from resolvent.problems.sparse_least_squares import SparseLeastSquares
from resolvent.problems.sparse_rows import is_sparse


class LeastSquares(OverRows):
    """Least squares over users of any sizes, weights and ranks.

    A is (users, rows, d) and b (users, rows), or lists of matrices and vectors of unequal lengths; NumPy, torch,
    pandas, polars or, in lists, SciPy sparse.
    One eigendecomposition per user, computed once, serves everything: values, gradients, prox at any eta, constants.
    It and every sum are in float64. Rows in float32 stay so in memory, and the answers are in float32 too. With
    `intercept` there is one more parameter, the last, which `penalty` does not touch.
    """

    offers = frozenset({"value", "grad", "prox", "hessian", "batches", "spectrum"})
    closed_form = True

    def __new__(cls, A: Any = None, *args: Any, **keywords: Any) -> Any:
        """Sparse rows have no dense decompositions: they are a linear model, solved by Newton's method."""
        if cls is LeastSquares and isinstance(A, (list, tuple)) and any(is_sparse(a) for a in A):
            return SparseLeastSquares(A, *args, **keywords)
        return super().__new__(cls)

    def __init__(self, A: Any, b: Any, weights: Any = None, *, intercept: bool = False, penalty: Any = None) -> None:
        self.rows = as_data(A, b)
        self.intercept, self.penalty = flag(intercept, "intercept"), penalty
        if self.intercept:
            self.rows = self.rows.with_ones()
        like = self.rows.buckets[0].b
        double = torch.empty((), dtype=FLOAT, device=like.device)
        self._lam = as_weights(weights, self.rows.users, double, self.rows.sizes)
        self.weights = self._lam.to(like.dtype)
        self.spectrum = decompose(self.rows)

    @property
    def predictor(self) -> Predictor:
        """What says how a model of this problem predicts."""
        return Predictor("least-squares", self.dim - self.intercept, self.intercept)

    def value(self, W: Tensor) -> Tensor:
        return self._values(as_rows(W, self)).to(self.weights.dtype)

    def _values(self, W: Tensor) -> Tensor:
        t = self.spectrum.coordinates(W)
        return self.spectrum.floor + 0.5 * (self.spectrum.s * t * t).sum(1)

    def grad(self, W: Tensor) -> Tensor:
        t = self.spectrum.coordinates(as_rows(W, self))
        return self.spectrum.back(self.spectrum.s * t).to(self.weights.dtype)

    def hessian(self, W: Tensor) -> Tensor:
        return self.spectrum.hessian(self.spectrum.s).to(self.weights.dtype)

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """(I + eta A^T A)^-1 (u + eta A^T b)."""
        return self.filtered(lambda s: prox_share(eta * s), steady=False)(as_rows(U, self), None)

    def filtered(self, share: Callable[[Tensor], Tensor], steady: bool) -> Affine:
        """The operator that goes the share c(s) of the way from u to x_i along each eigenvector."""
        return Affine(self.spectrum, share(self.spectrum.s), self._lam, steady, self.weights.dtype)

    def balanced(self, c: Tensor) -> Tensor:
        """w with sum_i lambda_i V_i^T diag(c_i) V_i (w - x_i) = 0, of least norm."""
        return balanced(self.spectrum, c, self._lam).to(self.weights.dtype)

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """n_i / |batch| times the gradient over the chosen rows (users, k): unbiased."""
        A, b = (part.to(FLOAT) for part in self.rows.pick(rows))
        scale = self.sizes.to(A) / mask.sum(1).clamp_min(1)
        residual = (times_rows(A, W.to(FLOAT)) - b) * mask * scale.unsqueeze(1)
        return rows_times(residual, A).to(W.dtype)

    def take(self, who: Tensor) -> LeastSquares:
        part = object.__new__(LeastSquares)
        part.intercept, part.penalty = self.intercept, self.penalty
        part.rows, part._lam = self.rows.take(who), select(self._lam, who)
        part.weights, part.spectrum = part._lam.to(self.weights.dtype), self.spectrum.take(who)
        return part

    @property
    def lipschitz(self) -> Tensor:
        return torch.amax(self.spectrum.s, 1).to(self.weights.dtype)

    @property
    def convexity(self) -> Tensor:
        thin = self.spectrum.s.shape[1] < self.dim
        return torch.zeros_like(self.weights) if thin else torch.amin(self.spectrum.s, 1).to(self.weights.dtype)

    @cached_property
    def _pooled(self) -> Pooled:
        return pooled(self.spectrum, self.spectrum.s, self._lam, self._users)

    def _users(self) -> Iterator[tuple[Any, Any, float]]:
        """Each user's rows and targets in float64, and its weight."""
        for i, weight in enumerate(self._lam.tolist()):
            A, b = self.rows.one(i)
            yield A.double().cpu().numpy(), b.double().cpu().numpy(), weight

    @cached_property
    def penalised(self) -> Penalised | None:
        """f + g around its minimum; None without a penalty."""
        g = penalty_of(self)
        if g is None:
            return None
        *rows, constant = squares(user for user in self._users() if user[2] > 0)
        C, target = (torch.from_numpy(part).to(self._lam) for part in rows)
        found = least(as_objective(*rows), g, 0.0, constant)
        if found.w is not None and found.value is not None and self._hard:
            w = torch.from_numpy(found.w).to(self._lam)
            more = self._summed(w) - float(0.5 * (C @ w - target).square().sum() + constant)
            constant, found = constant + more, replace(found, value=found.value + more)
        star = torch.from_numpy(np.zeros(self.dim) if found.w is None else found.w).to(self._lam)
        return Penalised(
            g,
            found,
            value=lambda w: 0.5 * (C @ w - target).square().sum() + constant,
            divergence=lambda w: 0.5 * (C @ (w - star)).square().sum(),
        )

    @property
    def minimiser(self) -> Any:
        """The minimiser of f of least norm; with a penalty one of f + g, None where none is certified."""
        if self.penalised is not None:
            return self.penalised.minimiser(self.weights)
        return self._pooled.minimiser.to(self.weights.dtype)

    @property
    def without_minimum(self) -> str | None:
        """Why the minimum of f + g is not known; None where it is."""
        return None if self.penalised is None else self.penalised.least.why

    @cached_property
    def fstar(self) -> Any:
        """A number; with a penalty None where no minimum is certified."""
        if self.penalised is not None:
            return self.penalised.fstar
        w = self._pooled.minimiser
        return self._summed(w) if self._hard else float(self._lam @ self._values(w.unsqueeze(0)))

    @property
    def _hard(self) -> bool:
        """Whether the minimum of some user is not known to as many digits as its rows know it."""
        return self.spectrum.spans(EASY)

    def _summed(self, w: Tensor) -> float:
        """f at one model w (d,) from the rows themselves, with residuals as if in twice the precision."""
        parts = []
        for bucket in self.rows.buckets:
            A, b = bucket.A.flatten(0, 1).cpu().numpy(), bucket.b.flatten().double().cpu().numpy()
            residual = torch.from_numpy(predictors(A, w.cpu().numpy(), -b)).to(self._lam)
            parts.append(residual.reshape(bucket.b.shape).square().sum(1))
        return 0.5 * float(self._lam @ self.rows.gather(parts))

    def gap(self, W: Tensor) -> Any:
        """f(w) - f*, of f + g with a penalty, in float64, whatever W is in: that of the model as it is reported."""
        return self._pooled.gap(W) if self.penalised is None else self.penalised.gap(W)
