"""The weighted sum of users' quadratics, and where it is least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.problems.compensated import predictors
from resolvent.problems.quadratic.affine import Spectrum, each_row
from resolvent.problems.quadratic.jacobi import EASY, EPS, jacobi, noise, stacked_root
from resolvent.problems.reference.door import Candidate, Unknown, Value
from resolvent.problems.rows import Rows

Floats = NDArray[Any]
UserRows = tuple[Floats, Floats, float]
"""A user's A and b in float64, and its weight."""
BLOCK = 1 << 22
"""Numbers in one block of rows."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """q(w) = |R (w - w*)|^2 / 2 + const: R (k, d) and the minimiser w* (d,) of least norm, in float64."""

    root: Tensor
    minimiser: Tensor

    def gap(self, W: Tensor) -> Tensor:
        """q(w) - min q for each row of W: a square, so that nothing cancels."""
        e = each_row(self.root, W - self.minimiser)
        return 0.5 * (e * e).sum(1)


@dataclass(frozen=True, eq=False)
class PooledSquares:
    """Least squares as a pool, whose minimiser is that of `quadratic`, as far as the rows themselves agree.

    With r the gradient at w from the rows, f(w) - f* = |R^-T r|^2 / 2. A rounding error of the residual of row a, times
    the root of its weight, moves R^-T r by no more than itself: no row has a leverage above one. `hard` problems, with
    columns that nearly depend on each other, are computed as if in twice the precision at once.
    """

    rows: Rows
    lam: Tensor
    quadratic: Pooled
    hard: bool

    def candidates(self) -> Iterator[Candidate | Unknown]:
        w = self.quadratic.minimiser.cpu().numpy()
        for sharp in self._ways:
            yield Candidate(w, self._excess(self.at(w, sharp)))
        yield Unknown("no minimiser could be certified: the rows do not agree with their decompositions")

    def values(self, w: Floats) -> Iterator[Value]:
        for sharp in self._ways:
            here = self.at(w, sharp)
            yield Value(here.value, here.rounding, here.size, sharp)

    @property
    def _ways(self) -> tuple[bool, ...]:
        return (True,) if self.hard else (False, True)

    def at(self, w: Floats, sharp: bool) -> SumOfSquares:
        """The sum over all rows at w (d,), a block of rows at a time."""
        total = SumOfSquares(len(w))
        for bucket in self.rows.buckets:
            lam = self.lam if bucket.who is None else self.lam[bucket.who]
            A, b = bucket.A.flatten(0, 1), bucket.b.flatten()
            weight = lam.repeat_interleave(bucket.b.shape[1])
            step = max(1, BLOCK // len(w))
            for start in range(0, len(b), step):
                some = slice(start, start + step)
                rows, targets, weights = (part[some].double().cpu().numpy() for part in (A, b, weight))
                total.add(rows, targets, weights, w, sharp)
        return total

    def _excess(self, here: SumOfSquares) -> float:
        R = self.quadratic.root.cpu().numpy()
        columns = np.linalg.norm(R, axis=0)
        D = np.where(columns > 0, columns, 1)
        inverse = np.linalg.pinv((R / D).T, rcond=0) if len(R) else np.zeros((0, len(D)))
        rho = inverse @ (here.gradient / D)
        beside = np.abs(here.gradient - R.T @ rho)  # directions that no row sees: rounding alone may point there
        if (beside > noise(len(D)) * here.terms + here.summed).any():
            return math.inf
        blur = here.blur + float(np.linalg.norm(np.abs(inverse) @ (here.summed / D)))
        return (float(np.linalg.norm(rho)) + blur) ** 2 / 2


class SumOfSquares:
    """sum_j weight_j e_j^2 / 2 and its gradient, e = A w - b, with bounds on their rounding errors.

    `blur` is that of the residuals, times the roots of their weights; `summed` that of the gradient's sums; `terms` has
    the sizes of the gradient's terms and `size` that of the value's.
    """

    def __init__(self, dim: int) -> None:
        self.value = self.rounding = self.size = self.blur = 0.0
        self.gradient, self.summed, self.terms = (np.zeros(dim) for _ in range(3))

    def add(self, A: Floats, b: Floats, weight: Floats, w: Floats, sharp: bool) -> None:
        size = np.abs(A) @ np.abs(w) + np.abs(b)
        e = predictors(A, w, -b) if sharp else A @ w - b
        error = EPS * (np.abs(e) + len(w) * EPS * size) if sharp else (2 + math.sqrt(len(w))) * EPS * size
        pull = weight * e
        self.value += float(pull @ e) / 2
        self.rounding += float(weight @ (np.abs(e) * error + error**2)) + 4 * EPS * float(np.abs(pull) @ np.abs(e))
        self.size += float(weight @ (b * b)) / 2
        self.blur += float(np.linalg.norm(np.sqrt(weight) * (error + 2 * EPS * np.abs(e))))
        gradient = predictors(A.T, pull, np.zeros(len(w))) if sharp else pull @ A
        terms = (weight * size) @ np.abs(A)
        self.gradient += gradient
        self.summed += EPS * np.abs(gradient) if sharp else 8 * EPS * (np.abs(pull) @ np.abs(A))
        self.terms += terms


def pooled(spectrum: Spectrum, c: Tensor, lam: Tensor, data: Callable[[], Iterable[UserRows]] | None = None) -> Pooled:
    """sum_i lambda_i / 2 sum_r c_r (v_r . w - y_r)^2, c >= 0.

    By its Hessian where that retains every direction, columns scaled; else from the users' rows sqrt(lambda c) v, which
    see directions that their squares have lost beside users of larger scale. Where rounding errors of these may pass as
    directions, from users' own rows (A_i, b_i, lambda_i), if `data` has them.
    """
    return _from_hessian(spectrum, c, lam) or _from_rows(spectrum, c, lam, data)


def _from_hessian(spectrum: Spectrum, c: Tensor, lam: Tensor) -> Pooled | None:
    H = spectrum.weighted(c, lam)
    scale = H.diagonal().clamp_min(0).sqrt()
    seen = scale > 0  # a column without data from any user is a direction of its own
    D = scale[seen]
    e, Q = torch.linalg.eigh(H[seen][:, seen] / (D.unsqueeze(1) * D)) if len(D) else (D, D.new_zeros((0, 0)))
    if len(e) and not bool(e[0] > EASY * e[-1]):
        return None
    root = H.new_zeros((len(D), H.shape[0]))
    root[:, seen] = e.sqrt().unsqueeze(1) * Q.T * D
    w = H.new_zeros(H.shape[0])
    for _ in range(3):  # the first solves, the others refine against round-off
        g = (lam @ spectrum.back(c * spectrum.coordinates(w.unsqueeze(0))))[seen] / D
        w[seen] -= (Q @ ((Q.T @ g) / e)) / D
    return Pooled(root, w)


def _from_rows(
    spectrum: Spectrum, c: Tensor, lam: Tensor, data: Callable[[], Iterable[UserRows]] | None = None
) -> Pooled:
    weight = (lam.unsqueeze(1) * c).sqrt()
    W = (weight.unsqueeze(2) * spectrum.V).cpu().numpy()
    scale = (W * W).sum((0, 1)) ** 0.5
    sizes = np.broadcast_to((W * W / np.where(scale > 0, scale, 1) ** 2).sum(1).max(1)[:, None] ** 0.5, weight.shape)
    used = (weight > 0).cpu().numpy()
    rows, z = W[used], (weight * spectrum.y).cpu().numpy()[used]
    R, t, clear = _root(rows, z, sizes[used], exact=False)
    if not clear and data is not None:
        R, t, _ = _root(*_own_rows(data()), exact=True)
    sigma, U, V = jacobi(R)
    like = spectrum.V
    return Pooled(torch.from_numpy(R).to(like), torch.from_numpy(((t @ U) / sigma) @ V).to(like))


def _root(rows: Floats, z: Floats, sizes: Floats, exact: bool) -> tuple[Floats, Floats, bool]:
    """`stacked_root` of these rows, with their columns scaled to one."""
    scale = (rows * rows).sum(0) ** 0.5
    R, t, clear = stacked_root(rows / np.where(scale > 0, scale, 1), z, sizes, exact)
    return R * scale, t, clear


def _own_rows(users: Iterable[UserRows]) -> tuple[Floats, Floats, Floats]:
    """sqrt(lambda) A and sqrt(lambda) b of all users, and for each row the largest scaled column norm of its user."""
    parts = [(np.sqrt(weight) * A, np.sqrt(weight) * b) for A, b, weight in users if weight > 0]
    scale = sum((A * A).sum(0) for A, _ in parts) ** 0.5
    D = np.where(scale > 0, scale, 1)
    sizes = [np.full(len(A), float(((A / D) ** 2).sum(0).max()) ** 0.5) for A, _ in parts]
    A, b = (np.concatenate(part) for part in zip(*parts, strict=True))
    return A, b, np.concatenate(sizes)


def balanced(spectrum: Spectrum, c: Tensor, lam: Tensor) -> Tensor:
    """w with sum_i lambda_i V_i^T diag(c_i) (V_i w - y_i) = 0, the minimiser where c >= 0."""
    if bool((c >= 0).all()):
        return pooled(spectrum, c, lam).minimiser
    H, size = spectrum.weighted(c, lam), spectrum.weighted(c.abs(), lam)
    scale = size.diagonal().sqrt()
    D = torch.where(scale > 0, 1 / scale, 0)
    inverse = torch.linalg.pinv(D.unsqueeze(1) * H * D, rtol=noise(len(D)), hermitian=True)
    w = torch.zeros_like(D)
    for _ in range(3):
        w = w - D * (inverse @ (D * (lam @ spectrum.back(c * spectrum.coordinates(w.unsqueeze(0))))))
    return w
