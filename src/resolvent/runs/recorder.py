"""Stores a run on disk while it runs: a row of metrics and a checkpoint per round, in that order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.iteration import checkpoint, packing
from resolvent.iteration.state import State
from resolvent.runs import checkpoints, durable, inspection, metrics, sums
from resolvent.runs.checkpoints import KEPT, Checkpoint
from resolvent.runs.folder import Folder, damaged
from resolvent.runs.metrics import Extent, Metrics
from resolvent.solving.recording import Entry, MonitorState
from resolvent.solving.stopping import Ending

Sink = Callable[[dict[str, Any]], None]
"""Takes a row of the history elsewhere, TensorBoard say."""
BEST = "best."
"""Before the names of the best state's tensors, where that is not the state of the checkpoint itself."""


class CheckpointRecorder:
    """Stores a run's checkpoints in a folder, for `solve`: all that ranks other than 0 store.

    `state` is where the run was left, None at its beginning, and `done` counts the rounds stored.
    """

    _advice = "make room there, then resume the run with the same command"

    def __init__(self, folder: Path, run: str, rounds: int, last: Checkpoint | None, due: Callable[[], bool]) -> None:
        self._folder, self._run, self._rounds, self._due = folder, run, rounds, due
        self.state: State | None = None if last is None else last.state
        self.remembered, self.ending = remembered_in({} if last is None else last.numbers)
        self.best = best_of(last) or self.state
        self.kept = None if last is None else last.kept
        self.done = 0 if self.state is None else self.state.round
        self._waiting: tuple[Entry, Extent] | None = None

    def __call__(self, entry: Entry) -> None:
        self._take(entry)
        if self._due() or entry.ending is not None or entry.number == self._rounds:
            self.flush()

    def give_up(self, entry: Entry) -> None:
        """The best state becomes the only checkpoint."""
        self._take(entry)
        self.flush(alone=True)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows stored so far, which rank 0 has."""
        return ("round",) if self.done else ()

    def flush(self, alone: bool = False) -> None:
        """Write the checkpoint that waits, if one does; `alone`: and remove all others."""
        if self._waiting is None:
            return
        with self._storing():
            checkpoints.write(self._folder, packed(self._run, *self._waiting), alone)
        self.done, self._waiting = self._waiting[0].number, None

    def _take(self, entry: Entry) -> None:
        """What is to be stored waits until a checkpoint is due."""
        self._waiting = entry, Extent()

    def _storing(self) -> AbstractContextManager[None]:
        return durable.storing(self._folder, self._advice)


class Recorder(CheckpointRecorder):
    """Stores a run on disk, for `solve`: its rows and its checkpoints. `complaints` are sentences on what was damaged.

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
        last, self.complaints = _last_checkpoint(folder, rounds, at)
        self._run_folder, self._sink, self._written = folder, sink, time.monotonic()
        self._advice = f"what was done is stored: make room, then `{folder.resuming}`"
        if last is not None:
            check_readable(folder, last)
        due = due or (lambda: time.monotonic() - self._written >= seconds)
        super().__init__(folder.checkpoints, folder.about["id"], rounds, last, due)
        if last is None and (start := folder.start()) is not None:
            self.state, self.best, self.done = start, start, start.round
        self._metrics = Metrics(folder.metrics, 0 if last is None else last.extent.bytes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows stored so far."""
        return self._metrics.columns

    def flush(self, alone: bool = False) -> None:
        """Write the checkpoint that waits, after the rows that belong to it."""
        if self._waiting is None:
            return
        with self._storing():
            self._metrics.sync()
        super().flush(alone)
        self._written = time.monotonic()

    def end(self, status: str, reason: str) -> None:
        """Note how the run ended, with what its files must be from now on."""
        self.flush()
        with self._storing():
            newest, own = checkpoints.newest_name(self._folder), self._run_folder.path / metrics.USERS
            more = {"users": sums.of(own.read_bytes())} if own.is_file() else {}
            extent = self._metrics.extent._asdict()
            self._run_folder.note(status, reason=reason, round=self.done, metrics=extent, checkpoint=newest, **more)

    def close(self) -> None:
        """Leave the run as it is."""
        with suppress(OSError):
            self._metrics.close()

    def _take(self, entry: Entry) -> None:
        """Store the row; the state waits until a checkpoint is due."""
        with self._storing():
            if entry.row is not None:
                self._metrics.append(entry.row)
            if entry.users is not None:  # before the checkpoint that says that the run has ended
                durable.write(self._run_folder.path / metrics.USERS, metrics.users_text(entry.users))
        if entry.row is not None and self._sink is not None:
            self._sink(entry.row)
        self._waiting = entry, self._metrics.extent

    def _storing(self) -> AbstractContextManager[None]:
        return durable.storing(self._run_folder.path, self._advice)


def _last_checkpoint(folder: Folder, rounds: int, at: int | None) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint that a run goes on from, and what a person should know of it."""
    last, complaints = folder.newest(rounds)
    if at is not None and (last is None or last.round != at):
        stored, complaints = checkpoints.sound(folder.checkpoints, folder.about["id"])
        last = next((each for each in stored if each.round == at), None)
    complaints = [*folder.log[1], *complaints]
    differs = last and last.extent.differs(folder.metrics)
    if differs == "other":
        raise damaged(folder, ["metrics.csv was changed since it was written"])
    if differs == "shorter":
        return None, [*complaints, "metrics.csv is shorter than it was, so the run begins again"]
    return last, complaints


def packed(run: str, entry: Entry, rows: Extent) -> Checkpoint:
    """The checkpoint of a state, with what the monitor remembers; and the best state and model, where others."""
    tensors, plain = checkpoint.pack(entry.state)
    numbers: dict[str, Any] = {"run": run, "state": plain, "pulse": entry.remembered, "verdict": entry.ending}
    numbers |= {"metrics": rows.bytes, "metrics_sha256": rows.sha256}
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


def check_readable(folder: Folder, stored: Checkpoint) -> None:
    """Refuse a checkpoint of another version, whose monitor remembered other things."""
    try:
        remembered_in(stored.numbers)
    except (TypeError, LookupError):
        version = inspection.made_by(folder.about)
        left_by = f"run {folder.id} was left by {version}"
        raise InputError(f"{left_by}, whose checkpoints this version cannot go on from; take that version") from None


def best_of(stored: Checkpoint | None) -> State | None:
    """The best state, where a checkpoint holds one beside its own."""
    if stored is None or "best" not in stored.numbers:
        return None
    tensors = {name.removeprefix(BEST): tensor for name, tensor in stored.tensors.items() if name.startswith(BEST)}
    return checkpoint.unpack(tensors, stored.numbers["best"])
