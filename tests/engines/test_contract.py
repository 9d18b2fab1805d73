"""The contract of engines. Every engine in the table must pass all of it; `debug` has a few promises of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from engines.cases import CASES, PARTICIPATIONS, PROBLEMS, SCHEMES, built
from engines.contract import (
    ENGINES,
    ROUNDS,
    Trajectory,
    assert_same_trajectory,
    check,
    opened,
    opened_for,
    trajectory,
)
from resolvent.engines.in_process import InProcess
from resolvent.errors import BadAnswer
from resolvent.iteration import checkpoint
from resolvent.iteration.engine import Answers, Ask, Engine
from resolvent.iteration.facts import Memory
from resolvent.iteration.table import TABLE

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

every_engine = pytest.mark.parametrize("name", ENGINES)
problems: dict[str, Callable[[], Any]] = {name: partial(built, name) for name in PROBLEMS}
problems["custom"] = cache(lambda: rs.Custom(5, 2, prox=lambda U, eta: U / (1 + eta), weights=[1, 2, 3, 1, 0.5]))

SUBSETS = {"everyone": None, "some": [1, 4], "one": [2], "in_another_order": [4, 0, 3]}
subsets = pytest.mark.parametrize("who", SUBSETS.values(), ids=SUBSETS.keys())


def indices(who: list[int] | None) -> Tensor | None:
    return None if who is None else torch.tensor(who)


def points(problem: Any, rows: int | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows or problem.users, problem.dim, generator=generator, dtype=torch.float64)


def steps(problem: Any, u: Tensor, eta: float, k: int) -> Tensor:
    for _ in range(k):
        u = u - eta * problem.grad(u)
    return u


OPERATORS: dict[str, tuple[Any, Callable[[Any, Tensor, float], Tensor]]] = {
    "exact": (rs.ExactProx(), lambda problem, u, eta: problem.prox(u, eta)),
    "newton": (rs.NewtonProx(), lambda problem, u, eta: problem.prox(u, eta)),
    "one_step": (rs.GradientSteps(1), lambda problem, u, eta: steps(problem, u, eta, 1)),
    "four_steps": (rs.GradientSteps(4), lambda problem, u, eta: steps(problem, u, eta, 4)),
}
ANSWERS = [
    pytest.param(problem, operator, id=f"{problem}-{operator}")
    for problem in PROBLEMS
    for operator in OPERATORS
    if not (problem == "absolute_deviations" and operator == "newton")
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Every engine in turn, for least squares with an exact prox."""
    with opened(request.param, problems["least_squares"](), rs.ExactProx()) as engine:
        yield engine


# --- what an engine knows --------------------------------------------------------------------------------------------


def test_the_table_holds_every_engine_that_has_a_name() -> None:
    from resolvent import engines

    assert set(engines.ENGINES) <= set(ENGINES)
    assert set(engines.JOINED) == {"all_reduce"}  # its ranks are processes: tests/engines/test_all_reduce.py


@every_engine
@pytest.mark.parametrize(
    ("operator", "certifies"),
    [
        (rs.ExactProx(), "p"),
        (rs.NewtonProx(), "p"),
        (rs.GradientSteps(1), "u"),
        (rs.GradientSteps(2), None),
        (rs.GradientSteps(1, batch=2), None),
        (rs.GradientProx(3), None),
    ],
    ids=str,
)
def test_size_kind_and_certificate(name: str, operator: Any, certifies: str | None) -> None:
    problem = problems["least_squares"]()
    with opened(name, problem, operator) as engine:
        facts = engine.facts
        assert (facts.users, facts.here, facts.dim) == (5, 5, 3)
        assert facts.dtype == torch.float64
        assert facts.device == problem.weights.device
        assert torch.equal(facts.weights, problem.weights)
        assert facts.operator == operator
        assert facts.operator.certifies == certifies


# --- local -----------------------------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize(("problem", "operator"), ANSWERS)
@subsets
def test_local_answers_those_asked_in_their_order(
    name: str, problem: str, operator: str, who: list[int] | None
) -> None:
    users, (described, formula) = problems[problem](), OPERATORS[operator]
    u = points(users)
    expected, asked = formula(users, u, 0.1), slice(None) if who is None else who
    with opened(name, users, described) as engine:
        p = engine.local(Ask(0, 0.1, indices(who)), u[asked], {}).p
    assert p.shape == u[asked].shape
    torch.testing.assert_close(p, expected[asked], rtol=1e-9, atol=1e-10)


@every_engine
@pytest.mark.parametrize(("problem", "operator"), ANSWERS)
@subsets
def test_local_mean_is_the_mean_and_the_spread_of_local(
    name: str, problem: str, operator: str, who: list[int] | None
) -> None:
    users, (described, formula) = problems[problem](), OPERATORS[operator]
    u, asked = points(users, rows=1), slice(None) if who is None else who
    p = formula(users, u.expand(users.users, -1), 0.1)[asked]
    lam = users.weights[asked] / users.weights[asked].sum()
    mean = (lam.unsqueeze(1) * p).sum(0, keepdim=True)
    with opened(name, users, described) as engine:
        found, spread, *_ = engine.local_mean(Ask(0, 0.1, indices(who)), u, {})
        rows = engine.local(Ask(0, 0.1, indices(who)), u, {}).p  # one row, which all who are asked share
        torch.testing.assert_close(found, mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(rows, p, rtol=1e-9, atol=1e-10)
        assert spread(u).shape == (1,)
        assert float(spread(u)) == pytest.approx(float(lam @ (p - mean).square().sum(1)), rel=1e-8, abs=1e-14)


@every_engine
@pytest.mark.parametrize("operator", OPERATORS)
def test_spreads_that_are_equal_may_be_asked_together(name: str, operator: str) -> None:
    users, u = problems["least_squares"](), points(problems["least_squares"](), rows=3)
    with opened(name, users, OPERATORS[operator][0]) as engine:
        spreads = [engine.local_mean(Ask(t, 0.1), row, {})[1] for t, row in enumerate(u.split(1))]
        alone = torch.cat([spread(row) for spread, row in zip(spreads, u.split(1), strict=True)])
        for k, spread in enumerate(spreads):
            alike = [j for j, other in enumerate(spreads) if other == spread]
            assert k in alike
            torch.testing.assert_close(spread(u[alike]), alone[alike], rtol=1e-9, atol=1e-13)


@every_engine
def test_eta_is_that_of_the_question(name: str) -> None:
    """Whatever an engine keeps for one eta must not answer for another, nor when the first comes back."""
    users, u = problems["least_squares"](), points(problems["least_squares"]())
    with opened(name, users, rs.ExactProx()) as engine:
        for t, eta in enumerate((0.1, 0.1, 3.0, 0.1)):
            torch.testing.assert_close(engine.local(Ask(t, eta), u, {}).p, users.prox(u, eta), rtol=1e-9, atol=1e-10)


@every_engine
@pytest.mark.parametrize("problem", ["least_squares", "logistic"])
def test_batches_depend_on_seed_round_and_user_alone(name: str, problem: str) -> None:
    users, operator = problems[problem](), rs.GradientSteps(2, batch=3)
    u = points(users)
    with opened(name, users, operator) as engine:
        everybody = engine.local(Ask(4, 0.02, None, 9), u, {}).p
        alone = engine.local(Ask(4, 0.02, torch.tensor([3]), 9), u[3:4], {}).p
        torch.testing.assert_close(alone, everybody[3:4], rtol=1e-12, atol=1e-13)
        for t, seed in ((5, 9), (4, 10)):
            other = engine.local(Ask(t, 0.02, None, seed), u, {}).p
            assert not torch.allclose(other, everybody)
    with opened("in_process", users, operator) as reference:
        expected = reference.local(Ask(4, 0.02, None, 9), u, {}).p
    torch.testing.assert_close(everybody, expected, rtol=1e-12, atol=1e-13)


@every_engine
def test_memory_has_a_row_a_user_and_is_not_written_into(name: str) -> None:
    users = problems["logistic"]()
    u = points(users)
    with opened(name, users, rs.NewtonProx()) as engine:
        first = engine.local(Ask(0, 0.1), u, {}).memory
        assert first
        assert all(len(tensor) == users.users for tensor in first.values())
        before = {key: tensor.clone() for key, tensor in first.items()}
        kept, who = u.clone(), torch.tensor([1, 4])
        second = engine.local(Ask(1, 0.1, who), u[who] + 1, first).memory
        assert torch.equal(u, kept)
        assert second.keys() == first.keys()
        absent = torch.tensor([0, 2, 3])
        for key, tensor in first.items():
            assert torch.equal(tensor, before[key]), f"{key} of an earlier State was written into"
            assert torch.equal(second[key][absent], before[key][absent]), f"{key} of users who were not asked changed"
        assert not torch.equal(second["x"][who], before["x"][who])


@every_engine
def test_users_asked_for_the_first_time_have_no_memory_yet(name: str) -> None:
    users = problems["logistic"]()
    u = points(users)
    with opened(name, users, rs.NewtonProx()) as engine:
        memory = engine.local(Ask(0, 0.1, torch.tensor([0, 3])), u[[0, 3]], {}).memory
        p = engine.local(Ask(1, 0.1), u, memory).p
    torch.testing.assert_close(p, users.prox(u, 0.1), rtol=1e-9, atol=1e-10)


# --- sums over users -------------------------------------------------------------------------------------------------


@subsets
def test_mean_is_weighted(engine: Engine, who: list[int] | None) -> None:
    lam, z = problems["least_squares"]().weights, points(problems["least_squares"]())
    asked = range(5) if who is None else who
    total = sum(float(lam[i]) for i in asked)
    expected = sum(float(lam[i]) / total * z[i] for i in asked)
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(engine.mean(z, indices(who)), expected.unsqueeze(0), rtol=1e-12, atol=1e-14)


def test_mean_of_one_row_is_that_row(engine: Engine) -> None:
    z = points(problems["least_squares"](), rows=1)
    assert torch.equal(engine.mean(z), z)


@every_engine
def test_users_without_weight_meet_in_their_plain_mean(name: str) -> None:
    users = rs.Quadratics([1.0, 2.0, 3.0], [[0.0, 0.0]] * 3, weights=[1, 0, 0])
    z = points(users)
    with opened(name, users, rs.ExactProx()) as engine:
        torch.testing.assert_close(engine.mean(z), z[:1])
        torch.testing.assert_close(engine.mean(z, torch.tensor([1, 2])), z[1:].mean(0, keepdim=True))


def test_gram_is_weighted_by_lambda(engine: Engine) -> None:
    lam = problems["least_squares"]().weights
    rows = torch.stack([points(problems["least_squares"](), seed=k) for k in range(3)])
    expected = [[sum(float(lam[i]) * float(a[i] @ b[i]) for i in range(5)) for b in rows] for a in rows]
    found = engine.gram(rows)
    assert found.shape == (3, 3)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(engine.gram(rows[:1]), found[:1, :1], rtol=1e-12, atol=1e-14)


def test_gram_of_a_row_that_all_share_is_not_weighted(engine: Engine) -> None:
    rows = points(problems["least_squares"](), rows=4).unsqueeze(1)
    torch.testing.assert_close(engine.gram(rows), rows[:, 0] @ rows[:, 0].T, rtol=1e-12, atol=1e-14)


@every_engine
@pytest.mark.parametrize("problem", PROBLEMS)
def test_measure_gives_value_and_gap_of_each_model(name: str, problem: str) -> None:
    users = problems[problem]()
    w = points(users, rows=4)
    value = torch.stack([users.weights @ users.value(row) for row in w])
    with opened(name, users, rs.ExactProx()) as engine:
        found = engine.measure(w)
    assert found["value"].shape == found["gap"].shape == (4,)
    torch.testing.assert_close(found["value"], value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found["gap"], value - users.fstar, rtol=1e-8, atol=1e-10)


@every_engine
def test_measure_says_nan_where_nothing_is_known(name: str) -> None:
    with opened(name, problems["custom"](), rs.ExactProx()) as engine:
        found = engine.measure(torch.zeros(2, 2, dtype=torch.float64))
    assert found["value"].shape == found["gap"].shape == (2,)
    assert found["value"].isnan().all()
    assert found["gap"].isnan().all()


# --- whole runs ------------------------------------------------------------------------------------------------------


@cache
def reference(problem: str, scheme: str, participation: str) -> Trajectory:
    return trajectory(problems[problem](), SCHEMES[scheme], participation=PARTICIPATIONS[participation])


@every_engine
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("participation", PARTICIPATIONS)
def test_every_scheme_takes_the_same_way(name: str, problem: str, scheme: str, participation: str) -> None:
    users, described = problems[problem](), SCHEMES[scheme]
    with opened_for(name, users, described) as engine:
        found = trajectory(users, described, engine=engine, participation=PARTICIPATIONS[participation])
    assert_same_trajectory(found, reference(problem, scheme, participation))


@every_engine
@pytest.mark.parametrize("case", CASES)
def test_every_option_takes_the_same_way(name: str, case: str) -> None:
    check(ENGINES[name], case)


@every_engine
@pytest.mark.parametrize("participation", [None, rs.Bernoulli(0.6)], ids=["everyone", "sampled"])
@pytest.mark.parametrize("scheme", [rs.fedpi(0.1), rs.fedprox(0.1), rs.fedpi("auto")], ids=str)
def test_a_fresh_engine_goes_on_from_a_state(name: str, scheme: rs.Scheme, participation: Any) -> None:
    """Nothing that a round needs from the past may live in the engine alone: here it is Newton's memory."""
    users, more = problems["logistic"](), {"participation": participation}
    whole = trajectory(users, scheme, **more)
    with opened_for(name, users, scheme) as engine:
        half = rs.solve(users, scheme, rounds=6, seed=7, engine=engine, **more)
    state = checkpoint.unpack(*checkpoint.pack(half.state))
    with opened_for(name, users, scheme) as engine:
        rest = trajectory(users, scheme, rounds=ROUNDS - 6, start=state, engine=engine, **more)
    assert_same_trajectory(rest, whole._replace(points=whole.points[6:], history=whole.history[6:]))


# --- the contract itself ----------------------------------------------------------------------------------------------


def test_the_cases_have_every_row_of_the_table() -> None:
    """Its kin compute the same, or with a local operator of their own, which is no engine's concern."""
    assert {scheme.name for scheme in SCHEMES.values()} == {row.title for row in TABLE.values() if not row.kin}


class Wrong(InProcess):
    """An engine with one mistake, which the contract must see."""

    def __init__(self, mistake: str, *given: Any) -> None:
        super().__init__(*given)
        self.mistake = mistake

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        if self.mistake == "last_round" and ask.t == ROUNDS - 1:
            u = u + 1e-8
        found = super().local(ask._replace(eta=0.1) if self.mistake == "eta" else ask, u, memory)
        return found._replace(at=found.at + 1e-8) if self.mistake == "at" else found

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        rows = z if who is None else z[who]
        return rows.mean(0, keepdim=True) if self.mistake == "weights" else super().mean(z, who, news)

    def gram(self, rows: Tensor) -> Tensor:
        return super().gram(rows) * (1 + 1e-8 * (self.mistake == "gram"))

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        found = super().measure(w)
        return found | {"value": found["value"] + 1e-8} if self.mistake == "value" else found


@pytest.mark.parametrize(
    ("mistake", "case"),
    [
        ("weights", "fedpi-plain"),
        ("weights", "fedprox-trace_hold"),
        ("eta", "halving"),
        ("at", "fedsplit-trace_hold"),
        ("last_round", "fedsplit-stragglers"),
        ("gram", "fedpi-plain"),
        ("value", "fedrp-plain"),
        ("last_round", "fedpi-anderson_on_u"),
    ],
)
def test_an_engine_with_a_mistake_does_not_pass(mistake: str, case: str) -> None:
    with pytest.raises(AssertionError, match=r"round|column"):
        check(partial(Wrong, mistake), case)
    check(partial(Wrong, "none"), case)


# --- the debug engine ------------------------------------------------------------------------------------------------


def one_broken_user(kind: str, at_call: int) -> rs.Custom:
    """f_i(w) = |w|^2 / 2 for three users, of whom user 1 goes wrong in a certain round."""
    calls = 0

    def broken(u: Tensor, eta: float) -> Tensor:
        nonlocal calls
        calls += 1
        if calls < at_call:
            return u / (1 + eta)
        answers: dict[str, Callable[[], Tensor]] = {
            "raises": lambda: u / (1 // 0),
            "nan": lambda: u * math.nan,
            "shape": lambda: u[:1],
            "worse": lambda: u + 9,
        }
        return answers[kind]()

    def good(u: Tensor, eta: float) -> Tensor:
        return u / (1 + eta)

    half_square = [lambda w: w @ w / 2] * 3
    return rs.Custom(3, 2, value=half_square, grad=[lambda w: w] * 3, prox=[good, broken, good], check=False)


@pytest.mark.parametrize(
    ("kind", "words"), [("raises", "zero"), ("nan", "NaN"), ("shape", "shape"), ("worse", "prox objective")]
)
@pytest.mark.parametrize("at_round", [1, 3])
@pytest.mark.parametrize("scheme", [rs.fedpi(0.5), rs.fedprox(0.5)], ids=["rows", "one_u"])
def test_debug_names_the_user_and_the_round(kind: str, words: str, at_round: int, scheme: rs.Scheme) -> None:
    with pytest.raises(BadAnswer) as caught:
        rs.solve(one_broken_user(kind, at_round), scheme, rounds=5, engine="debug", start=[1.0, 2.0])
    message = str(caught.value)
    assert f"user 1 in round {at_round}" in message
    assert words in message


def test_debug_names_the_user_among_those_present() -> None:
    """In round 1 only users 0 and 2 are there: user 1's first visit, and first mistake, is in round 2."""
    trace = rs.Trace([[True, False, True], [False, True, True]])
    with pytest.raises(BadAnswer, match="user 1 in round 2"):
        rs.solve(one_broken_user("nan", 1), rs.fedpi(0.5), rounds=5, engine="debug", participation=trace)


def test_debug_keeps_the_cause() -> None:
    with pytest.raises(BadAnswer) as caught:
        rs.solve(one_broken_user("raises", 1), rs.fedpi(0.5), rounds=2, engine="debug")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
