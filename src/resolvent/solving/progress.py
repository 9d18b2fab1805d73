"""A live progress bar in terminals and notebooks, shown once a run takes longer than a moment; off when piped."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

PATIENCE = 1.0
"""Seconds before a bar appears."""
REFRESH = 0.1


def wanted(progress: bool | None) -> bool:
    """What was asked for, or whether somebody is there to look."""
    if progress is not None:
        return progress
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class Bar:
    """Does nothing for short runs; afterwards shows rounds, time left and how the residual stands.

    In a notebook it is a line of text that is updated in place, which needs no widgets.
    """

    def __init__(self, title: str, total: int, shown: bool) -> None:
        self._title, self._total, self.shown = title, total, shown
        self._began = self._last = time.perf_counter()
        self._done = 0
        self._rich: Any = None
        self._line: Any = None
        self._task: Any = None

    def advance(self, now: float, words: Any) -> None:
        """One more round; `words` is called for the text beside the bar only when it is drawn."""
        self._done += 1
        if not self.shown or now - self._last < REFRESH or now - self._began < PATIENCE:
            return
        self._last = now
        if self._rich is None and self._line is None:
            self._open()
        if self._line is not None:
            self._line.update(Text(self._sentence(now, words())))
        else:
            self._rich.update(self._task, completed=self._done, words=words())

    def _sentence(self, now: float, words: str) -> str:
        left = timedelta(seconds=round((now - self._began) / self._done * (self._total - self._done)))
        return f"{self._title}  {self._done}/{self._total} rounds  {left} left  {words}"

    def _open(self) -> None:
        if in_notebook():
            self._line = import_module("IPython.display").display(Text(""), display_id=True)
            return
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
        if self._line is not None:
            self._line.update(Text(""))


class Text:
    """What a notebook shows as plain text."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words
