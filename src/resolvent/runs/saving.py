"""A run that `solve` handed back, as a folder of the run store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from resolvent import config as configs
from resolvent.errors import InputError
from resolvent.runs import checkpoints, durable, events, lock, metrics, sums
from resolvent.runs.collection import write_new
from resolvent.runs.environment import environment
from resolvent.runs.metrics import Metrics
from resolvent.runs.recorder import packed
from resolvent.solving.recording import Entry, MonitorState
from resolvent.solving.stopping import Ending

PERSONAL = "personal"
"""The entry of a saved run's checkpoint that has the personal models of users who share one vector."""


def save(run: Any, folder: Path) -> Path:
    """Write a run into a folder, whole; an earlier run there is replaced."""
    _check(folder)
    part = folder.with_name(f".{folder.name}.part")
    with durable.storing(folder, "name another folder, or make room there"):
        durable.make(folder.parent)
        shutil.rmtree(part, ignore_errors=True)
        try:
            _fill(run, part, folder.name)
            _replace(part, folder)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        durable.sync(folder.parent)
    return folder


def _check(folder: Path) -> None:
    if folder.is_symlink():
        raise InputError(f"{folder} is a symbolic link; name the folder itself")
    if not folder.is_dir():
        if folder.exists():
            raise InputError(f"{folder} is a file; name a folder")
        return
    if not (folder / "about.json").exists() and any(folder.iterdir()):
        raise InputError(f"{folder} holds other files than a run's; name a new folder")
    if lock.is_held(folder):
        raise InputError(f"a process is running in {folder}; name another folder")


def _replace(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    try:
        part.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _fill(run: Any, part: Path, name: str) -> None:
    """Write every file of a run that has ended."""
    usual = {"problem": {}, "scheme": {}, "anderson": {"memory": 0}, "run": {"rounds": run.state.round}}
    tree: dict[str, Any] = {**usual, **run.config}
    write_new(part, name, configs.text(tree), _about(run, tree), fixed=run.description.fixed)
    rows = Metrics(part / "metrics.csv")
    for row in run.history.to_dict("records"):
        rows.append(row)
    rows.sync()
    rows.close()
    more = {}
    if run.user_metrics is not None:
        content = metrics.users_text(run.user_metrics)
        durable.put(part / metrics.USERS, content)
        more = {"users": sums.of(content)}
    ending, remembered = Ending(run.status, run.reason), run._remembered or MonitorState(_seconds(run))
    stored = packed(name, Entry(run.state, None, remembered, ending, kept=run.best), rows.extent)
    if (personal := _personal(run)) is not None:
        stored.tensors[PERSONAL] = personal
    checkpoints.write(part / "checkpoints", stored)
    newest, extent = checkpoints.newest_name(part / "checkpoints"), rows.extent._asdict()
    end = events.line(run.status, reason=run.reason, round=run.state.round, metrics=extent, checkpoint=newest, **more)
    durable.append(part / events.FILE, end)
    durable.sync(part)


def _personal(run: Any) -> Tensor | None:
    """The personal models of users who share one vector; a run that was opened from disk may not have its users."""
    try:
        return run.personal if run.state.together else None
    except InputError:
        return None


def _about(run: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """What about.json says of a run that was made in Python."""
    problem = {key: tree.get("problem", {}).get(key) for key in ("users", "dim")}
    facts = dict(getattr(run.explanation, "facts", None) or {"solves": None})
    return {
        "fingerprint": f"python-{configs.fingerprint_of(tree)}",
        "made": "python",
        "title": tree.get("scheme", {}).get("title", "a run"),
        "problem": problem | {"minimum": None, "partition": {}},
        "model": run.description.as_dict(),
        "seed": run.seed,
        "explanation": facts | {"words": str(run.explanation)},
        "environment": environment(),
    }


def _seconds(run: Any) -> float:
    return float(run.history["seconds"].iloc[-1]) if len(run.history) and "seconds" in run.history else 0.0
