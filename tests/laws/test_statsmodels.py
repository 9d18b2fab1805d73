"""Models against statsmodels on the pooled rows, to six digits: dense, of columns on very different scales, and of
columns that depend on each other, where what is predicted is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resolvent as rs

sm = pytest.importorskip("statsmodels.api")
pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = ("dense", "ill-scaled", "rank-deficient")
Q = 0.3


class Data:
    """Three users of unequal sizes, the last column a constant, with targets of each kind."""

    def __init__(self, seed: int, kind: str) -> None:
        rng = np.random.default_rng(seed)
        X = np.column_stack([rng.standard_normal((90, 4)), np.ones(90)])
        t = X @ np.append(0.5 * rng.standard_normal(4), 0.3)
        if kind == "ill-scaled":
            X[:, :4] *= [1e-3, 1.0, 30.0, 1e3]
        if kind == "rank-deficient":
            X = np.column_stack([X[:, 0] - 2 * X[:, 4], X])
        self.X, self.counts, self.numbers = X, rng.poisson(np.exp(t)).astype(float), t + rng.standard_t(3, 90)

    def users(self, y: Any) -> tuple[list[Any], list[Any]]:
        return np.split(self.X, [20, 55]), np.split(y, [20, 55])


def least_squares(data: Data) -> tuple[Any, Any]:
    return rs.LeastSquares(*data.users(data.numbers)), sm.OLS(data.numbers, data.X).fit().params


def poisson(data: Data) -> tuple[Any, Any]:
    found = sm.GLM(data.counts, data.X, family=sm.families.Poisson()).fit(tol=1e-14, maxiter=1000)
    return rs.Poisson(*data.users(data.counts)), found.params


def huber(data: Data) -> tuple[Any, Any]:
    """Statsmodels divides residuals by an estimate of their scale. Held at its first value it only changes delta."""
    robust = sm.RLM(data.numbers, data.X, M=sm.robust.norms.HuberT(1.2))
    found = robust.fit(update_scale=False, tol=1e-13, maxiter=10_000)
    return rs.Huber(*data.users(data.numbers), delta=1.2 * found.scale), found.params


def quantile(data: Data) -> tuple[Any, Any]:
    """By reweighted squares, which stay some 1e-6 away from the kinks: fewer digits, of a value that is no lower.
    Columns of different scales are beyond it, so that it sees them scaled."""
    size = np.abs(data.X).max(0)
    found = sm.QuantReg(data.numbers, data.X / size).fit(Q, p_tol=1e-12, max_iter=20_000)
    return rs.Quantile(*data.users(data.numbers), Q), found.params / size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [least_squares, poisson, huber, quantile], ids=lambda make: make.__name__)
def test_minima_are_those_of_statsmodels(make: Callable[[Data], tuple[Any, Any]], kind: str) -> None:
    for seed in range(3):
        data = Data(seed, kind)
        problem, theirs = make(data)
        w = problem.minimiser
        assert w is not None
        digits = 2e-5 if make is quantile else 1e-6
        scores, expected = data.X @ w.numpy(), data.X @ theirs
        np.testing.assert_allclose(scores, expected, rtol=0, atol=digits * np.abs(expected).max())
        if kind != "rank-deficient":
            size = np.abs(data.X).max(0)
            np.testing.assert_allclose(
                w.numpy() * size, theirs * size, rtol=digits, atol=digits * np.abs(theirs * size).max()
            )
        gap = float(problem.gap(w.new_tensor(theirs)[None]))
        assert -1e-14 * abs(problem.fstar) <= gap <= digits * abs(problem.fstar)


@pytest.mark.parametrize("make", [least_squares, poisson, huber], ids=lambda make: make.__name__)
def test_so_are_the_models_of_runs(make: Callable[[Data], tuple[Any, Any]]) -> None:
    problem, theirs = make(Data(5, "dense"))
    run = rs.solve(problem, "fedpi", rounds=200, anderson=10, stop=rs.Stop(gap=1e-14 * abs(problem.fstar)))
    np.testing.assert_allclose(run.model.numpy(), theirs, rtol=1e-6, atol=1e-7)
