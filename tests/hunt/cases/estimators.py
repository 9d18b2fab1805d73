"""The estimators on random data, against scikit-learn's of the same name on pooled rows: who finds the lower value?"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import linear_model
from sklearn.exceptions import ConvergenceWarning

from hunt.family import Family
from resolvent.sklearn import FederatedLinearRegression, FederatedLogisticRegression, FederatedPoissonRegressor

PENALTIES = (None, "l2", "l1", "elasticnet")


def drawn(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Rows, a linear predictor of each, and whose rows they are: ill-scaled, shifted, with equal columns, or sparse."""
    n, d, users = int(rng.integers(12, 60)), int(rng.integers(1, 7)), int(rng.integers(1, 6))
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-2, 2, d) + (rng.random() < 0.3) * 10.0 ** rng.uniform(-1, 1)
    if rng.random() < 0.2 and d > 1:
        X[:, 1] = X[:, 0]
    if rng.random() < 0.3:
        X *= rng.random(X.shape) < 0.4
    size = X.std(0) + (X.std(0) == 0)
    return X, ((X - X.mean(0)) / size) @ rng.standard_normal(d), rng.integers(users, size=n)


def logits(X: Any, y: Any, model: Any, C: float, l1: float, l2: float) -> float:
    """The objective of LogisticRegression."""
    scores = X @ model.coef_.T + model.intercept_
    scores = np.column_stack([np.zeros(len(X)), scores]) if scores.shape[1] == 1 else scores
    codes = np.searchsorted(model.classes_, y)
    top = scores.max(1)
    total = np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[np.arange(len(X)), codes]
    return float(C * total.sum() + l2 / 2 * (model.coef_**2).sum() + l1 * np.abs(model.coef_).sum())


def settled(model: Any, X: Any, y: Any, rng: np.random.Generator, users: Any) -> bool:
    """Fit, on dense or sparse rows; whether nothing was warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(sp.csr_array(X) if rng.random() < 0.3 else X, y, users=users)
    return not any(issubclass(each.category, ConvergenceWarning) for each in said)


def compared(mine: float, theirs: float, fine: bool, what: str) -> str:
    """Nothing lower than ours is found, unless we said that we were not done."""
    if not fine:
        return "warned"
    assert mine <= theirs + 1e-9 * abs(theirs) + 1e-12, f"{what}: {mine!r} where scikit-learn has {theirs!r}"
    return "right"


def linear(seed: int) -> str:
    rng = np.random.default_rng(seed)
    X, t, users = drawn(rng)
    y = t * 10.0 ** rng.uniform(-2, 2) + rng.standard_normal(len(X)) + 10.0 ** rng.uniform(-1, 2)
    penalty, alpha, ratio = PENALTIES[seed % 4], 10.0 ** rng.uniform(-3, 0), float(rng.uniform(0.1, 0.9))
    bias, times = bool(rng.random() < 0.7), 1 if penalty == "l2" else len(y)
    ours = FederatedLinearRegression(penalty, alpha=alpha, l1_ratio=ratio, fit_intercept=bias, max_iter=3000)
    fine = settled(ours, X, y, rng, users)
    tight = {"fit_intercept": bias, "tol": 1e-13, "max_iter": 200_000}
    theirs: Any = {
        None: lambda: linear_model.LinearRegression(fit_intercept=bias),
        "l2": lambda: linear_model.Ridge(alpha, fit_intercept=bias, solver="svd"),
        "l1": lambda: linear_model.Lasso(alpha, **tight),
        "elasticnet": lambda: linear_model.ElasticNet(alpha, l1_ratio=ratio, **tight),
    }[penalty]().fit(X, y)
    l1, l2 = {None: (0, 0), "l2": (0, 1), "l1": (1, 0), "elasticnet": (ratio, 1 - ratio)}[penalty]

    def value(model: Any) -> float:
        r, w = y - X @ model.coef_ - model.intercept_, model.coef_
        return float(r @ r / 2 + alpha * times * (l1 * np.abs(w).sum() + l2 / 2 * (w @ w)))

    return compared(value(ours), value(theirs), fine, f"{penalty}, alpha = {alpha:.3g}")


def logistic(seed: int) -> str:
    rng = np.random.default_rng(seed)
    X, t, users = drawn(rng)
    noisy = t + 2 * rng.standard_normal(len(X))
    many = 2 if rng.random() < 0.6 else 3
    y = np.searchsorted(np.quantile(noisy, np.arange(1, many) / many), noisy)
    penalty, C, ratio = PENALTIES[1 + seed % 3], 10.0 ** rng.uniform(-2, 1), float(rng.uniform(0.1, 0.9))
    bias = bool(rng.random() < 0.7)
    ours = FederatedLogisticRegression(penalty, C=C, l1_ratio=ratio, fit_intercept=bias, max_iter=3000)
    fine = settled(ours, X, y, rng, users)
    l1, l2 = {"l2": (0.0, 1.0), "l1": (1.0, 0.0), "elasticnet": (ratio, 1 - ratio)}[str(penalty)]
    size = X.std(0) + (X.std(0) == 0)  # saga needs columns of one scale: only then is the penalty the same
    if l1 and not np.allclose(size, size[0]):
        X = X / size
        fine = settled(ours, X, y, rng, users)
    solver = "newton-cg" if not l1 else "saga"
    theirs = linear_model.LogisticRegression(
        C=C, l1_ratio=l1, solver=solver, fit_intercept=bias, tol=1e-10, max_iter=20_000
    ).fit(X, y)
    return compared(
        logits(X, y, ours, C, l1, l2), logits(X, y, theirs, C, l1, l2), fine, f"{penalty}, C = {C:.3g}, {many} classes"
    )


def poisson(seed: int) -> str:
    rng = np.random.default_rng(seed)
    X, t, users = drawn(rng)
    y = rng.poisson(np.exp(np.clip(t / 2, -3, 3))).astype(float)
    y[0] += 1
    alpha, bias = 10.0 ** rng.uniform(-3, 0), bool(rng.random() < 0.7)
    ours = FederatedPoissonRegressor(alpha=alpha, fit_intercept=bias, max_iter=3000)
    fine = settled(ours, X, y, rng, users)
    theirs = linear_model.PoissonRegressor(
        alpha=alpha, fit_intercept=bias, solver="newton-cholesky", tol=1e-10, max_iter=10_000
    ).fit(X, y)

    def value(model: Any) -> float:
        eta = X @ model.coef_ + model.intercept_
        return float(np.mean(np.exp(eta) - y * eta) + alpha / 2 * (model.coef_ @ model.coef_))

    return compared(value(ours), value(theirs), fine, f"alpha = {alpha:.3g}")


FAMILIES = [
    Family("linear estimators", linear, few=8, many=400),
    Family("logistic estimators", logistic, few=4, many=200),
    Family("poisson estimators", poisson, few=4, many=200),
]
