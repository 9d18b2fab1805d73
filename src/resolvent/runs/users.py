"""Each user's metrics on held-out data, one row per user, as a CSV file. Every bit of a number comes back."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.runs import regular

if TYPE_CHECKING:
    import pandas as pd

FILE = "users.csv"


def text(frame: pd.DataFrame) -> bytes:
    """The file's content, of a frame whose index has the users' names."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["user", *frame.columns])
    for name, values in zip(frame.index, frame.to_numpy().tolist(), strict=True):
        rows.writerow([name, *map(repr, values)])
    return out.getvalue().encode()


def read(folder: Path) -> pd.DataFrame | None:
    """The frame again; None where the run has no such file."""
    import pandas as pd

    if not (folder / FILE).exists():
        return None
    heading, *rows = csv.reader(io.StringIO(regular.read(folder / FILE).decode(), newline=""))
    values = {name: [float(row[k]) for row in rows] for k, name in enumerate(heading) if k}
    return pd.DataFrame(values, index=[row[0] for row in rows])
