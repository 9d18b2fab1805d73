"""One writer per run, and one process at a time that looks for a run and begins it.

The locks are the operating system's, so they die with their process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from resolvent.errors import InputError, StorageError
from resolvent.runs import durable, regular

MAX_LOOK_SECONDS = 0.5
"""For which a process that only looks may hold the lock."""
MAX_CLAIM_SECONDS = 60.0
"""That other processes may take to look for a run and begin one."""


class Held(InputError):
    """Another process holds the lock of a run."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's lock; whoever finds it taken is told by whom."""
    with _locked(folder / "lock", MAX_LOOK_SECONDS, lambda: _taken(folder)), _named(folder):
        yield


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
    with durable.storing(out, "name another folder with --out, or make room there"):
        durable.make(out)
    taken = f"{out} is locked by another process for over {MAX_CLAIM_SECONDS:g} seconds; stop it first"
    with _locked(out / ".lock", MAX_CLAIM_SECONDS, lambda: StorageError(taken)):
        yield


def is_held(folder: Path) -> bool:
    """Whether a process writes this run now."""
    path = folder / "lock"
    return os.path.exists(folder / "holder.json") and not path.is_symlink() and _is_held(path)


def _is_held(path: Path) -> bool:
    """By a shared lock, so that two processes which only look do not take each other for the writer."""
    try:
        handle = os.open(path, os.O_RDONLY | durable.NOFOLLOW | regular.NONBLOCK)
    except OSError:  # nobody has ever held it, or it is not for us to know
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path, seconds: float, taken: Callable[[], InputError]) -> Iterator[None]:
    """Hold a lock, never through a symbolic link: a lock file is emptied when it is opened."""
    from filelock import FileLock, Timeout

    if path.is_symlink():
        raise StorageError(f"{path} is a symbolic link, through which nothing is written; remove it")
    lock = FileLock(path, timeout=seconds, mode=durable.PRIVATE_FILE)
    try:
        lock.acquire()
    except Timeout:
        raise taken() from None
    except (OSError, NotImplementedError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"{path.parent} cannot be locked ({what}); put runs where files can be written and locked, with --out"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _taken(folder: Path) -> Held:
    try:
        about = json.loads(regular.text(folder / "holder.json"))
        holder = f"process {about['pid']} on {about['machine']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        holder = "another process"
    return Held(f"run {folder.name} is being written by {holder}; wait for it, or stop it first")
