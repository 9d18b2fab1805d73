"""From Flower's messages to a node's answers, through a socket to the process that has the data.

The process that talks to the server imports this module and packets alone, so that it starts quickly: no torch.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable
from typing import Any

from resolvent.engines.flower import packets

FAILED = "failed"
"""The only field of a header that says that answering failed, and where."""
ERRORS = "resolvent.errors"
"""Where sentences are made; what is wrong is where they are called."""
USER = "user"
"""The name under which `node.load_node` runs user.py."""


def reply(message: Any, handle: Callable[[bytes], bytes]) -> Any:
    """The reply to a message, by a function from the bytes of its packet to those of the answer."""
    from flwr.app import Message

    try:
        answer = packets.from_bytes(handle(packets.to_bytes(packets.from_records(message.content))))
    except Exception as error:  # Flower sends the text of whatever is raised here to the server
        raise RuntimeError(failure(error)) from None
    if answer.header.keys() == {FAILED}:
        raise RuntimeError(answer.header[FAILED])
    return Message(packets.to_records(answer), reply_to=message)


def failure(error: BaseException) -> str:
    """What the server is told of an exception: its type and its place. Its text may quote data, and stays in the log.

    The place is in the user's own code, where the traceback has some, else in this package.
    """
    traceback.print_exception(error)
    places = [(frame.f_globals.get("__name__"), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if place[0] == USER] or [
        p for p in places if str(p[0]).startswith("resolvent.") and p[0] != ERRORS
    ]
    module, line = (own or places or [("?", 0)])[-1]
    return f"{type(error).__name__} at {module}:{line}; the node's own log says more"


# --- through a socket ------------------------------------------------------------------------------------------------


def through(path: str, content: bytes) -> bytes:
    """What the process behind this socket answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(path)
        put(line, content)
        return get(line)


def put(line: socket.socket, content: bytes) -> None:
    """Send some bytes, their number first."""
    line.sendall(len(content).to_bytes(8, "little"))
    line.sendall(content)


def get(line: socket.socket) -> bytes:
    """Receive what `put` sent."""
    return bytes(_exactly(line, int.from_bytes(_exactly(line, 8), "little")))


def _exactly(line: socket.socket, size: int) -> bytearray:
    content = bytearray()
    while len(content) < size:
        part = line.recv(min(size - len(content), 1 << 20))
        if not part:
            raise ConnectionError("the process with the data has ended")
        content += part
    return content
