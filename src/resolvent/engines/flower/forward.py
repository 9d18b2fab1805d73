"""What Flower runs on a node for every message: it hands the question to the process that has the data.

Flower starts a process per message. So this file imports neither torch nor the rest of the package, but loads
`packets.py` by its path: the problem is built once, in a process of its own (`resolvent federate node` runs it), and is
reached through a socket of this machine. Without such a process the question is answered right here.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKETS = "resolvent.engines.flower.packets"
FAILED = "failed"
"""The only field of a header that says that answering failed, and why."""
_nodes: dict[tuple[str, str], Any] = {}


def _packets() -> Any:
    """The module packets, without the package around it."""
    if PACKETS not in sys.modules:
        spec = importlib.util.spec_from_file_location(PACKETS, Path(__file__).with_name("packets.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[PACKETS] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKETS])
    return sys.modules[PACKETS]


def app() -> Any:
    """The ClientApp of a node."""
    from flwr.clientapp import ClientApp

    made = ClientApp()
    for register in (made.train, made.evaluate, made.query):
        register()(_answer)
    return made


def _answer(message: Any, context: Any) -> Any:
    config = dict(context.node_config)
    if "socket" in config:
        return reply(message, lambda content: through(str(config["socket"]), content))
    return reply(message, lambda content: _here(content, config, context))


def reply(message: Any, handle: Callable[[bytes], bytes]) -> Any:
    """The reply to a message, by a function from the bytes of its packet to those of the answer."""
    from flwr.app import Message

    packets = _packets()
    answer = packets.from_bytes(handle(packets.to_bytes(packets.from_records(message.content))))
    if answer.header.keys() == {FAILED}:
        raise RuntimeError(answer.header[FAILED])
    return Message(packets.to_records(answer), reply_to=message)


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


# --- in this process -------------------------------------------------------------------------------------------------


def _here(content: bytes, config: dict[str, Any], context: Any) -> bytes:
    """Answered here: the problem is built for this message, and once per process in a simulation."""
    from resolvent.engines.flower.users import MEMORY, load_node

    packets = _packets()
    folder = str(config.get("folder") or os.environ["RESOLVENT_FEDERATION"])
    name = str(config.get("name", config.get("partition-id", context.node_id)))
    if (folder, name) not in _nodes:
        simulated = "folder" not in config
        memory = Path(folder) / ".federation" / MEMORY / name if simulated else None
        _nodes[folder, name] = load_node(Path(folder), {"name": name} | config, memory)
    return packets.to_bytes(_nodes[folder, name].handle(packets.from_bytes(content)))  # type: ignore[no-any-return]
