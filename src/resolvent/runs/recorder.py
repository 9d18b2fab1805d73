"""Stores a run on disk while it runs: a row of metrics and a checkpoint per round, in that order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from resolvent.errors import InputError
from resolvent.iteration import checkpoint, packing
from resolvent.iteration.state import State
from resolvent.runs import checkpoints, durable, inspection, sums, users
from resolvent.runs.checkpoints import KEPT, Checkpoint
from resolvent.runs.folder import Folder, damaged
from resolvent.runs.metrics import Metrics
from resolvent.solving.recording import Entry, MonitorState
from resolvent.solving.stopping import Ending

Sink = Callable[[dict[str, Any]], None]
"""Takes a row of the history elsewhere, TensorBoard say."""


BEST = "best."
"""Before the names of the best state's tensors, where that is not the state of the checkpoint itself."""


class Recorder:
    """Stores a run on disk, for `solve`. `state` is where it was left, None at its beginning; `done` the rounds stored.

    Rows of the metrics beyond the length which a checkpoint remembers belong to rounds that will be done again. Of a
    run on several ranks, `at` is the round that all of them go on from, and `due` says when all write a checkpoint.
    """

    def __init__(
        self,
        folder: Folder,
        rounds: int,
        seconds: float = 0.0,
        sink: Sink | None = None,
        at: int | None = None,
        due: Callable[[], bool] | None = None,
    ) -> None:
        found, self.complaints = self._left(folder, rounds, at)
        numbers: dict[str, Any] = {} if found is None else found.numbers
        self.state: State | None = folder.start() if found is None else found.state
        self.remembered, self.ending = monitored(folder, numbers)
        self.best = best_of(found) or self.state
        self.kept = None if found is None else found.kept
        self._metrics = Metrics(folder.metrics, numbers.get("metrics", 0))
        self._folder, self._rounds, self._seconds, self._sink = folder, rounds, seconds, sink
        self._run = folder.about.get("id")
        self.done = 0 if self.state is None else self.state.round
        self._waiting: Checkpoint | None = None
        self._last = time.monotonic()
        self._due = due or (lambda: time.monotonic() - self._last >= self._seconds)

    def __call__(self, entry: Entry) -> None:
        self._append(entry)
        if self._due() or entry.ending is not None or entry.number == self._rounds:
            self.flush()

    def give_up(self, entry: Entry) -> None:
        """The best state becomes the only checkpoint."""
        self._append(entry)
        self.flush(alone=True)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows stored so far."""
        return self._metrics.columns

    def _append(self, entry: Entry) -> None:
        """Store the row. The checkpoint waits until one is due."""
        if entry.row is not None:
            with self._storing():
                self._metrics.append(entry.row)
            if self._sink is not None:
                self._sink(entry.row)
        if entry.users is not None:  # before the checkpoint that says that the run has ended
            with self._storing():
                durable.write(self._folder.path / users.FILE, users.text(entry.users))
        length, sha256 = self._metrics.extent
        self._waiting = packed(self._run, entry, {"metrics": length, "metrics_sha256": sha256})

    def flush(self, alone: bool = False) -> None:
        """Write the checkpoint that waits, if one does; `alone`: and remove all others."""
        if self._waiting is None:
            return
        with self._storing():
            self._metrics.sync()
            checkpoints.write(self._folder.checkpoints, self._waiting, alone)
        self.done, self._waiting, self._last = self._waiting.round, None, time.monotonic()

    def end(self, status: str, reason: str) -> None:
        """Note how the run ended, with what its files must be from now on."""
        self.flush()
        with self._storing():
            held, own = checkpoints.newest_name(self._folder.checkpoints), self._folder.path / users.FILE
            more = {"users": sums.of(own.read_bytes())} if own.is_file() else {}
            self._folder.note(
                status, reason=reason, round=self.done, metrics=self._metrics.extent._asdict(), checkpoint=held, **more
            )

    def close(self) -> None:
        """Leave the run as it is."""
        with suppress(OSError):
            self._metrics.close()

    def _storing(self) -> Any:
        then = f"what was done is stored: make room, then `{self._folder.resuming}`"
        return durable.storing(self._folder.path, then)

    @staticmethod
    def _left(folder: Folder, rounds: int, at: int | None) -> tuple[Checkpoint | None, list[str]]:
        """Where the run was left, and what a person should know of it."""
        found, complaints = folder.newest(rounds)
        if at is not None and (found is None or found.round != at):
            held, complaints = checkpoints.sound(folder.checkpoints, folder.about.get("id"))
            found = next((each for each in held if each.round == at), None)
        complaints = [*folder.log[1], *complaints]
        differs = found and found.extent.differs(folder.metrics)
        if differs == "other":
            raise damaged(folder, ["metrics.csv was changed since it was written"])
        if differs == "shorter":
            return None, [*complaints, "metrics.csv is shorter than it was, so the run begins again"]
        return found, complaints


def packed(run: str | None, entry: Entry, more: dict[str, Any]) -> Checkpoint:
    """The checkpoint of a state, with what the monitor remembers; and the best state and model, where others."""
    tensors, plain = checkpoint.pack(entry.state)
    numbers = {"run": run, "state": plain, "pulse": entry.remembered, "verdict": entry.ending} | more
    if entry.best is not None:
        others, numbers["best"] = checkpoint.pack(replace(entry.best, yardstick=None))
        tensors |= {BEST + name: tensor for name, tensor in others.items()}
    if entry.kept is not None:
        others, numbers["kept"] = packing.pack(entry.kept)
        tensors |= {KEPT + name: tensor for name, tensor in others.items()}
    return Checkpoint(entry.number, tensors, numbers)


def remembered_in(numbers: dict[str, Any]) -> tuple[MonitorState, Ending | None]:
    """What the monitor remembered when a checkpoint was written."""
    ending = Ending(*numbers["verdict"]) if numbers.get("verdict") else None
    return MonitorState(*numbers["pulse"]) if numbers else MonitorState(), ending


def monitored(folder: Folder, numbers: dict[str, Any]) -> tuple[MonitorState, Ending | None]:
    """The same; versions differ in what they remember."""
    try:
        return remembered_in(numbers)
    except (TypeError, LookupError):
        made = inspection.made_by(folder.about)
        raise InputError(
            f"run {folder.id} was left by {made}, whose checkpoints this version cannot go on from; take that version"
        ) from None


def best_of(found: Checkpoint | None) -> State | None:
    """The best state, where a checkpoint holds one beside its own."""
    if found is None or "best" not in found.numbers:
        return None
    tensors = {name.removeprefix(BEST): tensor for name, tensor in found.tensors.items() if name.startswith(BEST)}
    return checkpoint.unpack(tensors, found.numbers["best"])
