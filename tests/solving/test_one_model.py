"""What a run with an average reports, stops by, stores and hands back is one model, against plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import resolvent as rs
from resolvent.report import plotting
from resolvent.report.curves import reported

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
Rows = tuple[Tensor, Tensor]
SCHEMES = [rs.fedavg(0.1, steps=4), rs.fedpi(0.1, local=rs.GradientProx(4, 0.05))]
CLOSE = 1e-11
"""Sums of a few hundred float64 terms of size one, in another order."""


def rows(seed: int, n: int = 15) -> Rows:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=draw, dtype=torch.float64) + seed % 3
    return x, (x.sum(1) > 1).long() + (x[:, 0] > 1).long()


def network() -> nn.Module:
    """With batch norm, so that buffers matter."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()


USERS, TEST, SHARED = [rows(i) for i in range(3)], [rows(10 + i) for i in range(3)], rows(20)
LAM = np.array([1, 2, 3]) / 6


def problem(**more: Any) -> rs.Neural:
    return rs.Neural(network(), USERS, weights=[1, 2, 3], test=TEST, validation=SHARED, **more)


def loss(module: nn.Module, data: list[Rows]) -> float:
    """Of training, users weigh as they do in the objective; of test data every row counts the same."""
    with torch.no_grad():
        each = [float(F.cross_entropy(module.eval()(x), y)) for x, y in data]
    return float(np.mean(each) if data is TEST else LAM @ each)


def shared_loss(module: nn.Module) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(module.eval()(SHARED[0]), SHARED[1]))


@pytest.mark.parametrize("kind", ["ergodic", "suffix"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=["fedavg", "fedpi"])
def test_columns_are_those_of_the_module(scheme: rs.Scheme, kind: str) -> None:
    run = rs.solve(problem(), scheme, rounds=11, average=kind, metrics=["auc"])
    last, module = run.history.iloc[-1], run.module()
    assert last.test_loss == pytest.approx(loss(module, TEST), rel=CLOSE)
    assert last.average_value == pytest.approx(loss(module, USERS), rel=CLOSE)
    assert last.validation_loss == pytest.approx(shared_loss(module), rel=CLOSE)
    assert last.value != pytest.approx(last.average_value, rel=1e-3)  # the last model is another one
    x, y = TEST[1]
    accuracy = [float((module(x).argmax(1) == y).double().mean()) for x, y in TEST]
    assert last.test_accuracy == pytest.approx(np.mean(accuracy), rel=CLOSE)
    assert run.score(x, y) == pytest.approx(accuracy[1])
    assert f"value {last.average_value:.3g}" in repr(run)


def test_an_average_has_the_latest_buffers_as_the_module_has() -> None:
    run = rs.solve(problem(), SCHEMES[0], rounds=7, average="ergodic")
    users = run.state.memory["buffer.1.running_mean"]
    mean = (torch.from_numpy(LAM)[:, None] * users).sum(0)
    torch.testing.assert_close(run.module().get_buffer("1.running_mean"), mean, rtol=CLOSE, atol=CLOSE)


def test_the_best_model_is_the_one_whose_metric_it_has() -> None:
    stop = rs.Stop(metric="validation_loss", patience=99)
    run = rs.solve(problem(), SCHEMES[0], rounds=9, average="ergodic", stop=stop)
    best, table = run.best, run.history  # type: Any, Any
    module = run.module(best=True).eval()
    assert best.value == pytest.approx(shared_loss(module), rel=CLOSE)
    assert best.value == table.validation_loss.min()
    assert best.round > 2  # where the average is not the last model
    assert best.round == table["round"][table.validation_loss.idxmin()]


@pytest.mark.parametrize("name", ["value", "gap"])
def test_a_run_stops_by_the_value_or_gap_of_its_average(name: str) -> None:
    quadratics = rs.Quadratics([1.0, 3.0], [[2.0], [-1.0]])
    limit: Any = {"stop": rs.Stop(gap=1e-2)} if name == "gap" else {"stop": rs.Stop(metric="value", patience=50)}
    run = rs.solve(quadratics, rs.fedpi(0.3), rounds=80, start=[9.0], average="ergodic", **limit)
    last, f = run.history.iloc[-1], lambda w: float(quadratics.gap(w[None])[0])
    assert f(run.model) == pytest.approx(last.average_gap, rel=1e-9)
    if name == "gap":
        assert last.average_gap <= 1e-2 < run.history.average_gap.iloc[-2]
        assert run.history.gap.iloc[-2] <= 1e-2  # the last model was there before
    else:
        best: Any = run.best
        assert best.value == run.history.average_value.min()
        assert f(best.model) == pytest.approx(best.value - quadratics.fstar, abs=1e-9)


def test_a_linear_models_metrics_are_those_of_the_model_handed_back() -> None:
    made = rs.make_logistic(users=3, dim=4, rows=20, seed=1)
    random = np.random.default_rng(0)
    A = random.normal(size=(30, 4))
    held = rs.HeldOut(A, np.sign(A[:, 0] + random.normal(size=30)))
    stop = rs.Stop(metric="validation_log_loss", patience=99)
    run = rs.solve(made, rs.fedpi(0.1), rounds=9, average="ergodic", test=held, validation=held, stop=stop)
    z = held.b[0] * (held.A[0] @ run.model.numpy())
    assert run.history.test_log_loss.iloc[-1] == pytest.approx(np.log1p(np.exp(-z)).mean(), rel=1e-12)
    assert run.score(held.A[0], held.b[0]) == run.history.test_accuracy.iloc[-1]
    best: Any = run.best
    z = held.b[0] * (held.A[0] @ best.model.numpy())
    assert best.value == pytest.approx(np.log1p(np.exp(-z)).mean(), rel=1e-12)


def test_a_stored_run_and_its_pictures_show_the_average(tmp_path: Path) -> None:
    run = rs.solve(problem(), SCHEMES[0], rounds=5, average="ergodic")
    back = rs.open(run.save(tmp_path / "it"))
    module = back.module(into=network())
    assert back.model.equal(run.model)
    assert back.history.test_loss.iloc[-1] == pytest.approx(loss(module, TEST), rel=CLOSE)
    assert reported(back.history)["value"].iloc[-1] == pytest.approx(loss(module, USERS), rel=CLOSE)
    drawn = plotting.plot(run).axes[0].lines[0].get_ydata()
    assert np.asarray(drawn).tolist() == run.history.average_value.tolist()


def test_a_callback_sees_what_the_row_has() -> None:
    seen: list[dict[str, float]] = []
    run = rs.solve(
        problem(), SCHEMES[1], rounds=6, every=4, average="ergodic", callback=lambda r: seen.append(r.metrics)
    )
    columns = ["value", "average_value", "test_loss", "personal_test_loss"]
    for row in run.history.to_dict("records"):
        assert {name: seen[row["round"] - 1][name] for name in columns} == {name: row[name] for name in columns}
    assert all(set(columns) <= set(metrics) for metrics in seen)
