"""Columns of numbers that may be none: identifiers, codes such as postcodes, grades of a few values."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from resolvent.data.columns import NUMBER, Column

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
    said = [f"{_listed(ids)} {_be(ids, 'an identifier', 'identifiers')}: {_way('drop', ids)}"] * bool(ids)
    said += [f"{_listed(codes)} {_be(codes, 'a code', 'codes')}: {_way('categories', codes)}"] * bool(codes)
    return f"{'; '.join(said)}; without that they are taken for numbers" if said else None


def few_values(columns: Sequence[Column]) -> str | None:
    """A sentence on columns of whole numbers with a few different values, which may be grades or codes."""
    some = [column.name for column in columns if column.kind == NUMBER and _is_few(column)]
    what = f"{_listed(some)} {'has' if len(some) == 1 else 'have'} few different values"
    return f"{what}: where these are no amounts, {_way('categories', some)}" if some else None


def _counts_rows(column: Column) -> bool:
    """From 0 or 1 on."""
    x, n = column.numbers, len(column.numbers)
    return n >= FEWEST_ROWS and bool(x[0] in (0, 1) and (np.diff(x) == 1).all())


def _is_few(column: Column) -> bool:
    there = column.numbers[~column.missing]
    values = np.unique(there)
    return len(values) in FEW and 10 * len(values) <= len(there) and bool((values == np.rint(values)).all())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _be(names: Sequence[str], one: str, several: str) -> str:
    return f"looks like {one}" if len(names) == 1 else f"look like {several}"


def _way(argument: str, names: Sequence[str]) -> str:
    return f"{argument}={list(names[:5])!r} (--{argument} {','.join(names[:5])})"
