"""Flower's Grid as a post office: packets go to nodes and come back. This is the only place that knows of messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from resolvent.engines.flower.packets import Packet, to_records
from resolvent.errors import InputError
from resolvent.installed import install

KINDS = {"local": "train", "measure": "evaluate"}
"""Flower's kind of message by verb; all others are queries."""
GONE = (3, 4, 5, 8)
"""Flower's errors that say that a message or a node was lost."""
MAX_QUESTION_AGE = 12 * 3600.0
"""Seconds for which a question is worth answering."""
HEAD = ("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "created_at", "ttl",
        "message_type")  # fmt: skip
"""What a message says of itself."""
ATTEMPTS = 3
"""How often packets are sent where Flower loses parts of them on the way."""
MAX_SECONDS_TO_UPLOAD = 3600.0
"""Seconds after which an answer that is not whole is given up, where Flower has not done so before."""


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
    """Sends and collects. `known`: names of users by public key; whoever has another key is never asked."""

    def __init__(self, grid: Any, known: Mapping[bytes, str] | Callable[[], Mapping[bytes, str]]) -> None:
        self._grid, self._given = careful(grid), known

    @property
    def _known(self) -> Mapping[bytes, str]:
        """Looked up each time where `known` is a function: keys are renewed and revoked while a run goes on."""
        return self._given() if callable(self._given) else self._given

    @property
    def names(self) -> list[str]:
        """Whoever may be a user."""
        return sorted(self._known.values())

    def online(self) -> dict[str, Online]:
        """The users' nodes that are online now, by name."""
        nodes, known = list(self._grid.get_nodes()), self._known
        return {known[node.public_key]: _online(node) for node in nodes if node.public_key in known}

    def send(self, packets: Mapping[int, Packet], group: str) -> dict[int, str]:
        """Send packets by the number of their node: the ids of the messages that could be sent.

        A superlink that is killed while it takes the parts of a message may have stored one without saying so. Started
        again, it refuses that part as unknown, and the message is never complete: new messages are sent instead.
        """
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        if not packets:
            return {}
        for remaining in reversed(range(ATTEMPTS)):
            try:
                ids = list(self._grid.push_messages(_messages(packets, group)))
                break
            except ObjectPushError:
                if not remaining:
                    raise
        return {node: message for node, message in zip(packets, ids, strict=False) if message}

    def collect(self, ids: Iterable[str]) -> list[Reply]:
        """The replies to these messages that have come by now."""
        wanted = list(ids)
        return [_reply(message) for message in self._grid.pull_messages(wanted)] if wanted else []


class PutOff(NamedTuple):
    """An answer that is announced: what the superlink has checked of it, the tree of its parts, those that are here."""

    about: Any
    tree: Any
    parts: dict[str, bytes]
    since: float


class NotYet(Exception):
    """A part of an answer has not been uploaded."""


class CarefulGrid:
    """Flower's grid, which no answer can break or hold up.

    Flower's own raises where the parts of an answer do not fit together, and those of all others are lost with it. It
    reads who answers what from those parts, while the superlink has checked what was said beside them. And it waits for
    parts that were announced and never uploaded: here such an answer is put off, to be looked at again the next time.
    The superlink announces an answer once, so it is not asked for again.
    """

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._put_off: dict[str, PutOff] = {}
        self.get_nodes, self.push_messages = grid.get_nodes, grid.push_messages

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        wanted = list(ids)
        waiting = [self._put_off[name] for name in wanted if name in self._put_off]
        if new := [name for name in wanted if name not in self._put_off]:
            response = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=new))
            pairs = zip(response.messages_list, response.message_object_trees, strict=True)
            waiting += [PutOff(message.metadata, tree, {}, time.monotonic()) for message, tree in pairs]
        self._put_off = {}
        messages = []
        for answer in waiting:
            try:
                messages.append(self._whole(answer))
            except NotYet:
                self._put_off[answer.about.reply_to_message_id] = answer
        return messages

    def _whole(self, answer: PutOff) -> Any:
        """The message, or one that says what is wrong with it. NotYet where it may still become whole."""
        from flwr.app import Message
        from flwr.common.constant import ErrorCode
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents

        about, grid = answer.about, self._grid
        try:
            contents = self._parts(answer)
        except ObjectPullError:
            return _wrong(about, ErrorCode.MESSAGE_UNAVAILABLE, "the parts of its answer were never uploaded")
        received = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=grid._run.run_id, message_object_id=about.message_id
        )
        grid._runtime_client.ConfirmMessageReceived(received)
        try:
            message: Any = inflate_object_from_contents(about.message_id, contents)
            if isinstance(message, Message) and (message.has_error() or message.has_content()):
                given = ("message_id", "reply_to_message_id", "src_node_id")
                message.metadata.__dict__.update({f"_{field}": getattr(about, field) for field in given})
                return message
        except Exception as error:  # whatever the parts are, it is that node's fault
            logging.getLogger(__name__).warning("an answer that is no message", exc_info=error)
        return _wrong(about, ErrorCode.UNKNOWN, "the parts of its answer do not fit together")

    def _parts(self, answer: PutOff) -> dict[str, bytes]:
        """All parts by name. Those that came before are not fetched again; nothing is waited for."""
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

        grid, parts = self._grid, answer.parts
        pull = make_pull_object_fn_protobuf(grid._runtime_client.PullObject, grid.node, grid._run.run_id)

        def fetched(name: str) -> bytes:
            try:
                if name not in parts:
                    parts[name] = pull(name)
                return parts[name]
            except ObjectUnavailableError:
                if time.monotonic() - answer.since > MAX_SECONDS_TO_UPLOAD:
                    raise ObjectPullError(name, "never uploaded") from None
                raise NotYet from None

        return pull_objects([part.object_id for part in iterate_object_tree(answer.tree)], fetched)


def careful(grid: Any) -> Any:
    """The same grid, which no answer can break or hold up."""
    from flwr.superlink.grid.http_grid import HttpGrid

    return CarefulGrid(grid) if isinstance(grid, HttpGrid) else grid


def _wrong(about: Any, code: int, reason: str) -> Any:
    from flwr.app import Error, Metadata
    from flwr.app.message import make_message

    return make_message(
        metadata=Metadata(**{field: getattr(about, field) for field in HEAD}), error=Error(code, reason)
    )


def _messages(packets: Mapping[int, Packet], group: str) -> list[Any]:
    from flwr.app import Message

    return [
        Message(
            to_records(packet), node, KINDS.get(packet.header["verb"], "query"), ttl=MAX_QUESTION_AGE, group_id=group
        )
        for node, packet in packets.items()
    ]


def _online(node: Any) -> Online:
    return Online(node.node_id, str(getattr(node, "last_activated_at", "")))


def _reply(message: Any) -> Reply:
    about = message.metadata
    if message.has_error():
        reason = f"{message.error.reason or 'no reason given'} (Flower's error {message.error.code})"
        return Reply(about.reply_to_message_id, about.src_node_id, None, reason, message.error.code in GONE)
    return Reply(about.reply_to_message_id, about.src_node_id, message.content)


def needed() -> None:
    """Refuse to go on where Flower is not installed."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise InputError(f"a federation needs Flower, which is not installed; {install('flower')}") from None
