"""Folders of runs: made, found and read. Nothing here computes."""

from __future__ import annotations

import json
import secrets
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from resolvent import checkpoint
from resolvent.errors import InputError
from resolvent.runs import checkpoints, durable, lock, metrics
from resolvent.state import State

if TYPE_CHECKING:
    import pandas as pd

ENDED = ("finished", "stopped", "diverged")
"""How a run ends for good; every other one can go on."""


@dataclass(frozen=True)
class Folder:
    """A run on disk, to be read. Only the process that holds its lock writes to it."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> dict[str, Any]:
        """What was asked for, as written: sections of plain values."""
        return tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))

    @cached_property
    def about(self) -> dict[str, Any]:
        """The problem, the explanation, the environment."""
        about: dict[str, Any] = json.loads((self.path / "about.json").read_text())
        return about

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in order; a line that was torn is left out."""
        path = self.path / "events.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def status(self) -> str:
        """running, finished, stopped, diverged, interrupted, or killed: begun, but nobody is at it."""
        if lock.is_held(self.path):
            return "running"
        kinds = [event["kind"] for event in self.events if event["kind"] in (*ENDED, "interrupted", "resumed")]
        return kinds[-1] if kinds and kinds[-1] != "resumed" else "killed"

    def history(self) -> pd.DataFrame:
        """A row a recorded round."""
        return metrics.read(self.metrics)

    def row(self) -> dict[str, Any]:
        """The last row; of a run that diverged, that of the state handed back. Empty where there is none."""
        history, ended = self.history(), [event for event in self.events if event["kind"] == "diverged"][-1:]
        if ended and self.status == "diverged":
            history = history[history["round"] == ended[0].get("round")]
        return {str(name): value for name, value in next(iter(history.iloc[-1:].to_dict("records")), {}).items()}

    def state(self) -> State | None:
        """The State after the last round kept; None before the first."""
        found, _ = checkpoints.newest(self.checkpoints)
        return found and checkpoint.unpack(found.tensors, found.numbers["state"])

    def model(self) -> Tensor | None:
        """The model (d,) after the last round kept."""
        state = self.state()
        if state is None:
            return None
        return (state.w if state.average is None else state.average.model)[0]

    def note(self, kind: str, **about: Any) -> None:
        """Append an event."""
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        with (self.path / "events.jsonl").open("ab+") as file:
            file.seek(max(file.tell() - 1, 0))
            torn = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * torn + json.dumps({"time": now, "kind": kind} | about).encode() + b"\n")


def create(out: Path, name: str, config: str, about: dict[str, Any]) -> Folder:
    """A new run under `out`: it appears whole or not at all."""
    when = datetime.now()
    run_id = f"{name}-{when:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    part = out / f".{run_id}.part"
    with durable.storing(out, "name another folder with --out, or make room there"):
        (part / "checkpoints").mkdir(parents=True)
        (part / "config.toml").write_text(config, encoding="utf-8")
        about = {"id": run_id, "created": when.astimezone().isoformat(timespec="milliseconds")} | about
        (part / "about.json").write_text(json.dumps(about, indent=2) + "\n")
        part.rename(out / run_id)
    return Folder(out / run_id)


def folders(out: Path) -> list[Folder]:
    """The runs under a folder, oldest first."""
    if not out.is_dir():
        return []
    found = [Folder(path.parent) for path in out.glob("[!.]*/about.json")]
    return sorted(found, key=lambda run: (run.about["created"], run.id))


def find(name: str, out: Path) -> Folder:
    """A run by its path, its id, or the beginning or end of one."""
    if (Path(name) / "about.json").is_file():
        return Folder(Path(name))
    if (out / name / "about.json").is_file() and name:
        return Folder(out / name)
    there = folders(out)
    alike = [run for run in there if name and (run.id.startswith(name) or run.id.endswith(name))]
    if len(alike) == 1:
        return alike[0]
    raise InputError(f"{_which(name, alike)}; {_there(there, out)}")


def _which(name: str, alike: list[Folder]) -> str:
    if alike:
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        return f"{name!r} may be any of {', '.join(run.id for run in alike[:3])}{more}"
    return f"there is no run {name!r}"


def _there(there: Iterable[Folder], out: Path) -> str:
    latest = list(there)[-1:]
    if not latest:
        return f"there are no runs in {out}/; begin one with `resolvent run`, or name their folder with --out"
    return f"`resolvent ls --out {out}` lists those there are, the latest is {latest[0].id}"
