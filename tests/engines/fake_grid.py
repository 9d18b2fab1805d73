"""A Grid in this process: real messages, deflated and inflated as on the wire, through the real code of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch

from resolvent.engines.flower import forward, packets
from resolvent.engines.flower.engine import FlowerEngine
from resolvent.engines.flower.facts import gather
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.rule import Rule

Lateness = Callable[[int, int], int]
"""How many rounds after its question, asked in round t, the answer of user i arrives."""
Forge = Callable[[int, Any], Iterable[Any]]
"""What arrives instead of the reply of user i: any number of messages."""


def at_once(t: int, user: int) -> int:
    return 0


def over_the_wire(message: Any) -> Any:
    """The message that the other side sees."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    with no_object_id_recompute():
        contents = {name: found.deflate() for name, found in get_all_nested_objects(message).items()}
        arrived: Any = inflate_object_from_contents(message.object_id, contents)
        arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


class FakeGrid:
    """Nodes answer as soon as they are asked; their replies wait until they are due."""

    def __init__(
        self, nodes: list[Any], late: Lateness = at_once, forge: Forge | None = None, keys: list[bytes] | None = None
    ) -> None:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower sets them in its own processes
        self.nodes, self.late, self.forge = nodes, late, forge
        self.offline: set[int] = set()
        self.keys = [b"key %d" % i for i in range(len(nodes))] if keys is None else keys
        self.starts = [0] * len(nodes)
        self.lost: set[int] = set()
        """Users whose nodes take a question and never answer."""
        self.round = 0
        self._replies: list[tuple[int, Any]] = []
        self.pushed = 0

    def get_nodes(self) -> list[Any]:
        there = [i for i in range(len(self.nodes)) if i not in self.offline]
        since = [f"start {self.starts[i]}" for i in range(len(self.nodes))]
        return [SimpleNamespace(node_id=100 + i, public_key=self.keys[i], last_activated_at=since[i]) for i in there]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.object_id)
            self.pushed += 1
            user, t = message.metadata.dst_node_id - 100, int(message.metadata.group_id) - 1
            self.round = max(self.round, t)
            if user in self.offline | self.lost:  # the message waits for ever
                continue
            late = self.late(t, user) if message.metadata.message_type == "train" else 0
            for reply in self._answered(user, over_the_wire(message)):
                self._replies.append((t + late, reply))
        return ids

    def _answered(self, user: int, message: Any) -> Iterable[Any]:
        from flwr.app import Error, Message

        node = self.nodes[user]
        try:
            made = forward.reply(message, lambda c: packets.to_bytes(node.handle(packets.from_bytes(c))))
        except Exception as error:
            made = Message(Error(code=1, reason=f"{type(error).__name__}: {error}"), reply_to=message)
        replies = [made] if self.forge is None else self.forge(user, made)
        return [over_the_wire(reply) for reply in replies]

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        """Whatever is due, asked for or not: the engine must look itself."""
        due = [reply for when, reply in self._replies if when <= self.round]
        self._replies = [(when, reply) for when, reply in self._replies if when > self.round]
        return due


KEYS = {b"key %d" % i: f"site-{i:02d}" for i in range(20)}
PROMPT = Rule(poll=1e-4, timeout=20.0)


def engine_over(
    problem: Any, operator: Any, steady: bool = True, *, grid: FakeGrid | None = None, **more: Any
) -> FlowerEngine:
    """The engine for these users, each on a node of its own."""
    if grid is None:
        grid = FakeGrid([Node(problem.take(torch.tensor([i]))) for i in range(problem.users)])
    post = Post(grid, KEYS)
    facts = gather(post, "a-run", problem.users, weights=problem.weights)
    given = {"rule": PROMPT, "curvature": True, **more}
    return FlowerEngine(post, facts, operator, "a-run", steady=steady, **given)
