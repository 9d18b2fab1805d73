"""The door for tables: any frame as pandas', and each of its columns as numbers, booleans or text.

pandas and polars frames, mappings and lists of mappings are read alike. Dates and mixtures are refused by name.
Different values stay different: whole numbers beyond 2^53, which floats would merge, are compared as they are.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import quoted, refuse

if TYPE_CHECKING:
    import pandas as pd

NUMBER: Final = "number"
BOOLEAN: Final = "boolean"
TEXT: Final = "text"
Kind = Literal["number", "boolean", "text"]
_KINDS: dict[str, Kind] = {
    "integer": NUMBER,
    "floating": NUMBER,
    "mixed-integer-float": NUMBER,
    "decimal": NUMBER,
    "empty": NUMBER,
    "boolean": BOOLEAN,
    "string": TEXT,
}
"""What a column is, by pandas' own name for its values; other names are looked at more closely."""
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
DATES = "dates are no numbers: drop the column, or put in numbers made from it, such as the year or days since a date"


@dataclass(frozen=True, eq=False)
class Column:
    """A column of one kind. coded: whether the frame itself says that its numbers are categories."""

    name: str
    kind: Kind
    series: pd.Series[Any]
    coded: bool = False

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """Numbers and booleans as floats, NaN where missing."""
        from pandas.api.types import is_numeric_dtype

        if is_numeric_dtype(self.series.dtype):
            return self.series.to_numpy(dtype=np.float64, na_value=np.nan)
        items = zip(self.series.tolist(), self.series.isna(), strict=True)
        return np.array([math.nan if gone else as_float(value) for value, gone in items], np.float64)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        return np.asarray(self.series.isna() if self.kind == TEXT else np.isnan(self.numbers), dtype=bool)

    @cached_property
    def exact(self) -> list[Any]:
        """The values as Python's, which compare exactly; None where missing."""
        items = zip(self.series.tolist(), self.missing.tolist(), strict=True)
        return [None if gone else value.item() if isinstance(value, np.generic) else value for value, gone in items]

    @cached_property
    def texts(self) -> NDArray[Any]:
        """Every value as a word, None where missing: 3.0 is "3"."""
        words = {value: word(value) for value in set(self.exact) if value is not None}
        return objects(None if value is None else words[value] for value in self.exact)

    @property
    def values(self) -> NDArray[Any]:
        """What statistics are made of: words of text, floats of all else."""
        return self.texts if self.kind == TEXT else self.numbers

    @property
    def holes(self) -> str:
        """The column's name and its missing values, for a sentence."""
        n, row = int(self.missing.sum()), int(self.missing.argmax()) + 1
        return f"{self.name!r} with {n} missing value{'s' if n > 1 else ''} (the first in row {row})"


def as_frame(given: Any, argument: str = "frame") -> pd.DataFrame:
    """Any frame as pandas': pandas, polars, a mapping of columns, one row as a mapping, or a list of such rows."""
    import pandas as pd

    if type(given).__module__.partition(".")[0] == "polars":
        given = _from_polars(given, argument)
    elif isinstance(given, pd.Series):
        given = given.to_frame().T
    elif isinstance(given, Mapping):  # as objects: pandas would make floats of integers among which one is missing
        lists = all(np.ndim(value) == 1 for value in given.values())
        columns = {name: value if hasattr(value, "dtype") else objects(value) for name, value in given.items() if lists}
        given = pd.DataFrame(columns if lists else [dict(given)])
    elif isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(row, Mapping) for row in given):
        given = pd.DataFrame([dict(row) for row in given], dtype=object)
    if not isinstance(given, pd.DataFrame):
        refuse(argument, f"of type {type(given).__name__}", "a pandas or polars frame is needed")
    names = pd.Index([str(name) for name in given.columns])
    if names.has_duplicates:
        twice = names[names.duplicated()][0]
        refuse(argument, f"a frame with two columns {twice!r}", "every column needs a name of its own")
    return given if names.equals(given.columns) else given.set_axis(names, axis=1)


def _from_polars(frame: Any, argument: str) -> pd.DataFrame:
    import pandas as pd
    import polars as pl

    if isinstance(frame, pl.LazyFrame):
        refuse(argument, "a LazyFrame", "a DataFrame is needed: call collect() first")
    if isinstance(frame, pl.Series):
        frame = frame.to_frame()

    def values(series: Any) -> NDArray[Any]:
        plain = series.dtype.is_float() or (series.dtype.is_integer() and not series.null_count())
        return np.asarray(series.to_numpy()) if plain else objects(series.to_list())

    return pd.DataFrame({series.name: values(series) for series in frame})


def column(frame: pd.DataFrame, name: str) -> Column:
    """A column of a frame, by its name, once its values are known to be of one kind."""
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    series = frame[name]
    if isinstance(series.dtype, pd.CategoricalDtype):
        present = series.dropna().unique().tolist()
        if len({word(value) for value in present}) < len(present):
            _refuse_mixture(name, present)
        return Column(name, TEXT, series, coded=is_numeric_dtype(series.dtype.categories.dtype))
    return Column(name, NUMBER if series.dtype == np.float64 else _kind(name, series), series)


def _kind(name: str, series: pd.Series[Any]) -> Kind:
    from pandas.api.types import infer_dtype

    inferred = infer_dtype(series, skipna=True)
    if inferred in _KINDS:
        return _KINDS[inferred]
    present = series.dropna().tolist()
    if inferred == "complex":
        refuse("column", quoted(name), "it holds complex numbers: split it into real columns")
    if inferred == "period" or any(isinstance(value, _TIMES) for value in present):
        refuse("column", quoted(name), DATES)
    if not any(isinstance(value, bool | np.bool_) for value in present):
        for types in (
            (numbers.Real,),
            (numbers.Integral, Decimal),
        ):  # Python compares fractions and decimals with no float
            if all(isinstance(value, types) for value in present):
                return NUMBER
        if all(isinstance(value, str) for value in present):
            return TEXT
    _refuse_mixture(name, present)


def _refuse_mixture(name: str, values: list[Any]) -> NoReturn:
    kinds = sorted({type(value).__name__ for value in values})
    what = f"it mixes {' and '.join(kinds)}" if len(kinds) > 1 else f"it holds values of type {kinds[0]}"
    refuse("column", quoted(name), f"{what}: all numbers or all text are needed")


def word(value: Any) -> str:
    """A category or label as text: whole numbers are written without a point, whatever their type.

    Different numbers have different words: one that no float equals is written in full.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | Decimal):
        return quoted(value, str)
    if isinstance(value, numbers.Integral):
        return quoted(int(value), str)
    if isinstance(value, Decimal) and value.is_finite():
        text = format(abs(value) if value == 0 else value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    number = as_float(value)
    if number == value or number != number:
        return str(int(number)) if number.is_integer() else repr(number)
    over, under = cast(Any, value).as_integer_ratio()  # a fraction, or a float of more than 64 bits
    return f"{over}/{under}"


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_float(value: Any) -> float:
    """The nearest float, infinite for a number beyond all of them."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def objects(values: Any) -> NDArray[Any]:
    """A 1-D array of objects, whatever they are."""
    items = list(values)
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out
