"""Flower's own grid, with answers that a node has put together by hand: none ends the run, or speaks for another."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from resolvent.engines.flower import grid as grid_module
from resolvent.engines.flower import packets
from resolvent.engines.flower.grid import Post

pytest.importorskip("flwr")
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid

HONEST, LIAR = 7, 8
QUESTIONS = {HONEST: "a" * 64, LIAR: "b" * 64}


@pytest.fixture(autouse=True)
def identified() -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower sets them in its own processes


def answer(node: int, to: str) -> Any:
    made = Message(packets.to_records(packets.Packet({"from": node})), 1, "query", group_id="1")
    made.metadata.__dict__.update(_src_node_id=node, _reply_to_message_id=to)
    return made


def parts(message: Any) -> tuple[str, Any, dict[str, bytes]]:
    """The name of the whole, the tree, and the contents by name."""
    return (
        message.object_id,
        get_object_tree(message),
        {n: o.deflate() for n, o in get_all_nested_objects(message).items()},
    )


def broken(kind: str) -> tuple[str, Any, dict[str, bytes]]:
    name, tree, contents = parts(answer(LIAR, QUESTIONS[LIAR]))
    child = tree.children[0]
    if kind == "no message at all":
        return child.object_id, child, contents
    if kind == "another name":
        return "c" * 64, tree, contents
    if kind == "another's answer":
        return parts(answer(HONEST, QUESTIONS[HONEST]))
    rubbish = b"RecordDict  4\x00\xff\xff\xff\xff"
    other = get_object_id(rubbish)
    whole = contents[name].replace(child.object_id.encode(), other.encode())
    tree = ObjectTree(object_id=get_object_id(whole), children=[ObjectTree(object_id=other)])
    return tree.object_id, tree, {tree.object_id: whole, other: rubbish}


def grid_with(*sent: tuple[Any, tuple[str, Any, dict[str, bytes]]]) -> Any:
    """Flower's grid, to which the superlink hands these: what it has checked of each, and its parts."""
    stored = {name: content for _, (_, _, contents) in sent for name, content in contents.items()}
    heads = []
    for head, (name, _, _) in sent:
        head.metadata.__dict__["_message_id"] = name
        heads.append(message_to_proto(remove_content_from_message(head)))
    response = PullAppMessagesResponse(messages_list=heads, message_object_trees=[tree for _, (_, tree, _) in sent])
    grid = http_grid.HttpGrid(token="a token")
    grid._run = SimpleNamespace(run_id=1)  # type: ignore[assignment]
    grid._client = SimpleNamespace(  # type: ignore[assignment]
        PullMessages=lambda request: response,
        PullObject=lambda request: PullObjectResponse(
            object_found=True, object_available=True, object_content=stored[request.object_id]
        ),
        ConfirmMessageReceived=lambda request: None,
    )
    return grid


@pytest.mark.parametrize("kind", ["no message at all", "another name", "another's answer", "rubbish within"])
def test_an_answer_made_by_hand_is_its_sender_s_own_and_costs_no_other(kind: str) -> None:
    honest = answer(HONEST, QUESTIONS[HONEST])
    grid = grid_with((answer(LIAR, QUESTIONS[LIAR]), broken(kind)), (honest, parts(honest)))
    forged, taken = Post(grid, {}).collect(QUESTIONS.values())
    assert (forged.source, forged.to) == (LIAR, QUESTIONS[LIAR])
    assert not forged.gone
    if kind != "another's answer":
        assert forged.error is not None
        assert "do not fit together" in forged.error
    assert (taken.source, taken.to, taken.error) == (HONEST, QUESTIONS[HONEST], None)
    assert packets.from_records(taken.records).header == {"from": HONEST}


def test_an_answer_that_is_uploaded_in_part_is_put_off_and_holds_up_nobody() -> None:
    """It is announced once, its parts are kept, and it is taken as soon as the last one is there."""
    late, honest = answer(LIAR, QUESTIONS[LIAR]), answer(HONEST, QUESTIONS[HONEST])
    missing, wanted = late.object_id, list(QUESTIONS.values())
    grid = grid_with((late, parts(late)), (honest, parts(honest)))
    announce, pull, asked, fetched = grid._client.PullMessages, grid._client.PullObject, [], Counter[str]()

    def announced(request: Any) -> Any:
        asked.append(sorted(request.message_ids))
        return announce(request) if len(asked) == 1 else PullAppMessagesResponse()

    def pulled(request: Any) -> Any:
        fetched[request.object_id] += 1
        if request.object_id == missing:
            assert fetched[missing] == looks, "it waits for a part within one look"
            return PullObjectResponse(object_found=True, object_available=False)
        return pull(request)

    grid._client.PullMessages, grid._client.PullObject = announced, pulled
    post, looks = Post(grid, {}), 1
    assert [reply.source for reply in post.collect(wanted)] == [HONEST]
    for _ in range(5):
        looks += 1
        assert post.collect([QUESTIONS[LIAR]]) == []
    missing, whole = "", missing
    (reply,) = post.collect([QUESTIONS[LIAR]])
    assert (reply.source, reply.to, reply.error) == (LIAR, QUESTIONS[LIAR], None)
    assert asked == [sorted(wanted)]
    del fetched[whole]
    assert max(fetched.values()) <= 2  # twice where the first look ended while a part was on its way


@pytest.mark.parametrize("how", ["Flower gives it up", "it takes too long"])
def test_an_answer_whose_parts_never_come_is_lost_by_name(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half, there = answer(LIAR, QUESTIONS[LIAR]), True
    grid = grid_with((half, parts(half)))
    grid._client.PullObject = lambda request: PullObjectResponse(object_found=there, object_available=False)
    post = Post(grid, {})
    assert post.collect([QUESTIONS[LIAR]]) == []
    if how == "it takes too long":
        monkeypatch.setattr(grid_module, "MAX_SECONDS_TO_UPLOAD", -1.0)
    else:
        there = False
    (reply,) = post.collect([QUESTIONS[LIAR]])
    assert (reply.source, reply.to, reply.gone) == (LIAR, QUESTIONS[LIAR], True)
    assert "never uploaded" in str(reply.error)
