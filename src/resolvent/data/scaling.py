"""Means and spreads of columns from what users report of their own rows: counts, means and sums of squares.

No row leaves its user. A user reports how many rows it has, its means, and the root of the sum of its squared
deviations from them; the reports are merged by the formula of Chan, Golub and LeVeque, in which nothing cancels. The
plain sums of x and x^2 would lose every digit of the spread of a column such as 1e9 + noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import refuse

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """What a user reports of its columns: counts n, means, and roots of sum_j (x_j - mean)^2, each (d,).

    rest: what a float of the size of the mean cannot hold of it. Users' means of 1e9 + noise differ in these digits.
    """

    n: Floats
    mean: Floats
    rest: Floats
    root: Floats

    def __add__(self, other: Moments) -> Moments:
        """The moments of both users' rows together."""
        n = self.n + other.n
        share = np.divide(other.n, n, out=np.zeros_like(n), where=n > 0)
        with np.errstate(over="ignore", invalid="ignore"):
            apart = (other.mean - self.mean) + (other.rest - self.rest)
            apart[(self.n == 0) | (other.n == 0)] = 0.0
            mean, rest = _two_sum(self.mean, self.rest + apart * share)
            between = np.abs(apart) * np.sqrt(self.n * share)
            root = np.hypot(np.hypot(self.root, other.root), between)
        empty = self.n == 0
        return Moments(n, np.where(empty, other.mean, mean), np.where(empty, other.rest, rest), root)

    @property
    def spread(self) -> Floats:
        """The standard deviation of each column, over n as in scikit-learn; exactly 0 where a column is constant."""
        return np.asarray(self.root / np.sqrt(np.where(self.n > 0, self.n, 1)))


def moments(X: Any, weight: Floats | None = None) -> Moments:
    """One user's report on its rows X (rows, d), which count as often as their weights say. NaN counts as missing."""
    X = np.asarray(X, dtype=np.float64)
    there = ~np.isnan(X)
    often = np.float64(1) if weight is None else weight[:, None]
    n = (often * there).sum(0)
    first = (
        np.where(there.any(0), np.take_along_axis(X, there.argmax(0)[None], 0)[0], 0.0) if len(X) else np.zeros(n.shape)
    )
    count = np.where(n > 0, n, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        # Measured from the first entry, a constant column has the mean and the spread that it should, exactly.
        mean = first + (often * np.where(there, X - first, 0.0)).sum(0) / count
        away = np.where(there, X - mean, 0.0)
        rest = (often * away).sum(0) / count
        away = np.where(there, away - rest, 0.0)
        largest = np.abs(away).max(0, initial=0.0)
        unit = np.where(largest > 0, largest, 1.0)
        return Moments(n, *_two_sum(mean, rest), unit * np.sqrt((often * (away / unit) ** 2).sum(0)))


def _two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a + b as a float, and what rounding left of it (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def merged(reports: Iterable[Moments]) -> Moments:
    """The moments of all users' rows."""
    return reduce(Moments.__add__, reports)


@dataclass(frozen=True)
class Scaling:
    """x -> (x - mean) / scale, column by column. A constant column has scale 1 and becomes zero."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def __call__(self, X: Floats) -> Floats:
        return np.asarray((X - np.array(self.mean)) / np.array(self.scale))


def standardisation(users: Sequence[Any], features: Sequence[str] | None = None) -> Scaling:
    """The standardisation of users' rows, a list of (rows, d): every column gets mean 0 and spread 1 over all users.

    Each user is asked for its moments only.
    """
    if not len(users):
        refuse("users", "an empty list", "at least one user's rows are needed")
    return scaling_of(merged(moments(X) for X in users), features)


def scaling_of(total: Moments, features: Sequence[str] | None = None) -> Scaling:
    """The standardisation that the merged moments of all rows say."""
    for j in np.flatnonzero(~np.isfinite(total.mean) | ~np.isfinite(total.root)):
        name = repr(features[int(j)]) if features is not None else str(j)
        refuse(
            "column", name, "its mean or spread is beyond what a float can hold: finite numbers below 1e150 are needed"
        )
    spread = np.where(total.spread > 0, total.spread, 1.0)
    return Scaling(tuple(total.mean.tolist()), tuple(spread.tolist()))
