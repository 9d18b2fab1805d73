"""How much a packed file may unpack to: a few megabytes can hold gigabytes of zeros."""

from __future__ import annotations

import gzip
import io
import math
import os
from typing import IO, Any

from resolvent.errors import InputError, refuse

GIB = 2**30
DEFAULT = 1.0
VARIABLE = "RESOLVENT_UNPACK_GIB"


class TooLarge(InputError):
    """A packed file unpacks to more than the limit."""


def most() -> int:
    """Bytes that a packed file may unpack to."""
    said = os.environ.get(VARIABLE) or str(DEFAULT)
    try:
        gib = float(said)
    except ValueError:
        gib = math.nan
    if not 0 < gib < math.inf:
        refuse(VARIABLE, repr(said), "a number of GiB is needed")
    return int(gib * GIB)


def check(size: int, name: str) -> None:
    """Refuse what unpacks to more than the limit."""
    if size > most():
        raise TooLarge(
            f"{name} unpacks to more than {most() / GIB:.3g} GiB, which may exhaust the memory; "
            f"set {VARIABLE} to the GiB that it may take"
        )


def bounded(file: Any, name: str) -> IO[bytes]:
    """An unpacking file, refused as soon as it has given more than the limit."""
    return io.BufferedReader(_Bounded(file, name), 2**17)


def unpack(raw: bytes, name: str) -> bytes:
    """The content of gzip's bytes, within the limit."""
    with bounded(gzip.GzipFile(fileobj=io.BytesIO(raw)), name) as file:
        return file.read()


class _Bounded(io.RawIOBase):
    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name, self._most = file, name, most()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n: int = self._file.readinto(buffer)
        if self._file.tell() > self._most:
            check(self._file.tell(), self._name)
        return n

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at: int = self._file.seek(offset, whence)
        check(at, self._name)
        return at

    def tell(self) -> int:
        at: int = self._file.tell()
        return at

    def close(self) -> None:
        self._file.close()
        super().close()
