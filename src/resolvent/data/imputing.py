"""What missing values are replaced by, from what users report of their own rows: means, counts, and medians by counts.

A median is not a sum. It is found exactly by asking users how many of their values are at most t, for about 64
values of t: each answer is a count, and the counts are summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import TEXT, Column
from resolvent.data.scaling import merged, moments
from resolvent.errors import refuse

Floats = NDArray[np.float64]
Impute = str | Mapping[str, str] | None
Fill = float | str


def mean(users: Sequence[Floats]) -> float:
    """The mean of all users' values."""
    return float(merged(moments(values[:, None]) for values in users).mean[0])


def median(users: Sequence[Floats]) -> float:
    """The median of all users' values; the mean of the two in the middle where their number is even."""
    n = sum(len(values) for values in users)
    low = order_statistic(users, (n + 1) // 2)
    high = low if n % 2 else order_statistic(users, n // 2 + 1)
    return low + (high - low) / 2


def order_statistic(users: Sequence[Floats], k: int) -> float:
    """The k-th smallest of all users' values, from counts: bisection over the floats themselves, in their order."""
    low, high = _rank(-np.inf), _rank(np.inf)
    while low < high:
        middle = (low + high) // 2
        if sum(int((values <= _float(middle)).sum()) for values in users) >= k:
            high = middle
        else:
            low = middle + 1
    return _float(low)


def _rank(x: float) -> int:
    """The place of a float among all floats: whole numbers in the same order."""
    bits = int(np.float64(x).view(np.int64))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


def _float(rank: int) -> float:
    return float(np.int64(abs(rank)).view(np.float64)) * (-1.0 if rank < 0 else 1.0)


def most_frequent(users: Sequence[NDArray[Any]]) -> Any:
    """The value that most rows of all users have; of several, the smallest."""
    counts: Counter[Any] = Counter()
    for values in users:
        counts.update(values.tolist())
    most = max(counts.values())
    return min(value for value, count in counts.items() if count == most)


KINDS: dict[str, Callable[[Sequence[Any]], Any]] = {"mean": mean, "median": median, "most_frequent": most_frequent}
"""By name, from one array of present values per user."""


def check(impute: Impute, columns: Sequence[str]) -> None:
    """Refuse what names no kind, or no column."""
    asked = impute if isinstance(impute, Mapping) else {} if impute is None else {"": impute}
    for name, kind in asked.items():
        if name and name not in columns:
            refuse("impute", f"for a column {name!r}", f"there are {', '.join(columns)}")
        if kind not in KINDS:
            refuse("impute", repr(kind), f"one of {', '.join(KINDS)} is needed, or a dict of them by column")


def fill(column: Column, users: Sequence[NDArray[np.int64]], impute: Impute) -> Fill | None:
    """What replaces a missing value of this column, from the users' rows; None where a missing value is refused."""
    kind, missing = _kind(column, impute), column.missing
    if kind is None:
        return None
    present = [column.values[rows][~missing[rows]] for rows in users]
    if not any(len(values) for values in present):
        refuse("column", repr(column.name), "no training row has a value there: drop it")
    found = KINDS[kind](present)
    return str(found) if column.kind == TEXT else float(found)


def _kind(column: Column, impute: Impute) -> str | None:
    """How a column is filled; None where it is not."""
    asked = impute.get(column.name) if isinstance(impute, Mapping) else impute
    return None if column.kind == TEXT and asked != "most_frequent" else asked


def check_column(column: Column, impute: Impute) -> None:
    """Refuse missing values that nothing fills."""
    missing = column.missing
    if not missing.any() or _kind(column, impute) is not None:
        return
    kind = impute.get(column.name) if isinstance(impute, Mapping) else impute
    n, row = int(missing.sum()), int(missing.argmax()) + 1
    came = f"{column.name!r} with {n} missing value{'s' if n > 1 else ''} (the first in row {row})"
    if kind is not None:
        refuse("column", came, f"text has no {kind}: impute this column by most_frequent, or drop it")
    kinds = "most_frequent" if column.kind == TEXT else ", ".join(KINDS)
    refuse("column", came, f"every row needs a value: impute it ({kinds}), drop the column, or leave out those rows")
