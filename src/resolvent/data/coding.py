"""Which column of a table becomes which features: numbers as they are, text as categories of what users hold."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resolvent.data import imputing
from resolvent.data.columns import BOOLEAN, DATES, TEXT, Column
from resolvent.data.preparation import Feature
from resolvent.errors import refuse

RowNumbers = NDArray[np.int64]

FEW = 20
"""Text of at most this many different values is categories, however few rows there are."""
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{2,4}( .*)?")


def feature(column: Column, users: Sequence[RowNumbers], impute: imputing.Impute, category: bool) -> Feature:
    """How a column is coded, from the rows that users train on; category: it is one, whatever its values look like."""
    fill = imputing.fill(column, users, impute)
    if column.kind != TEXT:
        return Feature(column.name, None, fill)
    levels = union(column, users)
    if not category and not column.coded:
        _check(column, levels)
    return Feature(column.name, levels, fill)


def union(column: Column, users: Sequence[RowNumbers]) -> tuple[str, ...]:
    """What users hold of a column, together and sorted: each user reports its own set."""
    held = [{value for value in column.values[rows] if value is not None} for rows in users]
    return tuple(sorted(set().union(*held)))


def _check(column: Column, levels: tuple[str, ...]) -> None:
    """Refuse text that is no category: numbers with a few words among them, dates, names."""
    name, n = repr(column.name), len(levels)
    if not n:
        refuse("column", name, "no training row has a value there: drop it")
    if all(_DATE.fullmatch(level.strip()) for level in levels):
        refuse("column", name, DATES)
    numbers = [_is_number(level) for level in levels]
    if sum(numbers) * 2 > n:
        odd = next((level for level, number in zip(levels, numbers, strict=True) if not number), None)
        what = f"numbers, and {odd!r} among them" if odd is not None else "numbers written as text"
        way = "mark such cells as missing and impute them" if odd is not None else "convert it to numbers"
        refuse("column", f"{name}, which holds {what}", f"either kind is needed: {way}, or name it in categories=")
    commas = [_is_number(level.replace(",", ".", 1)) for level in levels]
    if all(commas):
        way = 'a decimal point is needed: read it with pd.read_csv(..., decimal=","), or name it in categories='
        refuse("column", f"{name}, which holds numbers with a decimal comma ({levels[0]!r})", way)
    rows = int((~column.missing).sum())
    if n > FEW and 2 * n > rows:
        refuse(
            "column",
            f"{name} with {n} different texts in {rows} rows",
            "categories recur: drop it, or name it in categories=",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read(column: Column, category: bool) -> Column:
    """The column as it will be coded; infinite values are refused before any statistic is made of them."""
    if category:
        return Column(column.name, TEXT, column.texts)
    if column.kind in (TEXT, BOOLEAN):
        return column
    infinite = np.isinf(column.values)
    if infinite.any():
        n, row = int(infinite.sum()), int(infinite.argmax()) + 1
        came = f"{column.name!r}, infinite in {n} row{'s' if n > 1 else ''} (the first is row {row})"
        refuse("column", came, "finite numbers are needed: mark them as missing and impute them, or drop the column")
    return column
