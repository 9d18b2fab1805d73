"""Many runs under one folder: made there, listed and found again."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.errors import InputError
from resolvent.runs import checkpoints, durable, events, inspection, regular, sums, trust
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.folder import FIXED, START, Folder, damaged

if TYPE_CHECKING:
    from torch import Tensor

MAX_NAME_LENGTH = 80
"""Characters of a run's name, without date and number."""
MAX_PART_AGE = 3600.0
"""Seconds after which an incomplete folder counts as abandoned."""
NO_ROOM = "name another folder with --out, or make room there"
"""What to do where a folder of runs cannot be written."""


def create(
    out: Path,
    name: str,
    config: str,
    about: dict[str, Any],
    start: Checkpoint | None = None,
    code: bool = False,
    fixed: Mapping[str, Tensor] | None = None,
) -> Folder:
    """A new run under `out`: it appears whole, and durably, or not at all. One that calls a user's `code` is sealed."""
    run_id = f"{_plain(name)}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    part = out / f".{run_id}.part"
    with durable.storing(out, NO_ROOM):
        try:
            durable.make(out)
            _tidy(out)
            write_new(part, run_id, config, about, start, code, fixed)
            part.rename(out / run_id)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        durable.sync(out)
    return Folder(out / run_id)


def write_new(
    part: Path,
    run_id: str,
    config: str,
    about: dict[str, Any],
    start: Checkpoint | None = None,
    code: bool = False,
    fixed: Mapping[str, Tensor] | None = None,
) -> None:
    """Write every file of a run that begins into a folder that is not there yet, durably."""
    created = datetime.now().astimezone().isoformat(timespec="milliseconds")
    about = {"id": run_id, "format": inspection.FORMAT, "created": created} | about
    contents = {"config.toml": config.encode(), "about.json": (json.dumps(about, indent=2) + "\n").encode()}
    if start is not None:
        contents[START] = checkpoints.encode(start.tensors, start.numbers)
    if fixed:
        contents[FIXED] = checkpoints.encode(fixed)
    contents[sums.FILE] = sums.listing(contents)
    if code and (seal := trust.seal(contents[sums.FILE])) is not None:
        contents[trust.FILE] = seal
    contents[events.FILE] = events.line("started") + b"\n"
    part.mkdir(durable.PRIVATE_FOLDER)
    (part / "checkpoints").mkdir(durable.PRIVATE_FOLDER)
    for file, content in contents.items():
        durable.put(part / file, content)
    durable.sync(part)


def folders(out: Path) -> list[Folder]:
    """The runs under a folder, oldest first; damaged ones too."""
    every = []
    with suppress(OSError):
        for path in out.glob("[!.]*/"):
            if (path / "about.json").is_file() or (path / "checkpoints").is_dir():
                every.append(Folder(path))
    return sorted(every, key=lambda run: (_created(run), run.id))


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
    """A run by its path, its id, or the beginning or end of one; "latest" is the newest."""
    with suppress(OSError):  # a name that no file can have
        for path in (Path(name), out / name):
            if name and ((path / "about.json").is_file() or (path / "checkpoints").is_dir()):
                return Folder(path)
    there = folders(out)
    if name == "latest" and there:
        return there[-1]
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
    except (InputError, OSError, *regular.UNFIT):
        pass
    with suppress(OSError):
        return datetime.fromtimestamp(run.path.stat().st_mtime).astimezone().isoformat(timespec="milliseconds")
    return ""


def _plain(name: str) -> str:
    """A name that any file system takes and any terminal shows."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:MAX_NAME_LENGTH].strip(".-") or "run"


def _tidy(out: Path) -> None:
    """Remove incomplete folders that a killed process left behind."""
    for part in out.glob(".*.part"):
        with suppress(OSError):
            if time.time() - part.lstat().st_mtime > MAX_PART_AGE and part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)


def _which(name: str, alike: list[Folder]) -> str:
    if alike:
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        return f"{name!r} may be any of {', '.join(run.id for run in alike[:3])}{more}"
    return f"there is no run {name[:100]!r}"


def _there(there: Iterable[Folder], out: Path) -> str:
    latest = list(there)[-1:]
    if not latest:
        where = "name their folder with --out (predict: --runs)"
        return f"there are no runs in {out}/; begin one with `resolvent run`, or {where}"
    return f"`resolvent ls --out {out}` lists those there are, the latest is {latest[0].id}"
