"""Writing files so that they are there whole or not at all, whenever the process or the machine stops.

A file survives a power cut once its content and the folder that names it are both fsynced. Nothing here writes through
a symbolic link: a run folder that somebody else made must not redirect what is written. Checkpoints hold what users
compute from their data, so files and folders are for their owner alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from resolvent.errors import StorageError
from resolvent.runs import regular

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
SHARED_FILE = 0o666
"""As far as the umask allows: for what is written to be handed on."""


def write(path: Path, content: bytes, mode: int = PRIVATE_FILE) -> None:
    """To a temporary file, fsynced, renamed; what was there before stays until the new content is safe."""
    part = path.with_name(f".{path.name}.part")
    try:
        put(part, content, mode=mode)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def put(path: Path, content: bytes, durably: bool = True, mode: int = PRIVATE_FILE) -> None:
    """Write a file and fsync it. Its name is durable once its folder is synced."""
    _write(path, os.O_TRUNC, content, durably, mode)


def write_all(handle: int, content: bytes) -> None:
    """Write to an open file; a nearly full disk may take only a part at a time."""
    while content:
        content = content[os.write(handle, content) :]


def append(path: Path, line: bytes) -> None:
    """Add a line and fsync it; a line before it that was torn is ended first."""
    new = not path.exists()
    _write(path, os.O_APPEND, b"\n" * (not new and _torn(path)) + line + b"\n")
    if new:
        sync(path.parent)


def sync(folder: Path) -> None:
    """Make a folder's list of names durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make(folder: Path) -> None:
    """Make a folder and those above it that are missing, each durable in the one above."""
    missing = list(takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
    for path in reversed(missing):
        path.mkdir(PRIVATE_FOLDER, exist_ok=True)
        sync(path.parent)


@contextmanager
def storing(where: Path, then: str) -> Iterator[None]:
    """Turn what a disk refuses into one sentence that ends with what to do."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise StorageError(f"{where} cannot be written ({what}); {then}") from error


def _write(path: Path, how: int, content: bytes, durably: bool = True, mode: int = PRIVATE_FILE) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | NOFOLLOW | regular.NONBLOCK | how, mode)
    try:
        write_all(handle, content)
        if durably:
            os.fsync(handle)
    finally:
        os.close(handle)


def _torn(path: Path) -> bool:
    with regular.opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read(1) not in (b"", b"\n")
