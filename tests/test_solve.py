"""The front door: going on equals never having stopped, runs end when they should, and say truly what they found."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.engines.in_process import InProcess
from resolvent.iteration import checkpoint
from resolvent.iteration.table import named
from resolvent.solving import progress

quietly = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

COLUMNS = ["round", "eta", "value", "gap", "residual", "consensus", "stationarity"]
TRAFFIC = ["participants", "bytes_up", "bytes_down", "seconds"]


@cache
def squares() -> rs.LeastSquares:
    return rs.make_least_squares(users=6, dim=4, rows=20, shift=1.0)


@cache
def logistic() -> rs.Logistic:
    return rs.make_logistic(users=5, dim=3, rows=30)


@cache
def logistic_of(*sizes: int, dim: int) -> rs.Logistic:
    """Users of these sizes."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal(dim)
    A = [rng.standard_normal((n, dim)) for n in sizes]
    b = [np.where(rng.random(len(a)) < 1 / (1 + np.exp(-a @ w)), 1.0, -1.0) for a in A]
    return rs.Logistic(A, b, reg=0.05)


def unequal_logistic() -> rs.Logistic:
    """Users whose sizes fall into several buckets."""
    return logistic_of(20, 21, 40, 45, 5, dim=6)


@cache
def papers_squares() -> rs.LeastSquares:
    return rs.make_least_squares()


@cache
def deviations() -> rs.AbsoluteDeviations:
    rng = np.random.default_rng(1)
    return rs.AbsoluteDeviations(rng.standard_normal((7, 3)), rng.standard_normal(7))


def gap(run: rs.Run) -> float:
    return float(run.history.gap.iloc[-1])


def same_bits(one: Any, other: Any, where: str = "state") -> None:
    """Every tensor and every number of two States, however deep inside; NaN is itself."""
    assert type(one) is type(other), where
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        assert torch.equal(one.isnan(), other.isnan()), where
        assert torch.equal(one[~one.isnan()], other[~other.isnan()]), where
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            same_bits(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same_bits(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, tuple):
        assert len(one) == len(other), where
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            same_bits(a, b, f"{where}[{k}]")
    else:
        assert one == other or (one != one and other != other), where


def same_history(one: pd.DataFrame, other: pd.DataFrame) -> None:
    without = [frame.drop(columns="seconds").reset_index(drop=True) for frame in (one, other)]
    pd.testing.assert_frame_equal(without[0], without[1], check_exact=True)


# --- going on --------------------------------------------------------------------------------------------------------


def case(problem: Callable[[], Any], scheme: rs.Scheme | str, name: str, **more: Any) -> Any:
    return pytest.param(problem, scheme, more, id=name)


SAMPLED = {
    "bernoulli": rs.Bernoulli(0.5),
    "bernoulli_paper": rs.Bernoulli(0.5, absent="paper"),
    "fixed_size": rs.FixedSize(2),
    "fixed_size_paper": rs.FixedSize(2, absent="paper"),
    "trace": rs.Trace([[True, False, True, False, True, False], [False] * 6, [False, True, True, False, False, True]]),
}
RESUMED = [
    *(case(squares, named(name, 0.02), name) for name in rs.TABLE),
    *(case(deviations, named(name, 0.1), f"deviations_{name}") for name in ("fedpi", "fedprox")),
    case(squares, rs.fedavg(0.01, steps=5), "fedavg_5"),
    case(squares, rs.Scheme(1.5, 1.2, lambda t: 1 / (1 + t % 3), 0.02), "mixing_schedule"),
    *(case(squares, rs.fedpi(0.02), f"fedpi_{name}", participation=who) for name, who in SAMPLED.items()),
    *(case(squares, rs.fedprox(0.02), f"fedprox_{name}", participation=who) for name, who in SAMPLED.items()),
    case(squares, rs.fedpi(0.02), "anderson_on_u", anderson=2),
    case(squares, rs.fedpi(0.02), "anderson_on_mean", anderson=rs.Anderson(3, on="mean")),
    case(squares, rs.fedprox(0.02), "anderson_on_one_u", anderson=3),
    case(squares, rs.fedavg(0.01, steps=2), "anderson_on_mean_one_u", anderson=rs.Anderson(3, on="mean")),
    case(deviations, rs.fedpi(1.0), "anderson_with_rejections", anderson=5),
    case(squares, rs.fedpi(0.02), "anderson_sampled", anderson=2, participation=rs.Bernoulli(0.5)),
    case(logistic, rs.fedpi(0.3), "newton"),
    case(logistic, rs.fedprox(0.3), "newton_one_u"),
    case(logistic, rs.fedpi(0.3), "newton_sampled", participation=rs.Bernoulli(0.5)),
    case(logistic, rs.fedprox(0.3), "newton_one_u_sampled", participation=rs.Bernoulli(0.5, absent="paper")),
    case(logistic, rs.fedpi(0.3), "newton_anderson", anderson=2),
    case(unequal_logistic, rs.fedpi(0.1), "newton_unequal"),
    case(unequal_logistic, rs.fedpi(0.1), "newton_unequal_sampled", participation=rs.Bernoulli(0.5)),
    case(unequal_logistic, rs.fedprox(0.3), "newton_unequal_fixed_size", participation=rs.FixedSize(2)),
    case(squares, rs.fedprox(0.02), "ergodic", average="ergodic"),
    case(squares, rs.fedprox(0.02), "suffix", average="suffix"),
    case(squares, "fedpi", "auto"),
    case(logistic, "fedsplit", "auto_newton"),
    case(squares, "fedpi", "auto_anderson", anderson=2),
    case(squares, "fedpi", "auto_sampled", participation=rs.Bernoulli(0.5)),
    case(squares, rs.fedprox(rs.schedules.harmonic(0.1)), "harmonic"),
    case(squares, rs.fedpi(rs.schedules.inverse_sqrt(0.1)), "inverse_sqrt"),
    case(logistic, rs.fedpi(rs.schedules.halving(0.5, period=3)), "halving_newton", anderson=2),
    case(squares, rs.fedavg(0.005, local=rs.GradientSteps(2, batch=6)), "batches"),
    case(squares, rs.fedavg(0.005, local=rs.GradientSteps(2, batch=6, momentum=0.5)), "batches_momentum"),
    case(logistic, rs.fedpi(0.1, local=rs.GradientProx(3, batch=7)), "batches_prox", participation=rs.FixedSize(3)),
]


@quietly
@pytest.mark.parametrize(("problem", "scheme", "more"), RESUMED)
def test_going_on_equals_never_having_stopped(problem: Any, scheme: Any, more: dict[str, Any]) -> None:
    states: list[rs.State] = []
    whole = rs.solve(problem(), scheme, rounds=20, seed=3, callback=lambda r: states.append(r.state), **more)
    for state in (states[0], states[2], states[6], states[11]):
        rest = rs.solve(problem(), scheme, rounds=20 - state.round, seed=3, start=state, **more)
        same_bits(whole.state, rest.state)
        assert torch.equal(whole.model, rest.model)
        assert torch.equal(whole.personal, rest.personal)


@quietly
@pytest.mark.parametrize(("problem", "scheme", "more"), RESUMED)
def test_the_histories_of_the_parts_are_the_history_of_the_whole(
    problem: Any, scheme: Any, more: dict[str, Any]
) -> None:
    whole = rs.solve(problem(), scheme, rounds=20, seed=3, **more)
    state, parts = None, []
    for rounds in (1, 3, 16):
        part = rs.solve(problem(), scheme, rounds=rounds, seed=3, start=state, **more)
        state = part.state
        parts.append(part.history)
    same_history(whole.history, pd.concat(parts))


@quietly
@pytest.mark.parametrize(("problem", "scheme", "more"), RESUMED)
def test_a_checkpoint_is_a_state(problem: Any, scheme: Any, more: dict[str, Any]) -> None:
    """Packed, its numbers as JSON, and unpacked again it loses no bit, and goes on to the same ones."""
    run = rs.solve(problem(), scheme, rounds=7, seed=3, **more)
    tensors, numbers = checkpoint.pack(run.state)
    copies = {name: elsewhere(tensor) for name, tensor in tensors.items()}
    back = checkpoint.unpack(copies, json.loads(json.dumps(numbers)))
    same_bits(run.state, back)
    one, other = (rs.solve(problem(), scheme, rounds=8, seed=3, start=start, **more) for start in (run.state, back))
    same_bits(one.state, other.state)


def elsewhere(tensor: Tensor) -> Tensor:
    """A copy as a file might hold it, at an odd place in memory, on which the bits of some sums depend."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    return room[1:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("engine", ["inprocess", "debug"])
@pytest.mark.parametrize("participation", [None, rs.Bernoulli(0.5)], ids=["everyone", "sampled"])
def test_newton_goes_on_in_the_same_engine_and_in_a_new_one(engine: str, participation: Any) -> None:
    """The engine's kept factorisations are a cache: what they were made of travels in the State."""
    from resolvent import engines

    built = engines.build(engine, logistic(), rs.NewtonProx(), True)
    more: dict[str, Any] = {"participation": participation, "seed": 2}
    whole = rs.solve(logistic(), rs.fedpi(0.3), rounds=20, engine=engine, **more)
    half = rs.solve(logistic(), rs.fedpi(0.3), rounds=8, engine=built, **more)
    for other in (built, engine):
        rest = rs.solve(logistic(), rs.fedpi(0.3), rounds=12, engine=other, start=half.state, **more)
        same_bits(whole.state, rest.state)


SHAPES = {
    "small": lambda: logistic_of(7, 8, 9, 10, dim=3),
    "unequal": unequal_logistic,
    "equal": lambda: logistic_of(30, 30, 30, 30, 30, dim=30),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@quietly
@shapes
@pytest.mark.parametrize("participation", [rs.Bernoulli(0.5), rs.FixedSize(2)], ids=["bernoulli", "fixed_size"])
@pytest.mark.parametrize(
    "scheme",
    [rs.fedpi(2.0), rs.fedpi(rs.schedules.halving(1.0, period=4)), rs.fedpi("auto")],
    ids=["fedpi", "halving", "auto"],
)
def test_newton_goes_on_to_the_same_bits(shape: Callable[[], Any], scheme: rs.Scheme, participation: Any) -> None:
    """During a run a factorisation is renewed for a few users, after a resume they are all made at once."""
    states: list[rs.State] = []
    more: dict[str, Any] = {"participation": participation}
    whole = rs.solve(shape(), scheme, rounds=16, callback=lambda r: states.append(r.state), **more)
    for k in (3, 7, 12):
        same_bits(whole.state, rs.solve(shape(), scheme, rounds=16 - k, start=states[k - 1], **more).state)


@shapes
def test_a_hessian_has_the_same_bits_whoever_is_asked_beside_it(shape: Callable[[], Any]) -> None:
    """What that rests on. Even torch.sigmoid depends on where in a tensor a number stands."""
    users = shape()
    W = torch.from_numpy(np.random.default_rng(1).standard_normal((users.users, users.dim)))
    everybody = users.hessian(W)
    for who in ([0], [1], [2], [0, 2], [1, 2], [2, 1]):
        assert torch.equal(users.take(torch.tensor(who)).hessian(W[who]), everybody[who]), who


def test_going_on_leaves_the_state_alone() -> None:
    half = rs.solve(logistic(), rs.fedpi(0.3), rounds=5, participation=rs.Bernoulli(0.5), anderson=rs.Anderson(0))
    tensors, numbers = checkpoint.pack(half.state)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    rs.solve(logistic(), rs.fedpi(0.3), rounds=5, participation=rs.Bernoulli(0.5), start=half.state)
    same_bits(checkpoint.unpack(before, numbers), half.state)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param({}, {"participation": rs.Bernoulli(0.4)}, id="everyone_then_hold"),
        pytest.param({"participation": rs.FixedSize(1)}, {}, id="hold_then_everyone"),
        pytest.param({"participation": rs.FixedSize(1)}, {"participation": rs.FixedSize(3)}, id="hold_then_hold"),
        pytest.param({"scheme": rs.fedpi(0.3)}, {"scheme": rs.fedpi("auto")}, id="number_then_auto"),
        pytest.param({"scheme": rs.fedpi("auto")}, {"scheme": rs.fedpi(0.05)}, id="auto_then_number"),
        pytest.param({"anderson": 3}, {}, id="anderson_then_plain"),
        pytest.param({}, {"anderson": 3}, id="plain_then_anderson"),
        pytest.param({"anderson": 3}, {"anderson": rs.Anderson(3, on="mean")}, id="on_u_then_on_mean"),
        pytest.param({"anderson": rs.Anderson(3, on="mean")}, {"anderson": 3}, id="on_mean_then_on_u"),
        pytest.param({"scheme": rs.fedprox(0.05)}, {}, id="one_u_then_rows"),
        pytest.param({"scheme": rs.reflect_gradient(0.01)}, {}, id="another_scheme"),
        pytest.param({"scheme": rs.fedpi(0.05, local=rs.NewtonProx())}, {}, id="another_operator"),
    ],
)
@quietly
def test_going_on_with_something_else_still_solves(first: dict[str, Any], then: dict[str, Any]) -> None:
    """A State is a fine start for another configuration too: FedPi gets to the minimiser from anywhere."""
    usual: dict[str, Any] = {"scheme": rs.fedpi(0.05)}
    begun = rs.solve(squares(), rounds=3, **(usual | first))
    run = rs.solve(squares(), rounds=600, start=begun.state, callback=answers_belong_to_u, **(usual | then))
    assert gap(run) < 1e-18
    scheme = (usual | then)["scheme"]
    assert scheme.auto or run.state.eta == scheme.eta_at(0)


def answers_belong_to_u(happened: rs.Round) -> None:
    """Every p_i is user i's answer to the u_i beside it, whoever was present."""
    state = happened.state
    seen = slice(None) if state.seen is None else state.seen
    torch.testing.assert_close(state.p[seen], squares().prox(state.u, state.eta)[seen], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("scheme", [rs.fedpi(0.05), rs.fedsplit(0.05), rs.fedpi("auto")], ids=str)
def test_under_hold_answers_belong_to_u(scheme: rs.Scheme) -> None:
    rs.solve(squares(), scheme, rounds=30, participation=rs.FixedSize(2), callback=answers_belong_to_u)


def test_under_hold_only_those_present_move_and_nobody_at_the_first_visit() -> None:
    states: list[tuple[rs.State, Any]] = []
    who = rs.FixedSize(2)
    rs.solve(
        squares(), rs.fedpi(0.05), rounds=30, participation=who, callback=lambda r: states.append((r.state, r.who))
    )
    seen: set[int] = set(states[0][1].tolist())
    for (before, _), (after, present) in itertools.pairwise(states):
        moved = set((before.u != after.u).any(1).nonzero().flatten().tolist())
        assert moved == set(present.tolist()) & seen
        seen |= set(present.tolist())
    assert seen == set(range(6))


def test_going_on_as_the_paper_samples_is_sampled_as_in_the_paper() -> None:
    """Absent users keep their z from the first round after the change on: it is kept in the State."""
    begun = rs.solve(squares(), rs.fedpi(0.05), rounds=3)
    with pytest.warns(rs.SolvesAnotherProblem), pytest.warns(rs.DoubtfulResult, match="the value rose from"):
        run = rs.solve(
            squares(), rs.fedpi(0.05), rounds=3, participation=rs.Bernoulli(0.4, absent="paper"), start=begun.state
        )
    assert run.state.z is not None


# --- same seed, same bits --------------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        pytest.param(rs.fedpi(0.02), {"participation": rs.Bernoulli(0.5)}, id="bernoulli"),
        pytest.param(rs.fedpi(0.02), {"participation": rs.FixedSize(2)}, id="fixed_size"),
        pytest.param(rs.fedavg(0.005, local=rs.GradientSteps(1, batch=5)), {}, id="batches"),
    ],
)
def test_the_seed_decides(scheme: rs.Scheme, more: dict[str, Any]) -> None:
    one, again, other = (rs.solve(squares(), scheme, rounds=6, seed=seed, **more) for seed in (5, 5, 6))
    same_bits(one.state, again.state)
    same_history(one.history, again.history)
    assert not torch.equal(one.state.w, other.state.w)


def test_without_randomness_the_seed_changes_nothing() -> None:
    one, other = (rs.solve(squares(), rs.fedpi(0.02), rounds=6, seed=seed) for seed in (5, 6))
    same_bits(one.state, other.state)


# --- start, rounds, every, callback ----------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, list], ids=["numpy", "torch", "list"])
def test_a_vector_to_start_from(kind: Callable[[Any], Any]) -> None:
    w = [1.0, -2.0, 3.0, 0.5]
    seen: list[Tensor] = []
    for scheme in (rs.fedprox(0.02), rs.fedpi(0.02)):
        rs.solve(squares(), scheme, rounds=1, start=kind(w), callback=lambda r: seen.append(r.state.u))
    shared, rows = seen
    assert torch.equal(shared, torch.tensor([w], dtype=torch.float64))
    assert torch.equal(rows, torch.tensor([w] * 6, dtype=torch.float64))


@quietly
def test_rows_to_start_from_are_a_row_a_user() -> None:
    u0 = torch.arange(24.0, dtype=torch.float64).reshape(6, 4)
    for scheme in (rs.fedpi(0.02), rs.fedprox(0.02)):  # FedProx too: users do not begin together
        run = rs.solve(squares(), scheme, rounds=1, start=u0)
        assert torch.equal(run.state.u, u0)
        torch.testing.assert_close(run.state.p, squares().prox(u0, 0.02))


def test_where_nothing_is_given_the_start_is_zero() -> None:
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=1)
    assert torch.equal(run.state.u, torch.zeros(6, 4, dtype=torch.float64))


def test_the_start_is_not_written_into() -> None:
    u0 = torch.ones(6, 4, dtype=torch.float64)
    rs.solve(squares(), rs.fedpi(0.02), rounds=3, start=u0)
    assert torch.equal(u0, torch.ones(6, 4, dtype=torch.float64))


def test_rounds_is_how_many_more() -> None:
    first = rs.solve(squares(), rs.fedpi(0.02), rounds=4)
    more = rs.solve(squares(), rs.fedpi(0.02), rounds=3, start=first.state)
    assert (first.state.round, more.state.round) == (4, 7)
    assert first.history["round"].tolist() == [1, 2, 3, 4]
    assert more.history["round"].tolist() == [5, 6, 7]
    assert (first.status, first.reason) == ("finished", "4 rounds")


def test_the_callback_sees_every_round_in_order() -> None:
    seen: list[rs.Round] = []
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=6, every=4, callback=seen.append)
    assert [r.number for r in seen] == [1, 2, 3, 4, 5, 6]
    assert torch.equal(seen[-1].model[0], run.model)
    assert seen[-1].residual == pytest.approx(run.history.residual.iloc[-1], rel=1e-12)
    assert seen[-1].consensus == pytest.approx(run.history.consensus.iloc[-1], rel=1e-12)
    assert seen[-1].stationarity == pytest.approx(run.history.stationarity.iloc[-1], rel=1e-12)


@pytest.mark.parametrize(
    ("every", "rounds", "expected"), [(1, 4, [1, 2, 3, 4]), (3, 9, [3, 6, 9]), (3, 8, [3, 6, 8]), (10, 4, [4])]
)
def test_every_so_many_rounds_a_row_and_the_last(every: int, rounds: int, expected: list[int]) -> None:
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=rounds, every=every)
    assert run.history["round"].tolist() == expected
    dense = rs.solve(squares(), rs.fedpi(0.02), rounds=rounds).history
    some = dense[dense["round"].isin(expected)].copy()
    for name in ("bytes_up", "bytes_down"):  # of all rounds since the row before
        some[name] = np.diff(dense[name].cumsum()[some.index], prepend=0)
    same_history(run.history, some)


def test_many_rows_are_measured_in_blocks_and_none_is_mistaken() -> None:
    models: list[Tensor] = []
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=150, callback=lambda r: models.append(r.model))
    torch.testing.assert_close(torch.tensor(run.history.gap.to_numpy()), squares().gap(torch.cat(models)))


# --- stopping --------------------------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize(
    ("stop", "column"),
    [
        (rs.Stop(gap=1e-8), ["gap"]),
        (rs.Stop(residual=1e-6), ["residual"]),
        (rs.Stop(certificates=1e-4), ["stationarity", "consensus"]),
    ],
    ids=["gap", "residual", "certificates"],
)
def test_stops_in_the_first_round_that_meets_the_limit(stop: rs.Stop, column: list[str], every: int) -> None:
    limit = getattr(stop, "certificates" if len(column) == 2 else column[0])
    whole = rs.solve(squares(), rs.fedpi(0.02), rounds=300)
    met = whole.history[(whole.history[column] <= limit).all(axis=1)]
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=300, stop=stop, every=every)
    assert run.status == "stopped"
    assert run.state.round == met["round"].iloc[0] < 300
    assert f"{limit:g}" in run.reason


@quietly
def test_the_round_that_stops_a_run_is_in_its_history() -> None:
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=300, stop=rs.Stop(gap=1e-8), every=7)
    assert run.history["round"].iloc[-1] == run.state.round
    assert gap(run) <= 1e-8


@quietly
def test_one_certificate_alone_does_not_stop() -> None:
    """FedProx is stationary almost at once, where users disagree: neither certificate is enough."""
    run = rs.solve(squares(), rs.fedprox(0.1), rounds=200, stop=rs.Stop(certificates=1e-6))
    assert run.status == "finished"
    assert run.history.stationarity.iloc[-1] < 1e-10 < 1e-3 < run.history.consensus.iloc[-1]


@quietly
def test_certificates_that_are_unknown_do_not_stop() -> None:
    run = rs.solve(squares(), rs.fedavg(0.01, steps=3), rounds=20, stop=rs.Stop(certificates=1e9))
    assert run.status == "finished"


def test_stops_on_time_and_on_the_first_of_several() -> None:
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=10**6, stop=rs.Stop(gap=0.0, seconds=0.0))
    assert (run.status, run.state.round) == ("stopped", 1)
    assert "seconds" in run.reason
    spent = rs.solve(squares(), rs.fedpi(0.02), rounds=10**6, every=100, stop=rs.Stop(seconds=0.05))
    assert spent.status == "stopped"
    assert 1 < spent.state.round < 10**6


def test_stops_when_a_function_says_so() -> None:
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=50, stop=lambda r: r.number == 6 and r.participants == 6)
    assert (run.status, run.state.round) == ("stopped", 6)
    whole = rs.solve(squares(), rs.fedpi(0.02), rounds=10)
    rest = rs.solve(squares(), rs.fedpi(0.02), rounds=4, start=run.state)
    same_bits(whole.state, rest.state)


# --- Ctrl-C and divergence -------------------------------------------------------------------------------------------


class Impatient(InProcess):
    """Somebody presses Ctrl-C while users compute."""

    left = 4

    def local(self, *asked: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().local(*asked)


def in_the_callback(problem: Any, **more: Any) -> rs.Run:
    def callback(happened: rs.Round) -> None:
        if happened.number == 4:
            raise KeyboardInterrupt

    return rs.solve(problem, rs.fedpi(0.3), rounds=50, callback=callback, **more)


def while_users_compute(problem: Any, **more: Any) -> rs.Run:
    engine = Impatient(problem, rs.NewtonProx())
    return rs.solve(problem, rs.fedpi(0.3), rounds=50, engine=engine, **more)


@quietly
@pytest.mark.parametrize("pressed", [in_the_callback, while_users_compute])
@pytest.mark.parametrize(
    "more",
    [{}, {"anderson": 2}, {"participation": rs.FixedSize(2)}],
    ids=["plain", "anderson", "sampled"],
)
def test_an_interrupted_run_goes_on_to_the_same_bits(pressed: Callable[..., rs.Run], more: dict[str, Any]) -> None:
    run = pressed(logistic(), **more)
    assert (run.status, run.state.round) == ("interrupted", 4)
    assert "4" in run.reason
    assert run.history["round"].tolist() == [1, 2, 3, 4]
    rest = rs.solve(logistic(), rs.fedpi(0.3), rounds=8, start=run.state, **more)
    same_bits(rest.state, rs.solve(logistic(), rs.fedpi(0.3), rounds=12, **more).state)


def test_an_interrupt_before_the_first_round_ends_gives_the_start() -> None:
    engine = Impatient(squares(), rs.ExactProx())
    engine.left = 0
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=5, engine=engine, start=torch.ones(4, dtype=torch.float64))
    assert (run.status, run.state.round, len(run.history)) == ("interrupted", 0, 0)
    assert torch.equal(run.model, torch.ones(4, dtype=torch.float64))
    assert run.personal.shape == (6, 4)
    assert "interrupted" in repr(run)


@pytest.mark.filterwarnings("ignore::resolvent.errors.MayNotConverge")
@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        pytest.param(rs.fedavg(1.0), {}, id="fedavg"),
        pytest.param(rs.fedavg(1.0), {"every": 100}, id="seldom_looked_at"),
        pytest.param(rs.reflect_gradient(1.0), {}, id="reflect_gradient"),
        pytest.param(rs.fedavg(0.3), {"participation": rs.Bernoulli(0.5)}, id="sampled"),
    ],
)
@pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem")
def test_divergence_is_noticed_named_and_the_best_state_handed_back(scheme: rs.Scheme, more: dict[str, Any]) -> None:
    with pytest.warns(rs.DivergenceWarning, match=f"{scheme.name} diverged by round") as caught:
        run = rs.solve(squares(), scheme, rounds=1000, **more)
    named = [str(w.message) for w in caught if w.category is rs.DivergenceWarning]
    assert (run.status, [run.reason]) == ("diverged", named)
    assert int(run.reason.split("by round ")[1].split(":")[0]) <= 20
    assert run.state.round < 15
    tensors, _ = checkpoint.pack(run.state)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert bool(torch.isfinite(run.model).all())
    assert f"round {run.state.round}" in run.reason
    rest = rs.solve(squares(), rs.fedavg(0.01), rounds=300, start=run.state)
    assert rest.status == "finished"


@quietly
def test_nan_from_a_user_is_divergence_and_the_start_is_kept() -> None:
    broken = rs.Custom(2, 1, prox=[lambda u, eta: u / 2, lambda u, eta: u * math.nan])
    run = rs.solve(broken, rs.fedpi(1.0), rounds=50, start=[3.0])
    assert (run.status, run.state.round) == ("diverged", 0)
    assert torch.equal(run.model, torch.tensor([3.0], dtype=torch.float64))


@pytest.mark.parametrize("eta", [1e-7, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("scheme", [rs.fedpi, rs.fedprox, rs.fedsplit, rs.fedrp])
@quietly
def test_a_prox_scheme_is_never_called_divergent(scheme: Callable[[float], rs.Scheme], eta: float) -> None:
    assert rs.solve(squares(), scheme(eta), rounds=300, every=50).status == "finished"


@quietly
def test_first_rounds_that_move_nothing_are_no_yardstick() -> None:
    """The first user asked is content with the start, so that the first residual is zero."""
    apart = rs.Quadratics([1.0, 1.0], [[0.0], [5.0]])
    for scheme in (rs.fedpi(1.0), rs.fedprox(1.0)):
        run = rs.solve(apart, scheme, rounds=100, participation=rs.Trace([[1, 0], [0, 1]]))
        assert (run.status, run.reason) == ("finished", "100 rounds")
    sets = rs.Indicators([rs.Halfspace([1.0, 0.0], 2.0), rs.Halfspace([-1.0, 0.0], -1.0)])
    run = rs.solve(sets, rs.fedpi(1.0), rounds=200, participation=rs.FixedSize(1), start=[0.0, 0.0])
    assert (run.status, run.reason) == ("finished", "200 rounds")


@quietly
@pytest.mark.parametrize("idle", [1, 9])
def test_a_first_visit_may_tell_how_far_away_the_solution_is(idle: int) -> None:
    """Values are unknown, and the user who pulls at all comes after many rounds in which nothing moved."""
    blind = rs.Custom(2, 1, prox=[lambda u, eta: u / (1 + eta), lambda u, eta: (u + eta * 1e8) / (1 + eta)])
    who = rs.Trace([[1, 0]] * idle + [[0, 1]])
    run = rs.solve(blind, rs.fedpi(1.0), rounds=400, participation=who, start=[0.0])
    assert (run.status, run.reason) == ("finished", "400 rounds")
    assert float(run.model) == pytest.approx(5e7, rel=1e-6)


RUNAWAY = rs.LeastSquares([[[1.0, 0.3]], [[1.0, 0.4]]], [[1.0], [0.0]])


@quietly
@pytest.mark.parametrize("every", [1, 1000])
def test_an_eta_that_runs_away_is_divergence_whoever_chose_it(every: int) -> None:
    """Residuals over eta stay small, and steps are as long as eta says: f alone tells."""
    run = rs.solve(RUNAWAY, rs.fedpi(lambda t: 4.0 ** min(t, 45)), rounds=120, every=every)
    assert run.status == "diverged"
    assert "the value rose from 0.25 to" in run.reason
    assert float(RUNAWAY.gap(run.model[None])) < 0.25


@quietly
def test_what_is_handed_back_of_a_run_that_diverged_is_its_best_and_the_row_shown_is_its_own() -> None:
    steep = rs.LeastSquares([np.diag([1.0, 0.1])], [np.ones(2)])
    run = rs.solve(steep, rs.fedavg(2.2), rounds=500, start=[1 + 1e-6, 5.0])  # one coordinate comes, the other goes
    table = run.history
    best: Any = table.value.idxmin()
    assert run.status == "diverged"
    assert 20 < run.state.round == table["round"][best] < 100
    assert float(steep.value(run.model[None])[0]) == pytest.approx(table.value[best], rel=1e-12)
    assert f"the state after round {run.state.round}, of value {table.value[best]:.6g}, is handed back" in run.reason
    assert f"value {table.value[best]:.3g}, gap {table.gap[best]:.3g}" in repr(run)
    assert table["round"].iloc[-1] > run.state.round  # the history has all rows
    again = rs.solve(steep, rs.fedavg(1.0), rounds=200, start=run.state)
    assert (again.status, again.state.round) == ("finished", run.state.round + 200)


@quietly
def test_without_values_the_best_state_is_that_of_the_smallest_residual() -> None:
    blind = rs.Custom(2, 2, grad=lambda W: W * torch.tensor([1.0, 0.1], dtype=W.dtype))
    run = rs.solve(blind, rs.fedavg(2.2), rounds=500, start=[1e-6, 5.0])
    assert run.status == "diverged"
    assert run.state.round == run.history["round"][run.history.residual.idxmin()]  # type: ignore[call-overload]
    assert f"of residual {run.history.residual.min():.3g}, is handed back" in run.reason


@quietly
def test_a_run_in_parts_is_judged_by_where_it_began() -> None:
    """Each part for itself would see nothing: in ten rounds u grows six-fold."""
    problem, scheme = rs.LeastSquares([[[1.0]]], [[1.0]]), rs.fedavg(2.2)
    whole = rs.solve(problem, scheme, rounds=500, start=[0.0])
    state: Any = [0.0]
    for _ in range(50):
        part = rs.solve(problem, scheme, rounds=10, start=state)
        state = part.state
        if part.status == "diverged":
            break
    assert part.status == whole.status == "diverged"
    assert part.reason.split(";")[0] == whole.reason.split(";")[0]


@quietly
def test_the_last_rounds_are_looked_at_too() -> None:
    """f overflows in round 3, of which u knows nothing before round 4."""
    steep = rs.Custom(
        1, 1, value=lambda W: torch.exp(5 * W.abs()).sum(1), grad=lambda W: 5 * W.sign() * torch.exp(5 * W.abs())
    )
    for rounds in (1, 2, 3, 4):
        run = rs.solve(steep, rs.fedavg(1.0), rounds=rounds, start=[1.0])
        assert run.status == "diverged"
        assert float(run.model) == 1.0


@quietly
@pytest.mark.parametrize("rounds", range(6, 10))
def test_nan_in_the_last_rounds_is_divergence_whatever_their_number(rounds: int) -> None:
    blind = rs.Custom(1, 1, grad=lambda W: W * (math.nan if float(W[0, 0]) < 0.6 else 1.0))  # from round 6 on
    run = rs.solve(blind, rs.fedavg(0.1), rounds=rounds, start=[1.0])
    assert (run.status, run.state.round) == ("diverged", 5)
    assert bool(run.model.isfinite())


def test_a_run_that_ends_above_where_it_began_says_so() -> None:
    """FedProx solves another problem: from the minimiser of this one it can only rise. A fact, not an error."""
    with (
        pytest.warns(rs.SolvesAnotherProblem),
        pytest.warns(rs.DoubtfulResult, match="FedProx finished after 50 rounds"),
    ):
        run = rs.solve(squares(), rs.fedprox(0.1), rounds=50, start=squares().minimiser)
    first, last = float(squares().fstar), run.history.value.iloc[-1]
    assert (run.status, run.reason) == ("finished", f"50 rounds; the value rose from {first:.6g} to {last:.6g}")
    with pytest.warns(rs.SolvesAnotherProblem):
        assert rs.solve(squares(), rs.fedprox(0.1), rounds=50).reason == "50 rounds"
    assert rs.solve(squares(), rs.fedpi(0.1), rounds=50, start=squares().minimiser).reason == "50 rounds"


@quietly
def test_an_indicator_that_is_infinite_at_the_end_has_not_diverged() -> None:
    """f may be infinite a hair's breadth outside a set which the models come to from outside."""
    low = lambda x: torch.where(x[..., 0] >= 1, 0.0, torch.inf).to(x)  # noqa: E731
    users = rs.Custom(
        2,
        1,
        value=[low, lambda x: x.square().sum(-1) / 2],
        prox=[lambda u, eta: u.clamp_min(1), lambda u, eta: u / (1 + eta)],
    )
    run = rs.solve(users, rs.fedpi(1.0), rounds=20, start=[2.0])
    assert run.status == "finished"
    assert float(run.model) == pytest.approx(1, abs=1e-2)
    assert (run.history.value.iloc[-1], run.reason) == (math.inf, "20 rounds; the value rose from 1 to inf")


@pytest.mark.parametrize("scheme", [rs.fedpi(1.0), rs.fedprox(1.0), rs.fedsplit(1.0)], ids=str)
@quietly
def test_sets_that_do_not_meet_are_named(scheme: rs.Scheme) -> None:
    halves = rs.Indicators([rs.Halfspace([1.0, 0.0], 0.0), rs.Halfspace([-1.0, 0.0], -2.0)])
    run = rs.solve(halves, scheme, rounds=500, start=[0.3, 0.4])
    assert run.status == "finished"
    assert "the sets do not meet, or only far away: the users' points stay 1 apart (root mean square)" in run.reason
    meet = rs.Indicators([rs.Halfspace([1.0, 0.0], 2.0), rs.Halfspace([-1.0, 0.0], -2.0)])
    assert rs.solve(meet, scheme, rounds=500, start=[0.3, 0.4]).reason == "500 rounds"


# --- model and personal models ---------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize("name", rs.TABLE)
@pytest.mark.parametrize("participation", [None, rs.Bernoulli(0.5), rs.Bernoulli(0.5, absent="paper")], ids=str)
def test_model_and_personal_have_their_shapes(name: str, participation: Any) -> None:
    run = rs.solve(squares(), named(name, 0.02), rounds=8, participation=participation)
    assert run.model.shape == (4,)
    assert run.personal.shape == (6, 4)
    assert "finished after 8 rounds" in repr(run)


@quietly
@pytest.mark.parametrize("problem", [squares, logistic], ids=["squares", "newton"])
def test_personal_models_of_fedprox_are_the_prox_of_the_model(problem: Callable[[], Any]) -> None:
    run = rs.solve(problem(), rs.fedprox(0.1), rounds=400, every=400)
    torch.testing.assert_close(run.personal, problem().prox(run.model, 0.1), rtol=1e-8, atol=1e-8)
    assert float((run.personal - run.model).norm(dim=1).min()) > 1e-3


@quietly
def test_personal_models_are_the_answers_of_the_last_round() -> None:
    for scheme in (rs.fedprox(0.1), rs.fedpi(0.1)):
        run = rs.solve(squares(), scheme, rounds=5)
        torch.testing.assert_close(run.personal, squares().prox(run.state.u, 0.1), rtol=1e-10, atol=1e-12)


def test_personal_models_of_fedpi_agree() -> None:
    run = rs.solve(squares(), rs.fedpi(0.05), rounds=300, every=300)
    torch.testing.assert_close(run.personal, run.model.expand(6, -1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(run.model, squares().minimiser, rtol=1e-10, atol=1e-10)


@quietly
def test_the_model_is_the_mean_of_z() -> None:
    for name, row in rs.TABLE.items():
        run = rs.solve(squares(), named(name, 0.02), rounds=5)
        z = (1 - row.alpha) * run.state.u + row.alpha * run.state.p
        torch.testing.assert_close(run.model, z.mean(0), rtol=1e-12, atol=1e-12)


@quietly
@pytest.mark.parametrize("average", ["ergodic", "suffix"])
def test_the_averaged_model_is_weighted_by_eta(average: str) -> None:
    scheme, models = rs.fedprox(rs.schedules.harmonic(0.1)), []
    run = rs.solve(squares(), scheme, rounds=13, average=average, callback=lambda r: models.append(r.model[0]))
    first = 0 if average == "ergodic" else 7  # started anew in rounds 1, 2, 4, 8
    eta = torch.tensor([scheme.eta_at(t) for t in range(first, 13)], dtype=torch.float64)
    expected = eta @ torch.stack(models[first:]) / eta.sum()
    torch.testing.assert_close(run.model, expected, rtol=1e-12, atol=1e-12)
    expected_gap = float(squares().gap(expected.unsqueeze(0)))
    assert run.history.average_gap.iloc[-1] == pytest.approx(expected_gap, rel=1e-9)
    assert gap(run) == pytest.approx(float(squares().gap(models[-1].unsqueeze(0))), rel=1e-9)


@quietly
def test_suffix_averages_start_anew_also_where_nobody_came() -> None:
    """Nobody comes in round 8: the average starts with round 9."""
    masks, models = np.ones((13, 6), dtype=bool), []
    masks[7] = False
    who = rs.Trace(masks)
    run = rs.solve(
        squares(),
        rs.fedprox(0.02),
        13,
        average="suffix",
        participation=who,
        callback=lambda r: models.append(r.model[0]),
    )
    torch.testing.assert_close(run.model, torch.stack(models[8:]).mean(0), rtol=1e-12, atol=1e-12)


# --- history ---------------------------------------------------------------------------------------------------------


@quietly
def test_columns_and_their_order() -> None:
    plain = rs.solve(squares(), rs.fedpi(0.02), rounds=2)
    averaged = rs.solve(squares(), rs.fedprox(0.02), rounds=2, average="ergodic")
    assert list(plain.history.columns) == [*COLUMNS, *TRAFFIC]
    assert list(averaged.history.columns) == [*COLUMNS, "average_value", "average_gap", *TRAFFIC]


def test_what_the_columns_say() -> None:
    masks = [[True, False, True, False, True, False], [True] * 6, [False] * 6]
    seen: list[rs.Round] = []
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=3, participation=rs.Trace(masks), callback=seen.append)
    table = run.history
    assert table.participants.tolist() == [3, 6, 0]
    assert table.bytes_up.tolist() == table.bytes_down.tolist() == [3 * 4 * 8, 6 * 4 * 8, 0]
    assert table.seconds.is_monotonic_increasing
    assert table.eta.tolist() == [0.02] * 3
    for row, happened in zip(table.itertuples(), seen, strict=True):
        f = float(squares().weights @ squares().value(happened.model))
        assert row.value == pytest.approx(f, rel=1e-12)
        assert row.gap == pytest.approx(f - squares().fstar, rel=1e-9)


@quietly
def test_the_residual_is_the_length_of_the_step_in_the_lambda_norm() -> None:
    users = rs.Quadratics([1.0, 3.0, 2.0], [[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]], weights=[1, 2, 5])
    run = rs.solve(users, rs.fedpi(0.3), rounds=4)
    step = run.state.next - run.state.u  # type: ignore[operator]
    expected = float((users.weights @ step.square().sum(1)).sqrt())
    assert run.history.residual.iloc[-1] == pytest.approx(expected, rel=1e-12)


def test_value_and_gap_are_nan_where_nobody_knows() -> None:
    blind = rs.Custom(2, 1, prox=lambda U, eta: U / (1 + eta))
    table = rs.solve(blind, rs.fedpi(1.0), rounds=3, start=[1.0]).history
    assert table[["value", "gap"]].isna().all(axis=None)
    assert table.residual.notna().all()


# --- certificates ----------------------------------------------------------------------------------------------------


def stationarity(problem: Any, points: Tensor) -> float:
    return float((problem.weights @ problem.grad(points)).norm())


def consensus(problem: Any, points: Tensor) -> float:
    mean = problem.weights @ points
    return float((problem.weights @ (points - mean).square().sum(1)).sqrt())


@quietly
@pytest.mark.parametrize("problem", [squares, logistic], ids=["squares", "newton"])
@pytest.mark.parametrize("name", ["fedpi", "fedsplit", "fedprox", "fedrp", "reflect_prox"])
def test_certificates_of_a_prox_are_those_of_the_users_answers(problem: Callable[[], Any], name: str) -> None:
    run = rs.solve(problem(), named(name, 0.05), rounds=6)
    last, p = run.history.iloc[-1], run.personal
    assert last.stationarity == pytest.approx(stationarity(problem(), p), rel=1e-7, abs=1e-10)
    assert last.consensus == pytest.approx(consensus(problem(), p), rel=1e-7, abs=1e-10)


@quietly
@pytest.mark.parametrize("problem", [squares, logistic], ids=["squares", "logistic"])
@pytest.mark.parametrize("name", ["fedavg", "reflect_gradient"])
def test_certificates_of_one_gradient_step_are_those_of_u(problem: Callable[[], Any], name: str) -> None:
    run = rs.solve(problem(), named(name, 0.01), rounds=6)
    last, u = run.history.iloc[-1], run.state.u.expand(problem().users, -1)
    assert last.stationarity == pytest.approx(stationarity(problem(), u), rel=1e-9)
    assert last.consensus == pytest.approx(consensus(problem(), u), rel=1e-9, abs=1e-14)


def test_both_certificates_of_fedpi_vanish() -> None:
    last = rs.solve(squares(), rs.fedpi(0.05), rounds=300).history.iloc[-1]
    assert max(last.stationarity, last.consensus) < 1e-12
    assert last.gap < 1e-24


@quietly
def test_fedprox_is_stationary_without_consensus_and_without_solving() -> None:
    last = rs.solve(squares(), rs.fedprox(0.1), rounds=300).history.iloc[-1]
    assert last.stationarity < 1e-12
    assert last.consensus > 1e-2
    assert last.gap > 1e-3


@quietly
@pytest.mark.parametrize(
    "scheme",
    [
        rs.fedavg(0.01, steps=5),
        rs.fedavg(0.01, local=rs.GradientSteps(1, batch=5)),
        rs.fedpi(0.02, local=rs.GradientProx(20)),
        rs.fedprox(0.02, local=rs.GradientProx(20, batch=5)),
    ],
    ids=str,
)
def test_inexact_operators_certify_nothing(scheme: rs.Scheme) -> None:
    table = rs.solve(squares(), scheme, rounds=5).history
    assert table[["stationarity", "consensus"]].isna().all(axis=None)


@quietly
@pytest.mark.parametrize("scheme", [rs.fedpi(0.02), rs.fedprox(0.02)], ids=["rows", "one_u"])
def test_algorithm_1_certifies_nothing(scheme: rs.Scheme) -> None:
    table = rs.solve(squares(), scheme, rounds=5, participation=rs.Bernoulli(0.5, absent="paper")).history
    assert table[["stationarity", "consensus"]].isna().all(axis=None)


@quietly
@pytest.mark.parametrize("name", ["fedpi", "fedprox"])
def test_under_hold_certificates_wait_until_everybody_was_seen_and_are_true_then(name: str) -> None:
    masks = torch.zeros(5, 6, dtype=torch.bool)
    for t, who in enumerate(([0, 1, 2], [1, 3], [4, 5], [0, 5], [2, 3, 4])):
        masks[t, who] = True
    seen: list[rs.Round] = []
    scheme, trace = named(name, 0.05), rs.Trace(masks)
    table: Any = rs.solve(squares(), scheme, rounds=8, participation=trace, callback=seen.append).history
    assert table.stationarity.isna().tolist() == table.consensus.isna().tolist() == [True] * 2 + [False] * 6
    for row, happened in zip(table.itertuples(), seen, strict=True):
        if row.round >= 3:
            assert row.stationarity == pytest.approx(stationarity(squares(), happened.state.p), rel=1e-9)
            assert row.consensus == pytest.approx(consensus(squares(), happened.state.p), rel=1e-9)


@quietly
@pytest.mark.parametrize("name", ["fedpi", "fedprox"])
def test_under_hold_certificates_stay_true_while_eta_changes(name: str) -> None:
    """An absent user's answer was given at another eta: what is said of it must be true, or NaN."""
    seen: list[rs.Round] = []
    scheme = named(name, rs.schedules.inverse_sqrt(0.1))
    table: Any = rs.solve(squares(), scheme, rounds=12, participation=rs.FixedSize(2), callback=seen.append).history
    assert name == "fedprox" or table.stationarity.notna().any()
    for row, happened in zip(table.itertuples(), seen, strict=True):
        if not math.isnan(row.stationarity):
            assert row.stationarity == pytest.approx(stationarity(squares(), happened.state.p), rel=1e-9)


@quietly
@pytest.mark.parametrize("name", ["fedpi", "fedprox", "fedavg"])
@pytest.mark.parametrize("eta", [1e-20, 1e-16, 1e-9, 1e20])
def test_certificates_at_an_eta_too_small_to_move_anything_are_no_comfort(name: str, eta: float) -> None:
    if name == "fedavg" and eta > 1:
        return
    run = rs.solve(squares(), named(name, eta), rounds=3, start=[1.0, 2.0, 3.0, 4.0])
    points = run.state.u if name == "fedavg" else run.personal
    true = stationarity(squares(), points.expand(6, -1)) if eta < 1 else 0.0
    assert run.history.stationarity.iloc[-1] >= 0.99 * true
    assert run.history.stationarity.iloc[-1] <= true * 1.01 + 1e-14 * 10 / eta


@quietly
@pytest.mark.parametrize("safeguard", [True, False])
def test_the_residual_is_that_of_the_map_also_where_the_mean_is_extrapolated(safeguard: bool) -> None:
    seen: list[rs.Round] = []
    faster = rs.Anderson(3, on="mean", safeguard=safeguard)
    run = rs.solve(squares(), rs.fedpi(0.05), rounds=8, anderson=faster, callback=seen.append)
    for happened, told in zip(seen, run.history.residual, strict=True):
        u = happened.state.u
        z = 2 * squares().prox(u, 0.05) - u
        step = (u + 2 * z.mean(0) - z) / 2 - u
        assert told == pytest.approx(float(step.square().sum(1).mean().sqrt()), rel=1e-9)


# --- one vector where users agree ------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize("name", rs.TABLE)
@pytest.mark.parametrize("anderson", [None, 2, rs.Anderson(2, on="mean")], ids=["plain", "on_u", "on_mean"])
def test_fedavg_fedprox_and_fedrp_carry_one_vector(name: str, anderson: Any) -> None:
    run = rs.solve(squares(), named(name, 0.01), rounds=5, anderson=anderson)
    rows = 1 if name in ("fedavg", "fedprox", "fedrp") else 6
    tensors, _ = checkpoint.pack(run.state)
    assert run.state.u.shape == run.state.p.shape == run.state.next.shape == (rows, 4)
    assert all(len(tensor) <= rows for tensor in tensors.values())


@quietly
def test_whether_they_carry_one_depends_on_beta_and_on_who_is_left_behind() -> None:
    def rows(scheme: rs.Scheme, participation: Any = None) -> int:
        return len(rs.solve(squares(), scheme, rounds=3, participation=participation).state.u)

    assert rows(rs.Scheme(1.7, 1, 0.3, 0.02)) == 1  # whatever alpha and gamma
    assert rows(rs.Scheme(1.7, lambda t: 1.0, 0.3, 0.02)) == 6  # nobody knows what a function will do
    assert rows(rs.fedprox(0.02), rs.Bernoulli(0.5, absent="paper")) == 1
    assert rows(rs.fedprox(0.02), rs.Bernoulli(0.5)) == 6


@quietly
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedrp"])
def test_one_vector_takes_the_way_of_many(name: str) -> None:
    """Started as rows that agree, users are carried one by one: the models must be the same."""
    scheme, rows = named(name, 0.01), torch.ones(6, 4, dtype=torch.float64)
    one = rs.solve(squares(), scheme, rounds=10, start=rows[0])
    many = rs.solve(squares(), scheme, rounds=10, start=rows)
    assert (len(one.state.u), len(many.state.u)) == (1, 6)
    torch.testing.assert_close(one.model, many.model, rtol=1e-11, atol=1e-12)
    for column in ("gap", "residual", "consensus", "stationarity"):
        np.testing.assert_allclose(one.history[column], many.history[column], rtol=1e-6, atol=1e-11)


ONE = rs.LeastSquares([[[1.0, 0.5], [0.2, 2.0], [1.0, 1.0]]], [[1.0, -1.0, 2.0]])


@quietly
@pytest.mark.parametrize("name", rs.TABLE)
@pytest.mark.parametrize("anderson", [None, 2, rs.Anderson(2, on="mean")], ids=["plain", "on_u", "on_mean"])
@pytest.mark.parametrize("absent", ["everyone", "hold", "paper"])
def test_one_user_goes_on_to_the_same_bits(name: str, anderson: Any, absent: str) -> None:
    """Its one row is no vector that users share: whether they do is a field of the State, not a shape."""
    who = None if absent == "everyone" else rs.Trace([[1], [0], [1]], absent)
    more: dict[str, Any] = {"participation": who, "anderson": anderson, "start": [3.0, 1.0]}
    scheme = named(name, 0.1)
    whole = rs.solve(ONE, scheme, rounds=14, **more)
    assert whole.state.together == (rs.TABLE[name].beta == 1 and absent != "hold")
    assert (whole.state.seen is not None) == (absent == "hold")
    for cut in (1, 2, 7):
        half = rs.solve(ONE, scheme, rounds=cut, **more)
        same_bits(half.state, checkpoint.unpack(*checkpoint.pack(half.state)))
        rest = rs.solve(ONE, scheme, rounds=14 - cut, **(more | {"start": half.state}))
        same_bits(whole.state, rest.state)


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "anderson": {"anderson": 2},
    "anderson_on_mean": {"anderson": rs.Anderson(2, on="mean")},
    "hold": {"participation": rs.Bernoulli(0.6), "anderson": 2},
    "paper": {"participation": rs.Bernoulli(0.6, absent="paper"), "average": "suffix"},
    "average": {"average": "ergodic"},
}


@quietly
@pytest.mark.parametrize("name", rs.TABLE)
@pytest.mark.parametrize("more", CONFIGURATIONS)
@pytest.mark.parametrize("problem", ["squares", "logistic"])
def test_runs_from_a_checkpoint_go_on_to_the_same_bits(name: str, more: str, problem: str) -> None:
    users = squares() if problem == "squares" else rs.make_logistic(users=4, dim=3, rows=15)
    given: dict[str, Any] = {"seed": 4, **CONFIGURATIONS[more]}
    scheme = named(name, 0.02)
    whole = rs.solve(users, scheme, rounds=12, **given)
    half = rs.solve(users, scheme, rounds=5, **given)
    tensors, numbers = checkpoint.pack(half.state)
    start = checkpoint.unpack(tensors, json.loads(json.dumps(numbers)))
    rest = rs.solve(users, scheme, rounds=7, start=start, **given)
    for field in ("u", "p", "w", "next", "met"):
        assert torch.equal(getattr(whole.state, field), getattr(rest.state, field)), field
    pd.testing.assert_frame_equal(
        rest.history.drop(columns="seconds"), whole.history[5:].drop(columns="seconds").reset_index(drop=True)
    )


# --- participation ---------------------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize(
    ("scheme", "absent"),
    [
        *itertools.product([rs.fedpi(0.05), rs.fedprox(0.05), rs.fedavg(0.01)], ["hold", "paper"]),
        (rs.fedpi("auto"), "hold"),  # refused with "paper"
    ],
    ids=str,
)
@pytest.mark.parametrize("anderson", [None, 2], ids=["plain", "anderson"])
def test_empty_rounds_change_nothing(scheme: rs.Scheme, absent: str, anderson: int | None) -> None:
    some = [[True, True, False, False, True, False], [False, True, True, True, False, True]]
    nobody = [False] * 6
    more: dict[str, Any] = {"anderson": anderson}
    run = rs.solve(squares(), scheme, rounds=8, participation=rs.Trace(some, absent), **more)
    trace = rs.Trace([some[0], nobody, nobody, some[1]], absent)
    padded = rs.solve(squares(), scheme, rounds=16, participation=trace, **more)
    assert torch.equal(run.state.u, padded.state.u)
    assert torch.equal(run.model, padded.model)
    table = padded.history
    assert table.participants.tolist() == [3, 0, 0, 4] * 4
    assert table.gap.iloc[1] == table.gap.iloc[2] == table.gap.iloc[0]


@quietly
@pytest.mark.parametrize("scheme", [rs.fedpi(0.05), rs.fedprox(0.05)], ids=["rows", "one_u"])
@pytest.mark.parametrize("absent", ["hold", "paper"])
def test_a_run_may_begin_with_empty_rounds(scheme: rs.Scheme, absent: str) -> None:
    start, masks = torch.ones(4, dtype=torch.float64), [[False] * 6, [False] * 6, [True] * 6, [True] * 6]
    begun = rs.solve(squares(), scheme, rounds=2, participation=rs.Trace(masks, absent), start=start)
    assert torch.equal(begun.model, start)
    table = rs.solve(squares(), scheme, rounds=4, participation=rs.Trace(masks, absent), start=start).history
    full = rs.solve(squares(), scheme, rounds=2, start=start).history
    at_start = float(squares().gap(start.unsqueeze(0)))
    np.testing.assert_allclose(table.gap, [at_start, at_start, *full.gap], rtol=1e-12)
    assert table.residual.isna().tolist() == [True, True, False, False]


@pytest.mark.parametrize("scheme", [rs.fedpi, rs.fedsplit])
def test_hold_converges_where_algorithm_1_stalls(scheme: Callable[[float], rs.Scheme]) -> None:
    """On the paper's least squares."""
    chosen = scheme(rs.theory.best_eta(papers_squares()))
    hold = rs.solve(papers_squares(), chosen, rounds=200, participation=rs.Bernoulli(0.5))
    assert gap(hold) < 1e-12
    with pytest.warns(rs.SolvesAnotherProblem, match="Algorithm 1"):
        paper = rs.solve(papers_squares(), chosen, rounds=200, participation=rs.Bernoulli(0.5, absent="paper"))
    assert paper.history.gap.iloc[-50:].min() > 1e-6


@quietly
@pytest.mark.parametrize("name", ["fedpi", "fedsplit", "fedprox", "reflect_gradient"])
def test_as_the_paper_samples_is_algorithm_1_as_printed(name: str) -> None:
    """The mean is over those present; the others keep their z, and their u moves with it."""
    row, eta, who = rs.TABLE[name], 0.02, rs.FixedSize(2, absent="paper")
    seen: list[rs.Round] = []
    rs.solve(squares(), named(name, eta), rounds=10, participation=who, callback=seen.append)
    u = z = torch.zeros(6, 4, dtype=torch.float64)
    for happened in seen:
        local = u - eta * squares().grad(u) if row.forward else squares().prox(u, eta)
        present = torch.zeros(6, 1, dtype=torch.bool).index_fill(0, happened.who, True)  # type: ignore[arg-type]
        z = torch.where(present, (1 - row.alpha) * u + row.alpha * local, z)
        met = z[happened.who].mean(0)
        torch.testing.assert_close(happened.model[0], met, rtol=1e-10, atol=1e-12)
        u = (1 - row.gamma) * u + row.gamma * ((1 - row.beta) * z + row.beta * met)
        torch.testing.assert_close(happened.state.next.expand(6, -1), u, rtol=1e-10, atol=1e-12)


def test_everybody_present_every_time_is_full_participation() -> None:
    full = rs.solve(squares(), rs.fedpi(0.05), rounds=10)
    for participation in (rs.Bernoulli(1.0), 1.0, rs.Everyone(), rs.FixedSize(6), rs.Trace([[True] * 6])):
        run = rs.solve(squares(), rs.fedpi(0.05), rounds=10, participation=participation)
        torch.testing.assert_close(run.model, full.model, rtol=1e-12, atol=1e-13)


# --- on disk ---------------------------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize(
    ("problem", "scheme", "more"),
    [
        case(squares, rs.fedpi(0.02), "plain"),
        case(squares, rs.fedprox(0.02), "one_u", average="ergodic"),
        case(logistic, rs.fedpi("auto"), "newton_auto", anderson=2, participation=rs.Bernoulli(0.5)),
        case(squares, rs.fedpi(0.02), "paper", participation=rs.FixedSize(2, absent="paper")),
    ],
)
def test_a_saved_run_comes_back(tmp_path: Path, problem: Any, scheme: Any, more: dict[str, Any]) -> None:
    run = rs.solve(problem(), scheme, rounds=9, seed=4, **more)
    folder = run.save(tmp_path / "new" / "run")
    back = rs.Run.load(folder)
    same_bits(run.state, back.state)
    pd.testing.assert_frame_equal(run.history, back.history, check_exact=True)
    assert (back.status, back.reason) == (run.status, run.reason)
    assert torch.equal(run.model, back.model)
    assert repr(back) == repr(run)
    rest, expected = (rs.solve(problem(), scheme, rounds=3, seed=4, start=r.state, **more) for r in (back, run))
    same_bits(rest.state, expected.state)


def test_personal_models_of_a_loaded_run(tmp_path: Path) -> None:
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=9)
    assert torch.equal(rs.Run.load(run.save(tmp_path)).personal, run.personal)


@quietly
def test_a_run_of_one_vector_that_was_saved_without_its_users_says_that_personal_models_need_them() -> None:
    run = rs.solve(squares(), rs.fedprox(0.02), rounds=3)
    alone = rs.Run(run.state, run.history, run.status, run.reason, "")
    with pytest.raises(rs.InputError, match="personal models of users who share one vector need the users"):
        _ = alone.personal


# --- progress --------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is a long one."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "REFRESH", 0.0)


@pytest.mark.usefixtures("impatient")
def test_no_bar_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    rs.solve(squares(), rs.fedpi(0.02), rounds=5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_bar_when_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    rs.solve(squares(), rs.fedpi(0.02), rounds=50, progress=True, callback=lambda r: None)
    out, err = capsys.readouterr()
    assert out == ""
    assert "FedPi" in err
    assert "/50" in err
    assert "residual" in err


def test_no_bar_for_a_short_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    rs.solve(squares(), rs.fedpi(0.02), rounds=5, progress=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("terminal", "notebook"), [(True, False), (False, True), (False, False)])
def test_a_bar_is_wanted_where_somebody_looks(monkeypatch: pytest.MonkeyPatch, terminal: bool, notebook: bool) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    if notebook:
        monkeypatch.setitem(__import__("sys").modules, "ipykernel", object())
    assert progress.wanted(None) is (terminal or notebook)
    assert progress.wanted(False) is False
    assert progress.wanted(True) is True


@pytest.mark.parametrize("at", ["inspect", "measure"])
def test_an_interrupt_in_the_middle_of_a_row_leaves_that_row_out(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a round is recorded is an interrupt like any other, not a failure."""
    problem, scheme = rs.make_least_squares(users=3, dim=4, rows=10), rs.fedprox(0.01)
    from resolvent.engines.in_process import InProcess

    plain, calls = getattr(InProcess, at), []

    def interrupted(self: InProcess, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    whole = rs.solve(problem, scheme, rounds=10, stop=rs.Stop(gap=0.0), explanation=rs.explain(scheme, problem))
    monkeypatch.setattr(InProcess, at, interrupted)
    run = rs.solve(problem, scheme, rounds=10, stop=rs.Stop(gap=0.0), explanation=rs.explain(scheme, problem))
    assert run.status == "interrupted"
    rows = run.history.drop(columns="seconds")
    assert 4 <= len(rows) < 10
    assert rows.equals(whole.history.drop(columns="seconds").iloc[: len(rows)])
