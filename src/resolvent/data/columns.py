"""A frame's columns as plain arrays, whichever package the frame is from: numbers, booleans or text.

pandas and polars frames, mappings and lists of mappings are read alike. Dates and mixtures are refused by name.
Different values stay different: whole numbers beyond 2^53, which floats would merge, are retained beside the floats.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import refuse

NUMBER: Final = "number"
BOOLEAN: Final = "boolean"
TEXT: Final = "text"
EXACT: Final = 2.0**53
"""Floats hold every whole number below this."""
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
DATES = "dates are no numbers: drop the column, or put in numbers made from it, such as the year or days since a date"


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one kind. Numbers and booleans are floats, NaN where missing; text is objects, None where missing."""

    name: str
    kind: Literal["number", "boolean", "text"]
    values: NDArray[Any]
    coded: bool = False
    """Whether the frame itself says that its numbers are categories."""
    exact: NDArray[Any] | None = None
    """The numbers themselves, None where missing, if a float would round one of them."""

    @property
    def missing(self) -> NDArray[np.bool_]:
        if self.kind == TEXT:
            return np.array([value is None for value in self.values], dtype=bool)
        return np.asarray(np.isnan(self.values))

    @property
    def texts(self) -> NDArray[Any]:
        """Every value as a word, None where missing: 3.0 is "3"."""
        if self.kind == TEXT:
            return self.values
        if self.exact is not None:
            return objects(None if v is None else word(v) for v in self.exact)
        return objects(None if math.isnan(v) else word(bool(v) if self.kind == BOOLEAN else v) for v in self.values)


@dataclass(frozen=True, eq=False)
class Source:
    """A frame: the names of its columns, how many rows, and a column by name, read when it is asked for."""

    names: tuple[str, ...]
    rows: int
    column: Callable[[str], Column]


def source(frame: Any, argument: str = "frame") -> Source:
    """Any frame as a Source: pandas, polars, a mapping of columns, one row as a mapping, or a list of such rows."""
    package = type(frame).__module__.partition(".")[0]
    if package == "polars":
        return _polars(frame, argument)
    import pandas as pd

    if isinstance(frame, pd.Series):
        frame = frame.to_frame().T
    elif isinstance(frame, Mapping):
        lists = all(np.ndim(value) == 1 for value in frame.values())
        frame = pd.DataFrame({k: _unrounded(v) for k, v in frame.items()} if lists else [dict(frame)])
    elif isinstance(frame, Sequence) and not isinstance(frame, str) and all(isinstance(row, Mapping) for row in frame):
        frame = pd.DataFrame([dict(row) for row in frame], dtype=object)  # or missing values make floats of integers
    if not isinstance(frame, pd.DataFrame):
        refuse(argument, f"of type {type(frame).__name__}", "a pandas or polars frame is needed")
    names = _distinct(frame.columns, argument)
    at = {name: k for k, name in enumerate(names)}
    return Source(names, len(frame), lambda name: _pandas_column(name, frame.iloc[:, at[name]]))


def array_source(x: NDArray[Any], names: Sequence[str]) -> Source:
    """A matrix of numbers whose columns have names."""
    at = {name: k for k, name in enumerate(names)}
    return Source(tuple(names), len(x), lambda name: Column(name, NUMBER, np.asarray(x[:, at[name]], np.float64)))


def word(value: Any) -> str:
    """A category or label as text: whole numbers are written without a point, whatever their type.

    Different numbers have different words: one that no float equals is written in full.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | Decimal):
        return str(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        text = format(abs(value) if value == 0 else value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    number = as_float(value)
    if number == value or number != number:
        return str(int(number)) if number.is_integer() else repr(number)
    over, under = cast(Any, value).as_integer_ratio()  # a fraction, or a float of more than 64 bits
    return f"{over}/{under}"


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


def _distinct(columns: Any, argument: str) -> tuple[str, ...]:
    names = tuple(str(name) for name in columns)
    for k, name in enumerate(names):
        if name in names[:k]:
            refuse(argument, f"a frame with two columns {name!r}", "every column needs a name of its own")
    return names


def _pandas_column(name: str, series: Any) -> Column:
    import pandas as pd
    from pandas.api import types

    dtype = series.dtype
    if types.is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype):
        return Column(name, BOOLEAN, series.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_complex_dtype(dtype):
        refuse("column", repr(name), "it holds complex numbers: split it into real columns")
    if types.is_numeric_dtype(dtype):
        floats = series.to_numpy(dtype=np.float64, na_value=np.nan)
        plain = dtype.kind == "f" and getattr(dtype, "itemsize", 8) <= 8
        return _numbers(name, floats, series.tolist, plain)
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype) or types.is_timedelta64_dtype(dtype):
        refuse("column", repr(name), DATES)
    missing = series.isna().to_numpy()
    values = [None if gone else value for value, gone in zip(series.tolist(), missing, strict=True)]
    if isinstance(dtype, pd.CategoricalDtype):
        return _words(name, values, types.is_numeric_dtype(dtype.categories.dtype))
    return _inspected(name, values)


def _polars(frame: Any, argument: str) -> Source:
    import polars as pl

    if isinstance(frame, pl.LazyFrame):
        refuse(argument, "a LazyFrame", "a DataFrame is needed: call collect() first")
    if isinstance(frame, pl.Series):
        frame = frame.to_frame()

    def column(name: str) -> Column:
        series = frame.get_column(name)
        dtype = series.dtype
        if dtype.is_numeric():
            floats = series.cast(pl.Float64).to_numpy().astype(np.float64)
            return _numbers(name, floats, series.to_list, dtype.is_float())
        if dtype == pl.Boolean:
            return Column(name, BOOLEAN, series.cast(pl.Float64).to_numpy().astype(np.float64))
        if dtype.is_temporal():
            refuse("column", repr(name), DATES)
        if dtype in (pl.Categorical, pl.Enum):
            return _words(name, series.cast(pl.String).to_list())
        return _inspected(name, series.to_list())

    return Source(_distinct(frame.columns, argument), frame.height, column)


def _unrounded(column: Any) -> Any:
    """A column for pandas, which would make floats of integers among which some are missing."""
    return column if hasattr(column, "dtype") else objects(column)


def _numbers(name: str, floats: NDArray[np.float64], exact: Callable[[], list[Any]], plain: bool) -> Column:
    """A column of numbers; plain: they are floats of at most 64 bits already. exact: the numbers one by one."""
    there = floats[~np.isnan(floats)]
    if plain or ((there == np.rint(there)) & (np.abs(there) < EXACT)).all():
        return Column(name, NUMBER, floats)
    values = [None if math.isnan(number) else _plain(value) for number, value in zip(floats, exact(), strict=True)]
    rounded = any(value is not None and number != value for number, value in zip(floats.tolist(), values, strict=True))
    return Column(name, NUMBER, floats, exact=objects(values) if rounded else None)


def _plain(value: Any) -> Any:
    """A number that Python compares exactly: NumPy would make a float of an integer beside a float."""
    return int(value) if isinstance(value, numbers.Integral) else value


def _words(name: str, values: list[Any], coded: bool = False) -> Column:
    words = {value: word(value) for value in values if value is not None}
    if len(set(words.values())) < len(words):
        _refuse_mixture(name, list(words))
    return Column(name, TEXT, objects(None if value is None else words[value] for value in values), coded)


def _inspected(name: str, values: list[Any]) -> Column:
    """A column of Python objects, by what they are; None and NaN are missing."""
    values = [None if value is None or value != value else value for value in values]
    there = [value for value in values if value is not None]
    if any(isinstance(value, _TIMES) for value in there):
        refuse("column", repr(name), DATES)
    if all(isinstance(value, bool | np.bool_) for value in there) and there:
        return Column(name, BOOLEAN, np.array([math.nan if v is None else float(v) for v in values]))
    if any(isinstance(value, bool | np.bool_) for value in there):
        _refuse_mixture(name, there)
    if all(isinstance(v, numbers.Real) for v in there) or all(isinstance(v, numbers.Integral | Decimal) for v in there):
        floats = np.array([math.nan if v is None else as_float(v) for v in values], np.float64)
        return _numbers(name, floats, lambda: values, all(isinstance(value, float) for value in there))
    if all(isinstance(value, str) for value in there):
        return Column(name, TEXT, objects(values))
    _refuse_mixture(name, there)


def _refuse_mixture(name: str, values: list[Any]) -> NoReturn:
    kinds = sorted({type(value).__name__ for value in values})
    what = f"it mixes {' and '.join(kinds)}" if len(kinds) > 1 else f"it holds values of type {kinds[0]}"
    refuse("column", repr(name), f"{what}: all numbers or all text are needed")
