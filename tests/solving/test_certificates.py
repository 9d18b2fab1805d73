"""The residual and the certificates of a round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.iteration.table import named
from solving_cases import logistic, quietly, squares

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
@pytest.mark.parametrize("name", ["fedpi", "fedprox", "fedavg"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_certificates_of_moves_whose_squares_vanish_are_no_comfort(name: str, dtype: torch.dtype) -> None:
    """From zero u - p has every digit, however small eta is, but its norm is zero."""
    draw = torch.Generator().manual_seed(0)
    X, y = (torch.randn(shape, generator=draw, dtype=dtype) for shape in ((3, 5, 2), (3, 5)))
    problem = rs.LeastSquares(list(X), list(y))
    run = rs.solve(problem, named(name, float(torch.finfo(dtype).tiny)), rounds=3, stop=rs.Stop(certificates=1e-6))
    assert run.status == "finished"
    assert run.history.stationarity.iloc[-1] >= stationarity(problem, torch.zeros(3, 2, dtype=dtype))


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
