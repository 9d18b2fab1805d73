"""A run on disk, to be read: its configuration, what it says about itself, what happened, its rows and states."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from resolvent import toml
from resolvent.errors import DamagedRun, InputError
from resolvent.runs import checkpoints, durable, events, inspection, lock, metrics, regular
from resolvent.runs.checkpoints import Checkpoint

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from resolvent.iteration.state import State

Made = TypeVar("Made")
ENDED = ("finished", "stopped", "diverged")
"""Statuses of a run that has ended for good; any other run can be resumed."""
UNENDED = ("interrupted", "failed", "resumed", "extended")
"""Other events that say where a run stands."""
START = "start.safetensors"
"""The State that a fork began with."""
FIXED = "fixed.safetensors"
"""What of a network is not trained."""


@dataclass(frozen=True)
class Folder:
    """A run on disk, to be read. Only the process that holds its lock writes to it.

    What cannot be read raises DamagedRun, a sentence that names the file; `damage` lists everything that is wrong.
    """

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def toml(self) -> str:
        """The text of the configuration."""
        with self._reading("config.toml"):
            return regular.text(self.path / "config.toml")

    @cached_property
    def written(self) -> dict[str, Any]:
        """What was asked for when the run was begun, as written: sections of plain values."""
        with self._reading("config.toml"):
            return regular.plain(toml.parse(self.toml))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The same with the number of rounds that was asked for last."""
        return extended(self.written, self.events)

    def forget(self) -> None:
        """Read the configuration anew."""
        self.__dict__.pop("config", None)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The problem, the explanation, the environment."""
        with self._reading("about.json"):
            about = json.loads(regular.text(self.path / "about.json"))
            if not isinstance(about, dict):
                raise ValueError("it is no object")
            return regular.plain(about)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def log(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The events in order, and a few words on each line that was skipped: no result depends on it."""
        with self._reading(events.FILE):
            return events.read(self.path / events.FILE)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        return self.log[0]

    @property
    def end(self) -> dict[str, Any] | None:
        """The event that ended the run for good, if one did."""
        last = standing(self.events)
        return last if last.get("kind") in ENDED else None

    @property
    def status(self) -> str:
        """running, finished, stopped, diverged, interrupted, failed, or killed: begun, but no process runs it."""
        return "running" if lock.is_held(self.path) else status_after(standing(self.events))

    @property
    def code(self) -> str | None:
        """The file.py:function that the run calls, if it calls one."""
        name = self.config.get("problem", {}).get("name", "")
        return name if ".py:" in str(name) else None

    @property
    def from_python(self) -> bool:
        """Whether `Run.save` wrote it: its problem is a value there, and its configuration only names its parts."""
        return self.about.get("made") == "python"

    @property
    def federated(self) -> bool:
        """Whether its users are asked by the server of a federation."""
        return bool(self.written.get("problem", {}).get("name") == "federation")

    @property
    def resuming(self) -> str:
        """The command that goes on with the run."""
        return f"resolvent {'federate run --resume' if self.federated else 'resume'} {self.id}"

    def damage(self) -> list[str]:
        """What differs from what was written, a few words each; checkpoints are not read."""
        return inspection.damage(self)

    def verify(self) -> list[str]:
        """The same, with the last checkpoint."""
        return inspection.verify(self)

    def history(self) -> pd.DataFrame:
        """One row per recorded round."""
        with self._reading("metrics.csv"):
            return metrics.read(self.metrics)

    def rows(self) -> tuple[list[str], list[list[float]]]:
        """The names of the columns, and the same rows as plain numbers."""
        with self._reading("metrics.csv"):
            return metrics.rows(self.metrics)

    def newest(self, rounds: int | None = None) -> tuple[Checkpoint | None, list[str]]:
        """The newest sound checkpoint, and one sentence for each that was skipped.

        With `rounds`: one from which a run of so many goes on. The last round of a shorter one will not do, since it
        has a row whatever the cadence.
        """

        def usable(stored: Checkpoint) -> bool:
            verdict = stored.numbers.get("verdict")
            return rounds is None or not verdict or verdict[0] != "finished" or stored.round >= rounds

        return checkpoints.newest(self.checkpoints, self.about["id"], usable)

    def fixed(self) -> dict[str, Tensor]:
        """What of a network is not trained, by name; nothing where all of it is."""
        if not (self.path / FIXED).is_file():
            return {}
        with self._reading(FIXED):
            return checkpoints.tensors(regular.read(self.path / FIXED, limit=None))

    def start(self) -> State | None:
        """The State that the run began with, where it is a fork."""
        if not (self.path / START).is_file():
            return None
        with self._reading(START):
            return checkpoints.decode(regular.read(self.path / START, limit=None)).state

    def row(self) -> dict[str, Any]:
        """The last row; of a run that diverged, the row of the state that was returned. Empty where there is none."""
        (names, rows), ended = self.rows(), [event for event in self.events if event["kind"] == "diverged"][-1:]
        if ended and self.status == "diverged":
            rows = [row for row in rows if row[names.index("round")] == ended[0].get("round")]
        return dict(zip(names, rows[-1], strict=True)) if rows else {}

    def state(self) -> State | None:
        """The State after the last round stored; None before the first."""
        newest, _ = self.newest()
        return newest and newest.state

    def model(self) -> Tensor | None:
        """The model (d,) after the last round stored."""
        state = self.state()
        return None if state is None else model_of(state)

    def note(self, kind: str, **about: Any) -> None:
        """Append an event."""
        durable.append(self.path / events.FILE, events.line(kind, **about))

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """What goes wrong while a file is read, as a sentence."""
        try:
            yield
        except (OSError, *regular.UNFIT) as error:
            if isinstance(error, InputError):
                raise
            path = self.path / name
            empty = isinstance(error, ValueError) and path.is_file() and path.stat().st_size == 0
            why = "is empty" if empty else f"cannot be read ({_brief(error)})"
            raise damaged(self, [f"{name} {why}"]) from error


@contextmanager
def reading(run: Folder) -> Iterator[None]:
    """What goes wrong on the way through a run's files, as the sentence that the run is damaged."""
    try:
        yield
    except (InputError, FileNotFoundError):
        raise
    except (OSError, *regular.UNFIT) as error:
        wrong = f"its files do not fit together ({type(error).__name__}: {_brief(error)})"
        raise damaged(run, [wrong]) from error


def together(chosen: Sequence[Folder], read: Callable[[Sequence[Folder]], Made]) -> Made:
    """What is made of some runs; where that fails because of one of them, the sentence that it is damaged."""
    try:
        return read(chosen)
    except InputError:
        raise
    except regular.UNFIT as error:
        for run in chosen:
            with reading(run):
                read([run])
        raise InputError(f"these runs do not fit together ({_brief(error)}); name fewer of them") from error


def damaged(run: Folder, wrong: list[str]) -> DamagedRun:
    """What is wrong with a run, and what can be done."""
    what = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    error = DamagedRun(
        f"run {run.id} is damaged: {what}; bring that back from a copy, or delete {run.path} and run it again"
    )
    error.words, error.run = what, run.path
    return error


def model_of(state: State) -> Tensor:
    """The model (d,) of a State: its average where one was asked for."""
    return state.reported[0]


def extended(written: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """A configuration with the number of rounds that was asked for last."""
    asked = [event.get("rounds") for event in events if event["kind"] == "extended"]
    more = [rounds for rounds in asked if isinstance(rounds, int) and rounds > 0]
    if not more or not isinstance(written.get("run"), dict):
        return written
    return written | {"run": written["run"] | {"rounds": more[-1]}}


def standing(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last event that says where a run stands; empty where there is none."""
    return next((event for event in reversed(events) if event["kind"] in (*ENDED, *UNENDED)), {})


def status_after(event: dict[str, Any]) -> str:
    """The status of a run that no process writes, after the event that says where it stands."""
    kind = str(event.get("kind", "killed"))
    return "killed" if kind in ("resumed", "extended") else kind


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
