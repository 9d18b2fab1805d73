"""The process that has a node's data: it builds the problem once, and answers questions through a socket.

    python -m resolvent.federation.worker FOLDER SOCKET MEMORY CONFIG

The process that talks to the server hands them on to this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from resolvent.engines.flower import forward
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.packets import Packet, from_bytes, to_bytes
from resolvent.errors import InputError
from resolvent.federation.site import load

MAX_SECONDS = 86_400.0
"""Seconds for one answer, at most: whoever has taken over the server cannot occupy this node for ever."""


def serve(node: Node, path: Path, seconds: float | None = MAX_SECONDS) -> None:
    """Answer questions, one after the other, for ever. `seconds` for each: only the main thread can be interrupted."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        old = os.umask(0o177)  # for this user alone
        try:
            door.bind(str(path))
        finally:
            os.umask(old)
        door.listen()
        while True:
            line, _ = door.accept()
            with line, contextlib.suppress(OSError):  # whoever asked may be gone
                forward.put(line, answer(node, forward.get(line), seconds))


def answer(node: Node, content: bytes, seconds: float | None = MAX_SECONDS) -> bytes:
    """The answer to a question, or the type and place of what was raised; its text stays in this process's log."""
    try:
        with contextlib.nullcontext() if seconds is None else within(seconds):
            return to_bytes(node.handle(from_bytes(content)))
    except Exception as error:
        return to_bytes(Packet({forward.FAILED: forward.failure(error)}))


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError where this takes longer."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"there was no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    folder, path, memory, config = (Path(word) for word in sys.argv[1:5])
    try:
        node = load(folder, json.loads(config.read_text()), memory)
    except InputError as error:  # a sentence, without where it was raised
        sys.exit(f"ERROR: {error}")
    print("ready", flush=True)
    serve(node, path)


if __name__ == "__main__":
    main()
