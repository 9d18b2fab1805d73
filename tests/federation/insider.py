"""A registered node that says to Flower whatever it likes, with its own key: what does that give it?

It knows more than a node is told: the numbers of the others, and of the run. It is none of the run's users.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from federation.stranger import _tried
from resolvent.federation import keys
from resolvent.federation.project import Project, Server

CLOSED = {"RegisterNode", "UnregisterNode", "GetRun", "GetFab"}
"""Calls that nobody may make."""
INTERVALS = (0.0, -1.0, 1e300, float("nan"), float("inf"))


def attempts(project: Project, server: Server, name: str, run: int) -> dict[str, str]:
    """What each call gives."""
    secret: Any = load_ssh_private_key((project.nodes / name).read_bytes(), None)
    mine, strange = public_key_to_bytes(secret.public_key()), public_key_to_bytes(generate_key_pairs()[1])
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    ca = (project.keys / keys.CA).read_bytes()
    signed = NodeAuthHttpInterceptor(secret, secret.public_key())
    fleet: Any = FleetHttpClient.from_server_address(f"127.0.0.1:{server.port}", False, ca, [version, signed])
    own = fleet.ActivateNode(fleet_pb2.ActivateNodeRequest(public_key=mine, heartbeat_interval=60.0)).node_id
    other, others_key = _another(project, own)
    here, there = Node(node_id=own), Node(node_id=other)
    guess = "ab" * 32

    def push(node: Node, source: int, replies_to: str, number: int = run) -> Any:
        message = _reply(number, source, replies_to)
        given: dict[str, Any] = {
            "messages_list": [message_to_proto(message)], "message_object_trees": [get_object_tree(message)]
        }  # fmt: skip
        return fleet.PushMessages(fleet_pb2.PushMessagesRequest(node=node, **given)).objects_to_push

    beat, pull = heartbeat_pb2.SendNodeHeartbeatRequest, message_pb2.PullObjectRequest
    calls: dict[str, Callable[[], Any]] = {
        "RegisterNode": lambda: fleet.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=strange)).node_id,
        "UnregisterNode": lambda: fleet.UnregisterNode(fleet_pb2.UnregisterNodeFleetRequest(node_id=other)),
        "GetRun": lambda: fleet.GetRun(GetRunRequest(node=here, run_id=run)),
        "GetFab": lambda: fleet.GetFab(GetFabRequest(node=here, run_id=run, hash_str=guess)),
        "ActivateNode, another's": lambda: (
            fleet.ActivateNode(fleet_pb2.ActivateNodeRequest(public_key=others_key, heartbeat_interval=60.0)).node_id
        ),
        "DeactivateNode, another's": lambda: fleet.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=other)),
        "PullMessages, another's": lambda: fleet.PullMessages(fleet_pb2.PullMessagesRequest(node=there)),
        "SendNodeHeartbeat, another's": lambda: fleet.SendNodeHeartbeat(beat(node=there, heartbeat_interval=60.0)),
        "PushMessages, another's": lambda: push(there, other, guess),
        "PullObject, another's": lambda: fleet.PullObject(pull(node=there, run_id=run, object_id=guess)),
        "PushMessages, nothing": lambda: fleet.PushMessages(fleet_pb2.PushMessagesRequest(node=here)),
        "PushMessages, of no run": lambda: push(here, own, guess, run + 1),
        "PushMessages, to nothing": lambda: push(here, own, guess),
        "PushMessages, signed as another": lambda: push(here, other, guess),
        "PullMessages": lambda: len(fleet.PullMessages(fleet_pb2.PullMessagesRequest(node=here)).messages_list),
        "PullObject": lambda: fleet.PullObject(pull(node=here, run_id=run, object_id=guess)).object_found,
        "PushObject": lambda: (
            fleet.PushObject(
                message_pb2.PushObjectRequest(node=here, run_id=run, object_id=guess, object_content=b"x" * 1_000_000)
            ).stored
        ),
        "ConfirmMessageReceived": lambda: fleet.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(node=here, run_id=run, message_object_id=guess)
        ),
    }
    for seconds in INTERVALS:
        asked = beat(node=here, heartbeat_interval=seconds)
        calls[f"SendNodeHeartbeat, {seconds}"] = partial(fleet.SendNodeHeartbeat, asked)
    _reply(run, own, guess)  # what is wrong here is no refusal
    try:
        return {name: _tried(call) for name, call in calls.items()}
    finally:
        fleet._client.close()


def _another(project: Project, own: int) -> tuple[int, bytes]:
    """The number and the key of a node that takes part in the run."""
    with sqlite3.connect(f"file:{project.state / 'superlink.db'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT node_id, public_key FROM node").fetchall()
    number, key = next((number % 2**64, key) for number, key in rows if number % 2**64 != own)
    return number, bytes(key)


def _reply(run: int, source: int, replies_to: str) -> Message:
    about = Metadata(
        run_id=run,
        message_id="",
        src_node_id=source,
        dst_node_id=1,
        reply_to_message_id=replies_to,
        group_id="1",
        created_at=time.time(),
        ttl=600.0,
        message_type="train",
    )
    reply = make_message(metadata=about, content=RecordDict({"header": ConfigRecord({"json": "{}"})}))
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply
