"""Flower's Grid as a post office: packets go to nodes and come back. This is the only place that knows of messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from resolvent.engines.flower.packets import Packet, to_records
from resolvent.errors import InputError
from resolvent.installed import install

KINDS = {"local": "train", "measure": "evaluate"}
"""Flower's kind of message by verb; all others are queries."""
GONE = (3, 4, 5, 8)
"""Flower's errors that say that a message or a node was lost."""
LIFE = 12 * 3600.0
"""Seconds for which a question is worth answering."""
HEAD = ("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "created_at", "ttl",
        "message_type")  # fmt: skip
"""What a message says of itself."""
ATTEMPTS = 3
"""How often packets are sent where Flower loses parts of them on the way."""


class Reply(NamedTuple):
    """What came back: the message that it replies to, who sent it, and its records, or what went wrong.

    gone: whether the node is not to be reached, rather than its answer wrong.
    """

    to: str
    source: int
    records: Any
    error: str | None = None
    gone: bool = False


class Online(NamedTuple):
    """A node that is online: its number, and since when, which changes when the node is started again."""

    node: int
    since: str


class Post:
    """Sends and collects. `known`: names of users by public key; whoever has another key is never asked.

    Without `known`, as in a simulation, every node of the grid is a user, named after its number.
    """

    def __init__(self, grid: Any, known: Mapping[bytes, str] | None = None) -> None:
        self._grid, self._known = careful(grid), known

    def online(self) -> dict[str, Online]:
        """The users' nodes that are online now, by name."""
        nodes = list(self._grid.get_nodes())
        if self._known is None:
            return {f"{node.node_id}": _online(node) for node in nodes}
        return {self._known[node.public_key]: _online(node) for node in nodes if node.public_key in self._known}

    def send(self, packets: Mapping[int, Packet], group: str) -> dict[int, str]:
        """Send packets by the number of their node: the ids of the messages that could be sent.

        A superlink that is killed while it takes the parts of a message may have stored one without saying so. Started
        again, it refuses that part as unknown, and the message is never complete: new messages are sent instead.
        """
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        if not packets:
            return {}
        for left in reversed(range(ATTEMPTS)):
            try:
                ids = list(self._grid.push_messages(_messages(packets, group)))
                break
            except ObjectPushError:
                if not left:
                    raise
        return {node: message for node, message in zip(packets, ids, strict=False) if message}

    def collect(self, ids: Iterable[str]) -> list[Reply]:
        """The replies to these messages that have come by now."""
        wanted = list(ids)
        return [_reply(message) for message in self._grid.pull_messages(wanted)] if wanted else []


def careful(grid: Any) -> Any:
    """The same grid, which no answer can break.

    Flower's own raises where the parts of an answer do not fit together, and those of all others are lost with it. And
    it reads who answers what from those parts, while the superlink has checked what was said beside them.
    """
    from flwr.app import Error, Message, Metadata
    from flwr.app.message import make_message
    from flwr.common.constant import ErrorCode
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.superlink.grid import http_grid

    if not isinstance(grid, http_grid.HttpGrid):
        return grid
    client, checked = grid._runtime_client, dict[str, Any]()
    pull = client.PullMessages

    def pulled(request: Any) -> Any:
        response = pull(request)
        checked.clear()
        checked.update({message.metadata.message_id: message.metadata for message in response.messages_list})
        return response

    def inflated(name: str, contents: dict[str, bytes]) -> Any:
        about = checked[name]
        try:
            message: Any = inflate_object_from_contents(name, contents)
            if isinstance(message, Message) and (message.has_error() or message.has_content()):
                message.metadata.__dict__["_reply_to_message_id"] = about.reply_to_message_id
                message.metadata.__dict__["_src_node_id"] = about.src_node_id
                return message
        except Exception as error:  # whatever the parts are, it is that node's fault
            logging.getLogger(__name__).warning("an answer that is no message", exc_info=error)
        given = {field: getattr(about, field) for field in HEAD}
        wrong = Error(ErrorCode.UNKNOWN, "the parts of its answer do not fit together")
        return make_message(metadata=Metadata(**given), error=wrong)

    client.PullMessages = pulled  # type: ignore[method-assign]
    http_grid.inflate_object_from_contents = inflated  # type: ignore[attr-defined, assignment]
    return grid


def _messages(packets: Mapping[int, Packet], group: str) -> list[Any]:
    from flwr.app import Message

    return [
        Message(to_records(packet), node, KINDS.get(packet.header["verb"], "query"), ttl=LIFE, group_id=group)
        for node, packet in packets.items()
    ]


def _online(node: Any) -> Online:
    return Online(node.node_id, str(getattr(node, "last_activated_at", "")))


def _reply(message: Any) -> Reply:
    about = message.metadata
    if message.has_error():
        words = f"{message.error.reason or 'no reason given'} (Flower's error {message.error.code})"
        return Reply(about.reply_to_message_id, about.src_node_id, None, words, message.error.code in GONE)
    return Reply(about.reply_to_message_id, about.src_node_id, message.content)


def needed() -> None:
    """Refuse to go on where Flower is not installed."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise InputError(f"a federation needs Flower, which is not installed; {install('flower')}") from None
