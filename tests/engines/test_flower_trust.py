"""No malformed answer is taken: a thousand of them, drawn by seed, and each way in which an answer can be wrong."""

from __future__ import annotations

import io
import json
import pickle
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from engines.fake_grid import KEYS, PROMPT, FakeGrid, engine_over
from engines.test_flower import gap_of
from engines.test_pipes import problem
from resolvent.engines.flower import packets
from resolvent.engines.flower.asking import Asking
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import Question, describe_operator
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.packets import Malformed, Packet
from resolvent.engines.flower.rule import Limits
from resolvent.errors import BadAnswer

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

Rng = np.random.Generator
DIM = 2


def parts(reply: Any) -> tuple[dict[str, Any], Any]:
    """The header of a reply as it is, and its p."""
    packet = packets.from_records(reply.content)
    return dict(packet.header), packet.arrays["p"].copy()


def with_records(reply: Any, header: Any, arrays: dict[str, Any]) -> Any:
    """The reply with other records; arrays are (type, shape, packing, bytes)."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    text = header if isinstance(header, (str, bytes, int)) else json.dumps(header)
    records = RecordDict({"header": ConfigRecord({"json": text})})
    if arrays:
        records["arrays"] = ArrayRecord({name: Array(*given) for name, given in arrays.items()})
    reply.content = records
    return reply


def raw(p: Any) -> tuple[str, tuple[int, ...], str, bytes]:
    return str(p.dtype), tuple(p.shape), packets.RAW, p.tobytes()


def in_header(change: Callable[[Rng, dict[str, Any]], Any]) -> Callable[[Rng, Any], Any]:
    def forge(rng: Rng, reply: Any) -> Any:
        header, p = parts(reply)
        changed = change(rng, header)
        return with_records(reply, header if changed is None else changed, {"p": raw(p)})

    return forge


def in_array(change: Callable[[Rng, Any], Any]) -> Callable[[Rng, Any], Any]:
    def forge(rng: Rng, reply: Any) -> Any:
        header, p = parts(reply)
        changed = change(rng, p)
        return with_records(reply, header, changed if isinstance(changed, dict) else {"p": changed})

    return forge


def poisoned(rng: Rng, p: Any) -> Any:
    p[0, rng.integers(DIM)] = rng.choice([np.nan, np.inf, -np.inf])
    return raw(p)


def other_shape(rng: Rng, p: Any) -> Any:
    shapes = [(DIM,), (1, DIM + 1), (2, DIM), (DIM, 1), (1, 1, DIM), (0, DIM), (1, 0), ()]
    return raw(rng.standard_normal(shapes[rng.integers(len(shapes))]))


def other_type(rng: Rng, p: Any) -> Any:
    kind = str(rng.choice(["float32", "float16", "int64", "complex128", "bool", "object", "O", "<f8", "", "float128"]))
    data = p.astype(kind).tobytes() if kind in ("float32", "float16", "int64", "complex128", "bool") else p.tobytes()
    return kind, (1, DIM), packets.RAW, data


def other_bytes(rng: Rng, p: Any) -> Any:
    whole = p.tobytes()
    cut = whole[: rng.integers(1, len(whole))] if rng.random() < 0.5 else whole + bytes(int(rng.integers(1, 99)))
    return "float64", (1, DIM), packets.RAW, cut


def lying_shape(rng: Rng, p: Any) -> Any:
    shapes = [(1, -DIM), (1 << 62, 4), (-1, -DIM), (1, DIM, 1, 1, 1), (1 << 40, 1 << 40)]
    empty = [(0, 1 << 62), (0, 1 << 40, 1 << 40), (0, *[(1 << 31) - 1] * 3)]
    if rng.random() < 0.5:
        return "float64", empty[rng.integers(len(empty))], packets.RAW, b""
    return "float64", shapes[rng.integers(len(shapes))], packets.RAW, p.tobytes()


def pickled(rng: Rng, p: Any) -> Any:
    """Bytes that would run code if anybody unpickled them."""
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    data = file.getvalue() if rng.random() < 0.5 else pickle.dumps(Bomb())
    return (
        str(rng.choice(["float64", "object"])),
        (1, DIM),
        str(rng.choice(["numpy.ndarray", packets.RAW, "pickle"])),
        data,
    )


class Bomb:
    def __reduce__(self) -> Any:
        return (_explode, ())


def _explode() -> None:
    raise AssertionError("something was unpickled")


def huge(rng: Rng, p: Any) -> Any:
    return raw(np.full((1, DIM), 10.0 ** rng.integers(7, 300)))


def other_arrays(rng: Rng, p: Any) -> Any:
    return [{}, {"q": raw(p)}, {"p": raw(p), "grad": raw(p)}, {"P": raw(p)}, {"p": raw(p), "": raw(p)}][rng.integers(5)]


def other_name(name: str, *values: Any) -> Callable[[Rng, dict[str, Any]], Any]:
    def change(rng: Rng, header: dict[str, Any]) -> None:
        header[name] = values[rng.integers(len(values))]

    return change


def without_a_field(rng: Rng, header: dict[str, Any]) -> None:
    del header[list(header)[rng.integers(len(header))]]


def with_another_field(rng: Rng, header: dict[str, Any]) -> None:
    header[f"field{rng.integers(9)}"] = 1


def no_header(rng: Rng, header: dict[str, Any]) -> Any:
    choices = ["", "{", "[]", "null", "3", '"text"', "[" * 5000, b"\x80\x04.", 7, "x" * (1 << 23), "{}"]
    return choices[rng.integers(len(choices))]


def no_records(rng: Rng, reply: Any) -> Any:
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    choices = [
        RecordDict(),
        RecordDict({"header": MetricRecord({"json": 1})}),
        RecordDict({"header": ConfigRecord({"json": "{}", "more": 1})}),
        RecordDict({"arrays": ConfigRecord({"json": "{}"})}),
        RecordDict({**dict(reply.content), "more": ConfigRecord({"a": 1})}),
        RecordDict({**dict(reply.content), "arrays": ConfigRecord({"a": 1})}),
    ]
    reply.content = choices[rng.integers(len(choices))]
    return reply


def of_another_node(rng: Rng, reply: Any) -> Any:
    reply.metadata.__dict__["_src_node_id"] = int(rng.integers(101, 200))
    return reply


def to_nothing(rng: Rng, reply: Any) -> Any:
    reply.metadata.__dict__["_reply_to_message_id"] = rng.bytes(32).hex()
    return reply


def failed(rng: Rng, reply: Any) -> Any:
    from flwr.app import Error, Message

    made = Message(Error(code=int(rng.integers(0, 9)), reason="a \x1b[2J reason"), reply_to=reply)
    made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return made


FORGERIES: dict[str, Callable[[Rng, Any], Any]] = {
    "poisoned": in_array(poisoned),
    "other_shape": in_array(other_shape),
    "other_type": in_array(other_type),
    "other_bytes": in_array(other_bytes),
    "lying_shape": in_array(lying_shape),
    "pickled": in_array(pickled),
    "huge": in_array(huge),
    "other_arrays": in_array(other_arrays),
    "round": in_header(other_name("t", 0, 4, -1, 3.0, "3", None, True, [3])),
    "user": in_header(other_name("user", 1, 2, -1, 0.0, "0", None, False)),
    "run": in_header(other_name("run", "another", "", None, 0)),
    "verb": in_header(other_name("verb", "describe", "measure", "LOCAL", None)),
    "error": in_header(other_name("error", -1.0, float("nan"), float("inf"), "0", 1, [0.0], True)),
    "values": in_header(other_name("values", [], [1.0, 2.0], "1", [1], [None], [[1.0]], 1.0)),
    "metrics": in_header(other_name("metrics", {"secret": [1.0]}, [], None, {"m": [1.0]}, "m")),
    "forgot": in_header(other_name("forgot", 1, 0, None, "no")),
    "facts": in_header(other_name("facts", {"dim": 3}, None, [], "x")),
    "without_a_field": in_header(without_a_field),
    "with_another_field": in_header(with_another_field),
    "no_header": in_header(no_header),
    "no_records": no_records,
    "of_another_node": of_another_node,
    "to_nothing": to_nothing,
    "failed": failed,
}


class Asked:
    """One user who is asked again and again; `forge` makes what comes back."""

    def __init__(self) -> None:
        self.forge: Callable[[Any], Iterable[Any]] = lambda reply: [reply]
        self.events: list[dict[str, Any]] = []
        self.grid = FakeGrid([Node(problem().take(torch.tensor([0])))], forge=lambda user, reply: self.forge(reply))
        self.asking = Asking(Post(self.grid, KEYS), ("site-00",), Limits(1e6), (), self._note)
        self.question = Question(
            "local", "run", 3, 0, 0.3, operator=describe_operator(rs.ExactProx()), u=torch.ones(1, DIM).double(),
            models=torch.zeros(1, DIM).double(),
        )  # fmt: skip

    def _note(self, kind: str, **about: Any) -> None:
        self.events.append({"kind": kind} | about)

    def ask(self) -> list[Any]:
        self.asking.forget()
        self.asking.ask({0: self.question}, self.asking.online())
        return self.asking.collect()


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


def test_an_honest_answer_is_taken(asked: Asked) -> None:
    """Or the test below would prove nothing."""
    asked.forge = lambda reply: [reply]
    (taken,) = asked.ask()
    torch.testing.assert_close(taken.answer.p, problem().prox(torch.ones(3, DIM).double(), 0.3)[:1])
    assert taken.answer.values is not None


def test_none_of_a_thousand_malformed_answers_is_taken(asked: Asked) -> None:
    kinds = list(FORGERIES)
    for seed in range(1000):
        rng, kind = np.random.default_rng(seed), kinds[seed % len(kinds)]
        asked.forge = lambda reply, rng=rng, kind=kind: [FORGERIES[kind](rng, reply)]  # type: ignore[misc]
        asked.events.clear()
        assert asked.ask() == [], f"{kind}, seed {seed}"
        kinds_noted = [event["kind"] for event in asked.events]
        assert kinds_noted == ["refused"] or (kind == "failed" and kinds_noted == ["lost"]), f"{kind}, seed {seed}"
        assert asked.events[0]["reason"]
    assert asked.asking.refused["site-00"] > 900


def test_a_second_answer_is_refused(asked: Asked) -> None:
    asked.forge = lambda reply: [reply, reply]
    asked.events.clear()
    assert len(asked.ask()) == 1
    assert [event["reason"] for event in asked.events] == ["a second answer to one question"]


def test_whoever_is_refused_is_absent_and_named(asked: Asked) -> None:
    """User 1 lies in rounds 3 to 6; the run goes on without it, and is exact in the end."""
    events: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)

    def forge(user: int, reply: Any) -> list[Any]:
        header = {} if reply.has_error() else packets.from_records(reply.content).header
        lies = user == 1 and header.get("verb") == "local" and 2 <= header["t"] < 6
        return [FORGERIES["poisoned"](rng, reply)] if lies else [reply]

    whole = problem()
    grid = FakeGrid([Node(whole.take(torch.tensor([i]))) for i in range(3)], forge=forge)
    engine = engine_over(
        whole, rs.ExactProx(), grid=grid, note=lambda kind, **about: events.append({"kind": kind} | about)
    )
    run = rs.solve(None, rs.fedpi(0.3), rounds=150, engine=engine, participation=rs.Trace([[1, 1, 1]]))
    assert run.history.participants.tolist() == [3, 3, 2, 2, 2, 2] + [3] * 144
    assert {event["user"] for event in events} == {"site-01"}
    assert [event["round"] for event in events] == [3, 4, 5, 6]
    assert engine.refused == {"site-01": 4}
    assert gap_of(run) < 1e-8


def test_where_everybody_is_refused_the_run_fails_with_a_sentence() -> None:
    whole = problem()

    def broken(w: Any) -> Any:
        raise ZeroDivisionError("no such file")

    class Broken(Node):
        def _local(self, question: Question) -> Any:
            return broken(question)

    grid = FakeGrid([Broken(whole.take(torch.tensor([i]))) for i in range(3)])
    engine = engine_over(whole, rs.ExactProx(), grid=grid, rule=PROMPT)
    with pytest.raises(BadAnswer, match=r"in round 1 only 0 of the 1 users .* site-00 \(3 refused\)"):
        rs.solve(None, rs.fedpi(0.3), rounds=5, engine=engine, participation=rs.Trace([[1, 1, 1]]))


def test_bytes_that_are_no_packet_are_refused() -> None:
    good = packets.to_bytes(Packet({"a": 1}, {"p": np.arange(6.0).reshape(2, 3)}))
    found = packets.from_bytes(good)
    assert found.header == {"a": 1}
    np.testing.assert_array_equal(found.arrays["p"], np.arange(6.0).reshape(2, 3))
    rng = np.random.default_rng(1)
    for cut in range(len(good)):
        with pytest.raises(Malformed):
            packets.from_bytes(good[:cut])
    for _ in range(300):
        with pytest.raises(Malformed):
            packets.from_bytes(rng.bytes(int(rng.integers(0, 60))))


def test_a_shape_of_many_axes_costs_no_time() -> None:
    """Their product would take minutes: each factor makes it longer."""
    head = json.dumps({"header": {}, "arrays": [["p", "float64", [999] * 200_000]]}).encode()
    began = time.perf_counter()
    with pytest.raises(Malformed, match="no proper shape"):
        packets.from_bytes(len(head).to_bytes(8, "little") + head)
    assert time.perf_counter() - began < 2.0


def test_a_small_packet_crosses_in_one_piece() -> None:
    """Flower asks for each record, array and part of one by itself."""
    from flwr.app import ConfigRecord, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    for rows, pieces in ((3, 2), (10_000, 7)):
        sent = Packet({"a": 1}, {"p": np.arange(rows * 1.0), "q": np.ones(2)})
        records = packets.to_records(sent)
        assert len(get_all_nested_objects(records)) == pieces
        came = packets.from_records(records)
        assert came.header == sent.header
        assert all(np.array_equal(came.arrays[name], sent.arrays[name]) for name in sent.arrays)
    good = packets.to_bytes(Packet({"a": 1}, {"p": np.ones(3)}))
    for wrong in (good[:-1], good.replace(b"[3]", b"[4]"), b"", "text", 1, [1.0]):
        with pytest.raises(Malformed):
            packets.from_records(RecordDict({"header": ConfigRecord({"packet": wrong})}))
    for shape in (
        "[-1]",
        "[1e300]",
        "[Infinity]",
        '["3"]',
        "[[3]]",
        "3",
        "null",
        "[1,1,1,1,1]",
        "[10000000000000000000]",
    ):
        head = f'{{"header": {{}}, "arrays": [["p", "float64", {shape}]]}}'.encode()
        with pytest.raises(Malformed):
            packets.from_bytes(len(head).to_bytes(8, "little") + head + bytes(24))
