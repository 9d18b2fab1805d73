"""NumPy's NPZ archives, of plain arrays only: nothing in a file is ever unpickled."""

from __future__ import annotations

import math
import operator
import struct
import zlib
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from resolvent.data import limits
from resolvent.errors import refuse

X_KEYS = ("x", "X", "A", "data", "features", "x_train", "X_train")
Y_KEYS = ("y", "b", "labels", "label", "target", "targets", "y_train", "Y_train")


def arrays(file: Any, name: str, keys: tuple[str, ...] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an archive by key; with `keys`, those of them that are there."""
    try:
        _check_sizes(file, name)
        with np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files if keys is None or key in keys}
    except limits.TooLarge:
        raise
    except (ArithmeticError, AttributeError, BadZipFile, EOFError, LookupError, MemoryError, NotImplementedError,
            RuntimeError, SyntaxError, TypeError, ValueError, struct.error, zlib.error) as error:  # fmt: skip
        refuse("path", name, f"an NPZ file of plain arrays is needed ({type(error).__name__} while reading it)")


def _check_sizes(file: Any, name: str) -> None:
    """Refuse an archive that unpacks to too much, or whose arrays promise more than they hold.

    An array is allocated by what its header says.
    """
    with ZipFile(file) as archive:
        packed = [member for member in archive.infolist() if member.compress_type != ZIP_STORED]
        limits.check_unpacked(sum(member.file_size for member in packed), name)
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as content:
                first = np.lib.format.read_magic(content) == (1, 0)
                header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
                shape, _, kind = header(content)
            promised = math.prod(shape) * kind.itemsize
            if any(n < 0 for n in shape) or (not kind.hasobject and promised > member.file_size):
                raise ValueError("an array promises more than it holds")
    if hasattr(file, "seek"):
        file.seek(0)


def read(
    file: IO[bytes], name: str, target: str | int | None = None
) -> tuple[NDArray[np.float64], NDArray[Any], tuple[str, ...], str]:
    """Features and labels of an archive; images and the like are flattened to rows."""
    stored = arrays(file, name)
    x_key = _key(stored, X_KEYS, "features", name)
    y_key = _key(stored, Y_KEYS if target is None else (str(target),), "labels", name)
    x, y = stored[x_key], stored[y_key]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or not x.size:
        what = f"{name}, with {x_key} of shape {x.shape} and {y_key} of shape {y.shape}"
        refuse("path", what, "(rows, features) and (rows,) are needed")
    if x.dtype.kind not in "biuf":
        refuse("path", f"{name}, whose {x_key} is of type {x.dtype}", "features must be numbers")
    flat = x.reshape(len(x), -1)
    limits.check_dense(*flat.shape, name)
    labels = number_labels(y) if y.dtype.kind in "biuf" else y.astype(np.str_)
    return flat.astype(np.float64), labels, tuple(map(str, range(flat.shape[1]))), y_key


def number_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Labels in float64, or the integers that they are where floats would round one of them."""
    floats = y.astype(np.float64)
    exact = y.dtype.kind not in "iu" or all(map(operator.eq, floats.tolist(), y.tolist()))
    return floats if exact else y


def _key(stored: dict[str, NDArray[Any]], keys: tuple[str, ...], what: str, name: str) -> str:
    for key in keys:
        if key in stored:
            return key
    shown = ", ".join(list(stored)[:8]) or "nothing"
    refuse("path", f"{name}, which holds {shown}", f"{what} are looked for under {', '.join(keys)}")
