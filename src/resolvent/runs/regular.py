"""Reading files of a run folder that somebody else may have put there: no pipe that never ends, no endless nesting."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

NONBLOCK = getattr(os, "O_NONBLOCK", 0)
LARGEST_DOCUMENT = 1 << 28
"""Bytes of a configuration, a description or a listing, at most."""
DEEPEST = 64
"""Lists and tables within each other, at most: what is written here has four."""
WIDEST = 1024
"""Bits of a whole number, at most."""
UNFIT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What is raised on the way through a file that can be parsed, but is not what is written here."""


def opened(path: Path, flags: int = 0) -> BufferedReader:
    """A regular file, open for reading; opening a pipe or a device might wait for ever, and is refused."""
    file = open(path, "rb", opener=lambda name, usual: os.open(name, usual | NONBLOCK | flags))  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read(path: Path) -> bytes:
    """The whole content of a regular file."""
    with opened(path) as file:
        return file.read()


def text(path: Path, errors: str = "strict") -> str:
    """The text of a document, which is never large."""
    with opened(path) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST_DOCUMENT} bytes", str(path))
    return content.decode("utf-8", errors).replace("\r\n", "\n")


def plain(tree: dict[str, Any]) -> dict[str, Any]:
    """The same tree, where it can be walked and written again by recursion; else ValueError."""
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        if any(isinstance(item, int) and item.bit_length() > WIDEST for item in level):
            raise ValueError("a number in it has too many digits")
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return tree
    raise ValueError(f"it is nested more than {DEEPEST} deep")
