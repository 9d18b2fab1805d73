"""Keeps a run on disk while it runs: a row of metrics and a checkpoint a round, in that order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from resolvent import checkpoint
from resolvent.rounds import Round
from resolvent.runs import checkpoints
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.folder import Folder
from resolvent.runs.metrics import Metrics
from resolvent.state import State
from resolvent.watch import Pulse, Verdict

Sink = Callable[[dict[str, Any]], None]
"""Takes a row of the history elsewhere, TensorBoard say."""


class Recorder:
    """A Keeper for `solve`. `state` is where the run was left, None at its beginning; `done` the rounds on disk.

    Rows of the metrics beyond the length which a checkpoint remembers belong to rounds that will be done again.
    """

    def __init__(self, folder: Folder, rounds: int, seconds: float = 0.0, sink: Sink | None = None) -> None:
        found, self.complaints = checkpoints.newest(folder.checkpoints)
        if found is not None and found.numbers["metrics"] > folder.metrics.stat().st_size:
            self.complaints.append("metrics.csv is shorter than it was, so the run begins again")
            found = None
        numbers: dict[str, Any] = {} if found is None else found.numbers
        self.state: State | None = found and checkpoint.unpack(found.tensors, numbers["state"])
        self.pulse = Pulse(*numbers["pulse"]) if numbers else Pulse()
        self.verdict = Verdict(*numbers["verdict"]) if numbers.get("verdict") else None
        self._metrics = Metrics(folder.metrics, numbers.get("metrics", 0))
        self._folder, self._rounds, self._seconds, self._sink = folder, rounds, seconds, sink
        self.done = 0 if self.state is None else self.state.round
        self._waiting: Checkpoint | None = None
        self._last = time.monotonic()

    def __call__(self, happened: Round, row: dict[str, Any] | None, pulse: Pulse, verdict: Verdict | None) -> None:
        if row is not None:
            self._metrics.append(row)
            if self._sink is not None:
                self._sink(row)
        if verdict is not None and verdict.status == "diverged":
            self.flush()
            return  # the last checkpoint is the last good state
        tensors, state = checkpoint.pack(happened.state)
        numbers = {"state": state, "pulse": pulse, "verdict": verdict, "metrics": self._metrics.length}
        self._waiting = Checkpoint(happened.number, tensors, numbers)
        due = time.monotonic() - self._last >= self._seconds
        if due or verdict is not None or happened.number == self._rounds:
            self.flush()

    def flush(self) -> None:
        """Write the checkpoint that waits, if one does."""
        if self._waiting is None:
            return
        self._metrics.sync()
        checkpoints.write(self._folder.checkpoints, self._waiting)
        self.done, self._waiting, self._last = self._waiting.round, None, time.monotonic()

    def close(self) -> None:
        """Leave the run as it is."""
        with suppress(OSError):
            self._metrics.close()
