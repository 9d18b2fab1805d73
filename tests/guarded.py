"""Processes that end with the test that started them: when it fails, at its time limit, and where pytest is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from resolvent.federation import guard

GRACE = 40.0
"""Seconds to end by itself: torchrun takes up to 30 for its ranks, which are in groups of their own."""


@contextmanager
def guarded(
    *commands: Sequence[str], each: Sequence[Mapping[str, str]] = ({},), **more: Any
) -> Iterator[list[subprocess.Popen[str]]]:
    """Python run with these arguments, under the guard of federations. each: variables beside this process's own."""
    alive, closed = os.pipe()  # the guards read one end, and this process alone has the other
    started = []
    try:
        for k, command in enumerate(commands):
            guarded = [sys.executable, "-I", "-S", guard.__file__, str(GRACE), sys.executable, *command]
            given = os.environ | each[k % len(each)]
            started.append(subprocess.Popen(guarded, stdin=alive, env=given, text=True, start_new_session=True, **more))
        yield started
    finally:
        os.close(alive)
        os.close(closed)
        for process in started:
            process.wait(2 * GRACE)


def outcomes(started: Sequence[subprocess.Popen[str]], seconds: float) -> list[tuple[str, str, int]]:
    """What each has printed, where it prints into a pipe, and its code, once all have ended in that time together."""
    until = time.monotonic() + seconds
    said = [process.communicate(timeout=max(until - time.monotonic(), 0.1)) for process in started]
    return [(out, err, process.returncode) for (out, err), process in zip(said, started, strict=True)]
