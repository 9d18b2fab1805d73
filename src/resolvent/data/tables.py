"""A user's own file as numbers: LIBSVM, CSV, TSV, Parquet or NPZ, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data import arrays, frames, libsvm, limits
from resolvent.data.columns import Source, array_source, source
from resolvent.errors import refuse
from resolvent.problems.labels import label_array

TableReader = Callable[..., tuple[NDArray[np.float64], NDArray[Any], tuple[str, ...], str]]

READERS: dict[str, TableReader] = {
    ".csv": frames.separated,
    ".tsv": frames.separated,
    ".parquet": frames.parquet,
    ".npz": arrays.npz,
    ".libsvm": libsvm.rows,
    ".svmlight": libsvm.rows,
    ".svm": libsvm.rows,
    ".txt": libsvm.rows,
}
"""Who reads what, by suffix; a file of any other name is LIBSVM's if its first line looks so (`a9a`, `a9a.t`)."""
FRAMES: dict[TableReader, Callable[..., Any]] = {
    frames.separated: frames.separated_frame,
    frames.parquet: frames.parquet_frame,
}
"""What reads the same file as a frame, with columns of text too."""
OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A file's rows: x (rows, features) in float64, y (rows,) in float64 or as text, and the names of both.

    x is an array, or a SciPy CSR array where sparse rows were asked for. y is integers where floats would round some.
    """

    x: Any
    y: NDArray[Any]
    features: tuple[str, ...]
    target: str

    def __repr__(self) -> str:
        return f"Table({self.x.shape[0]} rows, {self.x.shape[1]} features, target {self.target!r})"


def read(path: str | Path, target: str | int | None = None, width: int | None = None, sparse: bool = False) -> Table:
    """The rows of a file, by its suffix; `.gz`, `.bz2` or `.xz` may follow.

    target: the name or number of the column of labels in a CSV or Parquet file, or the key of the labels in an NPZ
    file; by default one called y, target, label or class, else the last. width: how many features a LIBSVM file has,
    where the last of them may never occur in it (a9a has 123, of which a9a.t uses 122). sparse: the rows of a LIBSVM
    file as a SciPy CSR array; they never become dense.
    """
    path = _there(path)
    if isinstance(target, bool) or not isinstance(target, str | int | None):
        refuse("target", repr(target), "the name or the number of a column is needed")
    try:
        with _open(path) as file:
            reader = _reader(path, file)
            if reader is not libsvm.rows:
                if width is not None:
                    refuse("width", width, f"only a LIBSVM file leaves it open, and {path.name} is none")
                if sparse:
                    refuse("sparse", sparse, f"only LIBSVM files have sparse rows, and {path.name} is none")
            elif width is not None or sparse:
                reader = partial(libsvm.rows, width=width, sparse=sparse)
            table = Table(*reader(file, path.name, target))
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        refuse("path", path, f"it cannot be read ({error})")
    _check_finite(table, path.name)
    return table


def columns(path: str | Path, target: str | int | None = None) -> tuple[Source, str]:
    """The columns of a file, text among them, and the name of its target, found as `read` finds it."""
    path = _there(path)
    try:
        with _open(path) as file:
            reader = FRAMES.get(_reader(path, file))
            frame = None if reader is None else reader(file, path.name)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        refuse("path", path, f"it cannot be read ({error})")
    if frame is not None:
        found = source(frame, "path")
        return found, found.names[frames.target_column(list(found.names), target, path.name)]
    table = read(path, target)
    x = array_source(table.x, table.features)
    labels = source({table.target: table.y}).column(table.target)
    names = (*table.features, table.target)
    return Source(names, x.rows, lambda name: labels if name == table.target else x.column(name)), table.target


def _there(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        refuse("path", path, "no such file is there" if not path.exists() else "a file is needed")
    if not path.stat().st_size:
        refuse("path", f"{path}, which is empty", "a file with rows is needed")
    return path


def is_table(path: str | Path) -> bool:
    """Whether a file's name says that it is one of these formats."""
    path = Path(path)
    inner = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    return inner.suffix.lower() in READERS


def stem(path: str | Path) -> str:
    """A file's name without what says how it is written: a9a.gz is a9a, and so is a9a.libsvm.xz."""
    path = Path(path)
    for suffixes in (OPENERS, READERS):
        if path.suffix.lower() in suffixes:
            path = path.with_suffix("")
    return path.name


def signs(y: Any, positive: Any = None) -> NDArray[np.float64]:
    """Labels -1 and +1: the smaller of two values is -1, or everything but `positive` is."""
    labels = label_array(y)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        refuse("y", "NaN or infinite in places", "labels are needed")
    try:
        values = np.unique(labels)
    except TypeError:
        refuse("y", "a mixture of types", "labels of one type, all numbers or all text, are needed")
    if positive is None and len(values) != 2:
        came = f"of {len(values)} classes" if len(values) != 1 else "of one class"
        refuse("y", came, "logistic regression needs two: positive= makes one class against the rest")
    if positive is not None and positive not in values.tolist():
        shown = ", ".join(map(str, values[:10].tolist())) + (", ..." if len(values) > 10 else "")
        refuse("positive", repr(positive), f"one of the classes {shown} is needed")
    return np.where(labels == (values[1] if positive is None else positive), 1.0, -1.0)


def _open(path: Path) -> IO[bytes]:
    opener = OPENERS.get(path.suffix.lower())
    return limits.bounded(opener(path), path.name) if opener else path.open("rb")


def _reader(path: Path, file: IO[bytes]) -> TableReader:
    inner = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    reader = READERS.get(inner.suffix.lower())
    if reader is None:
        if not libsvm.looks_alike(file):
            suffixes = ", ".join(READERS)
            refuse("path", path, f"{suffixes} or a first line such as `1 3:0.5 7:1` is needed to know its format")
        reader = libsvm.rows
    return reader


def _check_finite(table: Table, name: str) -> None:
    sparse = hasattr(table.x, "tocoo")
    bad = ~np.isfinite(table.x.data if sparse else table.x)
    if bad.any():
        at = int(bad.argmax())
        row, column = (int(table.x.tocoo().row[at]), int(table.x.indices[at])) if sparse else divmod(at, bad.shape[1])
        came = f"{name}, where feature {table.features[column]!r} of row {row + 1} is missing, NaN or infinite"
        refuse("path", came, "finite numbers are needed")
    if table.y.dtype.kind == "f" and not np.isfinite(table.y).all():
        row = int((~np.isfinite(table.y)).argmax())
        came = f"{name}, where the target {table.target!r} of row {row + 1} is missing, NaN or infinite"
        refuse("path", came, "finite numbers are needed")
