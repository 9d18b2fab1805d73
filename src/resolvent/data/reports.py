"""What users report of a column of their own rows, and what the merged reports say: fills and categories.

A user reports moments (`scaling.Moments`, for a mean) or how often each value occurs (for a median, the most frequent
value, and categories). Reports are merged by adding them up, so that fills and categories are those of all training
rows, whoever holds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import TEXT, Column
from resolvent.data.scaling import merged, moments
from resolvent.errors import quoted, refuse

Values = Sequence[NDArray[Any]]
"""The values of one column that are not missing, an array per user."""
Impute = str | Mapping[str, str] | None
Fill = float | str


def mean(users: Values) -> float:
    """The mean of all users' values."""
    return float(merged(moments(values[:, None]) for values in users).mean[0])


def counts(users: Values) -> Counter[Any]:
    """How often each value occurs: the sum of what each user reports."""
    total: Counter[Any] = Counter()
    for values in users:
        total.update(Counter(values.tolist()))
    return total


def median(users: Values) -> float:
    """The median of all users' values; the mean of the two in the middle where their number is even."""
    occurs = counts(users)
    values, n = sorted(occurs), occurs.total()
    up_to = list(accumulate(occurs[value] for value in values))
    low, high = (values[np.searchsorted(up_to, k)] for k in ((n + 1) // 2, n // 2 + 1))
    return float(low + (high - low) / 2)


def most_frequent(users: Values) -> Any:
    """The value that most rows of all users have; of several, the smallest."""
    occurs = counts(users)
    most = max(occurs.values())
    return min(value for value, count in occurs.items() if count == most)


FILLS: dict[str, Callable[[Values], Any]] = {"mean": mean, "median": median, "most_frequent": most_frequent}
"""What may replace missing values, by name."""


def levels(column: Column, users: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:
    """The categories that any user holds, sorted."""
    return tuple(sorted(counts(present_values(column, users))))


def fill(column: Column, users: Sequence[NDArray[np.int64]], impute: Impute) -> Fill | None:
    """What replaces a missing value of this column, from the users' rows; None where a missing value is refused."""
    kind = kind_of(column, impute)
    if kind is None:
        return None
    present = present_values(column, users)
    if not any(map(len, present)):
        refuse("column", quoted(column.name), "no training row has a value there: drop it")
    return FILLS[kind](present) if column.kind == TEXT else float(FILLS[kind](present))


def present_values(column: Column, users: Sequence[NDArray[np.int64]]) -> Values:
    return [column.values[rows][~column.missing[rows]] for rows in users]


def kind_of(column: Column, impute: Impute) -> str | None:
    """How a column is filled; None where it is not. What is given once means the most frequent value for text."""
    if isinstance(impute, Mapping):
        asked = impute.get(column.name)
        return None if column.kind == TEXT and asked != "most_frequent" else asked
    return "most_frequent" if impute is not None and column.kind == TEXT else impute


def check(impute: Impute, columns: Sequence[str]) -> None:
    """Refuse what names no way to fill, or no column."""
    asked = impute if isinstance(impute, Mapping) else {} if impute is None else {"": impute}
    for name, kind in asked.items():
        if name and name not in columns:
            refuse("impute", f"for a column {name!r}", f"there are {', '.join(columns)}")
        if not isinstance(kind, str) or kind not in FILLS:
            refuse("impute", quoted(kind), f"one of {', '.join(FILLS)} is needed, or a dict of them by column")


def check_filled(column: Column, impute: Impute) -> None:
    """Refuse missing values that nothing fills."""
    if not column.missing.any() or kind_of(column, impute) is not None:
        return
    kind = impute.get(column.name) if isinstance(impute, Mapping) else None
    if kind is not None:
        refuse("column", column.holes, f"text has no {kind}: impute this column by most_frequent, or drop it")
    kinds = "most_frequent" if column.kind == TEXT else ", ".join(FILLS)
    advice = f"every row needs a value: impute it ({kinds}), drop the column, or leave out those rows"
    refuse("column", column.holes, advice)
