"""Processes of a federation: each leads a group of its own, so that ending it ends whatever it has started."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE = 6.0
"""Seconds that a process has to end by itself."""
PRIVATE = 0o077
"""The umask of processes of a federation: what they write holds users' data."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_guard: tuple[int, subprocess.Popen[bytes]] | None = None
"""The process that ends all others once this one is gone, with the number of the process that it was started by."""


@dataclass
class Process:
    """A process that was started here."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    @property
    def left(self) -> bool:
        """Whether it, or anything that it has started, is left."""
        self.popen.poll()  # reaped, or it would stay in the group
        return group_alive(self.popen.pid)

    def words(self) -> str:
        """What its log says went wrong, or the end of it, for a person."""
        text = COLOURS.sub("", self.log.read_text(errors="replace")) if self.log.is_file() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [k for k, line in enumerate(lines) if line.startswith("ERROR")]
        told = lines[errors[-1] : errors[-1] + 3] if errors else lines[-3:]
        return " | ".join(told)[-600:] or "it printed nothing"


def start(name: str, command: Sequence[str], log: Path, env: dict[str, str]) -> Process:
    """Start a process in a group of its own; its output goes to a log. What it writes is for this user alone."""
    log.parent.mkdir(parents=True, exist_ok=True)
    parent, prctl = os.getpid(), getattr(ctypes.CDLL(None), "prctl", None)

    def with_parent() -> None:
        """On Linux, whoever started it takes it along, even if killed."""
        os.umask(PRIVATE)
        if prctl is not None:
            prctl(_DIE_WITH_PARENT, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    made: Process | None = None
    try:
        log.touch(0o600)
        log.chmod(0o600)  # also one that an earlier version has left
        with _signals_later(), log.open("ab") as file:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=with_parent,
            )
            made = Process(name, popen, log)
            _tell_guard(f"+{popen.pid}")
    except BaseException:
        stop(made)
        raise
    return made


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM come afterwards. In the middle of a fork Python would print what they raise, and go on.

    Blocking them would not do: another thread may take them, and Python calls the handler in this one all the same.
    """
    noted: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}  # they are called in the main thread alone
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in raising:
        signal.signal(number, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
        for came in noted:
            signal.raise_signal(came)


def _tell_guard(words: str) -> None:
    """Tell a process that outlives this one what to end then: Linux's signal reaches only what was started directly."""
    global _guard
    if _guard is None or _guard[0] != os.getpid():
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(GRACE)]
        nowhere = subprocess.DEVNULL
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)
        _guard = (os.getpid(), guard)
        atexit.register(_dismiss, *_guard)
    line = _guard[1].stdin
    assert line is not None
    with contextlib.suppress(BrokenPipeError):
        line.write(f"{words}\n".encode())
        line.flush()


def _dismiss(owner: int, guard: subprocess.Popen[bytes]) -> None:
    """This process ends: so does its guard, once nothing is left."""
    if owner == os.getpid() and guard.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(3 * GRACE)


def stop(*given: Process | None) -> None:
    """End processes and their groups, all at the same time: first politely, then surely."""
    begun = [process for process in given if process is not None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [process for process in begun if process.left]
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.popen.pid, number)
        until = time.monotonic() + GRACE
        while any(process.left for process in left) and time.monotonic() < until:
            time.sleep(0.05)
    for process in begun:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(GRACE)
        if not process.left:
            _tell_guard(f"-{process.popen.pid}")


def group_alive(group: int) -> bool:
    """Whether any process of a group is left. One that has ended and that nobody has waited for does not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not Path("/proc/self/stat").is_file():
        return True
    members = (_fields(path.name) for path in Path("/proc").glob("[0-9]*"))
    return any(fields[2] == str(group) and fields[0] != "Z" for fields in members if fields)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at just now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listening(host: str, port: int, seconds: float = 0.5) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=seconds):
        return True
    return False


# --- notes on what runs ----------------------------------------------------------------------------------------------


def note(state: Path, role: str, **about: Any) -> Path:
    """Write down that this process has a role: others can find and stop it."""
    state.mkdir(parents=True, exist_ok=True)
    path = state / f"{role}.json"
    told = {"pid": os.getpid(), "began": _began(os.getpid())} | about
    part = path.with_suffix(".part")
    part.write_text(json.dumps(told))
    part.replace(path)
    return path


def noted(state: Path) -> dict[str, dict[str, Any]]:
    """The roles that are written down, with those whose process runs still marked `running`."""
    found = {}
    for path in sorted(state.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(path.read_text())
            if isinstance(told, dict) and "pid" in told:
                found[path.stem] = told | {"running": _runs(int(told["pid"]), told.get("began"))}
    return found


def stop_noted(state: Path, role: str, told: dict[str, Any]) -> bool:
    """Stop the process of a role: whether there was one."""
    pid = int(told["pid"])
    if not _runs(pid, told.get("began")):
        (state / f"{role}.json").unlink(missing_ok=True)
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + 4 * GRACE
    while _runs(pid, told.get("began")) and time.monotonic() < until:
        time.sleep(0.1)
    if _runs(pid, told.get("began")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (state / f"{role}.json").unlink(missing_ok=True)
    return True


def _began(pid: int) -> str | None:
    """When a process began, in the kernel's own count: numbers of processes are used again."""
    fields = _fields(pid)
    return None if not fields or fields[0] == "Z" else fields[19]


def _fields(pid: int | str) -> list[str]:
    """What Linux says of a process, from its state on; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _runs(pid: int, began: str | None) -> bool:
    if Path("/proc").is_dir():
        now = _began(pid)
        return now is not None and now == began
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
