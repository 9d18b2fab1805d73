"""The engine over Flower keeps the contract: a Grid in this process carries real messages to the real code of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from engines.cases import CASES, COMPRESSED, SCHEMES, built
from engines.contract import check
from engines.fake_grid import KEYS, PROMPT, FakeGrid, engine_over
from engines.test_pipes import by_hand, late, problem
from resolvent.engines.flower import asking
from resolvent.engines.flower import engine as engines
from resolvent.engines.flower.engine import FlowerEngine
from resolvent.engines.flower.facts import gather
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import Question
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.packets import Malformed
from resolvent.engines.flower.rule import Rule
from resolvent.errors import BadAnswer, InputError
from resolvent.iteration import checkpoint
from resolvent.local.choice import local_operator

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

ETA = 0.3
WAYS = ("plain", "anderson_on_u", "anderson_on_mean", "trace_hold", "trace_paper", "stragglers", "logistic")
OFTEN = {f"{row}-{WAYS[(i + j) % len(WAYS)]}" for i, row in enumerate(SCHEMES) for j in (0, 3)}
OFTEN |= {
    "anderson_on_u_newton", "anderson_sampled", "momentum", "auto", "auto_stragglers", "auto_without_curvature",
    "batches", "batches_prox_sampled", "harmonic_one_u_sampled", "halving_stragglers", "own_schedule",
    "mixing_schedule", "average_suffix", "from_elsewhere",
}  # fmt: skip
"""Every row of the table twice, every way at least twice, and more; the others are tried where there is time."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in CASES if name not in COMPRESSED],
)
def test_users_behind_a_grid_take_the_same_way(name: str) -> None:
    check(engine_over, name, unknown=("gap", "average_gap"))


def test_every_row_and_every_way_is_tried_often() -> None:
    assert CASES.keys() >= OFTEN
    pairs = [name.partition("-") for name in OFTEN if "-" in name]
    assert {row for row, _, _ in pairs} == set(SCHEMES)
    assert {way for _, _, way in pairs} == set(WAYS)


def gap_of(run: rs.Run) -> float:
    """f(w) - f* of the small problem of the pipes."""
    gap = problem().gap(run.model.unsqueeze(0))
    assert gap is not None
    return float(gap)


# --- late, gone, and back --------------------------------------------------------------------------------------------


def nodes_of(whole: Any, folder: Path | None = None) -> list[Node]:
    """Every user on a node of its own, with a folder of its own where one is given."""
    parts = [whole.take(torch.tensor([i])) for i in range(whole.users)]
    return [Node(part, None if folder is None else folder / str(i)) for i, part in enumerate(parts)]


ALL = rs.Trace([[1, 1, 1]])


def test_late_answers_are_taken_when_they_come_with_the_point_they_belong_to() -> None:
    models: list[Tensor] = []
    grid = FakeGrid(nodes_of(problem()), late)
    engine = engine_over(problem(), rs.ExactProx(), grid=grid, rule=Rule(timeout=1e-9, poll=1e-5))
    run = rs.solve(
        None,
        rs.fedpi(ETA),
        rounds=120,
        engine=engine,
        participation=ALL,
        callback=lambda r: models.append(r.model[0]),
    )
    torch.testing.assert_close(torch.stack(models), torch.stack(by_hand(120)), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(run.model, problem().minimiser, rtol=1e-8, atol=1e-8)
    assert set(run.history.participants) == {1, 2, 3}


def test_a_late_answer_to_an_earlier_eta_moves_its_point() -> None:
    """p is the prox of another point at today's eta: the pair stays a pair, so FedPi is exact all the same."""
    grid = FakeGrid(nodes_of(problem()), lambda t, user: 2 * (user == 2))
    engine = engine_over(problem(), rs.ExactProx(), grid=grid, rule=Rule(timeout=1e-9, poll=1e-5))
    scheme = rs.fedpi(lambda t: 0.3 if t % 10 < 5 else 0.6)
    pairs: list[tuple[Tensor, Tensor, float]] = []
    rs.solve(
        None,
        scheme,
        rounds=60,
        engine=engine,
        participation=ALL,
        callback=lambda r: pairs.append((r.state.u, r.state.p, r.eta)),
    )
    for u, p, eta in pairs[3:]:
        torch.testing.assert_close(problem().prox(u, eta), p, rtol=1e-9, atol=1e-11)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of everything that waits for nodes."""
    clock = Clock()
    for module in (engines, asking):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_slow_user_is_waited_for_once_and_fedpi_is_still_exact(clock: Clock) -> None:
    """Ten times slower than the others: its first answer costs one timeout, and no later one costs any."""
    grid = FakeGrid(nodes_of(problem()), lambda t, user: 9 * (user == 2))
    engine = engine_over(problem(), rs.ExactProx(), grid=grid, rule=Rule(timeout=60.0, poll=1.0))
    run = rs.solve(
        None, rs.fedpi(ETA), rounds=600, engine=engine, participation=ALL, callback=lambda r: clock.sleep(10.0)
    )
    assert clock.now == 60.0 + 600 * 10.0
    assert gap_of(run) < 1e-8
    assert set(run.history.participants) == {2, 3}


def test_users_who_were_all_slow_once_are_waited_for_again(clock: Clock) -> None:
    """Rounds do not stay small for ever after a bad moment."""
    grid = FakeGrid(nodes_of(problem()), lambda t, user: user if t < 3 else 0)
    engine = engine_over(problem(), rs.ExactProx(), grid=grid, rule=Rule(timeout=5.0, poll=1.0))
    run = rs.solve(
        None, rs.fedpi(ETA), rounds=20, engine=engine, participation=ALL, callback=lambda r: clock.sleep(4.0)
    )
    assert min(run.history.participants[:5]) < 3
    assert run.history.participants[8:].tolist() == [3] * 12


def test_a_round_closes_after_a_share_of_the_answers(clock: Clock) -> None:
    grid = FakeGrid(nodes_of(problem()), lambda t, user: 3 * (user == 2))
    engine = engine_over(problem(), rs.ExactProx(), grid=grid, rule=Rule(close=0.6, timeout=60.0, poll=1.0))
    rs.solve(None, rs.fedpi(ETA), rounds=20, engine=engine, participation=ALL)
    assert clock.now == 0.0


def test_rules() -> None:
    rule = Rule(close=0.5, timeout=10.0, min_users=2)
    #                  expected, done, taken, needed, outstanding, seconds
    assert not rule.closed(4, 1, 1, 2, 3, 99.0)  # too few, however long it takes
    assert rule.closed(4, 2, 2, 2, 2, 0.0)
    assert not rule.closed(4, 1, 2, 2, 3, 9.9)
    assert rule.closed(4, 1, 2, 2, 3, 10.0)
    assert not rule.closed(4, 2, 1, 2, 2, 10.0)  # one of two replies was refused
    assert not rule.closed(0, 0, 0, 0, 2, 9.0)  # only users known to be late were asked
    assert rule.closed(0, 0, 1, 1, 1, 0.0)
    for wrong in ({"close": 0.0}, {"close": 1.5}, {"timeout": 0.0}, {"min_users": 0}, {"patience": -1.0}):
        with pytest.raises(InputError):
            Rule(**wrong)


def test_a_node_that_is_gone_holds_and_comes_back_as_the_same_user() -> None:
    grid, events = FakeGrid(nodes_of(problem())), []
    engine = engine_over(
        problem(), rs.ExactProx(), grid=grid, rule=PROMPT, note=lambda kind, **about: events.append((kind, about))
    )
    states = []

    def pull_the_plug(happened: rs.Round) -> None:
        states.append(happened.state)
        if happened.number in (5, 30):
            grid.offline ^= {1}

    run = rs.solve(None, rs.fedpi(ETA), rounds=200, engine=engine, participation=ALL, callback=pull_the_plug)
    assert run.history.participants.tolist() == [3] * 5 + [2] * 25 + [3] * 170
    assert torch.equal(states[29].u[1], states[4].u[1])
    assert torch.equal(states[29].p[1], states[4].p[1])
    assert not torch.equal(states[29].u[0], states[4].u[0])
    assert events == [("gone", {"user": "site-01"}), ("back", {"user": "site-01"})]
    assert gap_of(run) < 1e-8


def test_a_node_that_was_started_again_is_asked_anew() -> None:
    """Whatever question it was at is lost, and Flower does not say so."""
    grid, events = FakeGrid(nodes_of(problem())), []
    rule = Rule(timeout=0.01, poll=1e-4)
    engine = engine_over(
        problem(), rs.ExactProx(), grid=grid, rule=rule, note=lambda kind, **about: events.append((kind, about["user"]))
    )

    def crash(happened: rs.Round) -> None:
        if happened.number == 4:
            grid.lost = {1}
        if happened.number == 8:
            grid.lost, grid.starts[1] = set(), 1

    run = rs.solve(None, rs.fedpi(ETA), rounds=12, engine=engine, participation=ALL, callback=crash)
    assert run.history.participants.tolist() == [3] * 4 + [2] * 4 + [3] * 4
    assert events == [("late", "site-01"), ("restarted", "site-01")]


def test_nobody_with_another_key_is_asked() -> None:
    """Whoever registers with the server without being named here is no user."""
    grid = FakeGrid([*nodes_of(problem()), None])
    grid.keys[3] = b"a stranger's"
    facts = gather(Post(grid, KEYS), "run", 3)
    assert facts.names == ("site-00", "site-01", "site-02")


@pytest.mark.usefixtures("clock")
def test_too_few_users_stop_the_run_with_a_sentence() -> None:
    grid = FakeGrid(nodes_of(problem()))
    engine = engine_over(problem(), rs.ExactProx(), grid=grid, rule=Rule(min_users=2, patience=30.0, poll=1.0))
    grid.offline = {0, 1}
    with pytest.raises(BadAnswer, match=r"in round 1 only 1 of the 2 users that are needed answered within 30 s"):
        rs.solve(None, rs.fedpi(ETA), rounds=3, engine=engine, participation=ALL)
    grid.offline = {0, 1, 2}
    with pytest.raises(InputError, match=r"3 users are needed, but within 0.1 s nobody came"):
        gather(Post(grid, KEYS), "run", 3, patience=0.1)


# --- what nodes remember ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [0, 1, 2], ids=["same_round", "one_round_back", "two_rounds_back"])
def test_server_and_nodes_start_again_and_nothing_changes(tmp_path: Path, back: int) -> None:
    """Newton's memory is on the nodes' disks. The server may know an earlier answer than a node's last one."""
    whole, scheme = built("logistic"), rs.fedpi(rs.schedules.halving(0.4, period=5))
    unbroken = rs.solve(whole, scheme, rounds=12, seed=7)
    states = []
    begun = engine_over(whole, rs.NewtonProx(), steady=False, grid=FakeGrid(nodes_of(whole, tmp_path)))
    rs.solve(None, scheme, rounds=7, seed=7, engine=begun, callback=lambda r: states.append(r.state))
    state = checkpoint.unpack(*checkpoint.pack(states[-1 - back]))
    events: list[str] = []
    again = engine_over(
        whole,
        rs.NewtonProx(),
        steady=False,
        grid=FakeGrid(nodes_of(whole, tmp_path)),
        note=lambda kind, **about: events.append(kind),
    )
    rest = rs.solve(None, scheme, rounds=12 - state.round, seed=7, engine=again, start=state)
    torch.testing.assert_close(rest.state.u, unbroken.state.u, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(rest.state.error, unbroken.state.error, rtol=1e-3, atol=1e-14)
    assert not events


def test_a_node_that_lost_its_disk_begins_anew_and_says_so(tmp_path: Path) -> None:
    whole = built("logistic")
    begun = engine_over(whole, rs.NewtonProx(), grid=FakeGrid(nodes_of(whole, tmp_path)))
    half = rs.solve(None, rs.fedpi(0.1), rounds=3, engine=begun)
    events: list[tuple[str, Any]] = []
    other = engine_over(
        whole,
        rs.NewtonProx(),
        grid=FakeGrid(nodes_of(whole, tmp_path / "new")),
        note=lambda kind, **about: events.append((kind, about["user"])),
    )
    rest = rs.solve(None, rs.fedpi(0.1), rounds=3, engine=other, start=half.state)
    assert events == [("forgot", f"site-{i:02d}") for i in range(5)]
    expected = rs.solve(whole, rs.fedpi(0.1), rounds=6)
    torch.testing.assert_close(rest.model, expected.model, rtol=1e-9, atol=1e-9)


def test_only_a_few_memories_are_retained(tmp_path: Path) -> None:
    whole = built("logistic")
    engine = engine_over(whole, rs.NewtonProx(), grid=FakeGrid(nodes_of(whole, tmp_path)))
    rs.solve(None, rs.fedpi(0.1), rounds=9, engine=engine)
    left = sorted(path.stem for path in (tmp_path / "0" / "a-run").glob("*.safetensors"))
    assert left == ["00000005", "00000006", "00000007", "00000008"]


# --- facts, weights, metrics -----------------------------------------------------------------------------------------


def test_weights_have_the_names_that_problems_have_or_are_given() -> None:
    whole = built("logistic")  # 8, 9, 20, 12 and 8 rows
    post = Post(FakeGrid(nodes_of(whole)), KEYS)
    rows = torch.tensor([8, 9, 20, 12, 8], dtype=torch.float64)
    torch.testing.assert_close(gather(post, "r", 5, "users").weights, (1 / rows) / (1 / rows).sum())
    torch.testing.assert_close(gather(post, "r", 5, "rows").weights, torch.full((5,), 0.2, dtype=torch.float64))
    given = {f"site-{i:02d}": float(i) for i in range(5)}
    torch.testing.assert_close(gather(post, "r", 5, given).weights, torch.arange(5, dtype=torch.float64) / 10)
    for wrong in ("samples", {"site-00": 1.0}, dict.fromkeys(given, -1.0)):
        with pytest.raises(InputError, match="weights"):
            gather(post, "r", 5, wrong)


def test_nodes_that_do_not_fit_together_are_named() -> None:
    parts = nodes_of(problem())
    parts[2] = Node(rs.LeastSquares(np.eye(3)[None], np.ones((1, 3))))
    with pytest.raises(InputError, match=r"dim is 3 on node site-02, but 2 on node site-00"):
        gather(Post(FakeGrid(parts), KEYS), "run", 3)
    with pytest.raises(InputError, match="a node is one user, but its problem has 3 users"):
        Node(problem())


def test_metrics_come_from_nodes_as_numbers() -> None:
    whole = problem()

    def metrics(i: int) -> Any:
        return lambda w: {"test_error": float(w.sum()) + i}

    parts = [Node(whole.take(torch.tensor([i])), metrics=metrics(i)) for i in range(3)]
    engine = engine_over(whole, rs.ExactProx(), grid=FakeGrid(parts))
    run = rs.solve(None, rs.fedpi(ETA), rounds=4, engine=engine)
    mean = float(whole.weights @ torch.arange(3, dtype=torch.float64))
    assert run.history["test_error"].iloc[-1] == pytest.approx(float(run.model.sum()) + mean)


def test_nodes_report_figures_of_the_average_where_it_is_handed_back() -> None:
    whole = problem()
    parts = [Node(whole.take(torch.tensor([i])), metrics=lambda w: {"test_error": float(w.sum())}) for i in range(3)]
    engine = engine_over(whole, rs.ExactProx(), grid=FakeGrid(parts))
    run = rs.solve(None, rs.fedpi(ETA), rounds=6, engine=engine, average="ergodic", start=[5.0, 5.0])
    last = run.history.iloc[-1]
    assert last.test_error == pytest.approx(float(run.model.sum()), rel=1e-12)
    assert last.test_error != pytest.approx(float(run.state.w.sum()), rel=1e-3)
    assert "average_test_error" not in run.history
    with pytest.raises(InputError, match="measure their own held-out data in every recorded round"):
        rs.solve(None, rs.fedpi(ETA), rounds=2, engine=engine, validate_every=2)


def test_rows_have_the_bytes_of_all_rounds_since_the_row_before() -> None:
    """Also of rounds that were looked at by rs.Stop and have no row."""
    some, each = (
        rs.solve(
            None, rs.fedpi(ETA), rounds=8, every=every, engine=engine_over(problem(), rs.ExactProx()),
            stop=rs.Stop(residual=0.0),
        ).history
        for every in (3, 1)
    )  # fmt: skip
    assert some["round"].tolist() == [3, 6, 8]
    for name in ("bytes_up", "bytes_down"):
        rounds = each[name].tolist()
        assert some[name].tolist() == [sum(rounds[:3]), sum(rounds[3:6]), sum(rounds[6:])]


@pytest.mark.parametrize(("scheme", "vectors"), [(rs.fedavg(ETA), 1), (rs.fedpi(ETA), 2)])
def test_a_model_to_evaluate_that_is_u_itself_is_sent_once(scheme: rs.Scheme, vectors: int) -> None:
    """FedAvg's next u is its model; FedPi's is not."""
    grid = FakeGrid(nodes_of(problem()))
    engine = engine_over(problem(), local_operator(scheme, problem()), grid=grid, ride=True)
    sent: list[int] = []
    reported: list[list[float] | None] = []
    answer = Node.handle

    def watched(self: Node, packet: Any) -> Any:
        told = answer(self, packet)
        sent.append(sum(array.shape[0] for array in packet.arrays.values()))
        reported.append(told.header["values"])
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "handle", watched)
        rs.solve(None, scheme, rounds=4, engine=engine, callback=lambda r: engine.measure(r.state.w) and None)
    assert sent[-3:] == [vectors] * 3
    assert all(values is not None and len(values) == 1 for values in reported[-3:])


def test_code_does_not_cross() -> None:
    whole = problem()
    with pytest.raises(InputError, match=r"local.optimiser is .* is code"):
        engine_over(whole, rs.GradientProx(3, optimiser=torch.optim.Adam))
    with pytest.raises(InputError, match="one of ExactProx"):
        engine_over(whole, object())


@pytest.mark.parametrize("scheme", [rs.fedpi(0.5, local=rs.GradientProx(3, 0.05, batch=4)), rs.fedavg(0.05, steps=3)])
def test_networks_take_the_same_way(scheme: rs.Scheme, tmp_path: Path) -> None:
    """Batch norm's buffers and personal models stay with the nodes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    data = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (12, 8, 16)]
    whole = rs.Neural(model, data)
    expected = rs.solve(whole, scheme, rounds=3, seed=2)
    engine = engine_over(whole, scheme.local or rs.GradientSteps(3), grid=FakeGrid(nodes_of(whole, tmp_path)))
    found = rs.solve(None, scheme, rounds=3, seed=2, engine=engine)
    torch.testing.assert_close(found.model, expected.model, rtol=1e-4, atol=1e-5)
    assert not any("running" in name for name in found.state.memory)
    from resolvent.engines.flower.memory import latest

    run, t, tensors = latest(tmp_path / "1")
    assert (run, t) == ("a-run", 2)
    assert any("running_mean" in name for name in tensors)
    torch.testing.assert_close(tensors["personal"][0], expected.personal[1], rtol=1e-4, atol=1e-5)


def test_networks_of_several_inputs_that_compute_their_loss_take_the_same_way() -> None:
    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.last = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 3)

        def forward(self, ids: torch.Tensor, scale: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.last(self.embed(ids) * scale[:, None, None])
            return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    torch.manual_seed(0)
    data = [
        {"ids": torch.randint(0, 7, (n, 5)), "scale": torch.rand(n), "labels": torch.randint(0, 3, (n, 5))}
        for n in (12, 8, 16)
    ]
    whole, scheme = rs.Neural(Tagger(), data), rs.fedpi(0.5, local=rs.GradientProx(3, 0.05, batch=4))
    expected = rs.solve(whole, scheme, rounds=3, seed=2)
    engine = engine_over(whole, scheme.local, grid=FakeGrid(nodes_of(whole)))
    found = rs.solve(None, scheme, rounds=3, seed=2, engine=engine)
    torch.testing.assert_close(found.model, expected.model, rtol=1e-4, atol=1e-5)


def adapter(frozen: int = 0) -> torch.nn.Module:
    """A frozen layer, which a seed draws, with an adapter B A beside it."""

    class Adapted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(frozen)
            self.base = torch.nn.Linear(4, 3).requires_grad_(False)
            torch.manual_seed(7)
            self.lora_A, self.lora_B = torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 3, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.base(x) + self.lora_B(self.lora_A(x))
            return out

    return Adapted()


def test_adapters_take_the_same_way_and_their_products_are_averaged() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (12, 8, 16)]
    whole, scheme = rs.Neural(adapter(), data, lora="b"), rs.fedavg(0.5, local=rs.GradientSteps(2, batch=4))
    expected = rs.solve(whole, scheme, rounds=3, seed=2)
    nodes = [Node(rs.Neural(adapter(), [own], lora="b")) for own in data]
    facts = gather(Post(FakeGrid(nodes), KEYS), "run", 3, weights="users")
    assert facts.dim == 6  # B alone
    engine = FlowerEngine(Post(FakeGrid(nodes), KEYS), facts, scheme.local, "run", rule=PROMPT)
    found = rs.solve(None, scheme, rounds=3, seed=2, engine=engine)
    torch.testing.assert_close(found.model, expected.model, rtol=1e-4, atol=1e-5)


def test_adapters_of_different_models_are_not_averaged() -> None:
    data = [(torch.randn(5, 4), torch.randint(0, 3, (5,))) for _ in range(2)]
    nodes = [Node(rs.Neural(adapter(frozen=seed), [own], lora="b")) for seed, own in enumerate(data)]
    with pytest.raises(InputError, match=r"what node site-01 does not train is other numbers than on node site-00"):
        gather(Post(FakeGrid(nodes), KEYS), "run", 2)


def test_logistic_regression_equals_scikit_learn_on_the_pooled_rows() -> None:
    """To six digits: f_i is a sum over the rows of user i, so equal weights add up to the sum over all rows."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(5)
    sizes, d, reg = (40, 70, 25), 6, 0.05
    X = [rng.standard_normal((n, d)) + 0.5 * k for k, n in enumerate(sizes)]
    y = [np.where(x @ np.arange(d) + 2 * rng.standard_normal(len(x)) > 1, 1.0, -1.0) for x in X]
    parts = [Node(rs.Logistic([a], [b], reg=reg)) for a, b in zip(X, y, strict=True)]
    post = Post(FakeGrid(parts), KEYS)
    engine = FlowerEngine(post, gather(post, "run", 3), rs.NewtonProx(), "run", rule=PROMPT)
    run = rs.solve(None, rs.fedpi(0.3), rounds=200, engine=engine)
    sklearn = linear_model.LogisticRegression(C=1 / (3 * reg), fit_intercept=False, tol=1e-12, max_iter=10_000)
    fitted = sklearn.fit(np.concatenate(X), np.concatenate(y))
    np.testing.assert_allclose(run.model, fitted.coef_[0], rtol=1e-6)


# --- the metric ------------------------------------------------------------------------------------------------------


def test_the_metric_is_sent_once_and_again_to_a_node_that_has_lost_it() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((3, 20, 4)) * [1, 3, 10, 30]
    whole = rs.Logistic(A, np.where(rng.random((3, 20)) < 0.5, 1.0, -1.0), reg=0.1)
    grid = FakeGrid(nodes_of(whole))
    seen: list[tuple[int, int, bool]] = []

    def watch(node: Node, user: int) -> None:
        own = node._local

        def local(question: Any) -> Any:
            seen.append((question.t, user, question.vectors is not None))
            return own(question)

        node._local = local  # type: ignore[method-assign]

    for user, node in enumerate(grid.nodes):
        watch(node, user)

    def lose(happened: rs.Round) -> None:
        if happened.number == 6:
            grid.nodes[1] = nodes_of(whole)[1]
            watch(grid.nodes[1], 1)

    run = rs.solve(None, rs.fedpi("auto"), 30, engine=engine_over(whole, rs.NewtonProx(), grid=grid), callback=lose,
                   progress=False)  # fmt: skip
    assert run.history.stationarity.iloc[-1] < 1e-6 * run.history.stationarity.iloc[0]
    chosen = sorted({since - 1 for since in run.history.metric})
    assert [(t, user) for t, user, sent in seen if sent and t < 6] == [(t, i) for t in chosen for i in range(3)]
    lost = [sent for t, user, sent in seen if t >= 6 and user == 1]
    assert lost[:2] == [False, True]  # it said that it does not know the metric, and was asked again
    assert not any(lost[2:])


def test_least_squares_has_one_hessian_and_is_asked_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    A = rng.standard_normal((3, 20, 4)) * [1, 3, 10, 30]
    whole = rs.LeastSquares(A, rng.standard_normal((3, 20)))
    engine = engine_over(whole, rs.ExactProx())
    looked, own = list[Any](), engine.curvature
    monkeypatch.setattr(engine, "curvature", lambda w: looked.append(w) or own(w))
    run = rs.solve(None, rs.fedpi("auto"), 9, engine=engine, progress=False)
    here = rs.solve(whole, rs.fedpi("auto"), 9, progress=False)
    assert len(looked) == 1
    assert run.explanation.metric == here.explanation.metric
    torch.testing.assert_close(run.state.u, here.state.u, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("eta", [0.01, "auto"])
def test_a_matrix_of_one_s_own_crosses_to_nodes(eta: Any) -> None:
    rng = np.random.default_rng(2)
    A = rng.standard_normal((3, 20, 4))
    whole = rs.Logistic(A, np.where(rng.random((3, 20)) < 0.5, 1.0, -1.0), reg=0.1)
    metric = np.diag([1.0, 2.0, 3.0, 4.0]) + 0.5
    run = rs.solve(None, rs.fedpi(eta), 6, engine=engine_over(whole, rs.NewtonProx()), metric=metric, progress=False)
    here = rs.solve(whole, rs.fedpi(eta), 6, metric=metric, progress=False)
    torch.testing.assert_close(run.state.u, here.state.u, rtol=1e-7, atol=1e-9)


def test_a_server_s_metric_is_checked() -> None:
    u, eye = torch.zeros(1, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    for vectors, values in [
        (eye, -ones),
        (eye, 2 * ones),
        (2 * eye, ones),
        (eye[:1], ones),
        (eye, None),
        (eye, ones / 0),
    ]:
        question = Question("local", "a-run", u=u, metric=0, vectors=vectors, values=values)
        with pytest.raises(Malformed, match="the metric is not"):
            Question.of(question.packet())
    assert Question.of(Question("local", "a-run", u=u, metric=0, vectors=eye, values=ones).packet()).metric == 0


def test_a_metric_is_refused_where_users_are_not_asked_for_hessians() -> None:
    rng = np.random.default_rng(0)
    whole = rs.LeastSquares(rng.standard_normal((3, 20, 4)), rng.standard_normal((3, 20)))
    engine = engine_over(whole, rs.ExactProx(), curvature=False)
    with pytest.raises(InputError, match="users are not asked for Hessians: set `curvature = true`"):
        rs.solve(None, rs.fedpi("auto"), 3, engine=engine, metric="auto", progress=False)
    run = rs.solve(None, rs.fedpi("auto"), 3, engine=engine, progress=False)
    assert run.explanation.metric.startswith("the identity, since users are not asked for Hessians")
