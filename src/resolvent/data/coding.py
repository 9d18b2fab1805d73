"""Which column of a table becomes which features: numbers as they are, text as categories of what users hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from resolvent.data import reports
from resolvent.data.columns import DATES, NUMBER, TEXT, Column
from resolvent.data.preparation import Feature
from resolvent.errors import refuse

ALWAYS_CATEGORIES = 20
"""Text of at most this many different values is categories, however few rows there are."""
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{2,4}( .*)?")


def as_coded(column: Column, category: bool) -> Column:
    """The column as it will be coded; infinite values are refused before any statistic is made of them."""
    if category:
        return replace(column, kind=TEXT)
    infinite = np.isinf(column.numbers) if column.kind == NUMBER else np.zeros(0, bool)
    if infinite.any():
        n, row = int(infinite.sum()), int(infinite.argmax()) + 1
        what = f"{column.name!r}, infinite in {n} row{'s' if n > 1 else ''} (the first is row {row})"
        refuse("column", what, "finite numbers are needed: mark them as missing and impute them, or drop the column")
    return column


def feature(column: Column, users: Sequence[NDArray[np.int64]], impute: reports.Impute, category: bool) -> Feature:
    """How a column is coded, from the rows that users train on; category: it is one, whatever its values look like."""
    fill = reports.fill(column, users, impute)
    if column.kind != TEXT:
        return Feature(column.name, None, fill)
    levels = reports.levels(column, users)
    if not category and not column.coded:
        _check_categories(column, levels)
    return Feature(column.name, levels, fill)


def _check_categories(column: Column, levels: tuple[str, ...]) -> None:
    """Refuse text that is no category: numbers with a few words among them, dates, names."""
    name, n = repr(column.name), len(levels)
    if not n:
        refuse("column", name, "no training row has a value there: drop it")
    if all(_DATE.fullmatch(level.strip()) for level in levels):
        refuse("column", name, DATES)
    words = [level for level in levels if not is_number(level)]
    if len(words) * 2 < n:
        what = f"numbers, and {words[0]!r} among them" if words else "numbers written as text"
        way = "mark such cells as missing and impute them" if words else "convert it to numbers"
        refuse("column", f"{name}, which holds {what}", f"either kind is needed: {way}, or name it in categories=")
    if all(is_number(level.replace(",", ".", 1)) for level in levels):
        way = 'a decimal point is needed: read it with pd.read_csv(..., decimal=","), or name it in categories='
        refuse("column", f"{name}, which holds numbers with a decimal comma ({levels[0]!r})", way)
    rows = int((~column.missing).sum())
    if n > ALWAYS_CATEGORIES and 2 * n > rows:
        what = f"{name} with {n} different texts in {rows} rows"
        refuse("column", what, "categories recur: drop it, or name it in categories=")


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
