"""f_i(w) = sum_j phi(a_ij . w; b_ij) + reg_i/2 |w|^2, a sum over user i's rows, for any smooth convex loss phi."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.iteration.penalties import penalty_of
from resolvent.problems.linear.curved import Curved
from resolvent.problems.linear.loss import Loss, Weighted
from resolvent.problems.newton.equation import length
from resolvent.problems.newton.safeguard import WORST, SafeProx
from resolvent.problems.reference import Pool, Unknown
from resolvent.problems.reference.objective import Floats, Objective
from resolvent.problems.reference.pooled_rows import PooledRows
from resolvent.problems.reference.smooth import minimise
from resolvent.problems.reference.terms import terms
from resolvent.problems.reference.wide import WidePool
from resolvent.problems.row_weights import weigh
from resolvent.problems.rows import as_data

MAX_DENSE_COPY = 1 << 25
"""Numbers in all users' sparse rows up to which the minimum may take a dense copy of them."""
TINY = 1e-10
"""Of the largest curvature of a parameter: the least that a preconditioner takes for granted."""


class LinearModel(Curved):
    """A loss over users of any sizes and weights. `loss` makes a Loss from targets.

    `reg` is a number, or one per user; without it 1 / (users * rows_i), the paper's. With `intercept` there is one more
    parameter, the last, which `reg` leaves alone. `penalty` is stored for the meeting point. `sample_weight` and, of
    classifiers, `class_weight` multiply rows' losses (`row_weights.weigh`).
    """

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

    def _loss(self, b: Tensor, weight: Tensor | None) -> Loss:
        return self.loss(b) if weight is None else Weighted(self.loss(b), weight)

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

    # --- what Newton's method needs ----------------------------------------------------------------------------------

    @property
    def matrix_free(self) -> bool:
        """Whether rows are sparse and a matrix of d x d numbers per user would be large."""
        return self.rows.sparse and super().matrix_free

    def preconditioner(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """The inverse of the diagonal of the Hessian of f at w (1, d)."""
        diagonal = self.weights @ self.hessian_diagonal(w)
        diagonal = diagonal + TINY * diagonal.max() + 1e-300
        return lambda r: r / diagonal

    def excess(self, w: Tensor, size: float) -> float:
        """A bound on f(w) - f* by strong convexity, where reg pulls at all parameters; else infinite."""
        mu = float(self.weights @ self.convexity)
        return size**2 / (2 * mu) if mu > 0 else math.inf

    def careful_prox(self, u: Tensor, eta: float, x: Tensor, tol: float) -> SafeProx:
        """The prox of the first user, certified: with c = 1 + eta reg and z = x - u / c it minimises
        eta sum_j phi(a_j . (u / c + z)) + c/2 |z|^2."""
        A, b = (part.cpu().numpy().astype(np.float64) for part in (self.rows.dense(0), self.rows.one(0)[1]))
        c: Any = 1 + eta * float(self.reg[0])
        if self.intercept:
            c = np.append(np.full(self.dim - 1, c), 1.0)
        centre = u.cpu().numpy().astype(np.float64) / c
        weight = np.full(len(A), float(eta)) * self._own_weights([0])
        objective = Objective(A, A @ centre, self.loss(torch.from_numpy(b)).weighted(weight), c)
        solution = minimise(objective, x.cpu().numpy().astype(np.float64) - centre)
        if not np.isfinite(solution.error) and math.isinf(self._losses[0].largest_curvature):
            solution = minimise(objective, -centre)  # at 0 exp never overflows
        p = torch.from_numpy(centre + solution.z).to(u)
        eps, size = torch.finfo(u.dtype).eps, 1 + float(u.norm())
        reach = size + float(p.norm())
        error = solution.error + 4 * eps * reach
        if error <= max(tol * size, max(WORST, 16 * eps) * reach):
            return SafeProx(p, error)
        left = f"an error of {error:.1g}" if np.isfinite(error) else "nothing certain"
        return SafeProx(p, error, f"since its margins a . w are too large for {u.dtype}: round-off leaves {left}")

    def rounding(self, W: Tensor) -> Tensor:
        """A bound on the rounding error of grad at W, about: units in the last place of every predictor and slope."""
        slope, curvature = self._losses[0].largest_slope, self._losses[0].largest_curvature
        eps = 4 * torch.finfo(W.dtype).eps
        if not (math.isfinite(slope) and math.isfinite(curvature)):
            return eps * self._rounding_here(W)
        rounding: Tensor = (self.frobenius * curvature + self.reg) * length(W) + self.frobenius.sqrt() * slope
        return eps * rounding

    def _rounding_here(self, W: Tensor) -> Tensor:
        """The same from the slopes and curvatures at W, relative to eps: sum_j |a_j| (|phi'| + phi'' |a_j| |w|)."""
        parts = []
        for bucket, loss in zip(self.rows.buckets, self._losses, strict=True):
            t, norms, size = bucket.margins(W), bucket.norms(), length(bucket.of(W)).unsqueeze(1)
            parts.append((norms * (loss.slope_size(t) + loss.curvature(t) * norms * size)).sum(1))
        return self.rows.gather(parts) + self.reg * length(W)

    # --- the minimum -------------------------------------------------------------------------------------------------

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
        loss = self.loss(torch.from_numpy(target)).weighted(weight)
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

    def _sharp_value(self) -> Callable[[Tensor], Tensor]:
        pool = self.pool()
        assert isinstance(pool, PooledRows)
        f = pool.objective
        return lambda w: w.new_tensor(f.value(w.cpu().numpy(), f.sharp_predictors(w.cpu().numpy())))


class Classifier(LinearModel):
    """One of two classes, -1 and +1, by a loss that needs nothing but these labels."""

    lipschitz: Tensor
    labels = (-1, 1)

    def __init__(
        self,
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
        own = {"sample_weight": sample_weight, "class_weight": class_weight}
        super().__init__(self.loss, A, b, reg, weights, intercept=intercept, penalty=penalty, **own)
