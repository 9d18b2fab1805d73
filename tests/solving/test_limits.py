"""Runs end in the first round that meets a limit."""

from __future__ import annotations

import pytest

import resolvent as rs
from solving_cases import gap, quietly, same_bits, squares

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
