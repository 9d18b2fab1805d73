"""Which column of a table becomes which features: numbers as they are, text as categories of what users hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resolvent.data import columns, reports
from resolvent.data.columns import DATES, NUMBER, TEXT, Column, is_number
from resolvent.data.preparation import Feature
from resolvent.errors import InputError, refuse

if TYPE_CHECKING:
    import pandas as pd

ALWAYS_CATEGORIES = 20
"""Text of at most this many different values is categories, however few rows there are."""
OPTION = " (--categories)"
"""What a command line has, and the file of a federation has not."""
CATEGORIES = f"categories={OPTION}"
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{2,4}( .*)?")


def coded_columns(
    frame: pd.DataFrame,
    names: Sequence[str],
    impute: reports.Impute,
    categories: Sequence[str],
    where: str = "",
) -> list[Column]:
    """The columns of features, each checked. All that cannot be used is refused in one message, with what would pass.

    Columns that look like identifiers come first: to drop them is what everything else may hang on. where: the section
    of a file, in TOML, that has the settings.
    """
    made, wrong, holes = [], [], []
    for name in names:
        try:
            raw = as_coded(columns.column(frame, name), name in categories)
            check_categories(raw, name in categories)
        except InputError as error:
            wrong.append((name, error))
            continue
        try:
            reports.check_filled(raw, impute)
        except InputError as error:
            holes.append((raw, error))
        made.append(raw)
    if len(wrong) + len(holes) > 1:
        said = "; ".join(_said(error, where) for _, error in [*wrong, *holes])
        raise InputError(
            f"{len(wrong) + len(holes)} columns cannot be used: {said}; this passes{where and f', in {where}'}: "
            f"{' and '.join(_ways([name for name, _ in wrong], [raw for raw, _ in holes], impute, where))}"
        )
    for _, only in [*wrong, *holes]:
        raise InputError(f"{_said(only, where)}; its settings are in {where}") if where else only
    return made


def _said(error: InputError, where: str) -> str:
    return str(error).replace(OPTION, "") if where else str(error)


def _ways(drop: list[str], holes: list[Column], impute: reports.Impute, where: str) -> list[str]:
    """What to write, in a file or else as an argument and an option, so that a table passes."""
    ways = []
    if drop:
        ways.append(f"drop = {json.dumps(drop)}" if where else f"drop={drop!r} (--drop {','.join(drop)})")
    if holes and isinstance(impute, Mapping):
        fills = {name: kind for name, kind in impute.items() if name not in drop}
        fills |= {raw.name: "most_frequent" if raw.kind == TEXT else "mean" for raw in holes}
        by_column = ",".join(f"{name}={kind}" for name, kind in fills.items())
        ways.append(f"impute = {json.dumps(by_column)}" if where else f"impute={fills!r} (--impute {by_column})")
    elif holes:
        ways.append('impute = "mean"' if where else 'impute="mean" (--impute mean)')
    return ways


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
    if not levels and not category and not column.coded:
        refuse("column", repr(column.name), "no training row has a value there: drop it")
    return Feature(column.name, levels, fill)


def check_categories(column: Column, category: bool) -> None:
    """Refuse text that is no category: numbers with a few words among them, dates, names.

    category: it is one, whatever its values look like.
    """
    levels = sorted(set(column.texts[~column.missing])) if column.kind == TEXT else []
    name, n = repr(column.name), len(levels)
    if not n or category or column.coded:
        return
    if all(_DATE.fullmatch(level.strip()) for level in levels):
        refuse("column", name, DATES)
    words = [level for level in levels if not is_number(level)]
    if len(words) * 2 < n:
        what = f"numbers, and {words[0]!r} among them" if words else "numbers written as text"
        way = "mark such cells as missing and impute them" if words else "convert it to numbers"
        refuse("column", f"{name}, which holds {what}", f"either kind is needed: {way}, or name it in {CATEGORIES}")
    if all(is_number(level.replace(",", ".", 1)) for level in levels):
        comma = words[0]
        row = int((column.texts == comma).argmax()) + 1
        way = f"a decimal point is needed: write {comma.replace(',', '.', 1)} there, and so in every row"
        code = f"; of a pandas frame, by frame[{name}].str.replace(',', '.').astype(float)"
        refuse("column", f"{name}, which holds numbers with a decimal comma ({comma!r} in row {row})", way + code)
    rows = int((~column.missing).sum())
    if n > ALWAYS_CATEGORIES and 2 * n > rows:
        what = f"{name} with {n} different texts in {rows} rows"
        refuse("column", what, f"categories recur: drop it, or name it in {CATEGORIES}")


_IDENTIFIER = re.compile(r"(.*[\W_])?(id|uid|uuid|guid|identifier)|.*[a-z0-9](Id|ID|Uuid|UUID)")
_CODE = re.compile(r"(.*[\W_])?(zip|(zip|post|postal|area|country)?[\W_]?code|plz|fips|phone|telephone)", re.IGNORECASE)
FEWEST_ROWS = 20
"""So many rows at least are looked at for being numbered."""
FEW = range(3, 11)
"""So many different values are few, where each occurs ten times on average."""


def no_numbers(columns: Sequence[Column]) -> str | None:
    """A sentence on columns that are hardly meant as numbers, identifiers first; None where there are none."""
    numbers = [column for column in columns if column.kind == NUMBER]
    return by_name([column.name for column in numbers], [column.name for column in numbers if _counts_rows(column)])


def by_name(numbers: Sequence[str], counting: Sequence[str] = ()) -> str | None:
    """The same of columns of numbers by their names, some of which are known to count the rows."""
    ids = [name for name in numbers if name in counting or name.lower() == "id" or _IDENTIFIER.fullmatch(name)]
    codes = [name for name in numbers if name not in ids and _CODE.fullmatch(name)]
    said = [f"{listed(ids)} {_be(ids, 'an identifier', 'identifiers')}: {_way('drop', ids)}"] * bool(ids)
    said += [f"{listed(codes)} {_be(codes, 'a code', 'codes')}: {_way('categories', codes)}"] * bool(codes)
    return f"{'; '.join(said)}; without that they are taken for numbers" if said else None


def few_values(columns: Sequence[Column]) -> str | None:
    """A sentence on columns of whole numbers with a few different values, which may be grades or codes."""
    some = [column.name for column in columns if column.kind == NUMBER and _is_few(column)]
    what = f"{listed(some)} {'has' if len(some) == 1 else 'have'} few different values"
    return f"{what}: where these are no amounts, {_way('categories', some)}" if some else None


def spelled_alike(words: Iterable[str]) -> str | None:
    """Words that differ in capitals and spaces alone, the first such group of them; None where there are none."""
    groups: dict[str, list[str]] = {}
    for word in sorted(words):
        groups.setdefault(" ".join(word.casefold().split()), []).append(word)
    return next((listed(group) for group in groups.values() if len(group) > 1), None)


def alike(name: str, levels: Iterable[str]) -> str | None:
    """A sentence on categories of a column, or classes, that are spelled alike."""
    found = spelled_alike(levels)
    return found and f"{found} in {name!r} differ in spelling alone, and are taken for different"


def _counts_rows(column: Column) -> bool:
    """From 0 or 1 on."""
    x, n = column.numbers, len(column.numbers)
    return n >= FEWEST_ROWS and bool(x[0] in (0, 1) and (np.diff(x) == 1).all())


def _is_few(column: Column) -> bool:
    there = column.numbers[~column.missing]
    values = np.unique(there)
    return len(values) in FEW and 10 * len(values) <= len(there) and bool((values == np.rint(values)).all())


def listed(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _be(names: Sequence[str], one: str, several: str) -> str:
    return f"looks like {one}" if len(names) == 1 else f"look like {several}"


def _way(argument: str, names: Sequence[str]) -> str:
    return f"{argument}={list(names[:5])!r} (--{argument} {','.join(names[:5])})"
