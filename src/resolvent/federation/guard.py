"""Runs a program, and ends it with everything that it has started once whoever started this is gone.

    python guard.py GRACE PROGRAM [ARGUMENTS]

The program runs in the process group that this process leads. The group is ended when the program ends, when this
process gets a signal, or when its standard input does: that is a pipe, which closes even where its owner is killed.
The file is run by its path and imports nothing of the package, so that it starts at once.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


def run(grace: float, command: list[str]) -> int:
    """The program's exit code, once nothing of the group is left but this process."""
    received: list[int] = []
    wakes, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: received.append(number))
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while program.poll() is None and not {*received} - {signal.SIGCHLD}:
        readable, _, _ = select.select([0, wakes], [], [])
        if 0 in readable:
            break
        os.read(wakes, 1024)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (program.poll() is None or alive(os.getpid())) and time.monotonic() < deadline:
        time.sleep(0.05)
    if program.poll() is None or alive(os.getpid()):
        os.killpg(0, signal.SIGKILL)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def alive(group: int) -> bool:
    """Whether a process of a group runs, beside this one. One that has ended, and that nobody waited for, does not.

    It has ended once all of its threads have: until then it has its files and ports.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not Path("/proc/self/stat").is_file():
        return True  # nobody can tell: all of them have the whole time
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        state, its_group, threads = fields[0], int(fields[2]), int(fields[17])
        if its_group == group and int(path.name) != os.getpid() and (state != "Z" or threads > 1):
            return True
    return False


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]), sys.argv[2:]))
