"""One writer a run. The lock is the operating system's, so it dies with its process."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from resolvent.errors import InputError

MOMENT = 0.5
"""Seconds that somebody who only looks may hold it."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's lock; whoever finds it taken is told by whom."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / "lock", timeout=MOMENT)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"run {folder.name} is being written by {_holder(folder)}; wait for it, or stop it first"
        ) from None
    try:
        about = {"pid": os.getpid(), "machine": platform.node(), "since": datetime.now().isoformat(timespec="seconds")}
        (folder / "holder.json").write_text(json.dumps(about))
        yield
    finally:
        (folder / "holder.json").unlink(missing_ok=True)
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process writes this run now."""
    from filelock import FileLock, Timeout

    if not (folder / "holder.json").exists():
        return False
    lock = FileLock(folder / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:  # a folder that cannot be written is not being written
        return False
    lock.release()
    return False


def _holder(folder: Path) -> str:
    try:
        about = json.loads((folder / "holder.json").read_text())
        return f"process {about['pid']} on {about['machine']} since {about['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"
