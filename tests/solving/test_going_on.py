"""Going on from a State equals never having stopped."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.iteration import checkpoint
from solving_cases import (
    RESUMED,
    gap,
    logistic,
    logistic_of,
    quietly,
    same_bits,
    same_history,
    squares,
    unequal_logistic,
)


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
@pytest.mark.parametrize("scheme", [rs.fedavg(0.01), rs.fedpi(0.01)], ids=["one_vector", "rows"])
@pytest.mark.parametrize("after", [rs.fedavg(0.01), rs.fedpi(0.01)], ids=["to_one_vector", "to_rows"])
def test_a_state_of_other_users_is_refused(scheme: Any, after: Any) -> None:
    five, four = (rs.make_logistic(users=m, dim=3, rows=8) for m in (5, 4))
    state = rs.solve(five, scheme, rounds=2).state
    tensors, numbers = checkpoint.pack(state)
    for start in (state, checkpoint.unpack(tensors, numbers)):
        with pytest.raises(rs.InputError, match="start is a State of 5 users, but the problem has 4"):
            rs.solve(four, after, rounds=1, start=start)


FALLING = rs.Custom(1, 1, value=lambda W: -W.square().sum(1) / 2, grad=lambda W: -W, convex=False)
"""Not bounded below: u doubles in every round of FedAvg(1.0), and the value falls."""


@quietly
@pytest.mark.parametrize(
    ("problem", "scheme", "more"),
    [
        pytest.param(squares(), rs.fedprox(lambda t: 0.01 * (1 + t)), {}, id="an_eta_that_rises"),
        pytest.param(FALLING, rs.fedavg(1.0), {"start": [1.0]}, id="far_out"),
        pytest.param(
            FALLING,
            rs.fedavg(1.0),
            {"start": [1.0], "participation": rs.Trace([[1]] * 9 + [[0]])},
            id="far_out_and_nobody_there_when_checked",
        ),
    ],
)
def test_wherever_a_run_stops_its_state_is_that_of_a_run_that_did_not(
    problem: Any, scheme: Any, more: dict[str, Any]
) -> None:
    """What a run is judged against included: the end of a part is checked for divergence, which leaves no mark."""
    states: list[rs.State] = []
    rs.solve(problem, scheme, rounds=32, callback=lambda r: states.append(r.state), **more)
    for cut in range(1, 31):
        part = rs.solve(problem, scheme, rounds=cut, **more)
        same_bits(part.state, states[cut - 1])
        rest = rs.solve(problem, scheme, rounds=31 - cut, **(more | {"start": part.state}))
        same_bits(rest.state, states[30])


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


@pytest.mark.parametrize("engine", ["in-process", "debug"])
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
    run = rs.solve(squares(), rounds=350, start=begun.state, callback=answers_belong_to_u, **(usual | then))
    assert gap(run) < 1e-18
    scheme = (usual | then)["scheme"]
    assert scheme.auto or run.state.eta == scheme.eta_at(0)


def answers_belong_to_u(happened: rs.Round) -> None:
    """Every p_i is user i's answer to the u_i beside it, whoever was present."""
    state = happened.state
    seen = slice(None) if state.parts.participation.seen is None else state.parts.participation.seen
    pull = state.u - state.p if state.metric is None else state.metric.times(state.u - state.p)
    torch.testing.assert_close(pull[seen] / state.eta, squares().grad(state.p)[seen], rtol=1e-7, atol=1e-8)


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
    assert run.state.parts.participation.z is not None


@quietly
def test_a_state_that_an_earlier_version_stored_gives_its_model_and_nothing_goes_on_from_it() -> None:
    """Before parts had memories of their own, a State had fields of theirs."""
    run = rs.solve(squares(), rs.fedprox(0.02), rounds=3, average="ergodic")
    tensors, numbers = checkpoint.pack(run.state)
    old = {name: part for name, part in numbers.items() if name != "parts"} | {"average": numbers["parts"]["average"]}
    state = checkpoint.unpack(tensors, old)
    assert torch.equal(state.reported[0], run.model)
    with pytest.raises(rs.InputError, match="that an earlier version stored"):
        rs.solve(squares(), rs.fedprox(0.02), rounds=3, start=state)
