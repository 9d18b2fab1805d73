"""Every user's Hessian A_i^T A_i as eigenvectors and eigenvalues, once, in float64.

Most users' Gram matrices show all there is. Where one does not (columns that nearly depend on each other, columns of
very different scales, columns that do depend on each other), the user's rows are decomposed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.problems.products import rows_times, squared, times_rows
from resolvent.problems.quadratic.affine import Spectrum
from resolvent.problems.quadratic.jacobi import EASY, jacobi, noise
from resolvent.problems.rows import Rows

BLOCK = 1 << 20
"""Entries of A in float64 at a time, about: so few that all looks after the first are at a cache. Single-precision rows
are never all there twice."""


def decompose(rows: Rows) -> Spectrum:
    """The spectrum of every user, with zeros for directions that its rows do not see."""
    r = min(int(rows.sizes.max()), rows.dim)
    parts = [_decompose(bucket, r) for bucket in rows.buckets]
    V, s, y, floor = (rows.gather([part[k] for part in parts]) for k in range(4))
    return Spectrum(V, s, y, floor)


def _decompose(bucket: Any, r: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g, n, d = bucket.A.shape
    k = min(n, d)
    like = torch.empty((), dtype=torch.float64, device=bucket.A.device)
    V, s, y, floor = like.new_zeros((g, r, d)), like.new_zeros((g, r)), like.new_zeros((g, r)), like.new_zeros(g)
    names, step = range(g) if bucket.who is None else bucket.who.tolist(), max(BLOCK // (n * d), 1)
    for start in range(0, g, step):
        some = slice(start, start + step)
        A, b = bucket.A[some].double(), bucket.b[some].double()
        with np.errstate(over="ignore", invalid="ignore"):  # refused in words
            V[some, :k], s[some, :k], y[some, :k], floor[some], hard = _by_gram(A, b, names[some])
        for i in hard.nonzero().flatten().tolist():
            parts = _by_rows(A[i], b[i])
            V[start + i, :k], s[start + i, :k], y[start + i, :k], floor[start + i] = parts
        if bool((A[:, 0] == 0).any()):
            # a column of zeros has no part in what the rows see: what is left of it there is rounding
            V[some].masked_fill_((A == 0).all(1).unsqueeze(1) & (s[some] > 0).unsqueeze(2), 0)
    return V, s, y, floor


def _by_gram(A: Tensor, b: Tensor, names: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """V, s, y and the floor from A^T A, and for which users that is not good enough."""
    n, d = A.shape[1:]
    gram = squared(A.mT if n >= d else A)  # the smaller of A^T A and A A^T has the same nonzero eigenvalues
    diagonal = gram.diagonal(dim1=1, dim2=2)
    moment, most = rows_times(b, A), diagonal.amax(1)
    _check_finite(torch.isfinite(moment).all(1) & torch.isfinite(most), A, b, names)
    # A column of zeros (a row, if these are fewer) is a direction of its own, marked by an impossible eigenvalue.
    mark = torch.where(most > 0, most, 1).unsqueeze(1)
    diagonal.copy_(torch.where(diagonal > 0, diagonal, -mark))
    s, Q = torch.linalg.eigh(gram)
    marked = s < -0.5 * mark
    hard = ~((s > EASY * s[:, -1:]) | marked).all(1)
    s = torch.where(s > 0, s, 0)
    inverse = torch.where(s > 0, 1 / s, 0)
    V = Q.mT.contiguous() if n >= d else (Q * inverse.sqrt().unsqueeze(1)).mT @ A
    y = times_rows(V, moment) * inverse
    residual = b - times_rows(A, rows_times(y, V))
    better = times_rows(V, rows_times(residual, A)) * inverse  # the rows know x more precisely than their products do
    floor = 0.5 * ((residual * residual).sum(1) - (s * better * better).sum(1)).clamp_min(0)
    return V, s, y + better, floor, hard


def _check_finite(fine: Tensor, A: Tensor, b: Tensor, names: Sequence[int]) -> None:
    if bool(fine.all()):
        return
    i = int((~fine).nonzero()[0])
    given = bool(torch.isfinite(A[i]).all()) and bool(torch.isfinite(b[i]).all())
    received = "so large that squares overflow" if given else "NaN or infinite"
    refuse("A or b", f"{received} for user {names[i]}", "rescale them" if given else "finite numbers are needed")


def _by_rows(A: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for one user from A = Q R and Jacobi's method on R.

    A direction v is none if |A v| is the rounding error of the columns that it adds up, |D v| with D their norms.
    """
    n, d = A.shape
    M, z, rest = A, b, 0.0
    if n > d:
        R = torch.linalg.qr(torch.cat([A, b.unsqueeze(1)], 1), mode="r").R
        M, z, rest = R[:d, :d], R[:d, d], float(R[d, d])
    sigma, U, V = (torch.from_numpy(x.copy()).to(A) for x in jacobi(M.cpu().numpy()))
    real = sigma > noise(d) * torch.linalg.vector_norm(V * torch.linalg.vector_norm(M, dim=0), dim=1)
    along = z @ U
    floor = 0.5 * (rest**2 + along[~real].square().sum())
    return V, torch.where(real, sigma * sigma, 0), torch.where(real, along / sigma, 0), floor
