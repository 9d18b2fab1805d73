"""What a node says of itself, and of its failures: wrong claims are refused by name, and texts stay on the node."""

from __future__ import annotations

import dataclasses
import math
import re
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from engines.fake_grid import KEYS, FakeGrid, engine_over
from engines.test_flower_trust import Asked, in_array, with_records
from engines.test_pipes import problem
from resolvent.engines.flower import forward, packets
from resolvent.engines.flower.asking import MAX_REASON
from resolvent.engines.flower.claims import show_weights
from resolvent.engines.flower.facts import gather
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.memory import MAX_RUNS, Memories
from resolvent.engines.flower.messages import Question
from resolvent.engines.flower.node import Node, load_node
from resolvent.engines.flower.rule import Limits, Rule
from resolvent.errors import InputError
from resolvent.federation import processes, worker
from resolvent.iteration.facts import Facts

pytest.importorskip("flwr")
RNG = np.random.default_rng(0)


class Claiming(Node):
    """A node that says something else of itself."""

    claims: dict[str, Any] = {}  # noqa: RUF012 (replaced, never written to)

    def _describe(self, question: Question) -> Any:
        answer = super()._describe(question)
        return dataclasses.replace(answer, facts=answer.facts | self.claims)


def gathered(*claims: dict[str, Any], weights: Any = "rows", **more: Any) -> Facts:
    """What the server makes of users who say this of themselves; the others are honest."""
    nodes = [Claiming(problem().take(torch.tensor([i % 3]))) for i in range(max(3, len(claims)))]
    for node, own in zip(nodes, claims, strict=False):
        node.claims = own
    return gather(Post(FakeGrid(nodes), KEYS), "a-run", len(nodes), weights, 5.0, **more)


def rows(n: Any) -> dict[str, Any]:
    """A network's user with that many rows: its weight is proportional to them."""
    return {"samples": n, "rows": n, "means": True}


# --- claims ----------------------------------------------------------------------------------------------------------


def test_a_user_cannot_choose_its_own_weight() -> None:
    with pytest.raises(InputError, match=r"node site-01 says that it has 1099511627776 rows.*federation.weights"):
        gathered(rows(100), rows(2**40), rows(100))
    with pytest.raises(InputError, match=r"node site-00 says that it has 1 rows"):  # a user's mean over one row
        gathered(*({"samples": n, "rows": n} for n in (1, 1000, 2000)), weights="users")
    agreed = gathered(rows(100), rows(2**40), rows(100), weights={"site-00": 1, "site-01": 2, "site-02": 1})
    assert agreed.weights.tolist() == [0.25, 0.5, 0.25]


@pytest.mark.parametrize("sizes", [(1, 100, 1, 1), (3, 60, 5, 300), (100, 10_000, 120)])
def test_honest_users_of_very_different_sizes_are_taken(sizes: tuple[int, ...]) -> None:
    facts = gathered(*map(rows, sizes))
    torch.testing.assert_close(facts.weights, torch.tensor(sizes, dtype=torch.float64) / sum(sizes))


def test_a_federation_can_accept_more_or_less() -> None:
    unequal = [rows(10), rows(5000), rows(10)]
    with pytest.raises(InputError, match=r"500 times the weight .* at most 100 times"):
        gathered(*unequal)
    assert float(gathered(*unequal, max_weight=500.0).weights[1]) == pytest.approx(5000 / 5020)
    for limits in ({"weight": 0.5}, {"weight": math.nan}, {"move": 0.0}, {"move": "far"}, {"norm": -1.0}):
        with pytest.raises(InputError, match=f"max_{next(iter(limits))} is .* a number"):
            Limits(**limits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", -1),
        ("samples", 10**400),
        ("rows", -1),
        ("rows", 2**60),
        ("dim", 0),
        ("dim", 10**400),
        ("lipschitz", math.nan),
        ("lipschitz", -1.0),
        ("lipschitz", math.inf),
        ("lipschitz", 1e308),
        ("convexity", math.nan),
        ("convexity", 1e9),
        ("typical_eta", math.nan),
        ("typical_eta", 0.0),
        ("typical_eta", -1.0),
        ("samples", 17),
        ("problem", "x" * 1000),
        ("problem", "\x1b[2J"),
        ("version", "1\n2"),
        ("offers", ["x" * 1000]),
    ],
)
def test_numbers_that_no_user_has_are_refused_by_name(name: str, value: Any) -> None:
    claims = {name: value} | ({"samples": value} if name == "rows" else {})
    with pytest.raises(InputError, match=f"node site-01 described itself .*({name}|samples)") as refused:
        gathered({}, claims)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(("name", "value"), [("lipschitz", 1e100), ("typical_eta", 1e-100), ("typical_eta", 1e100)])
def test_constants_out_of_proportion_are_refused_by_name(name: str, value: float) -> None:
    honest = {"typical_eta": 1.0}
    with pytest.raises(InputError, match=re.escape(f"{name} is {value:g} on node site-01, but the median of the")):
        gathered(honest, honest | {name: value}, honest)


def test_users_who_measure_in_other_units_are_in_proportion() -> None:
    """A thousand times the features, and ten times the rows: the curvature is 1e7 times the others'."""
    facts = gathered({}, {"lipschitz": 1e7 * float(problem().lipschitz[0])}, {})
    assert facts.lipschitz is not None


def test_a_user_who_does_not_know_its_convexity_is_taken() -> None:
    assert gathered({"convexity": None}, {"convexity": None}, {"convexity": None}).users == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("dim", 7), ("dtype", "float32"), ("metrics", ["accuracy"]), ("intercepts", [0]), ("problem", "Logistic")],
)
def test_users_who_do_not_solve_one_problem_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"{name} is .* on node site-01, but .* on node site-00: all users need"):
        gathered({}, {name: value})


def test_every_weight_is_shown_and_a_majority_is_pointed_out() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    facts = gathered(rows(10), rows(60), rows(30))
    show_weights(facts.names, facts.weights, facts.sizes, lambda kind, **about: events.append((kind, about)))
    assert [kind for kind, _ in events] == ["weights", "majority"]
    assert events[0][1]["reason"] == "site-00 0.1 (10 rows), site-01 0.6 (60 rows), site-02 0.3 (30 rows)"
    assert events[1][1]["user"] == "site-01"
    events.clear()
    alone = torch.ones(1).double()
    show_weights(("site-00",), alone, None, lambda kind, **about: events.append((kind, about)))
    assert [kind for kind, _ in events] == ["weights"]  # there are no others to decide more than


# --- what is said of failures ----------------------------------------------------------------------------------------

SECRET = "Jane Doe, born 1970-01-01, HIV positive"
USER = f"""
import resolvent as rs

def problem(config):
    return rs.Custom(1, prox=prox, dim=2)

def prox(u, eta):
    raise ValueError("cannot read the row {SECRET}")
"""


@pytest.fixture
def failing(tmp_path: Path) -> Node:
    (tmp_path / "user.py").write_text(USER)
    return load_node(tmp_path, {})


QUESTION = Question("local", "run", operator={"kind": "exact"}, u=torch.zeros(1, 2).double())


def test_the_text_of_an_exception_stays_on_the_node(failing: Node, capfd: pytest.CaptureFixture[str]) -> None:
    """Only its type and its place cross; the text is in the log of the process with the data."""
    content = worker.answer(failing, packets.to_bytes(QUESTION.packet()))
    assert packets.from_bytes(content).header == {
        forward.FAILED: "ValueError at user:8; the node's own log says more",
    }
    assert SECRET in capfd.readouterr().err


def test_the_text_of_an_exception_stays_where_no_other_process_has_the_data(failing: Node) -> None:
    """Flower sends whatever text its app raises."""
    grid = FakeGrid([failing])
    grid.push_messages([_message(QUESTION)])
    (reply,) = grid.pull_messages([])
    assert "ValueError at user:8" in reply.error.reason
    assert "Jane" not in reply.error.reason


def test_failures_of_our_own_code_are_placed_there(failing: Node) -> None:
    try:
        failing.handle(packets.Packet({"verb": SECRET, "run": "run"}))
    except Exception as error:
        said = forward.failure(error)
    assert said.startswith("Malformed at resolvent.engines.flower.messages:")
    assert "Jane" not in said


def _message(question: Question) -> Any:
    from flwr.app import Message

    return Message(packets.to_records(question.packet()), 100, "train", group_id="1")


def test_the_log_of_a_process_is_this_account_s_alone(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "worker.log"
    for _ in range(2):
        process = processes.start("a process", ["true"], log, {})
        process.popen.wait(60)
        assert log.stat().st_mode & 0o777 == 0o600
        log.chmod(0o644)  # as an earlier version left it


def test_reasons_of_refused_answers_are_cut() -> None:
    asked = Asked()
    long = "x" * (1 << 20)

    def failed(reply: Any) -> list[Any]:
        from flwr.app import Error, Message

        made = Message(Error(code=1, reason=long), reply_to=reply)
        made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return [made]

    asked.forge = failed
    assert asked.ask() == []
    named = in_array(lambda rng, p: {long: ("float64", (1, 2), packets.RAW, p.tobytes())})
    asked.forge = lambda reply: [named(RNG, reply)]
    assert asked.ask() == []
    asked.forge = lambda reply: [with_records(reply, {long: 1}, {})]
    assert asked.ask() == []
    assert len(asked.events) == 3
    assert all(len(event["reason"]) < MAX_REASON + 50 for event in asked.events)


def test_a_dozen_answers_tell_a_user_s_second_moments() -> None:
    """As docs/federation.md says: (u - p) / eta = A'A p - A'b, and the server has every u and p."""
    rng, pairs = np.random.default_rng(0), []
    A, b, eta = rng.standard_normal((3, 20, 5)), rng.standard_normal((3, 20)), 0.05
    everybody = rs.Trace([[1, 1, 1]])
    rs.solve(
        rs.LeastSquares(A, b),
        rs.fedpi(eta),
        rounds=12,
        participation=everybody,
        callback=lambda r: pairs.append((r.state.u[0].numpy(), r.state.p[0].numpy())),
    )
    u, p = (np.stack(rows) for rows in zip(*pairs, strict=True))
    known = np.hstack([p, -np.ones((12, 1))])
    moments = np.linalg.lstsq(known, (u - p) / eta, rcond=None)[0][:5]
    # u - p is known to eps |u|, and the least squares magnify that by the condition of what is known
    tolerance = 100 * np.finfo(float).eps * np.linalg.cond(known) / eta
    assert tolerance < 1e-3
    np.testing.assert_allclose(moments, A[0].T @ A[0], rtol=0, atol=tolerance * np.linalg.norm(u))


# --- what surviving mutants showed to be untested --------------------------------------------------------------------


def test_max_norm_limits_the_euclidean_norm() -> None:
    """The length of (1, 1) is 1.41, though none of its entries is larger than 1."""
    asked = Asked()
    ones = in_array(lambda rng, p: ("float64", (1, 2), packets.RAW, (0 * p + 1).tobytes()))
    asked.forge = lambda reply: [ones(RNG, reply)]
    for limit, taken in ((1.42, 1), (1.41, 0)):
        asked.asking._limits = Limits(limit)
        assert len(asked.ask()) == taken


@pytest.mark.parametrize("run", ["../up", "/tmp/x", "a/b", "", ".", "..", ".hidden", "a\0b"])
def test_a_run_s_name_leads_nowhere_else_on_a_node(tmp_path: Path, run: str) -> None:
    """Memories are files, by the name that the server gives."""
    memories = Memories(tmp_path / "memory")
    for use in (memories.load, memories.touch, lambda run, t: memories.store(run, t, {"a": torch.ones(1)})):
        with pytest.raises(InputError, match="a name of letters, digits, - and _ is needed"):
            use(run, 3)
    assert list(tmp_path.rglob("*")) == []


# --- a server that somebody has taken over ---------------------------------------------------------------------------


def asked_of_a_node(**changed: Any) -> packets.Packet:
    """The answer to a question of which some values are others."""
    gradient_prox = {"kind": "gradient-prox", "steps": 2, "lr": 0.1}
    question = Question("local", "a-run", operator=gradient_prox, u=torch.zeros(1, 2)).packet()
    header, arrays = question.header | changed.pop("header", {}), question.arrays | changed
    return Node(problem().take(torch.tensor([0]))).handle(packets.Packet(header, arrays))


@pytest.mark.parametrize("operator", [
    {"kind": "gradient-prox", "steps": 10**12}, {"kind": "gradient-steps", "steps": 10**12},
    {"kind": "gradient-prox", "steps": 3, "anderson": 10**12}, {"kind": "normalised-steps", "steps": [2, 10**12]},
    {"kind": "gradient-steps", "steps": 10**12, "batch": 1},
])  # fmt: skip
def test_a_node_is_not_occupied_for_ever(operator: dict[str, Any]) -> None:
    with pytest.raises(packets.Malformed, match=r"a node takes at most 100000 per answer"):
        asked_of_a_node(header={"operator": operator})
    assert asked_of_a_node(header={"operator": {"kind": "gradient-steps", "steps": 2, "batch": 10**9}}).arrays["p"].size


def test_a_federation_that_would_occupy_its_nodes_is_refused_before_it_begins() -> None:
    with pytest.raises(InputError, match=r"local.steps is 100001, but a node takes at most 100000 per answer"):
        engine_over(problem(), rs.GradientProx(100_001))


@pytest.mark.parametrize("header", [
    {"verb": []}, {"verb": "handle"}, {"verb": "v" * 10**6}, {"run": 5}, {"run": "r" * 201}, {"t": -1}, {"t": 2**53},
    {"t": True}, {"t": 1.0}, {"t": "1"}, {"user": -1}, {"after": -2}, {"after": 2**60}, {"seed": -1}, {"seed": 2**63},
    {"eta": math.nan}, {"eta": math.inf}, {"eta": -1.0}, {"eta": "1"}, {"eta": 1e200}, {"operator": []}, {"steady": 1},
    {"secure": [1]}, {"more": 1}, {"n" * 10**6: 1}, {"operator": {"kind": "k" * 10**6}},
    {"operator": {"kind": "exact", "k" * 10**6: 1}},
])  # fmt: skip
def test_what_no_server_asks_is_refused_in_few_words(header: dict[str, Any]) -> None:
    with pytest.raises(packets.Malformed) as refused:
        asked_of_a_node(header=header)
    assert len(str(refused.value)) <= packets.MAX_MESSAGE


def test_rows_that_are_none_are_refused() -> None:
    for name in ("u", "models"):
        with pytest.raises(packets.Malformed, match=rf"{name} is of shape \(2,\), and rows of numbers are needed"):
            asked_of_a_node(**{name: np.zeros(2)})


def test_an_answer_takes_no_longer_than_a_node_allows() -> None:
    """Whatever it is that takes long; the next question is answered."""

    def prox(U: torch.Tensor, eta: float) -> torch.Tensor:
        while eta > 0.5:
            time.sleep(0.01)
        return U

    node, short = Node(rs.Custom(1, 2, prox=prox, check=False)), dataclasses.replace(QUESTION, eta=0.25)
    first, second = (
        packets.from_bytes(worker.answer(node, packets.to_bytes(question.packet()), 0.2)).header
        for question in (QUESTION, short)
    )
    assert first[forward.FAILED].startswith("TimeoutError at ")
    assert second["verb"] == "local"
    time.sleep(0.4)  # nothing is raised afterwards


@pytest.mark.parametrize("runs", [3, MAX_RUNS - 1, MAX_RUNS, MAX_RUNS + 40])
def test_a_node_remembers_few_runs_those_that_were_asked_last(tmp_path: Path, runs: int) -> None:
    """A server can give every question the name of another run."""
    memories = Memories(tmp_path)
    memories.store("first", 0, {"a": torch.ones(1)})
    for number in range(runs - 1):
        memories.store(f"run-{number}", 0, {"a": torch.ones(1)})
        memories.store("first", number, {"a": torch.ones(1)})  # it goes on all the while
    there = {path.name for path in tmp_path.iterdir()}
    assert len(there) == min(runs, MAX_RUNS)
    assert there == {"first", *(f"run-{n}" for n in range(max(0, runs - MAX_RUNS), runs - 1))}
    assert Memories(tmp_path).load("first", runs - 2) is not None


def test_a_share_of_answers_is_rounded_up() -> None:
    assert not Rule(close=0.5).closed(3, 1, 1, 1, 2, 0.0)
    assert Rule(close=0.5).closed(3, 2, 2, 1, 1, 0.0)


def test_what_is_lost_is_not_counted_as_refused() -> None:
    """Nobody sent anything wrong; the user is asked again without end."""
    asked = Asked()

    def lost(reply: Any) -> list[Any]:
        from flwr.app import Error, Message

        made = Message(Error(code=3, reason="the node is gone"), reply_to=reply)
        made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return [made]

    asked.forge = lost
    assert asked.ask() == []
    assert [event["kind"] for event in asked.events] == ["lost"]
    assert asked.asking.refused["site-00"] == 0
    assert asked.asking.busy == set()


def test_whoever_is_busy_is_not_asked_something_else() -> None:
    asked = Asked()
    asked.asking.ask({0: asked.question}, asked.asking.online())
    assert asked.asking.busy == {0}
    assert asked.asking.all_of({0: asked.question}, 5.0, 1e-4) is None
    assert asked.grid.pushed == 1
    asked.asking.collect()
    assert asked.asking.all_of({0: asked.question}, 5.0, 1e-4) is not None


def test_what_is_put_on_a_line_arrives_whole_or_not_at_all() -> None:
    near, away = socket.socketpair()
    with away:
        with near:
            for content in (b"", b"abc"):
                forward.put(near, content)
                assert forward.get(away) == content
            near.sendall((9).to_bytes(8, "little") + b"half")
        with pytest.raises(ConnectionError, match="the process with the data has ended"):
            forward.get(away)


class Curved(Node):
    """A node that knows a part of its curvature."""

    sends: tuple[str, ...] = ()

    def _curvature(self, question: Question) -> Any:
        answer = super()._curvature(question)
        hidden: dict[str, Any] = {name: None for name in ("grad", "hessian") if name not in self.sends}
        return dataclasses.replace(answer, **hidden)


@pytest.mark.parametrize(
    ("sends", "kinds"), [(("grad", "hessian"), []), ((), []), (("grad",), ["refused"]), (("hessian",), ["refused"])]
)
def test_where_one_user_does_not_send_its_hessian_no_curvature_is_known(
    sends: tuple[str, ...], kinds: list[str]
) -> None:
    whole, noted = problem(), []
    nodes = [Node(whole.take(torch.tensor([i]))) for i in range(2)] + [Curved(whole.take(torch.tensor([2])))]
    nodes[2].sends = sends  # type: ignore[attr-defined]
    engine = engine_over(
        whole, rs.ExactProx(), grid=FakeGrid(nodes), note=lambda kind, **about: noted.append((kind, about["user"]))
    )
    at = torch.ones(1, 2).double()
    found = engine.curvature(at)
    assert noted == [(kind, "site-02") for kind in kinds]
    if len(sends) < 2:
        assert found is None
        return
    assert found is not None
    torch.testing.assert_close(found[0], whole.weights @ whole.grad(at))
    torch.testing.assert_close(found[1], torch.tensordot(whole.weights, whole.hessian(at), 1))


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda h: 1e9 * h, r"largest number of the Hessian is .*e[+]09 on node site-02, but the median .* is \d"),
        (lambda h: 1e300 * h, r"largest number of the Hessian is .*e[+]300 on node site-02"),
        (lambda h: h + np.triu(np.full_like(h, 100.0), 1), "hessian is not symmetric"),
    ],
)
def test_a_hessian_that_is_none_or_out_of_proportion_does_not_choose_eta(lie: Any, words: str) -> None:
    """It would be so small that no model moves, or that what moves vanishes in rounding."""

    def forge(user: int, reply: Any) -> list[Any]:
        packet = packets.from_records(reply.content)
        if user == 2 and packet.header["verb"] == "curvature":
            arrays = packet.arrays | {"hessian": lie(packet.arrays["hessian"])}
            reply.content = packets.to_records(packet._replace(arrays=arrays))
        return [reply]

    whole, noted = problem(), list[str]()
    grid = FakeGrid([Node(whole.take(torch.tensor([i]))) for i in range(3)], forge=forge)
    engine = engine_over(whole, rs.ExactProx(), grid=grid, note=lambda kind, **about: noted.append(about["reason"]))
    run = rs.solve(None, rs.fedpi("auto"), rounds=60, engine=engine)
    assert noted
    assert all(re.search(words, reason) for reason in noted)
    torch.testing.assert_close(run.model, rs.solve(whole, rs.fedpi("auto"), rounds=60).model, rtol=1e-6, atol=0)
