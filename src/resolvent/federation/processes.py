"""Processes of a federation. Each runs under a guard (guard.py), so that ending it ends whatever it has started."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from resolvent.federation import guard

GRACE = 6.0
"""Seconds that a process has to end by itself."""
PRIVATE_UMASK = 0o077
"""What processes of a federation write holds users' data."""
MAX_LINE = 2000
"""Characters of a line of a log that a person is shown: its beginning."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(eq=False)
class Process:
    """A process that was started here."""

    name: str
    popen: subprocess.Popen[bytes]
    """Its guard, which leads the group that the process is in."""
    log: Path
    begins: int = 0
    """Where in the log its own lines begin."""

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def last_words(self) -> str:
        """What its log says went wrong, or the end of it, for a person: of this process, not of an earlier one."""
        content = self.log.read_bytes()[self.begins :] if self.log.is_file() else b""
        text = COLOURS.sub("", content.decode(errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [k for k, line in enumerate(lines) if line.startswith("ERROR")]
        shown = lines[errors[-1] : errors[-1] + 3] if errors else lines[-3:]
        return " | ".join(line.removeprefix("ERROR: ")[:MAX_LINE] for line in shown) or "it printed nothing"


_started: set[Process] = set()


def start(name: str, command: Sequence[str], log: Path, env: dict[str, str]) -> Process:
    """Start a process; its output goes to a log. What it writes is for this user alone.

    It ends when this process does, even by SIGKILL, and also where an exception comes before anybody has it: the pipe
    to its guard is closed in all these cases.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(GRACE), *command]
    with open(log, "ab", opener=private) as file:
        begins = file.tell()
        popen = subprocess.Popen(
            guarded,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            umask=PRIVATE_UMASK,
            start_new_session=True,
        )
    process = Process(name, popen, log, begins)
    _started.add(process)
    return process


def stop(*given: Process | None) -> None:
    """End processes and whatever they have started, all at the same time: first politely, then surely."""
    processes = [process for process in given if process is not None]
    for process in processes:
        assert process.popen.stdin is not None
        process.popen.stdin.close()
    deadline = time.monotonic() + 3 * GRACE
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(max(deadline - time.monotonic(), 0.1))
        if process in _started:
            _started.remove(process)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.popen.pid, signal.SIGKILL)  # where the guard itself was killed, or hangs
            process.popen.wait()
            while guard.alive(process.popen.pid) and time.monotonic() < deadline:  # as long as it has its port
                time.sleep(0.05)


@atexit.register
def _stop_all(owner: int = os.getpid()) -> None:
    if os.getpid() == owner:  # not in a fork
        stop(*_started)


def private(path: str, flags: int) -> int:
    """An opener for `open`: other users of this machine cannot read the file."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)  # also one that was there
    return handle


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


# --- which roles run here --------------------------------------------------------------------------------------------


def note(state: Path, role: str, **about: Any) -> Path:
    """Write down that this process has a role, in a file that it holds locked until it ends: others can stop it."""
    import fcntl

    state.mkdir(parents=True, exist_ok=True)
    path = state / f"{role}.json"
    part = path.with_suffix(".part")
    handle = private(str(part), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.write(handle, json.dumps({"pid": os.getpid()} | about).encode())
    return part.replace(path)


def noted(state: Path) -> dict[str, dict[str, Any]]:
    """The roles that are written down, with those whose process runs still marked `running`."""
    roles = {}
    for path in sorted(state.glob("*.json")):
        with contextlib.suppress(OSError, ValueError), path.open() as file:
            about = json.load(file)
            if isinstance(about, dict) and "pid" in about:
                roles[path.stem] = about | {"running": _is_locked(file)}
    return roles


def stop_noted(state: Path, role: str) -> bool:
    """Stop the process of a role: whether there was one. A number that another process has by now is not touched."""
    path, was_running = state / f"{role}.json", False
    with (
        contextlib.suppress(FileNotFoundError, ProcessLookupError),
        path.open() as file,
    ):  # it may remove its file before it ends
        pid = int(json.load(file)["pid"])
        for number, seconds in ((signal.SIGTERM, 4 * GRACE), (signal.SIGKILL, GRACE)):
            deadline = time.monotonic() + seconds
            if _is_locked(file):
                was_running = True
                os.kill(pid, number)
            while _is_locked(file) and time.monotonic() < deadline:
                time.sleep(0.1)
    path.unlink(missing_ok=True)
    return was_running


def _is_locked(file: IO[str]) -> bool:
    """Whether the process that wrote a file runs: the operating system releases its lock when it ends."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
