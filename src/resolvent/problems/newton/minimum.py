"""The minimum of a weighted sum of logistic losses over all rows of all users: certified, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resolvent.problems.newton.certified import EPS, Certified, Floats, Losses, minimise
from resolvent.problems.room import gib, room

SURE = 1e-10
"""f(w) - f* relative to f(w) beyond which w is no minimiser."""
UNCLEAR = 1e3
"""Singular values up to this many times the cutoff of the rank are neither zero nor not."""
SMALL = 1 << 20
"""Numbers in a linear program that is worth its time for a sentence."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """A minimiser w and the value there, or why they are not known."""

    w: Floats | None
    value: float | None
    why: str | None = None

    @staticmethod
    def unknown(why: str) -> Minimum:
        return Minimum(None, None, why)


def minimum(users: Sequence[Any], weights: Sequence[float], ridge: float) -> Minimum:
    """Of sum_i weights_i sum_j log(1 + exp(-c_ij . w)) + ridge/2 |w|^2, given each user's rows c_ij (n_i, d).

    The minimiser lies in the span of the rows: with fewer rows than features it is looked for there.
    """
    n, d = sum(len(C) for C in users), users[0].shape[1]
    needed = 8 * (3 * n * d + 3 * min(n, d) ** 2)
    if needed > room():
        return Minimum.unknown(f"finding the minimum takes {gib(needed)}, and this machine has {gib(room())}")
    C = np.concatenate(users).astype(np.float64, copy=False)
    losses = Losses(C, np.zeros(n), np.repeat(weights, [len(rows) for rows in users]), ridge)
    return _without_ridge(losses) if ridge == 0 else _with_ridge(losses)


def _with_ridge(losses: Losses) -> Minimum:
    n, d = losses.C.shape
    if n >= d:
        return _judged(losses, minimise(losses, np.zeros(d)))
    basis, R = np.linalg.qr(losses.C.T)
    inside = Losses(np.ascontiguousarray(R.T), losses.offset, losses.weight, losses.ridge, turned=True)
    found = minimise(inside, np.zeros(n))
    return _judged(losses, Certified(basis @ found.z, found.error, found.excess, found.noise))


def _without_ridge(losses: Losses) -> Minimum:
    """In coordinates along the singular vectors of the rows, scaled to length one beforehand: scales of rows and of
    features do not decide what is zero."""
    rows = np.linalg.norm(losses.C, axis=1)
    if not rows.all():  # a row of zeros is a constant
        some = rows > 0
        part = Losses(losses.C[some], losses.offset[some], losses.weight[some], 0.0)
        return _plus(_without_ridge(part), float(losses.weight[~some].sum()) * np.log(2))
    if not len(rows):
        return Minimum(np.zeros(losses.C.shape[1]), 0.0)
    scaled = losses.C / rows[:, None]
    columns = np.linalg.norm(scaled, axis=0)
    columns[columns == 0] = 1.0
    U, S, Vt = np.linalg.svd(scaled / columns, full_matrices=False)
    cutoff = max(scaled.shape) * EPS * S.max(initial=0)
    rank = int(np.count_nonzero(cutoff < S))
    if rank and S[rank - 1] <= UNCLEAR * cutoff:
        return Minimum.unknown("the features are so nearly dependent that a minimiser cannot be told from none")
    inside = Losses(rows[:, None] * U[:, :rank], losses.offset, losses.weight, 0.0, turned=True)
    found = minimise(inside, np.zeros(rank))
    w = (Vt[:rank].T @ (found.z / S[:rank])) / columns
    if np.isfinite(found.error):
        return _judged(losses, Certified(w, found.error, found.excess, found.noise))
    if separable(scaled):
        return Minimum.unknown(
            "the data are separable and reg is 0, so that f falls for ever along some direction and has no minimiser"
        )
    return Minimum.unknown("no minimiser could be certified: the data are separable, or nearly so, and reg is 0")


def _plus(least: Minimum, constant: float) -> Minimum:
    return Minimum(least.w, None if least.value is None else least.value + constant, least.why)


def _judged(losses: Losses, found: Certified) -> Minimum:
    value = losses.value(found.z)
    if found.excess <= SURE * value:
        return Minimum(found.z, value)
    return Minimum.unknown(
        "no minimiser could be certified: features of very different scales, or a tiny reg, leave round-off too large"
    )


def separable(C: Floats) -> bool:
    """Whether some w has c_j . w >= 0 for every row and > 0 for one, by a linear program. False where it is large."""
    if C.size > SMALL:
        return False
    from scipy.optimize import linprog

    # The most of sum_j c_j . w over the box |w| <= 1 under c_j . w >= 0: zero exactly where there is no such w.
    found = linprog(-C.sum(0), A_ub=-C, b_ub=np.zeros(len(C)), bounds=(-1, 1), method="highs")
    return bool(found.status == 0 and -found.fun > 1e-7)
