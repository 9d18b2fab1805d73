"""The rows of runs' metrics as columns, read as they grow: only what was appended since the last look is parsed."""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError
from resolvent.iteration.metric_names import AVERAGED
from resolvent.report.tables import strict
from resolvent.runs import durable, regular
from resolvent.runs.metrics import heading

RETAINED = 200
"""Runs whose columns stay in memory."""
MAX_ROWS = 4000
"""Rows that are sent at once; of longer runs every k-th row is."""
Columns = dict[str, list[float | None]]


@dataclass
class Parsed:
    """The whole rows of a file so far."""

    names: list[str] = field(default_factory=list)
    table: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    length: int = 0
    """Bytes that were parsed."""
    file: tuple[int, int] = (0, 0)
    last: bytes = b""
    """The last row as it stood in the file; where another stands there, the file was cut and has grown again."""
    edition: str = field(default_factory=lambda: secrets.token_hex(6))
    """Another one whenever the file is read from its beginning."""


class Curves:
    """Metrics by path."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[Path, Parsed] = OrderedDict()
        self._lock = threading.Lock()

    def since(self, path: Path, after: int, edition: str | None = None) -> dict[str, Any]:
        """The rows from number `after` on, as columns; all of them where those before are not what they were.

        That is so where a resumed run cut the file: it is shorter by now, or not of the edition that was told.
        """
        with self._lock:
            parsed = self._parsed.pop(path, Parsed())
            self._parsed[path] = parsed = _read(path, parsed)
            while len(self._parsed) > RETAINED:
                self._parsed.popitem(last=False)
        rows = len(parsed.table)
        begin = after if after <= rows and edition in (None, parsed.edition) else 0
        columns = _columns(parsed.names, parsed.table, begin)
        return {"start": begin, "rows": rows, "edition": parsed.edition, "columns": columns}


def _read(path: Path, parsed: Parsed) -> Parsed:
    try:
        file = regular.opened(path, durable.NOFOLLOW)
    except FileNotFoundError:
        return Parsed()
    except OSError as error:
        raise InputError(f"{path.name} cannot be read ({error.strerror}); it may be a link, or not yours") from None
    with file:
        handle = file.fileno()
        status = os.fstat(handle)
        identity = status.st_dev, status.st_ino
        if (
            parsed.file != identity
            or os.pread(handle, len(parsed.last), parsed.length - len(parsed.last)) != parsed.last
        ):
            parsed = Parsed(file=identity)
        file.seek(parsed.length)
        content = file.read()
    content = content[: content.rfind(b"\n") + 1]
    if not content:
        return parsed
    names, body = parsed.names, content
    if not parsed.length:
        head, _, body = content.partition(b"\n")
        names = heading(head)
    try:
        fresh = np.array(body.replace(b"\n", b",").split(b",")[:-1], dtype=np.float64).reshape(-1, len(names))
    except ValueError:
        raise InputError(f"{path.name} cannot be read; bring it back from a copy, or run it again") from None
    table = fresh if not parsed.length else np.concatenate([parsed.table, fresh])
    last = content[content.rfind(b"\n", 0, -1) + 1 :]
    return Parsed(names, table, parsed.length + len(content), parsed.file, last, parsed.edition)


def _columns(names: list[str], table: NDArray[np.float64], begin: int) -> Columns:
    """Columns of plain numbers, with the bytes communicated so far. Where a run averages, its averages are shown."""
    if not len(table):
        return {}
    step = max(1, math.ceil((len(table) - begin) / MAX_ROWS))
    rows = np.arange(begin, len(table), step)
    if len(rows) and rows[-1] != len(table) - 1:
        rows = np.append(rows, len(table) - 1)
    by_name = {name: table[:, k] for k, name in enumerate(names)}
    columns = {name: by_name[AVERAGED.get(name, name)] if AVERAGED.get(name) in by_name else by_name[name]
            for name in names if name not in AVERAGED.values()}  # fmt: skip
    if {"bytes_up", "bytes_down"} <= by_name.keys():
        columns["bytes"] = np.cumsum(by_name["bytes_up"] + by_name["bytes_down"])
    return {name: plain(values[rows]) for name, values in columns.items()}


def plain(values: NDArray[np.float64]) -> list[float | None]:
    """Numbers as JSON has them: those that are not finite become None."""
    numbers: list[float | None] = values.tolist()
    return numbers if np.isfinite(values).all() else strict(numbers)
