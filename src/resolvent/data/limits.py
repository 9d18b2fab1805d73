"""How much memory a file may take: once it is unpacked, and as a dense array."""

from __future__ import annotations

import gzip
import io
import math
import os
from typing import IO, Any

from resolvent.errors import InputError, quoted, refuse

GIB = 2**30
DEFAULT_UNPACK_GIB = 1.0
VARIABLE = "RESOLVENT_UNPACK_GIB"
MAX_DENSE_BYTES = 8 * GIB
"""Of the largest dense array that is made."""


class TooLarge(InputError):
    """A packed file unpacks to more than the limit."""


def check_unpacked(size: int, name: str) -> None:
    """Refuse what unpacks to more than the limit: a few megabytes can hold gigabytes of zeros."""
    said = os.environ.get(VARIABLE) or str(DEFAULT_UNPACK_GIB)
    try:
        gib = float(said)
    except ValueError:
        gib = math.nan
    if not 0 < gib < math.inf:
        refuse(VARIABLE, quoted(said), "a number of GiB is needed")
    if size > gib * GIB:
        raise TooLarge(
            f"{name} unpacks to more than {gib:.3g} GiB, which may exhaust the memory; "
            f"set {VARIABLE} to the GiB that it may take"
        )


def unpacked(packed: Any, name: str) -> IO[bytes]:
    """The content of an unpacking file, refused as soon as it is more than the limit."""
    content = io.BytesIO()
    with packed:
        while part := packed.read(2**20):
            check_unpacked(content.tell() + len(part), name)
            content.write(part)
    content.seek(0)
    return content


def gunzip(raw: bytes, name: str) -> bytes:
    """The content of gzip's bytes, within the limit."""
    return unpacked(gzip.GzipFile(fileobj=io.BytesIO(raw)), name).read()


def check_dense(rows: int, columns: int, name: str) -> None:
    """Refuse what would fill the memory once it is dense."""
    size = rows * columns * 8
    if size > MAX_DENSE_BYTES:
        what = f"{name}, whose rows ({rows} or more, of {columns} features) take {size / GIB:.1f} GiB"
        refuse("path", what, f"at most {MAX_DENSE_BYTES / GIB:g} GiB are read: take fewer rows or features")
