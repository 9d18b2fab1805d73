"""A run's rows on disk: a CSV file that only grows. Floats are written so that every bit comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COUNTS = ("round", "participants", "bytes_up", "bytes_down")


class Metrics:
    """Rows to be appended, from a given length of the file on; what lies beyond it belongs to no checkpoint."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._file, length)
        self.length = os.lseek(self._file, 0, os.SEEK_END)

    def append(self, row: dict[str, Any]) -> None:
        """One more row, with the names before the first."""
        text = ",".join(repr(value) for value in row.values()) + "\n"
        if self.length == 0:
            text = ",".join(row) + "\n" + text
        content = text.encode()
        while content:  # a disk that is nearly full takes a part
            content = content[os.write(self._file, content) :]
        self.length += len(text.encode())

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> pd.DataFrame:
    """The whole rows of the file; a torn last line is left out."""
    import io

    import pandas as pd

    content = path.read_bytes() if path.is_file() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if not whole:
        return pd.DataFrame({"round": pd.Series(dtype="int64")})
    frame = pd.read_csv(io.BytesIO(whole), dtype=str).astype(float)  # Python's floats keep every bit
    return frame.astype({name: "int64" for name in COUNTS if name in frame})
