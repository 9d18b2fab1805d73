"""Reading files of a run folder that somebody else may have put there: no pipe that never ends, no endless nesting."""

from __future__ import annotations

import csv
import errno
import math
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

NONBLOCK = getattr(os, "O_NONBLOCK", 0)
MAX_DOCUMENT_BYTES = 1 << 28
"""Bytes of a configuration, a description, a listing or the events, at most."""
MAX_FILE_BYTES = 1 << 32
"""Bytes of any other file but one of tensors, at most."""
MAX_DEPTH = 64
"""Lists and tables within each other, at most: what is written here has four."""
MAX_INT_BITS = 1024
"""Bits of a whole number, at most."""
UNFIT = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError, csv.Error)
"""What is raised on the way through a file that can be parsed, but is not what is written here."""


def opened(path: Path, flags: int = 0, limit: int | None = MAX_FILE_BYTES) -> BufferedReader:
    """A regular file of so many bytes at most, open for reading; a pipe, which might wait for ever, is refused.

    A file without content can have any length, so that is looked at before anything is read.
    """
    file = open(path, "rb", opener=lambda name, usual: os.open(name, usual | NONBLOCK | flags))  # noqa: SIM115 (the caller closes it)
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and (limit is None or about.st_size <= limit):
        return file
    file.close()
    if stat.S_ISREG(about.st_mode):
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read(path: Path, limit: int | None = MAX_FILE_BYTES) -> bytes:
    """The whole content of a regular file."""
    with opened(path, limit=limit) as file:
        return file.read()


def text(path: Path, errors: str = "strict") -> str:
    """The text of a document, which is never large."""
    return read(path, MAX_DOCUMENT_BYTES).decode("utf-8", errors).replace("\r\n", "\n")


def plain(tree: dict[str, Any]) -> dict[str, Any]:
    """The same tree, where it can be walked and written again by recursion; else ValueError."""
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        if any(isinstance(item, int) and item.bit_length() > MAX_INT_BITS for item in level):
            raise ValueError("a number in it has too many digits")
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return tree
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def strict(value: Any) -> Any:
    """Plain values as JSON has them: numbers that are not finite become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value
