"""f_i(w) = 1/2 |A_i w - b_i|^2, a sum over user i's rows, as in the paper's appendix."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from resolvent.problems.affine import Affine, Spectrum, each_row
from resolvent.problems.inputs import as_rows, as_weights, finite
from resolvent.problems.problem import select
from resolvent.problems.products import rows_times, times_rows
from resolvent.problems.rows import Bucket, Rows, as_data


class LeastSquares:
    """Least squares over users of any sizes, weights and ranks.

    A is (users, rows, d) and b (users, rows), or lists of matrices and vectors of unequal lengths; NumPy or torch.
    One eigendecomposition a user, made once, answers everything: values, gradients, prox at any eta, constants.
    """

    offers = frozenset({"value", "grad", "prox", "hessian", "batches", "spectrum"})
    convex = True
    closed_form = True

    def __init__(self, A: Any, b: Any, weights: Any = None) -> None:
        self.rows = as_data(A, b)
        self.weights = as_weights(weights, self.rows.users, self.rows.buckets[0].A)
        finite(self.rows.gather([bucket.combine(bucket.b) for bucket in self.rows.buckets]), "A or b")
        self.spectrum = decompose(self.rows)

    @property
    def users(self) -> int:
        return self.rows.users

    @property
    def dim(self) -> int:
        return self.rows.dim

    @property
    def sizes(self) -> Tensor:
        """The number of rows of each user."""
        return self.rows.sizes

    def value(self, W: Tensor) -> Tensor:
        t = self.spectrum.coordinates(as_rows(W, self))
        return self.spectrum.floor + 0.5 * (self.spectrum.s * t * t).sum(1)

    def grad(self, W: Tensor) -> Tensor:
        return self.spectrum.back(self.spectrum.s * self.spectrum.coordinates(as_rows(W, self)))

    def hessian(self, W: Tensor) -> Tensor:
        return self.spectrum.hessian(self.spectrum.s)

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """(I + eta A^T A)^-1 (u + eta A^T b)."""
        return self.filtered(lambda s: 1 / (1 + eta * s), steady=False)(as_rows(U, self), None)

    def filtered(self, psi: Callable[[Tensor], Tensor], steady: bool) -> Affine:
        """The operator that multiplies the component of u - x_i along each eigenvector by psi(eigenvalue)."""
        return Affine(self.spectrum, 1 - psi(self.spectrum.s), self.weights, steady)

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """n_i / |batch| times the gradient over the chosen rows (users, k): unbiased."""
        A, b = self.rows.pick(rows)
        scale = self.sizes.to(A) / mask.sum(1).clamp_min(1)
        residual = (times_rows(A, W) - b) * mask * scale.unsqueeze(1)
        return rows_times(residual, A)

    def take(self, who: Tensor) -> LeastSquares:
        part = object.__new__(LeastSquares)
        part.rows, part.weights = self.rows.take(who), select(self.weights, who)
        part.spectrum = self.spectrum.take(who)
        return part

    @property
    def lipschitz(self) -> Tensor:
        return torch.amax(self.spectrum.s, 1)

    @property
    def convexity(self) -> Tensor:
        thin = self.spectrum.s.shape[1] < self.dim
        return torch.zeros_like(self.weights) if thin else torch.amin(self.spectrum.s, 1)

    @cached_property
    def _root(self) -> Tensor:
        """R with R^T R = sum_i lambda_i A_i^T A_i; f(w) - f* = |R (w - w*)|^2 / 2 has nothing to cancel."""
        s, V = torch.linalg.eigh(self.spectrum.weighted(self.spectrum.s, self.weights))
        s = torch.where(s > s[-1] * self.dim * torch.finfo(s.dtype).eps, s, 0)
        root: Tensor = s.sqrt().unsqueeze(1) * V.T
        return root

    @cached_property
    def minimiser(self) -> Tensor:
        """The minimiser of f nearest to the mean of the users' own, refined against round-off."""
        scale = (self._root * self._root).sum(1)
        inverse = torch.where(scale > 0, 1 / scale, 0) ** 2
        w = self.weights @ self.spectrum.x
        for _ in range(3):
            g = self.weights @ self.grad(w.unsqueeze(0))
            w = w - (inverse * (self._root @ g)) @ self._root
        return w

    @cached_property
    def fstar(self) -> float:
        return float(self.weights @ self.value(self.minimiser.unsqueeze(0)))

    def gap(self, W: Tensor) -> Tensor:
        e = each_row(self._root, W - self.minimiser)
        return 0.5 * (e * e).sum(1)


def decompose(rows: Rows) -> Spectrum:
    """The spectrum of every user. Eigenvalues under the round-off of the largest are zero, not small."""
    r = min(int(rows.sizes.max()), rows.dim)
    parts = [_decompose(bucket, r) for bucket in rows.buckets]
    V, s, x, floor = (rows.gather([part[k] for part in parts]) for k in range(4))
    return Spectrum(V, s, x, floor)


def _decompose(bucket: Bucket, r: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    A = bucket.A
    g, n, d = A.shape
    moment = bucket.combine(bucket.b)
    gram = A.mT @ A if n >= d else A @ A.mT  # the smaller of the two has the same nonzero eigenvalues
    s, Q = torch.linalg.eigh(gram)
    s = torch.where(s > s[:, -1:] * max(n, d) * torch.finfo(s.dtype).eps, s, 0)
    inverse = torch.where(s > 0, 1 / s, 0)
    V = Q.mT.contiguous() if n >= d else (Q * inverse.sqrt().unsqueeze(1)).mT @ A
    x = rows_times(times_rows(V, moment) * inverse, V)
    residual = times_rows(A, x) - bucket.b
    floor = 0.5 * (residual * residual).sum(1)
    if V.shape[1] < r:  # a bucket of thin users beside wider ones: no more directions, all of eigenvalue 0
        V = torch.cat([V, V.new_zeros((g, r - V.shape[1], d))], 1)
        s = torch.cat([s, s.new_zeros((g, r - s.shape[1]))], 1)
    return V, s, x, floor
