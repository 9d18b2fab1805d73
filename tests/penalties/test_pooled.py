"""Runs with a penalty against scikit-learn, SciPy and hand-written solvers on the pooled data, to six digits."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import resolvent as rs
from resolvent.iteration.penalties import penalty_of

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = ("dense", "ill-scaled", "rank-deficient", "wide")


def rows(seed: int, kind: str, labels: bool = False) -> tuple[list[Any], list[Any]]:
    """Users' rows and targets; of their own sizes."""
    rng = np.random.default_rng(seed)
    users, d = int(rng.integers(2, 5)), int(rng.integers(5, 12))
    columns = np.geomspace(1, 300, d) if kind == "ill-scaled" else np.ones(d)
    w, A, b = rng.standard_normal(d) * (rng.random(d) < 0.5) / columns, [], []
    for _ in range(users):
        n = int(rng.integers(2, 4) if kind == "wide" else rng.integers(8, 20))
        X = rng.standard_normal((n, d)) * columns
        if kind == "rank-deficient":
            X[:, 1], X[:, -1] = X[:, 0], X[:, 2] - 2 * X[:, 3]
        y = X @ w + 0.5 * rng.standard_normal(n)
        A.append(X)
        b.append(np.where(y > 0, 1.0, -1.0) if labels else y)
    if labels:
        b[0][0] = -b[0][1]  # both classes
    return A, b


def solved(problem: Any, **more: Any) -> rs.Run:
    run = rs.solve(problem, "fedpi", rounds=3000, anderson=10, stop=rs.Stop(gap=1e-15 * problem.fstar), **more)
    assert run.status == "stopped", run
    return run


def same(model: torch.Tensor, expected: Any, rank_deficient: bool = False) -> None:
    """Six digits and the same zeros. Scikit-learn stops a little above the minimum; zeros are exact in both."""
    if not rank_deficient:
        np.testing.assert_allclose(model.numpy(), expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())
        np.testing.assert_array_equal(model.numpy() == 0, np.asarray(expected) == 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_lasso_and_elastic_net(seed: int, kind: str, ratio: float) -> None:
    from sklearn.linear_model import ElasticNet

    A, b = rows(seed, kind)
    X, y, m = np.vstack(A), np.concatenate(b), len(A)
    alpha = 0.1 * np.abs(X.T @ y).max() / len(y)
    theirs = ElasticNet(alpha=alpha, l1_ratio=ratio, fit_intercept=seed == 1, tol=1e-14, max_iter=10**6).fit(X, y)
    l1, l2 = alpha * ratio * len(y) / m, alpha * (1 - ratio) * len(y) / m
    penalty = rs.L1(l1) if ratio == 1 else rs.ElasticNet(l1, l2)
    problem = rs.LeastSquares(A, b, intercept=seed == 1, penalty=penalty)
    run = solved(problem)
    expected = np.append(theirs.coef_, theirs.intercept_) if seed == 1 else theirs.coef_
    same(run.model, expected, kind == "rank-deficient" and ratio == 1)
    same(problem.minimiser, expected, kind == "rank-deficient" and ratio == 1)
    value = float(problem.gap(torch.tensor(expected)[None])[0])
    assert -1e-14 * problem.fstar <= value <= 1e-9 * problem.fstar  # theirs is as good as its tolerance


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense rows", "sparse rows"])
def test_penalties_on_sparse_rows_and_ridges_of_every_model(kind: str, sparse: bool) -> None:
    """Minima against scikit-learn's: a ridge has one minimiser whatever the rows are."""
    from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge

    A, b = rows(40, kind)
    X, y, m = np.vstack(A), np.concatenate(b), len(A)
    size = np.abs(X).max(0)
    own: list[Any] = [sp.csr_array(part) for part in A] if sparse else A
    signs, counts = [np.where(each > 0, 1.0, -1.0) for each in b], [np.rint(np.abs(each) / 10) for each in b]
    newton: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 1000, "fit_intercept": False}
    alpha = 0.1 * np.abs(X.T @ y).max() / len(y)
    l2 = rs.L2(2.0 / m)
    pairs: list[tuple[Any, Any]] = [
        (rs.LeastSquares(own, b, penalty=l2), Ridge(2.0, fit_intercept=False, solver="svd").fit(X, y)),
        (
            rs.Logistic(own, signs, reg=0.0, penalty=l2),
            LogisticRegression(C=0.5, **newton).fit(X, np.concatenate(signs)),
        ),
        (
            rs.Poisson(own, counts, penalty=l2),
            PoissonRegressor(alpha=2 / len(y), **newton).fit(X, np.concatenate(counts)),
        ),
    ]
    if kind != "rank-deficient":
        lasso = Lasso(alpha, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(X, y)
        pairs.append((rs.LeastSquares(own, b, penalty=rs.L1(alpha * len(y) / m)), lasso))
    for problem, theirs in pairs:
        w, expected = problem.minimiser, theirs.coef_.ravel()
        assert w is not None, problem.without_minimum
        np.testing.assert_allclose(
            w.numpy() * size, expected * size, rtol=1e-6, atol=1e-6 * np.abs(expected * size).max()
        )
        gap = float(problem.gap(torch.tensor(expected)[None])[0])
        assert -1e-14 * problem.fstar <= gap <= 1e-8 * problem.fstar


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_sparse_logistic_regression(seed: int, kind: str) -> None:
    from sklearn.linear_model import LogisticRegression

    A, b = rows(seed + 10, kind, labels=True)
    X, y, m = np.vstack(A), np.concatenate(b), len(A)
    strength = 0.15 * np.abs(X.T @ y).max() / 2
    options: dict[str, Any] = {"C": 1 / strength, "l1_ratio": 1.0, "solver": "saga", "tol": 1e-13, "max_iter": 10**6}
    intercept = seed == 1 and kind != "ill-scaled"
    if kind == "ill-scaled":  # saga takes for ever; liblinear would penalise an intercept
        options |= {"solver": "liblinear", "random_state": 0}
    theirs = LogisticRegression(**options, fit_intercept=intercept).fit(X, y)
    problem: Any = rs.Logistic(A, b, reg=0.0, intercept=intercept, penalty=rs.L1(strength / m))
    run = solved(problem)
    expected = np.append(theirs.coef_[0], theirs.intercept_) if intercept else theirs.coef_[0]
    same(run.model, expected, kind == "rank-deficient")
    assert abs(float(problem.gap(torch.tensor(expected)[None])[0])) <= 1e-10 * problem.fstar


@pytest.mark.parametrize("kind", ["dense", "ill-scaled"])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_against_scipy(seed: int, kind: str) -> None:
    from scipy.optimize import lsq_linear, nnls

    A, b = rows(seed + 20, kind)
    X, y = np.vstack(A), np.concatenate(b)
    free = np.linalg.lstsq(X, y, rcond=None)[0]
    low, high = -0.3 * np.abs(free), np.where(np.arange(len(free)) % 3 == 0, np.inf, 0.6 * np.abs(free))
    for penalty, expected in (
        (rs.Box(low, high), lsq_linear(X, y, (low, high), tol=1e-15, method="bvls").x),
        (rs.Orthant(), nnls(X, y)[0]),
    ):
        problem = rs.LeastSquares(A, b, penalty=penalty)
        same(problem.minimiser, expected)
        run = rs.solve(problem, "fedpi", rounds=3000, anderson=10, stop=rs.Stop(gap=1e-14 * problem.fstar))
        np.testing.assert_allclose(run.model.numpy(), expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())
        assert float(penalty.value(run.model)) == 0


@pytest.mark.parametrize(
    "penalty", [rs.Simplex(), rs.Simplex(0.2), rs.Ball(0.0, 0.3), rs.Ball(0.2, 0.1), rs.Orthant()], ids=str
)
@pytest.mark.parametrize(("logistic", "intercept"), [(False, False), (False, True), (True, True)])
def test_sets_against_a_projected_gradient_method(penalty: Any, logistic: bool, intercept: bool) -> None:
    A, b = rows(30, "dense", labels=logistic)
    make: Any = rs.Logistic if logistic else rs.LeastSquares
    problem = make(A, b, penalty=penalty, intercept=intercept)
    g, lam = penalty_of(problem), problem.weights
    assert g is not None
    L, w = float(lam @ problem.lipschitz), torch.zeros(problem.dim, dtype=torch.float64)
    w = y = g.prox(w, 1.0)
    for k in range(1200):  # Nesterov's method, restarted
        new = g.prox(y - lam @ problem.grad(y[None]) / L, 1 / L)
        ahead = float((y - new) @ (new - w)) <= 0
        y, w = new + (k % 50) / (k % 50 + 3) * (new - w) * ahead, new
    np.testing.assert_allclose(problem.minimiser.numpy(), w.numpy(), rtol=1e-6, atol=1e-9)
    run = solved(problem)
    np.testing.assert_allclose(run.model.numpy(), w.numpy(), rtol=1e-6, atol=1e-7)
    assert float(g.value(run.model)) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("intercept", [False, True], ids=["plain", "intercept"])
def test_quantile_regression_with_an_l1_penalty(kind: str, intercept: bool) -> None:
    from sklearn.linear_model import QuantileRegressor

    A, b = rows(50, kind)
    X, y, m = np.vstack(A), np.concatenate(b), len(A)
    alpha = 0.05 * np.abs(X.T @ np.sign(y)).max() / len(y)
    theirs = QuantileRegressor(quantile=0.4, alpha=alpha, fit_intercept=intercept).fit(X, y)
    problem: Any = rs.Quantile(A, b, 0.4, intercept=intercept, penalty=rs.L1(alpha * len(y) / m))
    expected = torch.tensor(np.append(theirs.coef_, theirs.intercept_) if intercept else theirs.coef_)
    r = np.concatenate(b) - X @ theirs.coef_ - theirs.intercept_
    value = (np.maximum(0.4 * r, -0.6 * r).sum() + alpha * len(y) * np.abs(theirs.coef_).sum()) / m
    assert problem.fstar == pytest.approx(value, rel=1e-9)
    assert 0 <= float(problem.gap(expected[None])) <= 1e-9 * value
    far = problem.minimiser[None] + torch.from_numpy(np.random.default_rng(0).standard_normal((20, problem.dim)))
    g = penalty_of(problem)
    assert g is not None
    whole = torch.stack([problem.weights @ problem.value(w[None]) for w in far]) + g.value(far)
    np.testing.assert_allclose(problem.gap(far).numpy(), (whole - problem.fstar).numpy(), rtol=1e-9)


def test_runs_of_quantile_regression_with_a_penalty_know_their_gap() -> None:
    rng = np.random.default_rng(51)
    A, b = rng.standard_normal((8, 1, 3)), rng.standard_normal((8, 1))  # one row per user: its prox is a formula
    for penalty in (rs.L1(0.05), rs.ElasticNet(0.05, 0.3), rs.L2(0.3)):
        problem: Any = rs.Quantile(A, b, 0.4, penalty=penalty)
        run = rs.solve(problem, "fedpi", rounds=150, every=150)
        assert 0 <= run.history.gap.iloc[-1] <= 1e-2 * problem.fstar
        assert run.history.value.iloc[-1] == pytest.approx(problem.fstar, rel=1e-2)
    alike = rs.Quantile(A, b, 0.4, reg=0.3)
    np.testing.assert_allclose(problem.minimiser.numpy(), alike.minimiser.numpy(), rtol=1e-9, atol=1e-12)
    assert rs.Quantile(A, b, 0.4, penalty=rs.Orthant()).fstar is None


@pytest.mark.parametrize("intercept", [False, True], ids=["plain", "intercept"])
def test_softmax_regression_with_an_l2_penalty(intercept: bool) -> None:
    from sklearn.linear_model import LogisticRegression

    A, _ = rows(52, "dense")
    rng, m = np.random.default_rng(52), len(A)
    y = [rng.integers(0, 3, len(part)) for part in A]
    options: dict[str, Any] = {"solver": "newton-cg", "tol": 1e-12, "max_iter": 1000, "fit_intercept": intercept}
    theirs = LogisticRegression(C=0.5, **options).fit(np.vstack(A), np.concatenate(y))
    problem: Any = rs.Softmax(A, y, reg=0.5 / m, intercept=intercept, penalty=rs.L2(1.5 / m))
    coefficients = theirs.coef_.size
    np.testing.assert_allclose(problem.minimiser[:coefficients].numpy(), theirs.coef_.ravel(), rtol=1e-6, atol=1e-7)
    expected = torch.tensor(np.concatenate([theirs.coef_.ravel(), theirs.intercept_ if intercept else []]))[None]
    g = penalty_of(problem)
    assert g is not None
    whole = problem.weights @ problem.value(expected) + g.value(expected)
    assert float(whole) == pytest.approx(problem.fstar, rel=1e-12)
    run = rs.solve(problem, "fedpi", rounds=100, anderson=5, every=100)
    assert 0 <= run.history.gap.iloc[-1] <= 1e-9 * problem.fstar
    assert run.history.value.iloc[-1] == pytest.approx(problem.fstar, rel=1e-9)
    for other in (rs.L1(0.1), rs.Box(-1.0, 1.0), rs.L2(np.arange(1.0, 1 + coefficients))):
        assert rs.Softmax(A, y, reg=0.5, intercept=intercept, penalty=other).fstar is None
