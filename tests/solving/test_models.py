"""The model, personal models, averages, and the columns of a history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.iteration.table import named
from solving_cases import COLUMNS, TRAFFIC, gap, logistic, quietly, squares

# --- model and personal models ---------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize(
    ("name", "participation"),
    [
        (name, participation)
        for name, row in rs.TABLE.items()
        for participation in (None, rs.Bernoulli(0.5), rs.Bernoulli(0.5, absent="paper"))
        if participation is None or participation.absent == "hold" or row.sampling != "none"
    ],
    ids=str,
)
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
