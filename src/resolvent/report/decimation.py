"""Rows of a long curve that a picture needs: the first, the last, and the extremes of each stretch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 4000
"""Curves of no more rows are drawn as they are."""
STRETCHES = 250
"""Of equal numbers of rows, and as many whose lengths grow in proportion, for logarithmic axes."""


def shown(table: pd.DataFrame) -> NDArray[np.int64]:
    """Positions of the rows to draw, ascending: all of a short table, else where some column is least or most."""
    rows = len(table)
    if rows <= MOST_ROWS:
        return np.arange(rows)
    ends = np.concatenate([np.linspace(0, rows, STRETCHES + 1), np.geomspace(1, rows, STRETCHES + 1)])
    begins = np.unique(ends.astype(np.int64))[:-1]
    numbers = table.to_numpy(dtype=np.float64)
    chosen = [np.array([0, rows - 1])]
    for values in (np.where(np.isnan(numbers), np.inf, numbers), np.where(np.isnan(numbers), np.inf, -numbers)):
        for column in values.T:
            least = np.minimum.reduceat(column, begins)
            is_least = column == np.repeat(least, np.diff(np.append(begins, rows)))
            at = np.flatnonzero(is_least)
            first = np.searchsorted(at, begins)  # of several equal ones, the first of each stretch
            chosen.append(at[first])
    return np.unique(np.concatenate(chosen))
