"""Columns that depend on each other: the minimiser's coefficients, or a warning that they may not be."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from hunt.cases.collinear import exact, minimiser
from resolvent.sklearn import FederatedLinearRegression, FederatedLogisticRegression, FederatedPoissonRegressor

N = 60
USERS = np.arange(N) % 4


def alike(apart: float, seed: int = 0) -> Any:
    """Two columns whose difference is this small."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(N)
    return np.column_stack([x, x + apart * rng.standard_normal(N)])


@pytest.mark.parametrize("apart", [1e-5, 1e-6, 1e-8])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_two_columns_that_are_nearly_alike(apart: float, kind: Any) -> None:
    """Without noise the condition number enters once: 1e8 leaves eight digits, of which six are asked."""
    X = alike(apart)
    ours = FederatedLinearRegression(fit_intercept=False).fit(kind(X), X @ [-3.0, 7.0], users=USERS)
    np.testing.assert_allclose(ours.coef_, [-3, 7], rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 1e-7])
def test_noise_beside_columns_that_are_nearly_alike(alpha: float) -> None:
    X = alike(1e-4)
    y = X @ [-3.0, 7.0] + np.random.default_rng(1).standard_normal(N)
    ours = FederatedLinearRegression("l2" if alpha else None, alpha=alpha).fit(X, y, users=USERS)
    expected, shift = exact(X, y, True, alpha)
    np.testing.assert_allclose(ours.coef_, expected, rtol=1e-6)
    assert ours.intercept_ == pytest.approx(shift, rel=1e-6)
    assert ours.optimality_ <= ours.tol


def test_what_rounding_leaves_open_is_warned_about() -> None:
    """Noise enters with the square of the condition number, 1e22."""
    X = alike(1e-11)
    y = X @ [-3.0, 7.0] + np.random.default_rng(1).standard_normal(N)
    with pytest.warns(ConvergenceWarning, match="may be off by .* columns that nearly depend on each other"):
        FederatedLinearRegression().fit(X, y, users=USERS)


def test_of_many_solutions_the_one_of_least_norm_in_the_tables_units() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, 3))
    twice = np.column_stack([X, 8 * X[:, 0], np.zeros(N)])
    wide = rng.standard_normal((5, 9)) * 10.0 ** np.linspace(-2, 2, 9)
    for rows in (twice, wide):
        y = rng.standard_normal(len(rows))
        for kind in (np.asarray, sp.csr_array):
            ours = FederatedLinearRegression(fit_intercept=False).fit(kind(rows), y, users=np.arange(len(y)) % 2)
            expected = np.linalg.lstsq(rows, y, rcond=1e-12)[0]
            np.testing.assert_allclose(ours.coef_, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


def test_a_sparse_column_that_varies_little() -> None:
    rng = np.random.default_rng(4)
    X = np.column_stack([1000 + 1e-5 * rng.standard_normal(N), rng.standard_normal(N)])
    y = 5e4 * (X[:, 0] - 1000) + X[:, 1] + rng.standard_normal(N)
    ours = FederatedLinearRegression().fit(sp.csr_array(X), y, users=USERS)
    expected, shift = exact(X, y, True, 0.0)
    np.testing.assert_allclose(ours.coef_, expected, rtol=1e-6)
    assert ours.intercept_ == pytest.approx(shift, rel=1e-6)


def lasso(X: Any, y: Any, strength: float) -> Any:
    """The minimiser of |y - Xw|^2/2 + strength |w|_1 by trying all signs."""
    best = None
    for signs in product((-1, 0, 1), repeat=X.shape[1]):
        s, w = np.array(signs), np.zeros(X.shape[1])
        on = s != 0
        if on.any():
            Q, R = np.linalg.qr(X[:, on])
            w[on] = np.linalg.solve(R, Q.T @ y - strength * np.linalg.solve(R.T, s[on]))
        value = ((y - X @ w) ** 2).sum() / 2 + strength * np.abs(w).sum()
        if (w * s >= 0).all() and (best is None or value < best[0]):
            best = (value, w)
    assert best is not None
    return best[1]


@pytest.mark.parametrize("seed", range(4))
def test_the_lasso_of_columns_that_are_nearly_alike(seed: int) -> None:
    X = np.column_stack([alike(1e-5, seed), np.random.default_rng(seed + 10).standard_normal(N)])
    y = X @ [2.0, 1.0, 1.0] + 1e-4 * np.random.default_rng(seed + 20).standard_normal(N)
    strength = 1e-6
    ours = FederatedLinearRegression("l1", alpha=strength, fit_intercept=False).fit(X, y, users=USERS)
    expected = lasso(X, y, strength * N)
    np.testing.assert_allclose(ours.coef_, expected, atol=1e-6 * float(np.linalg.norm(expected)))
    assert (ours.coef_ == 0).tolist() == (expected == 0).tolist()


@pytest.mark.parametrize("counts", [False, True])
def test_curved_losses_of_columns_that_are_nearly_alike(counts: bool) -> None:
    X = alike(1e-3)
    rng = np.random.default_rng(5)
    y = rng.poisson(np.exp(X[:, 0] / 2)) if counts else (rng.random(N) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    model: Any = FederatedPoissonRegressor(alpha=0) if counts else FederatedLogisticRegression(None)
    model.set_params(fit_intercept=False).fit(X, y, users=USERS)
    expected = minimiser(X, y, np.ravel(model.coef_), np.zeros(2), counts)
    np.testing.assert_allclose(np.ravel(model.coef_), expected, rtol=1e-6)


def test_classes_that_a_plane_separates_have_no_minimiser() -> None:
    X = np.random.default_rng(0).standard_normal((N, 2))
    with pytest.warns(ConvergenceWarning, match="classes that a plane separates|the optimality condition is violated"):
        FederatedLogisticRegression(None).fit(X, X[:, 0] > 0, users=USERS)
