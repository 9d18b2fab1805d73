"""f_i(w) = sum_j phi(a_ij . w; b_ij) + reg_i/2 |w|^2, a sum over user i's rows, for any smooth convex loss phi."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.inputs import as_rows
from resolvent.problems.linear import careful, hessians
from resolvent.problems.linear.loss import Loss, Weighted
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.newton.inverses import check_room
from resolvent.problems.over_rows import Curved
from resolvent.problems.products import rows_times, times_rows
from resolvent.problems.reference import Pool, Unknown
from resolvent.problems.reference.objective import Floats, Objective, WeightedLoss
from resolvent.problems.reference.pooled_rows import PooledRows
from resolvent.problems.reference.terms import terms
from resolvent.problems.reference.wide import WidePool
from resolvent.problems.row_weights import weigh
from resolvent.problems.rows import as_data

MAX_DENSE_COPY = 1 << 25
"""Numbers in all users' sparse rows up to which the minimum may take a dense copy of them."""


class LinearModel(Curved):
    """A loss over users of any sizes and weights. `loss` makes a Loss from targets.

    `reg` is a number, or one per user; without it 1 / (users * rows_i), the paper's. With `intercept` there is one more
    parameter, the last, which `reg` leaves alone. `penalty` is stored for the meeting point. `sample_weight` and, of
    classifiers, `class_weight` multiply rows' losses (`row_weights.weigh`).
    """

    kind = ""
    """The name of the loss, for predictions; empty where there is none."""
    labels: tuple[int, int] | None = None
    """Of the two classes; None for a regression."""
    same = ("loss", "intercept", "penalty")

    def __init__(
        self,
        loss: Callable[[Tensor], Loss],
        A: Any,
        b: Any,
        reg: Any = None,
        weights: Any = None,
        *,
        intercept: bool = False,
        penalty: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
    ) -> None:
        self.loss, rows = loss, as_data(A, b)
        for bucket in rows.buckets:
            loss(bucket.b if bucket.mask is None else bucket.b[bucket.mask > 0]).check()
        rows = weigh(rows, sample_weight, class_weight, self.labels or ())
        super().__init__(rows, reg, weights, intercept, penalty)

    @property
    def predictor(self) -> Predictor:
        if not self.kind:
            refuse("predictor", f"asked of {type(self).__name__}", "a loss that the package has is needed to predict")
        return Predictor(self.kind, self.dim - self.intercept, self.intercept, self.labels, self._numbers())

    def _numbers(self) -> dict[str, float]:
        return {}

    @cached_property
    def _losses(self) -> list[Loss]:
        """One per bucket. A padded row has a = 0 and b = 0."""
        return [self._loss(bucket.b, bucket.weight) for bucket in self.rows.buckets]

    def _loss(self, b: Tensor, weight: Tensor | None) -> Loss:
        return self.loss(b) if weight is None else Weighted(self.loss(b), weight)

    def value(self, W: Tensor) -> Tensor:
        W = as_rows(W, self)
        parts = []
        for bucket, loss in zip(self.rows.buckets, self._losses, strict=True):
            values = loss.value(bucket.margins(W))
            parts.append((values if bucket.mask is None else values * bucket.mask).sum(1))
        if self.intercept:
            return self.rows.gather(parts) + 0.5 * (self.ridge * W * W).sum(1)
        return self.rows.gather(parts) + 0.5 * self.reg * (W * W).sum(1)

    def grad(self, W: Tensor) -> Tensor:
        W = as_rows(W, self)
        parts = []
        for bucket, loss in zip(self.rows.buckets, self._losses, strict=True):
            parts.append(bucket.combine(loss.slope(bucket.margins(W))))
        return torch.addcmul(self.rows.gather(parts), self.ridge, W)

    def hessian(self, W: Tensor) -> Tensor:
        """One user at a time, so that a cached inverse has the same bits whichever users are asked together."""
        check_room(self)
        rows = [w.clone() for w in as_rows(W, self).expand(self.users, -1)]
        H = torch.stack([self._bend(i, w) for i, w in enumerate(rows)])
        H.diagonal(dim1=1, dim2=2).add_(self.ridge)
        return H

    def _bend(self, i: int, w: Tensor) -> Tensor:
        """A^T diag(phi'') A of one user."""
        loss = self._loss(self.rows.one(i)[1], self.rows.weight(i))
        if self.rows.sparse:
            one: Any = self.rows.alone(i).buckets[0]
            H: Tensor = one.gram(loss.curvature(one.margins(w.unsqueeze(0))[0]))
            return H
        A = self.rows.dense(i)
        return (A * loss.curvature(A @ w).unsqueeze(1)).T @ A

    def thin_inverse(self, i: int, at: Tensor, eta: Tensor) -> tuple[Tensor, Tensor]:
        """V and c with (I + eta H)^-1 = (I - V^T V) / c for a user with fewer rows than features."""
        A, loss = self.rows.dense(i), self._loss(self.rows.one(i)[1], self.rows.weight(i))
        M = A * (eta * loss.curvature(A @ at.clone())).sqrt().unsqueeze(1)
        c = 1 + eta * self.reg[i]
        if self.intercept:  # c is 1 there: the same matrix with that column scaled, before and after
            M[:, -1] *= c.sqrt()
        S = M @ M.T
        S.diagonal().add_(c)
        L, info = torch.linalg.cholesky_ex(S)
        V = torch.linalg.solve_triangular(L, M, upper=False) if int(info) == 0 else torch.zeros_like(M)
        if self.intercept:
            V[:, -1] *= c.sqrt()
        return V, c

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """n_i / |batch| times the gradient over the chosen rows (users, k), and the regulariser's: unbiased."""
        A, b, weight = self.rows.pick(rows)
        scale = self.sizes.to(A) / mask.sum(1).clamp_min(1)
        slope = self._loss(b, weight).slope(times_rows(A, W)) * mask * scale.unsqueeze(1)
        return self.ridge * W + rows_times(slope, A)

    # --- without matrices of d x d numbers ---------------------------------------------------------------------------

    @property
    def matrix_free(self) -> bool:
        """Whether rows are sparse and a matrix of d x d numbers per user would be large."""
        return self.rows.sparse and super().matrix_free

    hessian_times, hessian_diagonal = hessians.hessian_times, hessians.hessian_diagonal
    preconditioner = hessians.preconditioner

    def excess(self, w: Tensor, size: float) -> float:
        """A bound on f(w) - f* by strong convexity, where reg pulls at all parameters; else infinite."""
        mu = float(self.weights @ self.convexity)
        return size**2 / (2 * mu) if mu > 0 else math.inf

    # --- what Newton's method needs ---------------------------------------------------------------------------------

    careful_prox, rounding, value_rounding = careful.careful_prox, careful.rounding, careful.value_rounding

    def _weighted(self, b: Floats, weight: Floats) -> WeightedLoss:
        return self.loss(torch.from_numpy(b)).weighted(weight)

    # --- constants and the minimum -----------------------------------------------------------------------------------

    @cached_property
    def lipschitz(self) -> Tensor | None:
        """The global constants |A_i|^2 max phi'' + reg_i; near a solution the curvature may be far smaller."""
        curvature = self.loss(self.rows.buckets[0].b).largest_curvature
        if not math.isfinite(curvature):
            return None
        return self.rows.gather([bucket.largest() for bucket in self.rows.absorbed(0.5).buckets]) * curvature + self.reg

    @property
    def _too_wide(self) -> bool:
        """Whether rows are sparse and too many for a dense copy of them."""
        return self.rows.sparse and (self.matrix_free or int(self.sizes.sum()) * self.dim > MAX_DENSE_COPY)

    def pool(self) -> Pool | Unknown:
        g = penalty_of(self)
        own = None if g is None else terms(g, self.dim)
        if g is not None and own is None:
            return Unknown(f"no certified minimum is known with the penalty {g}")
        if self._too_wide:
            if g is not None:
                return Unknown("the minimum with a penalty is not sought for so many sparse rows and features")
            return WidePool(self.double())
        lam = self.weights.double()
        counted = [i for i in range(self.users) if float(lam[i]) > 0]
        sizes = [int(self.sizes[i]) for i in counted]
        unaffordable = PooledRows.unaffordable(sum(sizes), self.dim, g is not None)
        if unaffordable is not None:
            return unaffordable
        users = [
            (self.rows.dense(i) if self.rows.sparse else self.rows.one(i)[0], self.rows.one(i)[1]) for i in counted
        ]
        C, target = (
            np.concatenate([part.cpu().numpy() for part in parts]).astype(np.float64, copy=False)
            for parts in zip(*users, strict=True)
        )
        weight = np.repeat([float(lam[i]) for i in counted], sizes) * self._own_weights(counted)
        ridge = self._mean_ridge.cpu().numpy()
        loss = self._weighted(target, weight)
        objective = Objective(C, np.zeros(len(C)), loss, float(ridge) if ridge.ndim == 0 else ridge)
        return PooledRows(objective, own, self.loss(self.rows.buckets[0].b).least * float(weight.sum()))

    def _own_weights(self, users: list[int]) -> Floats | float:
        """Those of these users' rows, one after the other."""
        each = [self.rows.weight(i) for i in users]
        if self.rows.buckets[0].weight is None:
            return 1.0
        return np.concatenate([weight.double().cpu().numpy() for weight in each if weight is not None])

    @property
    def _mean_ridge(self) -> Tensor:
        """The weighted mean of reg: a number, or one per parameter with an intercept."""
        reg = self.weights.double() @ self.reg.double()
        if not self.intercept:
            return reg
        ridge = reg.repeat(self.dim)
        ridge[self.intercepts] = 0
        return ridge

    def divergence(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        buckets = self.rows.buckets
        each = [loss.divergence(b.margins(w)) for b, loss in zip(buckets, self._losses, strict=True)]

        def to(e: Tensor) -> Tensor:
            parts = [divergence(b.margins(e)).sum(1) for b, divergence in zip(buckets, each, strict=True)]
            return self.rows.gather(parts) + 0.5 * (self.ridge * e * e).sum(1)

        return to

    def _sharp_value(self) -> Callable[[Tensor], Tensor]:
        pool = self.pool()
        assert isinstance(pool, PooledRows)
        f = pool.objective
        return lambda w: w.new_tensor(f.value(w.cpu().numpy(), f.sharp_predictors(w.cpu().numpy())))
