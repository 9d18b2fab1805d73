"""The weighted sum of users' quadratics, and where it is least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
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
BLOCK = 1 << 18
"""Numbers in one block of rows, which a cache holds."""


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

    _sums: dict[tuple[bytes, bool], SumOfSquares] = field(default_factory=dict, init=False)

    def candidates(self) -> Iterator[Candidate | Unknown]:
        w = self.quadratic.minimiser.cpu().numpy()
        for sharp in self._ways:
            yield Candidate(w, self._excess(w, self.at(w, sharp)))
        yield Unknown("no minimiser could be certified: the rows do not agree with their decompositions")

    def values(self, w: Floats) -> Iterator[Value]:
        for sharp in self._ways:
            here = self.at(w, sharp)
            yield Value(here.value, here.rounding, here.size, sharp)

    @property
    def _ways(self) -> tuple[bool, ...]:
        return (True,) if self.hard else (False, True)

    def at(self, w: Floats, sharp: bool) -> SumOfSquares:
        """The sum over all rows at w (d,); the last ones are remembered."""
        key = w.tobytes(), sharp
        if key not in self._sums:
            total = SumOfSquares(w, np.linalg.norm(self.quadratic.root.cpu().numpy(), axis=0), sharp)
            for rows, targets, weights in self._blocks():
                total.add(rows, targets, weights)
            self._sums[key] = total
        return self._sums[key]

    def _blocks(self) -> Iterator[tuple[Floats, Floats, Floats]]:
        """All rows, targets and weights, a block at a time, in float64."""
        for bucket in self.rows.buckets:
            lam = self.lam if bucket.who is None else self.lam[bucket.who]
            A, b = bucket.A.flatten(0, 1), bucket.b.flatten()
            weight, step = lam.repeat_interleave(bucket.b.shape[1]), max(1, BLOCK // A.shape[1])
            for some in (slice(start, start + step) for start in range(0, len(b), step)):
                yield tuple(part[some].double().cpu().numpy() for part in (A, b, weight))  # type: ignore[misc]

    def _excess(self, w: Floats, here: SumOfSquares) -> float:
        R = self.quadratic.root.cpu().numpy()
        D = np.where(here.columns > 0, here.columns, 1)
        inverse = np.linalg.pinv((R / D).T, rcond=0) if len(R) else np.zeros((0, len(D)))
        rho = inverse @ (here.gradient / D)
        if len(R) < len(w):  # directions that no row sees: rounding alone may point there
            beside = np.abs(here.gradient - R.T @ rho)
            if (beside > noise(len(w)) * self._terms(w) + here.summed).any():
                return math.inf
        blur = here.blur + float(np.linalg.norm(np.abs(inverse) @ (here.summed / D)))
        return (float(np.linalg.norm(rho)) + blur) ** 2 / 2

    def _terms(self, w: Floats) -> Floats:
        """The sizes of the terms that the gradient at w sums."""
        sizes = ((weight * (np.abs(A) @ np.abs(w) + np.abs(b))) @ np.abs(A) for A, b, weight in self._blocks())
        return sum(sizes, np.zeros(len(w)))


@dataclass(eq=False)
class SumOfSquares:
    """sum_j weight_j e_j^2 / 2 and its gradient, e = A w - b, with bounds on their rounding errors.

    The bounds need `columns`, the norms of A's columns, alone: with rows times the roots of their weights,
    | |A| |w| + |b| | <= columns . |w| + |b|, and |e|^T |A_k| <= |e| columns_k.
    """

    w: Floats
    columns: Floats
    sharp: bool
    value: float = 0.0
    size: float = 0.0
    """That of the value's terms."""

    def __post_init__(self) -> None:
        self.gradient = np.zeros(len(self.w))

    def add(self, A: Floats, b: Floats, weight: Floats) -> None:
        e = predictors(A, self.w, -b) if self.sharp else A @ self.w - b
        pull = weight * e
        self.value += float(pull @ e) / 2
        self.size += float(weight @ (b * b)) / 2
        self.gradient += predictors(A.T, pull, np.zeros(len(self.w))) if self.sharp else pull @ A

    @property
    def _residual(self) -> float:
        """The norm of e, rows weighted."""
        return math.sqrt(2 * self.value)

    @property
    def _error(self) -> float:
        """That of its rounding errors."""
        d, size = len(self.w), float(self.columns @ np.abs(self.w)) + math.sqrt(2 * self.size)
        return EPS * (self._residual + d * EPS * size) if self.sharp else (2 + math.sqrt(d)) * EPS * size

    @property
    def rounding(self) -> float:
        """That of the value."""
        return self._error * (self._residual + self._error) + 8 * EPS * self.value

    @property
    def blur(self) -> float:
        """That of e, and of e times the weights."""
        return self._error + 2 * EPS * self._residual

    @property
    def summed(self) -> Floats:
        """Those of the gradient's sums."""
        return EPS * np.abs(self.gradient) if self.sharp else 8 * EPS * self._residual * self.columns


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
