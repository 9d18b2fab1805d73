"""A live progress bar in terminals and notebooks, shown once a run takes longer than a moment; off when piped."""

from __future__ import annotations

import sys
import time
from typing import Any

PATIENCE = 1.0
"""Seconds before a bar appears."""
REFRESH = 0.1


def wanted(progress: bool | None) -> bool:
    """What was asked for, or whether somebody is there to look."""
    if progress is not None:
        return progress
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Bar:
    """Does nothing for short runs; afterwards shows rounds, time left and how the residual stands."""

    def __init__(self, title: str, total: int, shown: bool) -> None:
        self._title, self._total, self._shown = title, total, shown
        self._began = self._last = time.perf_counter()
        self._done = 0
        self._rich: Any = None
        self._task: Any = None

    def advance(self, now: float, words: Any) -> None:
        """One more round; `words` is called for the text beside the bar only when it is drawn."""
        self._done += 1
        if not self._shown or now - self._last < REFRESH or now - self._began < PATIENCE:
            return
        self._last = now
        if self._rich is None:
            self._open()
        self._rich.update(self._task, completed=self._done, words=words())

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
        )
        self._rich = Progress(*columns, console=Console(stderr=True), transient=True)
        self._rich.start()
        self._task = self._rich.add_task(self._title, total=self._total, words="")

    def close(self) -> None:
        """Take the bar away."""
        if self._rich is not None:
            self._rich.stop()
