"""The weighted sum of users' quadratics, and where it is least."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.problems.quadratic.affine import Spectrum, each_row
from resolvent.problems.quadratic.jacobi import EASY, jacobi, noise, stacked_root

Floats = NDArray[Any]
UserRows = tuple[Floats, Floats, float]
"""A user's A and b in float64, and its weight."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """q(w) = |R (w - w*)|^2 / 2 + const: R (k, d) and the minimiser w* (d,) of least norm, in float64."""

    root: Tensor
    minimiser: Tensor

    def gap(self, W: Tensor) -> Tensor:
        """q(w) - min q for each row of W: a square, so that nothing cancels."""
        e = each_row(self.root, W - self.minimiser)
        return 0.5 * (e * e).sum(1)


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
