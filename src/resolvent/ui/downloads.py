"""Files of some runs to take away: rows as CSV or Parquet, pictures, and the self-contained report."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from resolvent import report, runs
from resolvent.errors import InputError
from resolvent.report import tables
from resolvent.runs import Folder

KINDS = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "png": "image/png",
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
}
ONE_AT_A_TIME = threading.Lock()
"""Matplotlib draws one figure at a time."""


def download(kind: str, chosen: Sequence[Folder], x: str, y: str | None) -> bytes:
    """The content of a file of this kind."""
    for run in chosen:
        if wrong := run.damage():
            raise runs.damaged(run, wrong)
    if kind in ("csv", "parquet"):
        return tables.encoded(tables.rows(chosen), kind)
    curves = report.curves(chosen)
    names = {str(name) for curve in curves for frame in curve.frames for name in frame}
    if y is not None and any(y not in frame for curve in curves for frame in curve.frames):
        raise InputError(f"y is {y[:40]!r}, but these runs have {', '.join(sorted(names))}")
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="resolvent-ui-") as folder:
        path = Path(folder) / f"runs.{kind}"
        if kind == "html":
            report.page(curves, path, "Runs")
        else:
            report.draw(curves, path, y=y, xs=[x])
        return path.read_bytes()
