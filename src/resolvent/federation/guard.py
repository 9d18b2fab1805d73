"""Ends groups of processes once whoever started them is gone, even where it was killed.

    python guard.py GRACE

Lines of its input say what to look after: `+GROUP`, and `-GROUP` once that has ended. The input ends when whoever
writes it does. The file is run by its path and imports nothing of the package, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time


def look_after(grace: float) -> None:
    """Until the input ends; then end what is left, first politely, then surely."""
    groups = set[int]()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        until = time.monotonic() + grace
        while any(_there(group) for group in groups) and time.monotonic() < until:
            time.sleep(0.05)


def _there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    look_after(float(sys.argv[1]))
