"""An index of the runs under a folder: read once, then only what has changed.

A process that writes a run makes holder.json there first. So a run without that file can have changed only if the
folder itself was modified, which one stat tells; the few others are looked at each time.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent import toml
from resolvent.errors import InputError
from resolvent.report.curves import GREY, NAMED_WHOLE, colour_of, in_brief
from resolvent.runs import Folder, damaged, inspection, lock, regular
from resolvent.runs.folder import extended, standing, status_after
from resolvent.runs.metrics import heading

FILES = ("config.toml", "about.json", "metrics.csv", "events.jsonl", "users.csv", "holder.json")
MAX_LINE = 1 << 16
"""Bytes of a row of metrics, at most."""
MAX_TEXT = 300
"""Characters of a text in the table, at most."""
Row = dict[str, Any]


class Unknown(InputError):
    """There is no such run."""


@dataclass
class Entry:
    """A run as it was when it was last looked at."""

    folder: Folder
    seen: tuple[Any, ...]
    watched: bool
    """Whether a process writes it, or did so when it was killed."""
    row: Row
    """Replaced only when its contents change, so that `is` detects changes."""


class Store:
    """The runs under a folder, by id."""

    def __init__(self, out: Path) -> None:
        self.out = out.absolute()
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def refresh(self) -> tuple[list[Row], list[str]]:
        """Look again: the rows that are new or have changed, and the ids that are gone."""
        with self._lock:
            changed: list[Row] = []
            there = dict(self._folders())
            for name, modified in there.items():
                row = self._look(name, modified)
                if row is not None:
                    changed.append(row)
            gone = [name for name in self._entries if name not in there]
            for name in gone:
                del self._entries[name]
            return changed, gone

    def rows(self) -> list[Row]:
        """Every run, newest first."""
        with self._lock:
            rows = [entry.row for entry in self._entries.values()]
        return sorted(rows, key=lambda row: (row["created"], row["id"]), reverse=True)

    def row(self, name: str) -> Row:
        """One run, as it is now."""
        self.folder(name)
        with self._lock, suppress(OSError):
            self._look(name, (self.out / name).stat().st_mtime_ns)
        entry = self._entries.get(name)
        if entry is None:  # deleted, and somebody else has looked since
            raise _unknown(name)
        return entry.row

    def folder(self, name: str) -> Folder:
        """A run by its exact id; nothing else is ever opened."""
        entry = self._entries.get(name)
        if entry is None:
            with self._lock, suppress(OSError):
                there = dict(self._folders()) if name and Path(name).name == name else {}
                if name in there:
                    self._look(name, there[name])
            entry = self._entries.get(name)
        if entry is None or not os.path.isdir(entry.folder.path):
            raise _unknown(name)
        return Folder(entry.folder.path)

    def own(self, name: str) -> Folder:
        """The same, where all of its files are its own; else it is damaged."""
        run = self.folder(name)
        if wrong := inspection.links(run):
            raise damaged(run, wrong)
        return run

    # --- what it consists of -----------------------------------------------------------------------------------------

    def _folders(self) -> Iterator[tuple[str, int]]:
        """Names and times of modification. Links are left out: what they lead to may lie outside."""
        with suppress(OSError), os.scandir(self.out) as items:
            for item in items:
                with suppress(OSError):
                    if not item.name.startswith(".") and item.is_dir(follow_symlinks=False):
                        yield item.name, item.stat(follow_symlinks=False).st_mtime_ns

    def _look(self, name: str, modified: int) -> Row | None:
        """The row of a run if it has changed since."""
        entry = self._entries.get(name)
        if entry is not None and entry.seen[0] == modified and not entry.watched:
            return None
        path = self.out / name
        watched = os.path.exists(path / "holder.json")
        running = watched and lock.is_held(path)
        seen = (modified, running, _stamp(path / "metrics.csv"), _stamp(path / "events.jsonl"))
        if entry is not None and entry.seen == seen:
            return None
        if entry is None and not (os.path.isfile(path / "about.json") or os.path.isdir(path / "checkpoints")):
            return None
        folder = entry.folder if entry is not None and entry.row["status"] != "damaged" else Folder(path)
        row = summary(folder, running)
        old = None if entry is None else entry.row
        row = old if old is not None and old == row else row
        self._entries[name] = Entry(folder, seen, watched, row)
        return None if row is old else row


def _unknown(name: str) -> Unknown:
    return Unknown(f"there is no run {name[:100]!r} here; it may have been deleted, or be in another folder")


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def summary(run: Folder, running: bool) -> Row:
    """What the table of runs shows of one; a run that cannot be read is shown as damaged, with the reason."""
    try:
        links = [name for name in FILES if (run.path / name).is_symlink()]
        if links:
            raise InputError(f"{links[0]} is a symbolic link")
        return _summary(run, running)
    except Exception as error:  # whatever a folder from elsewhere brings, the other runs are shown
        return _row(run) | {"status": "damaged", "reason": str(error)[:MAX_TEXT] or type(error).__name__}


def _row(run: Folder) -> Row:
    texts = dict.fromkeys(("title", "algorithm", "problem", "settings", "status", "reason", "created"), "")
    numbers = dict.fromkeys(("rounds", "round", "seed", "users", "dim"), 0)
    return {"id": run.id, **texts, **numbers, "value": None, "gap": None, "accuracy": None, "seconds": None,
            "colour": GREY}  # fmt: skip


def _summary(run: Folder, running: bool) -> Row:
    about, events = run.about, run.events
    config, last_event = extended(_written(run), events), standing(events)
    status = "running" if running else status_after(last_event)
    last = last_row(run.path / "metrics.csv", last_event.get("round") if status == "diverged" else None)
    algorithm = str(config["scheme"]["algorithm"])
    return _row(run) | {
        "title": str(about["title"])[:MAX_TEXT],
        "algorithm": algorithm[:MAX_TEXT],
        "problem": str(config["problem"]["name"]).rpartition("/")[2][:MAX_TEXT],
        "settings": in_words(config)[:MAX_TEXT],
        "status": status,
        "reason": str(last_event.get("reason", ""))[:MAX_TEXT],
        "created": str(about["created"])[:MAX_TEXT],
        "round": int(last.get("round") or 0),
        "rounds": int(config["run"]["rounds"]),
        "seed": int(config["run"]["seed"]),
        "users": int(about["problem"]["users"]),
        "dim": int(about["problem"]["dim"]),
        "value": last.get("average_value", last.get("value")),
        "gap": last.get("average_gap", last.get("gap")),
        "accuracy": last.get("test_accuracy"),
        "seconds": last.get("seconds"),
        "colour": colour_of(algorithm),
    }


def in_words(config: dict[str, Any]) -> str:
    """The settings that people look for, in one line."""
    scheme, part, local = config["scheme"], config.get("participation", {}), config.get("local", {})
    schedule = scheme.get("schedule", "constant")
    settings = [
        ("η {}", scheme.get("eta")),
        ("{}", None if schedule == "constant" else schedule),
        ("α {}", scheme.get("alpha")),
        ("β {}", scheme.get("beta")),
        ("γ {}", scheme.get("gamma")),
        ("Anderson {}", config["anderson"]["memory"] or None),
        ("{}", None if config["anderson"].get("safeguard", True) else "no safeguards"),
        *(("{}", in_brief(name, config[name])) for name in NAMED_WHOLE if config.get(name)),
        ("k {}", local.get("steps")),
        ("batch {}", local.get("batch")),
        ("p {}", part.get("probability")),
        ("{} users per round", part.get("size")),
        ("stragglers {}×", part.get("stragglers")),
        ("seed {}", config["run"]["seed"] or None),
    ]
    return " · ".join(form.format(_short(value)) for form, value in settings if value is not None)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(run: Folder) -> dict[str, Any]:
    """A run's configuration, with the number of rounds that was asked for last."""
    return extended(_written(run), run.events)


def _written(run: Folder) -> dict[str, Any]:
    """What was asked for at first. What this library wrote is read line by line, ten times faster than by tomllib."""
    if "written" not in vars(run):
        text = run.toml
        try:
            tree: dict[str, Any] = {}
            section = tree
            for line in filter(None, text.splitlines()):
                if line.startswith("["):
                    section = tree[line[1:-1]] = {}
                else:
                    key, equals, value = line.partition(" = ")
                    if not equals or not key.isidentifier():
                        raise ValueError(key)
                    section[key] = json.loads(value)
        except ValueError:
            tree = toml.parse(text)
        vars(run)["written"] = regular.plain(tree)  # where its cached property looks first
    return run.written


def last_row(path: Path, number: int | None = None) -> dict[str, float | None]:
    """The last whole row of the metrics, or the one of a given round; numbers that are not finite are None."""
    try:
        with regular.opened(path) as file:
            names = heading(file.readline(MAX_LINE).strip())
            if number is not None:
                file.seek(0)
                lines = file.read().split(b"\n")[1:-1]
                lines = [line for line in lines if line.split(b",", 1)[0] == str(number).encode()]
            else:
                begin = file.tell()
                size = file.seek(0, os.SEEK_END)
                file.seek(max(begin, size - MAX_LINE))
                lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    if not lines or not lines[-1]:
        return {}
    values = [float(text) for text in lines[-1].split(b",")]
    if len(values) != len(names):
        raise InputError("metrics.csv cannot be read")
    return {name: value if math.isfinite(value) else None for name, value in zip(names, values, strict=True)}
