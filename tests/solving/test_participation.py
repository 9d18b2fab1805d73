"""Who takes part, and what becomes of those who do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.iteration.table import named
from solving_cases import gap, papers_squares, quietly, squares

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
def test_empty_rounds_change_nothing(scheme: rs.Scheme, absent: Any, anderson: int | None) -> None:
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
def test_a_run_may_begin_with_empty_rounds(scheme: rs.Scheme, absent: Any) -> None:
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
