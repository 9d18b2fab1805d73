"""Writing files so that they are there whole or not at all, whenever the process or the machine stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resolvent.errors import StorageError


def write(path: Path, content: bytes) -> None:
    """To a temporary file, fsynced, renamed; what was there before stays until the new content is safe."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(folder: Path) -> None:
    """Make a folder's list of names durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def storing(where: Path, then: str) -> Iterator[None]:
    """Turn what a disk refuses into one sentence that ends with what to do."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise StorageError(f"{where} cannot be written ({what}); {then}") from error
