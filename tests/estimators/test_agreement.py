"""Coefficients are those of scikit-learn's own estimators on the pooled rows, to six digits, however rows are dealt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)

from resolvent.sklearn import FederatedLinearRegression, FederatedLogisticRegression, FederatedPoissonRegressor

Floats = NDArray[np.float64]
NEWTON: dict[str, Any] = {"tol": 1e-12, "max_iter": 10_000, "solver": "newton-cholesky"}
SAGA: dict[str, Any] = {"tol": 1e-11, "max_iter": 100_000, "solver": "saga"}
DESCENT: dict[str, Any] = {"tol": 1e-14, "max_iter": 100_000}


class Data(NamedTuple):
    X: Floats
    users: NDArray[np.int64]
    numbers: Floats
    two: NDArray[np.bool_]
    three: NDArray[np.int64]
    counts: NDArray[np.int64]


def data(seed: int) -> Data:
    """A random family: unequal users, columns of different scales, few or many columns per row."""
    rng = np.random.default_rng(seed)
    n, d, spread = ((80, 4, 1.0), (60, 9, 30.0), (40, 50, 1.0))[seed % 3]
    X = rng.standard_normal((n, d)) * spread ** np.linspace(-1, 1, d) + rng.standard_normal(d)
    X[rng.random((n, d)) < 0.3] = 0.0
    t = X @ (rng.standard_normal(d) / X.std(0) * (rng.random(d) < 0.5))
    t = 1.5 * (t - t.mean()) / t.std()
    users = rng.choice(5, n, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    score = np.stack([np.zeros(n), t, -t + rng.standard_normal(n)])
    three = (score + rng.gumbel(size=(3, n))).argmax(0)
    two = rng.random(n) < 1 / (1 + np.exp(-t))
    return Data(X, users, t + rng.standard_normal(n), two, three, rng.poisson(np.exp(t / 2)))


class Pair(NamedTuple):
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    target: str


PAIRS = {
    "ridge": Pair(
        lambda **k: FederatedLinearRegression("l2", alpha=2.0, **k),
        lambda **k: Ridge(2.0, solver="svd", **k),
        "numbers",
    ),
    "lasso": Pair(
        lambda **k: FederatedLinearRegression("l1", alpha=0.1, **k), lambda **k: Lasso(0.1, **DESCENT, **k), "numbers"
    ),
    "elastic net": Pair(
        lambda **k: FederatedLinearRegression("elasticnet", alpha=0.1, l1_ratio=0.3, **k),
        lambda **k: ElasticNet(alpha=0.1, l1_ratio=0.3, **DESCENT, **k),
        "numbers",
    ),
    "logistic": Pair(
        lambda **k: FederatedLogisticRegression(C=0.5, **k), lambda **k: LogisticRegression(C=0.5, **NEWTON, **k), "two"
    ),
    "sparse logistic": Pair(
        lambda **k: FederatedLogisticRegression("l1", C=0.5, **k),
        lambda **k: LogisticRegression(C=0.5, l1_ratio=1.0, **SAGA, **k),
        "two",
    ),
    "elastic logistic": Pair(
        lambda **k: FederatedLogisticRegression("elasticnet", C=0.5, l1_ratio=0.4, **k),
        lambda **k: LogisticRegression(C=0.5, l1_ratio=0.4, **SAGA, **k),
        "two",
    ),
    "softmax": Pair(
        lambda **k: FederatedLogisticRegression(C=0.5, **k),
        lambda **k: LogisticRegression(C=0.5, **NEWTON, **k),
        "three",
    ),
    "poisson": Pair(
        lambda **k: FederatedPoissonRegressor(alpha=0.1, **k),
        lambda **k: PoissonRegressor(alpha=0.1, tol=1e-12, solver="newton-cholesky", **k),
        "counts",
    ),
}
COSTLY = ("softmax", "elastic logistic")
"""Left out where there are more columns than rows."""
UNPENALISED = {
    "least squares": Pair(lambda **k: FederatedLinearRegression(**k), lambda **k: LinearRegression(**k), "numbers"),
    "plain logistic": Pair(
        lambda **k: FederatedLogisticRegression(None, **k),
        lambda **k: LogisticRegression(C=np.inf, **NEWTON, **k),
        "two",
    ),
    "plain softmax": Pair(
        lambda **k: FederatedLogisticRegression(C=np.inf, **k),
        lambda **k: LogisticRegression(C=np.inf, **NEWTON, **k),
        "three",
    ),
    "plain poisson": Pair(
        lambda **k: FederatedPoissonRegressor(alpha=0, **k),
        lambda **k: PoissonRegressor(alpha=0, tol=1e-12, solver="newton-cholesky", **k),
        "counts",
    ),
}


def coefficients(estimator: Any, scale: Floats | float = 1.0) -> Floats:
    return np.column_stack([np.atleast_2d(estimator.coef_) * scale, np.atleast_1d(estimator.intercept_)])


def agree(ours: Any, theirs: Any, scale: Floats | float) -> None:
    found, expected = coefficients(ours, scale), coefficients(theirs, scale)
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max(), rtol=0)
    assert ours.coef_.shape == theirs.coef_.shape
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    assert ours.optimality_ <= ours.tol


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in PAIRS for seed in range(3 - (name in COSTLY))])
def test_penalised(name: str, seed: int) -> None:
    pair, made = PAIRS[name], data(seed)
    more = {"fit_intercept": seed != 1}
    y = getattr(made, pair.target)
    ours, theirs = pair.ours(**more).fit(made.X, y, users=made.users), pair.theirs(**more).fit(made.X, y)
    agree(ours, theirs, made.X.std(0))
    if "l1" in str(getattr(ours, "penalty", "")):
        assert (ours.coef_ == 0).tolist() == (theirs.coef_ == 0).tolist()
    np.testing.assert_allclose(ours.predict(made.X), theirs.predict(made.X), rtol=1e-5, atol=1e-5)
    assert ours.score(made.X, y) == pytest.approx(theirs.score(made.X, y), abs=1e-5)


@pytest.mark.parametrize("name", [name for name in {**PAIRS, **UNPENALISED} if name not in COSTLY])
def test_weights_of_rows_and_classes(name: str) -> None:
    """Any weights, some of them 0, dense and sparse; one user's rows all count nothing."""
    pair, made = (PAIRS | UNPENALISED)[name], data(0)
    rng, y = np.random.default_rng(11), getattr(made, pair.target)
    weight = rng.exponential(size=len(y)) * (rng.random(len(y)) < 0.9) * (made.users != 4)
    label = {"two": {True: 4.0}, "three": "balanced"}.get(pair.target)
    more: Any = {} if label is None else {"class_weight": label}
    theirs = pair.theirs(**more).fit(made.X, y, sample_weight=weight)
    for X in (made.X, sp.csr_array(made.X)) if "l" in name[:1] else (made.X,):
        ours = pair.ours(**more).fit(X, y, users=made.users, sample_weight=weight)
        agree(ours, theirs, made.X.std(0))
        assert ours.users_ == [0, 1, 2, 3]
    assert ours.score(made.X, y, weight) == pytest.approx(theirs.score(made.X, y, weight), abs=1e-5)


@pytest.mark.parametrize("name", UNPENALISED)
def test_unpenalised(name: str) -> None:
    pair, made = UNPENALISED[name], data(0)
    y = getattr(made, pair.target)
    agree(pair.ours().fit(made.X, y, users=made.users), pair.theirs().fit(made.X, y), made.X.std(0))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("lasso", sp.coo_array), ("logistic", sp.csr_array), ("softmax", sp.csc_matrix), ("poisson", sp.csr_matrix)],
)
def test_sparse_rows(name: str, kind: Callable[..., Any]) -> None:
    pair, made = PAIRS[name], data(0)
    y = getattr(made, pair.target)
    ours = pair.ours().fit(kind(made.X), y, users=made.users)
    agree(ours, pair.theirs().fit(made.X, y), made.X.std(0))
    if pair.target in ("two", "three"):
        assert (ours.predict(kind(made.X)) == ours.predict(made.X)).all()
    else:
        np.testing.assert_allclose(ours.predict(kind(made.X)), ours.predict(made.X), rtol=1e-12)


@pytest.mark.parametrize("name", ["ridge", "sparse logistic"])
def test_it_does_not_matter_whose_rows_are_whose(name: str) -> None:
    pair, made = PAIRS[name], data(0)
    y, n = getattr(made, pair.target), len(made.X)
    one = pair.ours(tol=1e-9).fit(made.X, y)
    assert one.users_ == [0]
    for users in (np.arange(n) % 7, np.array(["a", "b"])[(made.X[:, 0] > 1.2).astype(int)], made.two):
        several = pair.ours(tol=1e-9, algorithm="fedpi").fit(made.X, y, users=users)
        assert several.users_ == sorted(set(users.tolist()))
        np.testing.assert_allclose(coefficients(several), coefficients(one), atol=1e-7)


def test_columns_of_any_scale() -> None:
    """1e9 + noise, 1e-7 and 1e6 beside each other: what scikit-learn finds after standardising, mapped back."""
    made = data(0)
    scale, shift = np.array([1.0, 1e-7, 1e6, 1.0]), np.array([1e9, 0.0, 0.0, -3.0])
    X = np.random.default_rng(5).standard_normal((80, 4))
    for pair in UNPENALISED.values():
        if pair.target == "three":
            continue
        y = getattr(made, pair.target)
        expected = pair.theirs().fit(X, y)
        ours = pair.ours().fit(X * scale + shift, y, users=made.users)
        np.testing.assert_allclose(np.ravel(ours.coef_) * scale, np.ravel(expected.coef_), rtol=2e-6, atol=2e-7)


def test_a_penalty_in_the_units_of_ill_scaled_columns() -> None:
    """Ridge regression in exact arithmetic."""
    from fractions import Fraction

    rng = np.random.default_rng(2)
    X = rng.standard_normal((30, 3)) * [1e-4, 1.0, 1e4]
    y = X @ [2e4, 1.0, 1e-4] + rng.standard_normal(30)
    ours = FederatedLinearRegression("l2", alpha=0.5, fit_intercept=False).fit(X, y, users=np.arange(30) % 4)
    A = [[Fraction(v) for v in row] for row in X.tolist()]
    b = [Fraction(v) for v in y.tolist()]
    half, none = Fraction(1, 2), Fraction(0)
    H = [[sum((r[i] * r[j] for r in A), half if i == j else none) for j in range(3)] for i in range(3)]
    g = [sum((r[i] * v for r, v in zip(A, b, strict=True)), none) for i in range(3)]
    for i in range(3):  # elimination
        for k in range(i + 1, 3):
            f = H[k][i] / H[i][i]
            H[k] = [a - f * c for a, c in zip(H[k], H[i], strict=True)]
            g[k] -= f * g[i]
    w = [none] * 3
    for i in reversed(range(3)):
        w[i] = (g[i] - sum((H[i][j] * w[j] for j in range(i + 1, 3)), none)) / H[i][i]
    np.testing.assert_allclose(ours.coef_, [float(v) for v in w], rtol=1e-6)


def test_more_columns_than_a_hessian_is_made_for() -> None:
    """Wide sparse rows are solved without d x d matrices, and with a penalty."""
    rng = np.random.default_rng(4)
    X = sp.random_array((30, 1010), density=0.01, rng=rng, format="csr")
    y = X @ rng.standard_normal(1010) > 0
    ours = FederatedLogisticRegression(C=2.0, tol=1e-7).fit(X, y, users=np.arange(30) % 2)
    theirs = LogisticRegression(C=2.0, tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5 * np.abs(theirs.coef_).max())
