"""Columns that nearly or exactly depend on each other, of any scale: the estimators against exact arithmetic.

Either the coefficients are the minimiser's, to what `tol` promises, or a ConvergenceWarning says that they may not be.
"""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from hunt.family import Family
from resolvent.sklearn import FederatedLinearRegression, FederatedLogisticRegression, FederatedPoissonRegressor

PROMISED = 1e-5
"""What coefficients may be off by, relative to their size, in units in which columns have size one: ten times the 100
tol that is promised, which counts rounding errors as if they were random."""
SURE = 1e3
"""Condition number up to which there is nothing to warn of."""


def dependent(rng: np.random.Generator, n: int, d: int, worst: float) -> Any:
    """Rows whose columns are alike to 1e-worst, alike exactly, of a random spectrum, or independent."""
    X = rng.standard_normal((n, d))
    kind = int(rng.integers(5))
    if kind == 0 and d > 1:
        X[:, 1:] = X[:, :1] + 10.0 ** rng.uniform(-worst, 0) * X[:, 1:]
    elif kind == 1 and d > 1:
        X[:, -1] = X[:, 0] * rng.choice([1.0, 2.0, -0.5])
    elif kind == 2 and d > 2:
        X = np.rint(4 * X)
        X[:, 2] = X[:, 0] + X[:, 1]
    elif kind == 3 and n > d:
        U, _, V = np.linalg.svd(X, full_matrices=False)
        X = U * np.sqrt(n) * 10.0 ** -np.linspace(0, rng.uniform(0, worst), d) @ V
    return X


def rows(rng: np.random.Generator, worst: float, scales: float) -> tuple[Any, Any]:
    """Such rows in the columns' own units, as float32 or with an offset now and then, and whose they are."""
    n, d = int(rng.integers(3, 30)), int(rng.integers(1, 5))
    X = dependent(rng, n, d, worst) * 2.0 ** np.rint(rng.uniform(-scales, scales, d) / np.log10(2))
    if rng.random() < 0.2:
        X = X + 2.0 ** np.rint(rng.uniform(-4, 4))
    if rng.random() < 0.2:
        X = X.astype(np.float32)
    return X, rng.integers(int(rng.integers(1, n + 1)), size=n)


def fit(model: Any, X: Any, y: Any, users: Any) -> str | None:
    """What was warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(X, y, users=users)
    texts = [str(each.message) for each in said if issubclass(each.category, ConvergenceWarning)]
    return texts[0] if texts else None


def spreads(X: Any, intercept: bool) -> Any:
    """The size of each column, and the condition number of the columns of size one: of as many directions as there are
    in exact arithmetic. Infinite where rounding decides whether columns depend on each other."""
    X = np.asarray(X, np.float64)
    centred = X - X.mean(0) if intercept else X
    size = np.sqrt((centred**2).mean(0))
    size[size == 0] = 1
    s = np.linalg.svd(centred / size, compute_uv=False)
    rank = len(reduced(centred_exactly(X, intercept)[0], X.shape[1]))
    condition = s[0] / s[rank - 1] if rank and s[rank - 1] > 0 else 1.0
    return size, condition if condition < 1e12 else np.inf


# --- exact arithmetic ------------------------------------------------------------------------------------------------


def reduced(M: list[list[Fraction]], columns: int) -> list[int]:
    """M in reduced row echelon form by its first columns, in place; the pivots' columns."""
    pivots: list[int] = []
    for j in range(columns):
        k = len(pivots)
        i = next((i for i in range(k, len(M)) if M[i][j]), None)
        if i is None:
            continue
        M[k], M[i] = M[i], M[k]
        M[k] = [v / M[k][j] for v in M[k]]
        for r in range(len(M)):
            if r != k and M[r][j]:
                M[r] = [a - M[r][j] * b for a, b in zip(M[r], M[k], strict=True)]
        pivots.append(j)
    return pivots


def solved(A: list[list[Fraction]], b: list[Fraction]) -> list[Fraction]:
    M = [[*row, v] for row, v in zip(A, b, strict=True)]
    assert len(reduced(M, len(A))) == len(A)
    return [row[-1] for row in M]


def product(A: list[list[Fraction]], B: list[list[Fraction]]) -> list[list[Fraction]]:
    return [
        [sum((a * b for a, b in zip(row, col, strict=True)), Fraction(0)) for col in zip(*B, strict=True)] for row in A
    ]


def centred_exactly(X: Any, intercept: bool) -> tuple[list[list[Fraction]], list[Fraction]]:
    """The rows as fractions, without their columns' means where there is an intercept, and what was taken away."""
    A = [[Fraction(v) for v in row] for row in np.asarray(X, np.float64).tolist()]
    means = [sum(col, Fraction(0)) / len(A) if intercept else Fraction(0) for col in zip(*A, strict=True)]
    return [[v - m for v, m in zip(row, means, strict=True)] for row in A], means


def exact(X: Any, y: Any, intercept: bool, alpha: float) -> tuple[Any, float]:
    """The ridge regression, or the least squares solution of least norm, and its intercept, as exact fractions."""
    A, means = centred_exactly(X, intercept)
    column, (level,) = centred_exactly(np.asarray(y)[:, None], intercept)
    b, d = [v for (v,) in column], len(A[0])
    T = [list(col) for col in zip(*A, strict=True)]
    if alpha:
        H = product(T, A)
        for j in range(d):
            H[j][j] += Fraction(alpha)
        w = solved(H, [row[0] for row in product(T, [[v] for v in b])])
    else:  # A = B C with B of full column rank, C of full row rank
        C = [row[:] for row in A]
        pivots = reduced(C, d)
        if not pivots:
            return np.zeros(d), float(level)
        C, Bt = C[: len(pivots)], [T[j] for j in pivots]
        middle = solved(
            product(Bt, [list(r) for r in zip(*Bt, strict=True)]), [r[0] for r in product(Bt, [[v] for v in b])]
        )
        Ct = [list(r) for r in zip(*C, strict=True)]
        w = [r[0] for r in product(Ct, [[v] for v in solved(product(C, Ct), middle)])]
    shift = level - sum((m * v for m, v in zip(means, w, strict=True)), Fraction(0))
    return np.array([float(v) for v in w]), float(shift)


def linear(seed: int) -> str:
    rng = np.random.default_rng(seed)
    X, users = rows(rng, 12, 8)
    bias = bool(rng.random() < 0.7)
    size, condition = spreads(X, bias)
    w = rng.standard_normal(X.shape[1]) / size
    y = X.astype(np.float64) @ w + rng.choice([0.0, 1e-6, 1e-2, 1.0]) * rng.standard_normal(len(X))
    y = y * 2.0 ** np.rint(rng.uniform(-20, 20))
    alpha = float(rng.choice([0.0, 0.0, 10.0 ** rng.uniform(-6, 2) * size[0] ** 2]))
    model = FederatedLinearRegression("l2" if alpha else None, alpha=alpha, fit_intercept=bias, max_iter=100)
    sparse = bool(rng.random() < 0.2)
    said = fit(model, sp.csr_array(X) if sparse else X, y, users)
    if said is not None:
        assert "rounds" in said or sparse or condition > SURE or alpha, f"{said} with condition number {condition:.1e}"
        return "warned"
    if np.isinf(condition):
        return "right"
    expected, shift = exact(X, y, bias, alpha)
    unit = max(float(np.std(y) if bias else np.sqrt(np.mean(y**2))), float(np.linalg.norm(expected * size)))
    off = float(np.linalg.norm((model.coef_ - expected) * size)) / (unit or 1.0)
    assert off <= PROMISED, f"off by {off:.1e}: {model.coef_} where {expected} is right, condition {condition:.1e}"
    away = abs(model.intercept_ - shift) / (abs(shift) + float(np.abs(expected * X.mean(0)).sum()) + unit)
    assert away <= PROMISED * condition, f"intercept {model.intercept_} where {shift} is right"
    return "right"


# --- many digits -----------------------------------------------------------------------------------------------------


def minimiser(X: Any, y: Any, w: Any, l2: Any, counts: bool) -> Any:
    """Newton's method with 60 digits from w; None where it does not settle."""
    with mpmath.workdps(60):
        A = mpmath.matrix(X.tolist())
        x, before = mpmath.matrix(w.tolist()), None
        for _ in range(60):
            t = A * x
            if counts:
                if max(abs(v) for v in t) > 200:
                    return None
                mean = [mpmath.exp(v) for v in t]
                slope, bend = [m - v for m, v in zip(mean, y, strict=True)], mean
            else:
                p = [1 / (1 + mpmath.exp(-v)) for v in t]
                slope, bend = [q - v for q, v in zip(p, y, strict=True)], [q * (1 - q) for q in p]
            g = A.T * mpmath.matrix(slope)
            H = A.T * mpmath.diag(bend) * A
            for j, strength in enumerate(l2):
                g[j] += strength * x[j]
                H[j, j] += strength
            try:
                step = mpmath.lu_solve(H, g)
            except ZeroDivisionError:
                return None
            length = mpmath.norm(step)
            if length < mpmath.mpf(10) ** -25 * (1 + mpmath.norm(x)):
                return np.array([float(v) for v in x])
            if before is not None and length > 4 * before and before < 1:
                return None
            x, before = x - step * min(1, 2 / length), length
    return None


def curved(seed: int, counts: bool) -> str:
    rng = np.random.default_rng(seed)
    X, users = rows(rng, 7, 3)
    bias = bool(rng.random() < 0.7)
    size, condition = spreads(X, bias)
    X = X.astype(np.float64)
    t = ((X - X.mean(0)) / size) @ rng.standard_normal(X.shape[1]) / 2
    l2 = float(rng.choice([0.0, 10.0 ** rng.uniform(-6, 0) * size[0] ** 2]))
    if counts:
        y = rng.poisson(np.exp(np.clip(t, -3, 3))).astype(float)
        y[0] += 1
        model: Any = FederatedPoissonRegressor(alpha=l2 / len(y), fit_intercept=bias, max_iter=100)
    else:
        y = (rng.random(len(X)) < 1 / (1 + np.exp(-t))).astype(float)
        y[:2] = [0, 1]
        model = FederatedLogisticRegression(C=1 / l2 if l2 else np.inf, fit_intercept=bias, max_iter=100)
    said = fit(model, sp.csr_array(X) if rng.random() < 0.2 else X, y, users)
    if said is not None:
        return "warned"
    centre = X.mean(0) if bias else np.zeros(X.shape[1])
    A = (X - centre) / size
    if bias:
        A = np.column_stack([A, np.ones(len(X))])
    coefficients = np.ravel(model.coef_)
    own = np.append(coefficients * size, [coefficients @ centre + np.ravel(model.intercept_)[0]] if bias else [])
    expected = minimiser(A, y, own, np.append(l2 / size**2, [0.0] if bias else []), counts)
    if expected is None:  # equal columns: nothing to compare with but the value
        singular = condition > 1e6 or len(X) <= A.shape[1] or np.linalg.matrix_rank(A) < A.shape[1]
        assert singular, "there is no minimiser, and nothing was warned of"
        return "right"
    off = float(np.linalg.norm(own - expected)) / max(1.0, float(np.linalg.norm(expected)))
    assert off <= PROMISED, f"off by {off:.1e}: {own} where {expected} is right, condition {condition:.1e}"
    return "right"


def logistic(seed: int) -> str:
    return curved(seed, counts=False)


def poisson(seed: int) -> str:
    return curved(seed, counts=True)


FAMILIES = [
    Family("collinear linear estimators", linear, few=6, many=150),
    Family("collinear logistic estimators", logistic, few=2, many=40),
    Family("collinear poisson estimators", poisson, few=2, many=40),
]
