"""Products of rows with a vector as if in twice the precision: terms that cancel leave no rounding behind.

A product and a sum of two numbers have rounding errors that are numbers themselves, so that they can be added up too
(Ogita, Rump and Oishi, Accurate sum and dot product, 2005). What is left is one unit in the last place of the result,
and about d eps^2 of the terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

BLOCK_NUMBERS = 1 << 18
"""Numbers in one block of rows."""
SPLIT = 2.0**27 + 1


def predictors(rows: Floats, w: Floats, start: Floats) -> Floats:
    """start_j + rows_j . w for rows (n, d), w (d,) and start (n,), in float64."""
    out, step = np.empty(len(rows)), max(1, BLOCK_NUMBERS // max(1, rows.shape[1]))
    for first in range(0, len(rows), step):
        some = slice(first, first + step)
        out[some] = _predictors(rows[some].astype(np.float64, copy=False), w, start[some])
    return out


def _predictors(rows: Floats, w: Floats, start: Floats) -> Floats:
    high, errors = _product(rows, w)
    low = errors.sum(1)
    while high.shape[1] > 1:
        half = high.shape[1] // 2
        total, errors = _sum(high[:, :half], high[:, half : 2 * half])
        low += errors.sum(1)
        high = np.concatenate([total, high[:, 2 * half :]], 1)
    total, errors = _sum(start, high.sum(1))
    return np.asarray(total + (low + errors))


def _sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a + b rounded, and what rounding took off."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a * b rounded, and what rounding took off."""
    p = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return p, a2 * b2 - (((p - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: Floats) -> tuple[Floats, Floats]:
    """a as a sum of two numbers of 26 digits: products of these are exact."""
    c = SPLIT * a
    high = c - (c - a)
    return high, a - high
