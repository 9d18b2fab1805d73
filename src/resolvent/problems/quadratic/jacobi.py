"""Decompositions that lose no direction which the data has, whatever the scales of its columns and rows.

A product A^T A in float64 loses what lies below 1e-8 of the largest singular value, and an ordinary SVD what lies below
1e-16 of it, even if only the unit of a column makes it small. Jacobi's method, on the rows, computes every singular
value of A = B D, D diagonal, with an error that depends on the condition of B alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

EPS = float(np.finfo(np.float64).eps)
EASY = 1e-5
"""A Gram matrix whose eigenvalues span less than this is decomposed as it is: the smallest, and a gradient in the unit
of the smallest column, are right to ten digits."""
ALIKE = 1e3
"""Users whose sizes are within this factor are factorised together."""
DOUBTFUL = 1e3
"""How far above the floor a direction may still be rounding: that of a whole stack of rows adds up."""
BLOCK = 1 << 20
"""Numbers factorised at a time, about."""


def noise(d: int) -> float:
    """The rounding error of a factorisation with d columns, relative to the columns that it adds up.

    Columns that depend on each other leave 1e-16 to 1e-15 behind, whatever the number of rows.
    """
    return 8 * math.sqrt(d) * EPS


def jacobi(M: Any) -> tuple[Any, Any, Any]:
    """Singular values (r,), left vectors (k, r) and right vectors (r, d) of M (k, d), r = min(k, d), largest first."""
    from scipy.linalg.lapack import dgejsv

    tall = M.shape[0] >= M.shape[1]
    work = M if tall else M.T
    # joba = 2: rows are pivoted too, for scales on both sides; jobu = jobv = 0: both kinds of vectors.
    sigma, left, right, scale, _, info = dgejsv(np.asfortranarray(work), joba=2, jobu=0, jobv=0, jobr=0, jobt=0, jobp=0)
    if info != 0:  # no convergence in thirty sweeps
        left, sigma, right_rows = np.linalg.svd(work, full_matrices=False)
        right = right_rows.T
    else:
        sigma = sigma * (scale[0] / scale[1])
        left = left[:, : len(sigma)]
    return (sigma, left, right.T) if tall else (sigma, right, _orthogonal(left.T))


def _orthogonal(V: Any) -> Any:
    """Rows made orthogonal once more, in order: twice is enough.

    Right vectors come with small components as precise as large ones. Left vectors do not, but the first do, and those
    components of the others follow from them.
    """
    V = V.copy()
    for _ in range(2):
        for k in range(len(V)):
            V[k] -= (V[:k] @ V[k]) @ V[:k]
            V[k] /= np.linalg.norm(V[k])
    return V


def stacked_root(rows: Any, z: Any, sizes: Any, exact: bool) -> tuple[Any, Any, bool]:
    """(R, t, clear), R of full row rank, with |R w - t|^2 = |rows w - z|^2 + const for every w.

    rows (k, d) and z (k,) come from users, `sizes` (k,) has the largest column norm of the user whose row it is: the
    rounding error of any of its rows is a fixed part of that. A direction that only small users see is as real as one
    that large users see. So users are factorised from the largest to the smallest, by Householder reflections with
    pivoting, under which each row has its own rounding error only; and what users of one size leave behind at theirs is
    dropped before smaller users join, beside whose rows it would pass as data.

    `exact`: the rows are the users' data. Then a direction that may be either data or rounding is measured with more
    digits. Rows that were computed have rounding errors of their own, and such a direction is dropped: not `clear`.
    """
    d = rows.shape[1]
    order = np.argsort(-sizes, kind="stable")
    R, t, done, clear = np.zeros((0, d)), np.zeros(0), order[:0], True
    while len(order):
        alike = int(np.count_nonzero(sizes[order] * ALIKE >= sizes[order[0]]))
        group, order = order[:alike], order[alike:]
        floor = noise(d) * float(np.sqrt(np.max(np.einsum("kd,kd->d", rows[group], rows[group]))))
        step = max(BLOCK // d, d)
        for start in range(0, alike, step):
            some = group[start : start + step]
            R, t = _merge(np.concatenate([R, rows[some]]), np.concatenate([t, z[some]]))
        done = np.concatenate([done, group])
        size = np.linalg.norm(R, axis=1)
        doubtful = (size > floor) & (size <= DOUBTFUL * floor)
        if doubtful.any():
            clear = False
            sure = size > DOUBTFUL * floor
            size[doubtful] = _measured(rows, done, R, sure, doubtful) if exact else 0.0
        R, t = R[size > floor], t[size > floor]
    return R, t, clear


def _measured(rows: Any, done: Any, R: Any, sure: Any, doubtful: Any) -> Any:
    """How far the columns that these rows of R were pivoted by are from the span of the sure ones, among rows `done`.

    With extended precision, where the processor has it: refined from the triangular factor.
    """
    pivots = np.abs(R).argmax(1)
    certain, wanted = pivots[sure], pivots[doubtful]
    some, data = R[sure][:, certain], rows[done][:, np.concatenate([certain, wanted])].astype(np.longdouble)
    A, columns = data[:, : len(certain)], data[:, len(certain) :]
    c = np.linalg.lstsq(some, R[sure][:, wanted], rcond=None)[0].astype(np.longdouble)
    for _ in range(3):
        left = columns - A @ c
        c = c + np.linalg.lstsq(some, np.linalg.lstsq(some.T, (A.T @ left).astype(float), rcond=None)[0], rcond=None)[0]
    return np.linalg.norm((columns - A @ c).astype(float), axis=0)


def _merge(rows: Any, z: Any) -> tuple[Any, Any]:
    """The triangular factor of rows and its right-hand side, columns in their own order."""
    from scipy.linalg import qr

    order = np.argsort(-np.abs(rows).max(1), kind="stable")
    Q, R, columns = qr(rows[order], mode="economic", pivoting=True, check_finite=False)
    back = np.empty_like(R)
    back[:, columns] = R
    return back, Q.T @ z[order]
