"""f_i(w) = 1/2 |A_i w - b_i|^2, a sum over user i's rows, as in the paper's appendix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import bounded, flag
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.inputs import FLOAT, as_rows, as_weights
from resolvent.problems.linear.loss import Loss
from resolvent.problems.linear.model import LinearModel
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.over_rows import OverRows
from resolvent.problems.problem import select
from resolvent.problems.products import rows_times, times_rows
from resolvent.problems.quadratic.affine import Affine, prox_share
from resolvent.problems.quadratic.decomposition import decompose
from resolvent.problems.quadratic.jacobi import EASY
from resolvent.problems.quadratic.pooled import Pooled, PooledSquares, balanced, pooled
from resolvent.problems.reference import Minimum, Pool, Unknown, minimum
from resolvent.problems.reference.gaps import Gaps
from resolvent.problems.reference.objective import Objective
from resolvent.problems.reference.pooled_rows import PooledRows
from resolvent.problems.reference.terms import terms
from resolvent.problems.row_weights import weigh
from resolvent.problems.rows import as_data
from resolvent.problems.sparse_rows import is_sparse


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


class LeastSquares(OverRows):
    """Least squares over users of any sizes, weights and ranks.

    A is (users, rows, d) and b (users, rows), or lists of matrices and vectors of unequal lengths; NumPy, torch,
    pandas, polars or, in lists, SciPy sparse.
    One eigendecomposition per user, computed once, serves everything: values, gradients, prox at any eta, constants.
    It and every sum are in float64. Rows in float32 stay so in memory, and the answers are in float32 too. With
    `intercept` there is one more parameter, the last, which `penalty` does not touch. `sample_weight`, in the shape of
    b, multiplies the squares.
    """

    offers = frozenset({"value", "grad", "prox", "hessian", "batches", "spectrum"})
    closed_form = True

    def __new__(cls, A: Any = None, *args: Any, **keywords: Any) -> Any:
        """Sparse rows have no dense decompositions: they are a linear model, solved by Newton's method."""
        if cls is LeastSquares and isinstance(bounded(A, "A"), (list, tuple)) and any(is_sparse(a) for a in A):
            return SparseLeastSquares(A, *args, **keywords)
        return super().__new__(cls)

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
        self.rows = weigh(as_data(A, b), sample_weight)
        self.intercept, self.penalty = flag(intercept, "intercept"), penalty
        if self.intercept:
            self.rows = self.rows.with_ones()
        like = self.rows.buckets[0].b
        double = torch.empty((), dtype=FLOAT, device=like.device)
        self._lam = as_weights(weights, self.rows.users, double, self.rows.mass)
        self.rows = self.rows.absorbed(0.5)
        self.weights = self._lam.to(like.dtype)
        self.spectrum = decompose(self.rows)

    @property
    def predictor(self) -> Predictor:
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
        A, b = (part.to(FLOAT) for part in self.rows.pick(rows)[:2])
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

    # --- the minimum: of least norm and always known without a penalty -----------------------------------------------

    @cached_property
    def _triangle(self) -> tuple[Any, Any, float]:
        """sum_i lambda_i |A_i w - b_i|^2 / 2 as |C w - target|^2 / 2 + constant with at most d rows."""
        scaled = [np.column_stack([A, b]) * np.sqrt(weight) for A, b, weight in self._users() if weight > 0]
        return triangle(scaled)

    def pool(self) -> Pool | Unknown:
        g = penalty_of(self)
        if g is None:
            return self._squares
        own = terms(g, self.dim)
        if own is None:
            return Unknown(f"no certified minimum is known with the penalty {g}")
        unaffordable = PooledRows.unaffordable(self.dim, self.dim, True)
        if unaffordable is not None:
            return unaffordable
        C, target, constant = self._triangle
        return PooledRows(squares(C, target), own, 0.0, constant)

    @property
    def _squares(self) -> PooledSquares:
        # The minimum of some user may not be known to as many digits as its rows know it.
        return PooledSquares(self.rows, self._lam, self._pooled, self.spectrum.spans(EASY))

    @cached_property
    def minimum(self) -> Minimum | Unknown:
        least = minimum(self.pool())
        if isinstance(least, Unknown) or self._squares.hard == (self.penalty is None):
            return least
        if self.penalty is None:  # f* is f as `value` has it
            value = float(self._lam @ self._values(self._pooled.minimiser.unsqueeze(0)))
        else:  # the triangle has rounding errors of its own: f is summed over the rows instead
            C, target, constant = self._triangle
            square = float(0.5 * np.square(C @ least.w - target).sum() + constant)
            value = least.value + self._squares.at(least.w, True).value - square
        return replace(least, value=value, bound=least.bound + abs(value - least.value))

    def gaps(self, least: Minimum) -> Callable[[Tensor], Tensor]:
        """In float64, whatever W is in: that of the model as it is reported."""
        if self.penalty is None:
            return self._pooled.gap
        C, target = (torch.from_numpy(part).to(self._lam) for part in self._triangle[:2])
        star = torch.from_numpy(least.w).to(self._lam)
        return Gaps.around(
            least,
            penalty_of(self),
            star,
            value=lambda w: 0.5 * (C @ w - target).square().sum(),
            divergence=lambda w: 0.5 * (C @ (w - star)).square().sum(),
        )

    @property
    def minimiser(self) -> Any:
        """The minimiser of f of least norm; with a penalty one of f + g, None where none is certified."""
        return super().minimiser

    @property
    def fstar(self) -> Any:
        """A number; with a penalty None where no minimum is certified."""
        return super().fstar

    def gap(self, W: Tensor) -> Any:
        return None if self._gaps is None else self._gaps(W)


def triangle(scaled: list[Any]) -> tuple[Any, Any, float]:
    """|C w - target|^2 / 2 + constant with at most d rows, from users' rows [A, b].

    One user after the other, the largest first: small ones retain their precision then.
    """
    scaled = sorted(scaled, key=lambda rows: -float(np.abs(rows).max(initial=0)))
    d = scaled[0].shape[1] - 1
    R = np.zeros((0, d + 1))
    for rows in scaled:
        R = np.vstack([R, rows])
        if len(R) > d:
            R = np.asarray(np.linalg.qr(R, mode="r"))
    if len(R) <= d:
        return R[:, :d], R[:, d], 0.0
    return R[:d, :d], R[:d, d], float(R[d, d] ** 2) / 2


def squares(C: Any, target: Any) -> Objective:
    """|C w - target|^2 / 2."""
    loss = SquareLoss(torch.from_numpy(target)).weighted(np.ones(len(C)))
    return Objective(C, np.zeros(len(C)), loss, 0.0, rotated=True)
