"""Folders of runs: made, found and read. Nothing here computes."""

from __future__ import annotations

import json
import secrets
import shutil
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from resolvent.errors import DamagedRun, InputError
from resolvent.iteration.state import State
from resolvent.runs import checkpoints, durable, events, inspection, lock, metrics, sums, trust
from resolvent.runs.checkpoints import Checkpoint

if TYPE_CHECKING:
    import pandas as pd

ENDED = ("finished", "stopped", "diverged")
"""Statuses of a run that has ended for good; any other run can be resumed."""
LEFT = ("interrupted", "failed", "resumed")
"""Other events that say where a run stands."""
START = "start.safetensors"
"""The State that a fork began with."""
NAME = 80
"""Characters of a run's name, without date and number."""
STALE = 3600.0
"""Age in seconds after which an incomplete folder counts as abandoned."""


@dataclass(frozen=True)
class Folder:
    """A run on disk, to be read. Only the process that holds its lock writes to it.

    What cannot be read raises DamagedRun, a sentence that names the file; `damage` lists everything that is wrong.
    """

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> dict[str, Any]:
        """What was asked for, as written: sections of plain values."""
        with self._reading("config.toml"):
            return tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))

    @cached_property
    def about(self) -> dict[str, Any]:
        """The problem, the explanation, the environment."""
        with self._reading("about.json"):
            about = json.loads((self.path / "about.json").read_text(encoding="utf-8"))
            if not isinstance(about, dict):
                raise ValueError("it is no object")
            return about

    @property
    def format(self) -> int:
        """How the folder is laid out; 1 is before there were checksums of every file."""
        known: int = self.about.get("format", 1)
        return known

    @property
    def verified(self) -> bool:
        """Whether its files have checksums; they may be wrong: see `damage`."""
        return (self.path / sums.FILE).is_file()

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
            return events.read(self.path / events.FILE, strict=self.verified)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        return self.log[0]

    @property
    def end(self) -> dict[str, Any] | None:
        """The event that ended the run for good, if one did."""
        said = [event for event in self.events if event["kind"] in (*ENDED, *LEFT)]
        return said[-1] if said and said[-1]["kind"] in ENDED else None

    @property
    def status(self) -> str:
        """running, finished, stopped, diverged, interrupted, failed, or killed: begun, but no process runs it."""
        if lock.is_held(self.path):
            return "running"
        kinds = [event["kind"] for event in self.events if event["kind"] in (*ENDED, *LEFT)]
        return kinds[-1] if kinds and kinds[-1] != "resumed" else "killed"

    @property
    def code(self) -> str | None:
        """The file.py:function that the run calls, if it calls one."""
        name = self.config.get("problem", {}).get("name", "")
        return name if ".py:" in str(name) else None

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

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest sound checkpoint, and one sentence for each that was skipped."""
        return checkpoints.newest(self.checkpoints, self.about.get("id") if self.format > 1 else None)

    def start(self) -> State | None:
        """The State that the run began with, where it is a fork."""
        if not (self.path / START).is_file():
            return None
        with self._reading(START):
            return checkpoints.decode((self.path / START).read_bytes()).state

    def row(self) -> dict[str, Any]:
        """The last row; of a run that diverged, the row of the state that was returned. Empty where there is none."""
        history, ended = self.history(), [event for event in self.events if event["kind"] == "diverged"][-1:]
        if ended and self.status == "diverged":
            history = history[history["round"] == ended[0].get("round")]
        return {str(name): value for name, value in next(iter(history.iloc[-1:].to_dict("records")), {}).items()}

    def state(self) -> State | None:
        """The State after the last round stored; None before the first."""
        found, _ = self.newest()
        return found and found.state

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
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            path = self.path / name
            empty = isinstance(error, ValueError) and path.is_file() and path.stat().st_size == 0
            why = "is empty" if empty else f"cannot be read ({_brief(error)})"
            raise damaged(self, [f"{name} {why}"]) from error


def damaged(run: Folder, wrong: list[str]) -> DamagedRun:
    """What is wrong with a run, and what can be done."""
    what = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    error = DamagedRun(
        f"run {run.id} is damaged: {what}; bring that back from a copy, or delete {run.path} and run it again"
    )
    error.words = what
    return error


def model_of(state: State) -> Tensor:
    """The model (d,) of a State: its average where one was asked for."""
    return (state.w if state.average is None else state.average.model)[0]


def create(
    out: Path, name: str, config: str, about: dict[str, Any], start: Checkpoint | None = None, code: bool = False
) -> Folder:
    """A new run under `out`: it appears whole, and durably, or not at all. One that calls a user's `code` is sealed."""
    when = datetime.now()
    run_id = f"{_plain(name)}-{when:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    part = out / f".{run_id}.part"
    created = when.astimezone().isoformat(timespec="milliseconds")
    about = {"id": run_id, "format": inspection.FORMAT, "created": created} | about
    contents = {"config.toml": config.encode(), "about.json": (json.dumps(about, indent=2) + "\n").encode()}
    if start is not None:
        contents[START] = checkpoints.encode(start)
    with durable.storing(out, "name another folder with --out, or make room there"):
        try:
            durable.make(out)
            _tidy(out)
            part.mkdir()
            (part / "checkpoints").mkdir()
            listing = sums.listing(contents)
            more = {sums.FILE: listing, events.FILE: events.line("started") + b"\n"}
            if code and (seal := trust.seal(listing)) is not None:
                more[trust.FILE] = seal
            for file, content in (contents | more).items():
                durable.put(part / file, content)
            durable.sync(part)
            part.rename(out / run_id)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        durable.sync(out)
    return Folder(out / run_id)


def folders(out: Path) -> list[Folder]:
    """The runs under a folder, oldest first; damaged ones too."""
    found = []
    with suppress(OSError):
        for path in out.glob("[!.]*/"):
            if (path / "about.json").is_file() or (path / "checkpoints").is_dir():
                found.append(Folder(path))
    return sorted(found, key=lambda run: (_created(run), run.id))


def sound(out: Path) -> tuple[list[Folder], list[str]]:
    """The undamaged runs under a folder, and one sentence on each damaged one."""
    good, complaints = [], []
    for run in folders(out):
        wrong = run.damage()
        if not wrong:
            good.append(run)
        elif run.path.is_dir():  # else it was deleted just now
            complaints.append(str(damaged(run, wrong)))
    return good, complaints


def find(name: str, out: Path) -> Folder:
    """A run by its path, its id, or the beginning or end of one."""
    with suppress(OSError):  # a name that no file can have
        for path in (Path(name), out / name):
            if name and ((path / "about.json").is_file() or (path / "checkpoints").is_dir()):
                return Folder(path)
    there = folders(out)
    alike = [run for run in there if name and (run.id.startswith(name) or run.id.endswith(name))]
    if len(alike) == 1:
        return alike[0]
    raise InputError(f"{_which(name, alike)}; {_there(there, out)}")


def _created(run: Folder) -> str:
    """When a run was made; for a damaged one, when its folder was changed."""
    try:
        created = run.about["created"]
        if isinstance(created, str):
            return created
    except (InputError, KeyError):
        pass
    with suppress(OSError):
        return datetime.fromtimestamp(run.path.stat().st_mtime).astimezone().isoformat(timespec="milliseconds")
    return ""


def _plain(name: str) -> str:
    """A name that any file system takes and any terminal shows."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:NAME].strip(".-") or "run"


def _tidy(out: Path) -> None:
    """Remove incomplete folders that a killed process left behind."""
    for part in out.glob(".*.part"):
        with suppress(OSError):
            if time.time() - part.lstat().st_mtime > STALE and part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _which(name: str, alike: list[Folder]) -> str:
    if alike:
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        return f"{name!r} may be any of {', '.join(run.id for run in alike[:3])}{more}"
    return f"there is no run {name[:100]!r}"


def _there(there: Iterable[Folder], out: Path) -> str:
    latest = list(there)[-1:]
    if not latest:
        return f"there are no runs in {out}/; begin one with `resolvent run`, or name their folder with --out"
    return f"`resolvent ls --out {out}` lists those there are, the latest is {latest[0].id}"
