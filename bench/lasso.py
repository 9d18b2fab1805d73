"""The lasso and sparse logistic regression: FedPi with Anderson acceleration against scikit-learn on the pooled data.

    python -m bench.lasso           # some two minutes

Both run until f + g is within 1e-6 of its least value, relative to where they began. Our seconds count everything from
the arrays to the model but the search for f*, which only serves to know when to stop; scikit-learn's are those of the
largest tolerance, a power of ten, with which it gets there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import resolvent as rs

TARGET = 1e-6
REPEATS = 5


def sparse_rows(users: int, rows: int, dim: int, labels: bool) -> tuple[Any, Any]:
    """Correlated features, one in ten of which counts; users differ a little."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal(dim) * (rng.random(dim) < 0.1)
    A = rng.standard_normal((users, rows, dim)) + 0.5 * rng.standard_normal((users, rows, 1))
    y = np.einsum("urd,ud->ur", A, w + 0.1 * rng.standard_normal((users, dim))) + rng.standard_normal((users, rows))
    return A, np.where(y > 0, 1.0, -1.0) if labels else y


def ours(make: Callable[[], Any]) -> tuple[int, float]:
    """Rounds and the least seconds to the target."""
    solved = make()
    first = float(solved.gap(solved.weights.new_zeros(1, solved.dim))[0])
    rounds = rs.solve(solved, "fedpi", rounds=5000, anderson=5, stop=rs.Stop(gap=TARGET * first)).state.round
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        problem = make()
        problem.__dict__["penalised"] = solved.penalised  # f* is known already
        rs.solve(problem, "fedpi", rounds=rounds, anderson=5, every=rounds)
        taken.append(time.perf_counter() - began)
    return rounds, min(taken)


def theirs(problem: Any, fit: Callable[[float], Any]) -> tuple[int, float]:
    """Passes and the least seconds of scikit-learn to the target."""
    first = float(problem.gap(problem.weights.new_zeros(1, problem.dim))[0])
    for k in range(1, 15):
        taken = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            fitted = fit(10.0**-k)
            taken.append(time.perf_counter() - began)
        if float(problem.gap(torch.tensor(fitted.coef_.ravel())[None])[0]) <= TARGET * first:
            return int(np.max(fitted.n_iter_)), min(taken)
    raise RuntimeError("scikit-learn does not get there")


def main() -> None:
    from sklearn.linear_model import Lasso, LogisticRegression

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| problem | FedPi + Anderson: rounds, seconds | scikit-learn: passes, seconds |\n|---|---|---|")
    for users, rows, dim in ((10, 200, 50), (20, 500, 200), (20, 100, 400)):
        A, b = sparse_rows(users, rows, dim, labels=False)
        X, y = A.reshape(-1, dim), b.ravel()
        alpha = 0.05 * np.abs(X.T @ y).max() / len(y)
        penalty = rs.L1(alpha * len(y) / users)
        mine = ours(lambda A=A, b=b, penalty=penalty: rs.LeastSquares(A, b, penalty=penalty))  # type: ignore[misc]

        def lasso(tol: float, X: Any = X, y: Any = y, alpha: float = alpha) -> Any:
            return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=10**6).fit(X, y)

        _show(
            f"lasso, {users} users, {rows} rows each, d = {dim}",
            mine,
            theirs(rs.LeastSquares(A, b, penalty=penalty), lasso),
        )
    for users, rows, dim in ((10, 200, 30), (20, 500, 100)):
        A, b = sparse_rows(users, rows, dim, labels=True)
        X, y = A.reshape(-1, dim), b.ravel()
        strength = 0.05 * np.abs(X.T @ y).max() / 2
        penalty = rs.L1(strength / users)
        mine = ours(lambda A=A, b=b, penalty=penalty: rs.Logistic(A, b, reg=0.0, penalty=penalty))  # type: ignore[misc]

        def logistic(tol: float, X: Any = X, y: Any = y, C: float = 1 / strength) -> Any:
            return LogisticRegression(
                C=C, l1_ratio=1.0, solver="saga", fit_intercept=False, tol=tol, max_iter=10**6
            ).fit(X, y)

        _show(f"l1 logistic regression, {users} users, {rows} rows each, d = {dim}", mine,
              theirs(rs.Logistic(A, b, reg=0.0, penalty=penalty), logistic))  # fmt: skip


def _show(name: str, mine: tuple[int, float], other: tuple[int, float]) -> None:
    print(f"| {name} | {mine[0]}, {mine[1]:.3g} | {other[0]}, {other[1]:.3g} |", flush=True)


if __name__ == "__main__":
    main()
