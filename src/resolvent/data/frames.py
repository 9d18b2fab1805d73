"""Files of columns, by pandas: CSV and its kin, with or without a heading, and Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from resolvent.data import limits
from resolvent.data.npz import number_labels
from resolvent.errors import InputError, quoted, refuse
from resolvent.installed import install
from resolvent.problems.labels import label_array

if TYPE_CHECKING:
    import pandas as pd

TARGETS = ("y", "target", "label", "class")
"""What the column of labels is called where nobody says."""
SEPARATORS = (",", "\t", ";")
_WHOLE = re.compile(r"\s*([-+]?\d+)(\.0*)?\s*")
_WITH_COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?([eE][-+]?\d+)?\s*")
MAX_COLUMNS = 100_000
"""Of a frame: each is an object of its own, which takes pandas about 0.1 ms."""


def parquet(file: IO[bytes], name: str, exact: bool) -> pd.DataFrame:
    """The columns of a Parquet file, of any types, which are as exact as in the file. It needs pyarrow."""
    import pandas as pd

    try:
        import_module("pyarrow")
    except ImportError:
        refuse("path", f"{name}, a Parquet file", f"pyarrow is not installed: {install('parquet')}")
    try:
        meta = import_module("pyarrow.parquet").ParquetFile(file).metadata
        check_columns(meta.num_columns, name)
        unpacked = sum(meta.row_group(k).total_byte_size for k in range(meta.num_row_groups))
        limits.check_unpacked(max(meta.num_rows * meta.num_columns * 8, unpacked), name)
        file.seek(0)
        frame = pd.read_parquet(cast(Any, file), engine="pyarrow")
    except InputError:
        raise
    except (ValueError, OSError, ArithmeticError, MemoryError, RuntimeError, TypeError) as error:
        refuse("path", name, f"it is no Parquet file ({(str(error).splitlines() or [type(error).__name__])[0]})")
    if not len(frame):
        refuse("path", f"{name}, which has no rows", "a file with rows is needed")
    return frame.set_axis([str(column) for column in frame.columns], axis=1)


def separated(file: IO[bytes], name: str, exact: bool) -> pd.DataFrame:
    """CSV, TSV or values separated by semicolons; the heading, if there is one, names the columns.

    exact: whole numbers that pandas rounds, beside missing ones or fractions, are read to the last digit, as objects.
    """
    try:
        return _separated(file, name, exact)
    except (UnicodeDecodeError, csv.Error) as error:
        refuse("path", name, f"lines of text in UTF-8 are needed ({error})")


def _separated(file: IO[bytes], name: str, exact: bool) -> pd.DataFrame:
    import pandas as pd

    separator, heading, skip = _heading(file, name)
    form: dict[str, Any] = {"sep": separator, "header": None, "skiprows": skip, "encoding": "utf-8-sig"}
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):  # pandas 3.1 reads floats to the last bit unasked
        form["float_precision"] = "round_trip"
    file.seek(0)
    try:
        frame: pd.DataFrame = pd.read_csv(cast(Any, file), low_memory=False, **form)
        if separator == ";" and any(_decimal_comma(frame[k]) for k in frame.select_dtypes(exclude="number")):
            form["decimal"] = ","
            file.seek(0)
            frame = pd.read_csv(cast(Any, file), low_memory=False, **form)
    except pd.errors.EmptyDataError:
        refuse("path", f"{name}, which has no rows", "a file with rows is needed")
    except pd.errors.ParserError as error:
        _refuse_ragged(file, separator, name)
        refuse("path", name, f"it cannot be read ({str(error).rpartition('error: ')[2].strip()})")
    names = heading or [str(i) for i in range(len(frame.columns))]
    if len(frame.columns) != len(names) or frame.isna().any(axis=None):  # short lines are filled up with NaN
        _refuse_ragged(file, separator, name)
    large = frame.select_dtypes(np.float64).abs().ge(2.0**53).any()
    rounded = list(large[large].index) if exact else []
    if rounded:
        file.seek(0)
        texts = pd.read_csv(cast(Any, file), usecols=rounded, dtype=str, **form)
        for k in rounded:
            frame[k] = pd.Series(list(map(_exact, texts[k], frame[k])), dtype=object)
    return frame.set_axis(names, axis=1)


def _decimal_comma(column: pd.Series[Any]) -> bool:
    """Whether these are numbers, some of them with a decimal comma: 3,5 as spreadsheets write it beside semicolons."""
    words = set(column.dropna().astype(str))
    return any("," in word for word in words) and all(_WITH_COMMA.fullmatch(word) for word in words)


def _exact(text: Any, number: float) -> float | int:
    """What a cell says, to the last digit where it is a whole number."""
    match = _WHOLE.fullmatch(text) if isinstance(text, str) else None
    return int(match[1]) if match else number


def check_columns(columns: int, name: str) -> None:
    """Refuse what would take minutes to become a frame, however few rows it has."""
    if columns > MAX_COLUMNS:
        advice = f"at most {MAX_COLUMNS} are read: write wide rows as a LIBSVM or NPZ file, for rs.data.read"
        refuse("path", f"{name}, which has {columns} columns", advice)


def _heading(file: IO[bytes], name: str) -> tuple[str, list[str] | None, int]:
    """The separator, the names in the first line if they are names, and how many lines to skip for them."""
    first = next((line for line in file if line.strip()), b"").decode("utf-8-sig")
    separator = max(SEPARATORS, key=first.count)
    check_columns(first.count(separator) + 1, name)
    with _lines(file, separator) as lines:
        rows = list(islice(lines, 2))
    if not rows:
        return separator, None, 0

    def number(cell: str) -> bool:
        return _is_number(cell.replace(",", ".", 1) if separator == ";" else cell)

    (skip, top), (_, below) = rows[0], rows[-1]
    if len(rows) == 1:
        names = not any(number(cell) for cell in top)
    else:  # a number below what is none: text over text may be a label
        names = any(not number(a) and number(b) for a, b in zip(top, below, strict=False))
    return (separator, [cell.strip() for cell in top], skip) if names else (separator, None, 0)


@contextmanager
def _lines(file: IO[bytes], separator: str) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """(line number, fields) of all lines that are not blank, from the beginning."""
    file.seek(0)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=separator)
    try:
        yield ((reader.line_num, row) for row in reader if row)
    finally:
        text.detach()  # or the file would be closed with it


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip() or "nan")
    except ValueError:
        return cell.strip().lower() in ("na", "n/a", "null", "none")
    return True


def _refuse_ragged(file: IO[bytes], separator: str, name: str) -> None:
    """Refuse a file whose lines have unequal numbers of fields; return if all have the same."""
    width = 0
    with _lines(file, separator) as lines:
        for number, row in lines:
            width = width or len(row)
            if len(row) != width:
                what = f"{name}, whose line {number} has {len(row)} fields"
                refuse("path", what, f"{width} are needed, as in its first line")


# --- features and labels of a frame ----------------------------------------------------------------------------------


def matrix(
    frame: pd.DataFrame, name: str, target: str | int | None
) -> tuple[NDArray[np.float64], NDArray[Any], tuple[str, ...], str]:
    """The features, all numbers, and the labels of a file's frame, with their names."""
    names = list(frame.columns)
    at = target_column(names, target, name)
    if len(names) == 1:
        refuse("path", f"{name}, which has one column", "features are needed beside the labels")
    features = [i for i in range(len(names)) if i != at]
    for i in features:
        _check_numbers(frame.iloc[:, i], names[i], name)
    x = frame.iloc[:, features].to_numpy(dtype=np.float64, na_value=np.nan)
    return x, _labels(frame.iloc[:, at], names[at], name), tuple(names[i] for i in features), names[at]


def target_column(names: list[str], target: str | int | None, name: str) -> int:
    """The number of the column of labels."""
    if isinstance(target, int):
        if not -len(names) <= target < len(names):
            refuse("target", target, f"{name} has {len(names)} columns, numbered from 0")
        return target % len(names)
    if target is None:
        lower = [column.strip().lower() for column in names]
        return next((lower.index(usual) for usual in TARGETS if usual in lower), len(names) - 1)
    if target not in names:
        near = get_close_matches(target, names, n=1, cutoff=0.0)[0]
        refuse("target", quoted(target), f"{name} has no such column (nearest: {near!r})")
    return names.index(target)


def _labels(column: pd.Series[Any], label: str, name: str) -> NDArray[Any]:
    from pandas.api.types import is_integer_dtype, is_numeric_dtype

    if is_numeric_dtype(column):
        whole = is_integer_dtype(column) and not column.isna().any()
        return number_labels(column.to_numpy()) if whole else column.to_numpy(dtype=np.float64, na_value=np.nan)
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax()) + 1
        refuse("path", f"{name}, where the target {label!r} of row {row} is missing", "one label per row is needed")
    return label_array(column.astype(str).tolist())


def _check_numbers(column: pd.Series[Any], label: str, name: str) -> None:
    import pandas as pd
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    if is_numeric_dtype(column) and not is_complex_dtype(column):
        return
    numbers = pd.to_numeric(column.astype(str), errors="coerce")
    row = int((numbers.isna() & column.notna()).to_numpy().argmax())
    what = f"{name}, whose column {label!r} is {str(column.iloc[row])[:40]!r} in row {row + 1}"
    refuse("path", what, "features must be numbers: leave the column out or code it as numbers")
