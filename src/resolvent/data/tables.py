"""A user's own file as numbers: LIBSVM, CSV, TSV, Parquet or NPZ, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data import frames, libsvm, limits, npz
from resolvent.data.columns import as_frame
from resolvent.errors import bounded, file_path, quoted, refuse
from resolvent.problems.labels import label_array

if TYPE_CHECKING:
    import pandas as pd

FRAMES: dict[str, Callable[[IO[bytes], str, bool], pd.DataFrame]] = {
    ".csv": frames.separated,
    ".tsv": frames.separated,
    ".parquet": frames.parquet,
}
"""Who reads files of columns, by suffix."""
NPZ = ".npz"
LIBSVM = (".libsvm", ".svmlight", ".svm", ".txt")
"""A file of any other name is LIBSVM's too, if its first line looks so (`a9a`, `a9a.t`)."""
SUFFIXES = (*FRAMES, NPZ, *LIBSVM)
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
    if isinstance(target, bool) or not isinstance(target, str | int | None):
        refuse("target", quoted(target), "the name or the number of a column is needed")
    path = file_path(path, "path")
    name, content = path.name, _loaded(path, target, width, sparse)
    table = content if isinstance(content, Table) else Table(*frames.matrix(content, name, target))
    _check_finite(table, name)
    return table


def frame(path: str | Path) -> pd.DataFrame:
    """All columns of a file, none of which need be a target: rows to predict."""
    path = file_path(path, "path")
    return _framed(_loaded(path, None, exact=True), path.name)


def _framed(content: pd.DataFrame | Table, name: str) -> pd.DataFrame:
    """The columns of a file's content, without the target of a table."""
    if not isinstance(content, Table):
        return as_frame(content, "path")
    import pandas as pd

    frames.check_columns(len(content.features), name)
    _check_finite(content, name)
    return pd.DataFrame(content.x, columns=list(content.features))


def inputs(path: str | Path) -> NDArray[Any]:
    """A batch of a network's inputs: the array x of an NPZ file, in its own shape."""
    path = file_path(path, "path")
    if path.suffix.lower() != NPZ or not path.is_file():
        refuse("path", path, "an .npz file with an array x, a batch of the network's inputs, is needed")
    there = npz.arrays(path, path.name)
    key = next((key for key in npz.X_KEYS if key in there), None)
    if key is None:
        refuse("path", f"{path}, which has {', '.join(there) or 'nothing'}", "an array x is needed")
    return there[key]


def columns(path: str | Path, target: str | int | None = None) -> tuple[pd.DataFrame, str]:
    """The columns of a file, text among them, and the name of its target, found as `read` finds it."""
    path = file_path(path, "path")
    name, content = path.name, _loaded(path, target, exact=True)
    frame = _framed(content, name)
    if isinstance(content, Table):
        frame.insert(len(content.features), content.target, content.y, allow_duplicates=True)
        return frame, content.target
    names = list(frame.columns)
    return frame, names[frames.target_column(names, target, name)]


def _loaded(
    path: Path, target: str | int | None, width: int | None = None, sparse: bool = False, exact: bool = False
) -> pd.DataFrame | Table:
    """The content of a file: a frame where it has columns of any kind, a table where it has numbers only."""
    if not path.is_file():
        refuse("path", path, "no such file is there" if not path.exists() else "a file is needed")
    if not path.stat().st_size:
        refuse("path", f"{path}, which is empty", "a file with rows is needed")
    suffix, opener = inner(path).suffix.lower(), OPENERS.get(path.suffix.lower())
    if suffix in FRAMES or suffix == NPZ:
        if width is not None:
            refuse("width", width, f"only a LIBSVM file leaves it open, and {path.name} is none")
        if sparse:
            refuse("sparse", sparse, f"only LIBSVM files have sparse rows, and {path.name} is none")
    try:
        with limits.unpacked(opener(path), path.name) if opener else path.open("rb") as file:
            if suffix in FRAMES:
                return FRAMES[suffix](file, path.name, exact)
            if suffix == NPZ:
                return Table(*npz.read(file, path.name, target))
            if suffix not in LIBSVM and not libsvm.looks_alike(file):
                needed = f"{', '.join(SUFFIXES)} or a first line such as `1 3:0.5 7:1` is needed to know its format"
                refuse("path", path, needed)
            return Table(*libsvm.read(file, path.name, target, width, sparse))
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        refuse("path", path, f"it cannot be read ({error})")


def inner(path: Path) -> Path:
    """A file's name without what says how it is packed."""
    return path.with_suffix("") if path.suffix.lower() in OPENERS else path


def is_table(path: str | Path) -> bool:
    """Whether a file's name says that it is one of these formats."""
    return inner(file_path(path, "path")).suffix.lower() in SUFFIXES


def stem(path: str | Path) -> str:
    """A file's name without what says how it is written: a9a.gz is a9a, and so is a9a.libsvm.xz."""
    plain = inner(file_path(path, "path"))
    return plain.stem if is_table(path) else plain.name


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
        what = f"of {len(values)} classes" if len(values) != 1 else "of one class"
        refuse("y", what, "logistic regression needs two: positive= makes one class against the rest")
    known = bounded(positive, "positive") is None
    with suppress(Exception):  # an array compares number by number
        known = known or positive in values.tolist()
    if not known:
        shown = ", ".join(map(str, values[:10].tolist())) + (", ..." if len(values) > 10 else "")
        refuse("positive", quoted(positive), f"one of the classes {shown} is needed")
    return np.where(labels == (values[1] if positive is None else positive), 1.0, -1.0)


def _check_finite(table: Table, name: str) -> None:
    sparse = hasattr(table.x, "tocoo")
    bad = ~np.isfinite(table.x.data if sparse else table.x)
    if bad.any():
        at = int(bad.argmax())
        row, column = (int(table.x.tocoo().row[at]), int(table.x.indices[at])) if sparse else divmod(at, bad.shape[1])
        what = f"{name}, where feature {table.features[column]!r} of row {row + 1} is missing, NaN or infinite"
        refuse("path", what, "finite numbers are needed")
    if table.y.dtype.kind == "f" and not np.isfinite(table.y).all():
        row = int((~np.isfinite(table.y)).argmax())
        what = f"{name}, where the target {table.target!r} of row {row + 1} is missing, NaN or infinite"
        refuse("path", what, "finite numbers are needed")
