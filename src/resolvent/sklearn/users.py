"""Rows by user, and the units in which they are solved: each column's scale, from what users report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.scaling import merged, moments
from resolvent.errors import refuse

Floats = NDArray[np.float64]


def rows_by_user(users: Any, rows: int) -> tuple[list[NDArray[np.int64]], list[Any]]:
    """The rows of each user and the users, sorted; without `users` all rows belong to one."""
    if users is None:
        return [np.arange(rows)], [0]
    who = np.asarray(users)
    if who.shape != (rows,):
        refuse("users", f"of shape {who.shape}", f"one user for each of the {rows} rows of X is needed")
    if who.dtype == object:
        who = np.array([str(name) for name in who])
    if who.dtype.kind == "f" and np.isnan(who).any():
        refuse("users", "NaN in places", "every row needs its user")
    names, which = np.unique(who, return_inverse=True)
    order = np.argsort(which, kind="stable")
    return np.split(order, np.cumsum(np.bincount(which))[:-1]), names.tolist()


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


def units(parts: list[Any], intercept: bool) -> Units:
    """The scale of each column over all users, and its mean where an intercept makes up for it. Sparse rows stay so."""
    if hasattr(parts[0], "tocsr"):
        n, d = sum(part.shape[0] for part in parts), parts[0].shape[1]
        largest = np.max([np.abs(part).max(0).toarray().ravel() for part in parts], axis=0)
        unit = np.where(largest > 0, largest, 1.0)
        squares = sum(np.asarray((part.multiply(1 / unit)).power(2).sum(0)).ravel() for part in parts)
        scale, centre = unit * np.sqrt(squares / n), np.zeros(d)
    else:
        found = merged(map(moments, parts))
        centre = found.mean if intercept else np.zeros(len(found.mean))
        scale = found.spread if intercept else np.hypot(found.spread, found.mean)
    return Units(centre, np.where(scale > 0, scale, 1.0))
