"""A run that `solve` handed back, as a folder of the run store."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from resolvent import config as configs
from resolvent.errors import InputError
from resolvent.iteration import checkpoint, packing
from resolvent.runs import checkpoints, durable, events, inspection, lock, sums, users
from resolvent.runs.checkpoints import KEPT, Checkpoint
from resolvent.runs.environment import environment
from resolvent.runs.folder import FIXED
from resolvent.runs.metrics import Metrics
from resolvent.solving.recording import MonitorState

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
            part.mkdir(durable.PRIVATE_FOLDER)
            (part / "checkpoints").mkdir(durable.PRIVATE_FOLDER)
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
    earlier = any((folder / name).exists() for name in ("about.json", "run.json"))
    if not earlier and any(folder.iterdir()):
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
    """Every file of a run that has ended."""
    usual = {"problem": {}, "scheme": {}, "anderson": {"memory": 0}, "run": {"rounds": run.state.round}}
    tree: dict[str, Any] = {**usual, **run.config}
    created = datetime.now().astimezone().isoformat(timespec="milliseconds")
    about = {"id": name, "format": inspection.FORMAT, "created": created} | told(run, tree)
    contents = {"config.toml": configs.text(tree).encode(), "about.json": (json.dumps(about, indent=2) + "\n").encode()}
    if run.user_metrics is not None:
        contents[users.FILE] = users.text(run.user_metrics)
    if run.description.fixed:
        contents[FIXED] = checkpoints.plain(run.description.fixed)
    more = {sums.FILE: sums.listing(contents), events.FILE: events.line("started") + b"\n"}
    for file, content in (contents | more).items():
        durable.put(part / file, content)
    rows = Metrics(part / "metrics.csv")
    for row in run.history.to_dict("records"):
        rows.append(row)
    rows.sync()
    rows.close()
    checkpoints.write(part / "checkpoints", _checkpoint(run, name, rows))
    held = checkpoints.newest_name(part / "checkpoints")
    ended = {"reason": run.reason, "round": run.state.round, "metrics": rows.extent._asdict(), "checkpoint": held}
    durable.append(part / events.FILE, events.line(run.status, **ended))
    durable.sync(part)


def _checkpoint(run: Any, name: str, rows: Metrics) -> Checkpoint:
    tensors, packed = checkpoint.pack(run.state)
    verdict = [run.status, run.reason]
    numbers: dict[str, Any] = {
        "run": name,
        "state": packed,
        "pulse": run._remembered or MonitorState(_seconds(run)),
        "verdict": verdict,
    }
    numbers |= {"metrics": rows.length, "metrics_sha256": rows.extent.sha256}
    if run.best is not None:
        others, numbers["kept"] = packing.pack(run.best)
        tensors = tensors | {KEPT + key: tensor for key, tensor in others.items()}
    try:
        personal = run.personal if run.state.together else None
    except InputError:  # a run that was opened from disk, where the users are not
        personal = None
    if personal is not None:
        tensors = tensors | {PERSONAL: personal}
    return Checkpoint(run.state.round, tensors, numbers)


def told(run: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """What about.json says of a run that was made in Python."""
    problem = {key: tree.get("problem", {}).get(key) for key in ("users", "dim")}
    words = str(run.explanation)
    facts = dict(getattr(run.explanation, "facts", None) or {"solves": None})
    return {
        "fingerprint": f"python-{configs.fingerprint_of(tree)}",
        "made": "python",
        "title": tree.get("scheme", {}).get("title", "a run"),
        "problem": problem | {"minimum": None, "partition": {}},
        "model": run.description.as_dict(),
        "seed": run.seed,
        "explanation": facts | {"words": words},
        "environment": environment(),
    }


def _seconds(run: Any) -> float:
    return float(run.history["seconds"].iloc[-1]) if len(run.history) and "seconds" in run.history else 0.0
