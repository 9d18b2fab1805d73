"""The formats of image sets as uint8 arrays: idx, CIFAR-10's binary and Python versions, NPZ, and rows of CSV.

A reader takes the contents of a set's files by name, training first, and gives (x_train, y_train, x_test, y_test).
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resolvent.data import npz as archives
from resolvent.errors import refuse

Bytes = NDArray[np.uint8]
Four = tuple[Bytes, Bytes, Bytes, Bytes]

KEYS = ("x_train", "y_train", "x_test", "y_test")
CIFAR_ROW = 1 + 3 * 32 * 32


def idx(contents: dict[str, bytes]) -> Four:
    """Four idx files: images and labels of training and test."""
    x_train, y_train, x_test, y_test = (_idx(content, name) for name, content in contents.items())
    return x_train, y_train, x_test, y_test


def _idx(content: bytes, name: str) -> Bytes:
    """Two zeros, 8 for bytes, the number of axes, their lengths, and then the bytes themselves."""
    axes = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * axes
    if not axes or len(content) < start:
        refuse("file", name, "an idx file of bytes is needed")
    shape = tuple(np.frombuffer(content, ">u4", axes, 4).tolist())
    if len(content) != start + math.prod(shape):
        what = f"{name}, which is {len(content)} bytes long"
        refuse("file", what, f"its heading promises {start + math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def as_idx(array: Bytes) -> bytes:
    """The idx file of an array."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def cifar_binary(contents: dict[str, bytes]) -> Four:
    """Batches of rows, the label before its image; the last batch is the test set."""
    return _batches([_rows(content, name) for name, content in contents.items()])


def _rows(content: bytes, name: str) -> tuple[Bytes, Bytes]:
    if not content or len(content) % CIFAR_ROW:
        refuse("file", f"{name}, which is {len(content)} bytes long", f"a multiple of {CIFAR_ROW} is needed")
    rows = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_ROW)
    return rows[:, 1:], rows[:, 0]


def _batches(parts: list[tuple[Bytes, Bytes]]) -> Four:
    *train, (x_test, y_test) = parts
    return np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), x_test, y_test


# --- CIFAR-10's Python version ---------------------------------------------------------------------------------------


def cifar_python(contents: dict[str, bytes]) -> Four:
    """Batches as pickled dictionaries, read without running anything that a pickle may ask for."""
    return _batches([_unpickled(content, name) for name, content in contents.items()])


class _Arrays(pickle.Unpickler):
    """Reads numbers, text, lists, dictionaries and NumPy's arrays: no other name can be reached."""

    NAMES: ClassVar[dict[str, Any]] = {
        "_reconstruct": np.zeros(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if module not in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") or name not in self.NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.NAMES[name]


def _unpickled(content: bytes, name: str) -> tuple[Bytes, Bytes]:
    try:
        batch = _Arrays(io.BytesIO(content), encoding="bytes").load()
        x, labels = batch[b"data"], np.array(batch[b"labels"])
        if x.dtype != np.uint8 or x.ndim != 2:
            raise ValueError("rows of bytes are needed")
        if labels.dtype.kind not in "iu" or labels.shape != x.shape[:1] or labels.min() < 0 or labels.max() > 255:
            raise ValueError("one label per row is needed")
    except Exception as error:  # a damaged pickle may raise anything
        refuse("file", name, f"it is not a batch of CIFAR-10's Python version ({type(error).__name__}: {error})")
    return x, labels.astype(np.uint8)


# --- other sources ---------------------------------------------------------------------------------------------------


def npz(path: Path) -> Four:
    """An archive with keys x_train, y_train, x_test and y_test: all of a set, or a part of it."""
    stored = archives.arrays(path, str(path), KEYS)
    missing = [key for key in KEYS if key not in stored]
    if missing:
        refuse("file", f"{path}, which lacks {', '.join(missing)}", f"{', '.join(KEYS)} are needed")
    x_train, y_train, x_test, y_test = (stored[key] for key in KEYS)
    if any(x.dtype != np.uint8 for x in (x_train, x_test)) or any(y.dtype.kind not in "iu" for y in (y_train, y_test)):
        refuse("file", f"{path}, of other types", "images of bytes (uint8) and whole labels are needed")
    return x_train, y_train, x_test, y_test


def csv_rows(file: IO[bytes]) -> tuple[Bytes, Bytes]:
    """Images as lines of a CSV file with a heading, the label first."""
    import pandas as pd

    rows = pd.read_csv(file, dtype=np.uint8).to_numpy()
    return rows[:, 1:], rows[:, 0]


def nchw(x: NDArray[Any], shape: tuple[int, int, int], name: str) -> NDArray[Any]:
    """Images as (n, channels, height, width), from that, channels last, no channels, or flat."""
    channels, height, width = shape
    if x.shape[1:] == (height, width, channels) and x.shape[1:] != shape:
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.shape[1:] in (shape, (math.prod(shape),)) or (channels == 1 and x.shape[1:] == (height, width)):
        return x.reshape(-1, *shape)
    refuse("file", f"{name}, with images of shape {x.shape[1:]}", f"{shape} is needed")
