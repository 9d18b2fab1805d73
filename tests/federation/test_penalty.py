"""A penalty in a federation: the server applies it where users meet, and nodes do not know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from engines.cases import COMES, TIMES, built
from engines.contract import assert_same_trajectory, trajectory
from engines.fake_grid import KEYS, PROMPT, FakeGrid, engine_over
from federation.test_server import NAMES, Dies, Power, grid_of, pooled, settings
from resolvent import runs
from resolvent.engines.flower.engine import FlowerEngine
from resolvent.engines.flower.facts import gather
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import Description, Question
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.packets import Malformed, from_bytes, to_bytes
from resolvent.errors import InputError
from resolvent.federation import keys, server_app, template
from resolvent.federation.project import Project
from resolvent.local.choice import local_operator
from resolvent.problems.penalty_words import parse_penalty

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

CASES: dict[str, tuple[str, rs.Scheme, str, dict[str, Any]]] = {
    "fedpi": ("least_squares", rs.fedpi(0.1), "l1:0.4", {}),
    "fedpi_newton": ("logistic", rs.fedpi(0.1), "l1:0.4", {"anderson": 2}),
    "fedpi_auto": ("least_squares", rs.fedpi("auto"), "l1:0.4", {}),
    "fedsplit": ("logistic", rs.fedsplit(0.1), "elastic-net:0.2:0.3", {"participation": rs.Trace(COMES)}),
    "fedavg": ("logistic", rs.fedavg(0.02), "box:-0.2:0.3", {"anderson": rs.Anderson(3, on="mean")}),
    "fedavg_5": ("least_squares", rs.fedavg(0.02, steps=5), "l1:0.4", {}),
    "fedavg_batches": ("logistic", rs.fedavg(0.01, local=rs.GradientSteps(2, batch=4)), "l2:0.5", {}),
    "fedprox": ("least_squares", rs.fedprox(0.1), "simplex", {"average": "suffix"}),
    "fedrp": ("logistic", rs.fedrp(0.1), "orthant", {}),
    "reflect_prox": ("least_squares", rs.reflect_prox(0.1), "ball:0.5", {}),
    "reflect_gradient": ("logistic", rs.reflect_gradient(0.02), "l1:0.4", {}),
    "late": ("logistic", rs.fedpi(0.1), "l1:0.4", {"participation": rs.Stragglers(TIMES, close=0.5)}),
    "halving": ("least_squares", rs.fedpi(rs.schedules.halving(0.4, period=4)), "l1:0.4", {}),
}


SELDOM = ("fedavg_batches", "fedrp", "reflect_gradient", "halving", "late")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SELDOM else ()) for name in CASES]
)
def test_it_takes_the_way_of_one_process(name: str) -> None:
    """To 1e-10, round by round."""
    problem, scheme, words, more = CASES[name]
    users, penalty = built(problem), parse_penalty(words)
    expected = trajectory(users, scheme, penalty=penalty, **more)
    engine = engine_over(users, local_operator(scheme, users), scheme.steady)
    found = trajectory(None, scheme, engine=engine, penalty=penalty, **more)
    assert_same_trajectory(found, expected, unknown=("gap", "average_gap", "bytes_up", "bytes_down"))
    assert not torch.equal(found.run.model, trajectory(users, scheme, **more).run.model)


def rows(sizes: tuple[int, ...] = (30, 45, 20), d: int = 6, seed: int = 3) -> tuple[list[Any], list[Any]]:
    """Least squares with an intercept of 4 and two features that do not matter."""
    rng = np.random.default_rng(seed)
    w = np.array([2.0, -1.0, 0.0, 0.7, 0.0, 0.3])[:d]
    X = [rng.standard_normal((n, d)) + 0.3 * k for k, n in enumerate(sizes)]
    return X, [x @ w + 4 + 0.5 * rng.standard_normal(len(x)) for x in X]


@pytest.mark.parametrize(("intercept", "strength"), [(False, 30.0), (True, 0.5), (True, 30.0)])
def test_the_lasso_is_scikit_learn_s(intercept: bool, strength: float) -> None:
    """To six digits, with the same zeros. Intercepts are never penalised."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y = rows()
    parts = [Node(rs.LeastSquares([a], [b], intercept=intercept)) for a, b in zip(X, y, strict=True)]
    post = Post(FakeGrid(parts), KEYS)
    engine = FlowerEngine(post, gather(post, "run", 3), rs.ExactProx(), "run", rule=PROMPT, ride=True)
    stop = rs.Stop(certificates=1e-8)
    run = rs.solve(None, rs.fedpi(0.03), rounds=300, anderson=5, engine=engine, penalty=rs.L1(strength), stop=stop)
    assert run.status == "stopped"
    n = sum(map(len, y))
    lasso = linear_model.Lasso(alpha=strength * 3 / n, fit_intercept=intercept, tol=1e-14, max_iter=100_000)
    lasso.fit(np.concatenate(X), np.concatenate(y))
    np.testing.assert_allclose(run.model[:6], lasso.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(run.model[:6] == 0, lasso.coef_ == 0)
    if intercept:
        np.testing.assert_allclose(run.model[6], lasso.intercept_, rtol=1e-6)


# --- federation.toml -------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = template.write(tmp_path / "project")
    template.fix(made, eta=0.3, rounds=8)
    settings(made, '# penalty = "l1:0.1" ', 'penalty = "l1:2.0" ')
    for name in NAMES:
        keys.make_node(made, name)
    return made


def test_a_run_with_a_penalty_in_the_run_store(project: Project) -> None:
    run = server_app.conduct(grid_of(project), project, project.runs)
    expected = rs.solve(pooled(), rs.fedpi(0.3), rounds=8, penalty=rs.L1(2.0))
    torch.testing.assert_close(run.model(), expected.model, rtol=1e-9, atol=1e-10)
    for column in ("value", "residual", "stationarity", "consensus"):
        np.testing.assert_allclose(run.history()[column], expected.history[column], rtol=1e-7, atol=1e-10)
    f = pooled().value(expected.model.reshape(1, -1)).mean()
    assert float(run.history()["value"].iloc[-1]) == pytest.approx(float(f) + 2 * float(expected.model.abs().sum()))
    assert run.history()["gap"].isna().all()
    assert run.config["problem"]["penalty"] == "l1:2.0"
    assert "+ g, g = L1(2)" in run.about["explanation"]["words"]
    plain = rs.solve(pooled(), rs.fedpi(0.3), rounds=8)
    assert float((plain.model - expected.model).abs().max()) > 0.1


def test_a_killed_server_goes_on_with_its_penalty(project: Project, tmp_path: Path) -> None:
    unbroken = server_app.conduct(grid_of(project, memory=tmp_path / "a"), project, tmp_path / "whole")
    with pytest.raises(Power):
        server_app.conduct(grid_of(project, memory=tmp_path / "b", kind=Dies), project, project.runs)
    (left,) = runs.folders(project.runs)
    settings(project, 'penalty = "l1:2.0" ', 'penalty = "l1:0.5" ')  # a run goes on with what it was begun with
    done = server_app.conduct(grid_of(project, memory=tmp_path / "b"), project, project.runs, resume=left.id)
    assert torch.equal(unbroken.model(), done.model())  # type: ignore[arg-type]
    assert unbroken.history()["value"].tolist() == done.history()["value"].tolist()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("l1", "penalty is 'l1', with no values, but l1 takes 1 value \\(t\\)"),
        ("lasso:1", "penalty is 'lasso:1', but l1:T"),
        ("l1:much", "penalty is 'l1:much', but numbers are needed behind the name"),
        ("l1:-1", "penalty is 'l1:-1', but t is -1.0, but a finite number >= 0"),
        ("box:2:1", "penalty is 'box:2:1', but"),
    ],
)
def test_a_bad_one_is_refused_before_anything_is_submitted(project: Project, words: str, sentence: str) -> None:
    settings(project, '"l1:2.0"', f'"{words}"')
    with pytest.raises(InputError, match=f"^federation: {sentence}"):
        project.config()
    settings(project, f'"{words}"', "3")
    with pytest.raises(InputError, match=r"penalty is 3, but text is needed"):
        project.config()


def test_a_scheme_that_cannot_apply_it_is_refused(project: Project) -> None:
    settings(project, 'algorithm = "fedpi"', 'algorithm = "custom"\nalpha = 1.0\nbeta = 0.0\ngamma = 1.0')
    with pytest.raises(InputError, match="a penalty is applied where users meet"):
        server_app.conduct(grid_of(project), project, project.runs)


def test_a_node_that_has_one_says_where_it_belongs() -> None:
    X, y = rows()
    with pytest.raises(
        InputError, match=r'the penalty L1\(1\), .* set `penalty = "l1:0.1"` in the section \[federation\]'
    ):
        Node(rs.LeastSquares([X[0]], [y[0]], penalty=rs.L1(1.0)))


def test_intercepts_are_told_and_must_be_the_same() -> None:
    X, y = rows()
    nodes = [Node(rs.LeastSquares([a], [b], intercept=True)) for a, b in zip(X, y, strict=True)]
    assert gather(Post(FakeGrid(nodes), KEYS), "run", 3).intercepts == (6,)
    wider = np.hstack([X[1], np.ones((len(X[1]), 1))])
    nodes[1] = Node(rs.LeastSquares([wider], [y[1]]))
    with pytest.raises(InputError, match=r"intercepts is \(\) on node site-01, but \(6,\) on node site-00"):
        gather(Post(FakeGrid(nodes), KEYS), "run", 3)
    told = from_bytes(to_bytes(nodes[0].handle(Question("describe", "run").packet()))).header["facts"]
    assert Description.of(told).intercepts == (6,)
    for wrong in ([7], [-1], [6, 6], [6, 5], [True], ["6"], [6.0], 6, None):
        with pytest.raises(Malformed):
            Description.of(told | {"intercepts": wrong})
