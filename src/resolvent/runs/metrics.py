"""A run's numbers on disk, as CSV: one row per round in a file that only grows, and one row per user at the end.

Floats are written so that every bit comes back.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resolvent.iteration.metric_names import COUNTS
from resolvent.runs import durable, regular

if TYPE_CHECKING:
    import pandas as pd

USERS = "users.csv"
"""Each user's metrics on held-out data."""
PART_BYTES = 1 << 24
"""Of a file, read at a time: as text, rows take ten times the memory of their numbers."""


class Extent(NamedTuple):
    """The first bytes of the file: how many, and their SHA-256; None where there are none."""

    bytes: int = 0
    sha256: str | None = None

    def differs(self, path: Path) -> str | None:
        """How the file differs from what was written: "shorter", "other" or None."""
        content = regular.read(path)[: self.bytes] if path.exists() else b""
        if len(content) < self.bytes:
            return "shorter"
        return "other" if self.sha256 not in (None, hashlib.sha256(content).hexdigest()) else None


class Metrics:
    """Rows to be appended, from a given length of the file on; what lies beyond it belongs to no checkpoint."""

    def __init__(self, path: Path, length: int = 0) -> None:
        new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | durable.NOFOLLOW, durable.PRIVATE_FILE)
        before = os.pread(self._file, length, 0)
        self._sum = hashlib.sha256(before)
        self.columns = tuple(heading(before)) if length else ()
        os.ftruncate(self._file, length)
        self.length = os.lseek(self._file, 0, os.SEEK_END)
        if new:
            durable.sync(path.parent)

    @property
    def extent(self) -> Extent:
        """What was written so far."""
        return Extent(self.length, self._sum.hexdigest())

    def append(self, row: dict[str, Any]) -> None:
        """One more row, with the names before the first; NaN in columns that it does not have."""
        first = self.length == 0
        self.columns = tuple(row) if first else self.columns
        if new := [name for name in row if name not in self.columns]:
            raise ValueError(f"a row has {new[0]}, which those before it do not have")
        values = [repr(row.get(name, math.nan)) for name in self.columns]
        content = _text([self.columns, values] if first else [values])
        self._sum.update(content)
        self.length += len(content)
        durable.write_all(self._file, content)

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def heading(content: bytes) -> list[str]:
    """The names of the columns, in the first line."""
    return next(csv.reader([content.partition(b"\n")[0].decode("utf-8", "replace")]), [])


def read(path: Path) -> pd.DataFrame:
    """The whole rows of the file; a torn last line is left out."""
    import pandas as pd

    content = regular.read(path) if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if not whole:
        return pd.DataFrame({"round": pd.Series(dtype="int64")})
    parts = [whole] if len(whole) <= PART_BYTES else _parts(whole)
    frames = [pd.read_csv(io.BytesIO(part), dtype=str).astype(float) for part in parts]  # Python reads floats exactly
    frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    return frame.astype({name: "int64" for name in COUNTS if name in frame})


def rows(path: Path) -> tuple[list[str], list[list[float]]]:
    """The names of the columns and the whole rows, without pandas, whose import takes longer than a listing may."""
    content = regular.read(path) if path.exists() else b""
    lines = csv.reader(io.StringIO(content[: content.rfind(b"\n") + 1].decode(), newline=""))
    names = next(lines, ["round"])
    kinds = [int if name in COUNTS else float for name in names]
    return names, [[kind(float(cell)) for kind, cell in zip(kinds, line, strict=True)] for line in lines if line]


def users_text(frame: pd.DataFrame) -> bytes:
    """The content of users.csv, of a frame whose index has the users' names."""
    rows = zip(frame.index, frame.to_numpy().tolist(), strict=True)
    return _text([["user", *frame.columns], *([name, *map(repr, values)] for name, values in rows)])


def read_users(folder: Path) -> pd.DataFrame | None:
    """Each user's metrics on held-out data; None where the run has none."""
    import pandas as pd

    if not (folder / USERS).exists():
        return None
    heading, *rows = csv.reader(io.StringIO(regular.read(folder / USERS).decode(), newline=""))
    values = {name: [float(row[k]) for row in rows] for k, name in enumerate(heading) if k}
    return pd.DataFrame(values, index=[row[0] for row in rows])


def _text(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _parts(content: bytes) -> Iterator[bytes]:
    """Whole lines of the file, some at a time, each time below the first one."""
    at = first = content.index(b"\n") + 1
    while at < len(content):
        end = len(content) if at + PART_BYTES >= len(content) else content.rindex(b"\n", at, at + PART_BYTES) + 1
        yield content[:first] + content[at:end]
        at = end
