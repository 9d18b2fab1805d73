"""The seed, the start, how many rounds, which of them have rows, and the callback."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from solving_cases import quietly, same_bits, same_history, squares

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


def test_a_run_warns_once_of_all_that_speaks_against_it() -> None:
    problem = rs.make_least_squares(users=3, dim=2, rows=9)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        rs.solve(problem, rs.fedavg(1.0, steps=5), rounds=2, anderson=2, participation=0.5)
    (only,) = [one for one in given if not issubclass(one.category, (rs.DivergenceWarning, rs.DoubtfulResult))]
    assert issubclass(only.category, rs.SolvesAnotherProblem)
    assert issubclass(only.category, rs.MayNotConverge)
    assert str(only.message).count(" Also: ") == 2
