"""One writer per run, and one process at a time that looks for a run and begins it.

The locks are the operating system's, so they die with their process.
"""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.errors import InputError, StorageError
from resolvent.runs import durable, regular

if TYPE_CHECKING:
    from filelock import BaseFileLock

MOMENT = 0.5
"""Seconds for which a process that only looks may hold the lock."""
CLAIM = 60.0
"""Seconds that other processes may take to look for a run and begin one."""


class Held(InputError):
    """Another process holds the lock of a run."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's lock; whoever finds it taken is told by whom."""
    from filelock import Timeout

    lock = _lock(folder / "lock", MOMENT)
    try:
        _acquire(lock, folder)
    except Timeout:
        raise Held(f"run {folder.name} is being written by {_holder(folder)}; wait for it, or stop it first") from None
    try:
        with _named(folder):
            yield
    finally:
        lock.release()


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Say who holds the lock, for people."""
    about = {"pid": os.getpid(), "machine": platform.node(), "since": datetime.now().isoformat(timespec="seconds")}
    try:
        with durable.storing(folder, "make room there, or make it writable"):
            durable.put(folder / "holder.json", json.dumps(about).encode(), durably=False)
        yield
    finally:
        with suppress(OSError):
            (folder / "holder.json").unlink(missing_ok=True)


@contextmanager
def claiming(out: Path) -> Iterator[None]:
    """Hold the lock of a folder of runs while looking for one and beginning it: nobody else begins the same."""
    from filelock import Timeout

    with durable.storing(out, "name another folder with --out, or make room there"):
        durable.make(out)
    lock = _lock(out / ".lock", CLAIM)
    try:
        _acquire(lock, out)
    except Timeout:
        raise StorageError(f"{out} is locked by another process for over {CLAIM:g} seconds; stop it first") from None
    try:
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process writes this run now."""
    path = folder / "lock"
    if not os.path.exists(folder / "holder.json") or path.is_symlink():
        return False
    shared = _is_held(path)
    return _is_taken(path) if shared is None else shared


def _is_held(path: Path) -> bool | None:
    """By a shared lock, so that two processes which only look do not take each other for the writer; None where
    there are none."""
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY | durable.NOFOLLOW | regular.NONBLOCK)
    except ImportError:
        return None
    except OSError:  # nobody has ever held it, or it is not for us to know
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return True if error.errno in (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK) else None
    finally:
        os.close(handle)


def _is_taken(path: Path) -> bool:
    """By holding it for a moment."""
    from filelock import Timeout

    lock = _lock(path, 0)
    try:
        lock.acquire()
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # a folder that cannot be written is not being written
        return False
    lock.release()
    return False


def _lock(path: Path, timeout: float) -> BaseFileLock:
    from filelock import FileLock

    return FileLock(path, timeout=timeout, mode=durable.PRIVATE_FILE)


def _acquire(lock: BaseFileLock, folder: Path) -> None:
    """Acquire a lock, never through a symbolic link: a lock file is emptied when it is opened."""
    if Path(lock.lock_file).is_symlink():
        raise StorageError(f"{lock.lock_file} is a symbolic link, through which nothing is written; remove it")
    try:
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        from filelock import Timeout

        if isinstance(error, Timeout):
            raise
        what = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"{folder} cannot be locked ({what}); put runs where files can be written and locked, with --out"
        ) from error


def _holder(folder: Path) -> str:
    try:
        about = json.loads(regular.text(folder / "holder.json"))
        return f"process {about['pid']} on {about['machine']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
