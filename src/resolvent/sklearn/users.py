"""Rows by user, and the units in which they are solved: each column's scale, from what users report."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import objects
from resolvent.data.scaling import merged, moments
from resolvent.errors import refuse

Floats = NDArray[np.float64]


def rows_by_user(users: Any, rows: int) -> tuple[list[NDArray[np.int64]], list[Any]]:
    """The rows of each user and the users, sorted; without `users` all rows belong to one."""
    if users is None:
        return [np.arange(rows)], [0]
    from pandas import isna

    listed = isinstance(users, Sequence) and not isinstance(users, str)
    who = objects(users) if listed else np.asarray(users)  # NumPy would write the 1 of [1, "1"] as text
    if who.shape != (rows,):
        refuse("users", f"of shape {who.shape}", f"one user for each of the {rows} rows of X is needed")
    if isna(who).any():
        refuse("users", f"None or NaN in places (the first is users[{isna(who).argmax()}])", "every row needs its user")
    try:
        names, which = np.unique(who if who.dtype != object else _of_one_kind(who), return_inverse=True)
    except TypeError:
        refuse("users", f"of type {type(who[0]).__name__}", "numbers, or text, are needed")
    order = np.argsort(which, kind="stable")
    return np.split(order, np.cumsum(np.bincount(which))[:-1]), names.tolist()


def _of_one_kind(who: NDArray[Any]) -> NDArray[Any]:
    """Users as Python's own values, which compare exactly: all numbers, all text, or all of one other type."""
    values = [name.item() if isinstance(name, np.generic) else name for name in who]
    kinds = sorted({_kind(value) for value in values})
    if len(kinds) > 1:
        refuse("users", f"a mixture of {' and '.join(kinds)}", "users of one kind, all numbers or all text, are needed")
    return objects(values)


def _kind(value: Any) -> str:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return "numbers"
    return "text" if isinstance(value, str) else type(value).__name__


@dataclass(frozen=True, eq=False)
class Units:
    """x -> (x - centre) / scale. Coefficients w in these units are w / scale in those of X."""

    centre: Floats
    scale: Floats

    def apply(self, X: Any) -> Any:
        if hasattr(X, "tocsr"):
            import scipy.sparse as sp

            return (X @ sp.diags_array(1 / self.scale)).tocsr()
        return (X - self.centre) / self.scale

    def back(self, coefficients: Floats, intercepts: Floats) -> tuple[Floats, Floats]:
        """Coefficients (scores, d) and intercepts (scores,) in the units of X."""
        own = coefficients / self.scale
        return own, intercepts - own @ self.centre

    def forth(self, own: Floats, intercepts: Floats) -> tuple[Floats, Floats]:
        """The same in these units: the inverse of `back`."""
        return own * self.scale, intercepts + own @ self.centre


def blocks(parts: list[Any], size: int) -> Iterator[Floats]:
    """Users' rows, at most `size` at a time, dense."""
    for part in parts:
        for first in range(0, part.shape[0], size):
            rows = part[first : first + size]
            yield rows.toarray() if hasattr(rows, "toarray") else rows


def pieces(vectors: list[Floats], size: int) -> list[Floats]:
    """What belongs to such blocks of rows, of one number per row."""
    return [each[first : first + size] for each in vectors for first in range(0, len(each), size)]


def units(parts: list[Any], weights: list[Floats], intercept: bool) -> Units:
    """The scale of each column over all users, and its mean where an intercept makes up for it. Sparse rows stay so.

    Rows count as often as their weights say.
    """
    if hasattr(parts[0], "tocsr"):
        n, d = sum(map(np.sum, weights)), parts[0].shape[1]
        largest = np.max([np.abs(part).max(0).toarray().ravel() for part in parts], axis=0)
        unit = np.where(largest > 0, largest, 1.0)
        each = zip(parts, weights, strict=True)
        squares = sum(
            np.asarray(part.multiply(1 / unit).power(2).multiply(w[:, None]).sum(0)).ravel() for part, w in each
        )
        scale, centre = unit * np.sqrt(squares / n), np.zeros(d)
        return Units(centre, np.where(scale > 0, scale, 1.0))
    return dense_units(parts, weights, intercept)


def dense_units(parts: Iterable[Any], weights: Iterable[Floats], intercept: bool) -> Units:
    """The same of dense rows."""
    total = merged(map(moments, parts, weights))
    centre = total.mean if intercept else np.zeros(len(total.mean))
    scale = total.spread if intercept else np.hypot(total.spread, total.mean)
    return Units(centre, np.where(scale > 0, scale, 1.0))
