"""Rounds, numbers sent and processor seconds until f - f* is 1e-6 of f*, over logistic regressions of LIBSVM's sets:
FedPi with automatic eta in the metric of the mean Hessian and in the identity, A2DR, and what somebody would do who may
ask for gradients, or for Hessians, at one model: L-BFGS and Newton's method.

    python -m bench.rounds FOLDER           # with a9a.gz, mushrooms.gz, w8a.gz

Anderson 5 for FedPi, 10 for A2DR, whose step is its default, 0.1, or the best of four. Newton's method and L-BFGS pay a
round for every evaluation of f. No other method is tuned. An intercept, reg = 1 / (C users).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import torch

import resolvent as rs
from bench.a2dr import a2dr
from resolvent.iteration.engine import Ask
from resolvent.local.operators import NewtonProx

TARGET, MOST = 1e-6, 400
STEPS = (1e-3, 1e-2, 0.1, 1.0)
CASES = (("a9a", 20, None, 1), ("a9a", 20, 0.3, 1), ("a9a", 100, None, 1), ("a9a", 20, None, 100),
         ("mushrooms", 20, None, 1), ("mushrooms", 20, 0.3, 1), ("w8a", 20, None, 1))  # fmt: skip
"""The set, how many users, Dirichlet's concentration of their labels (None: users of equal sizes) and C."""


def built(folder: Path, name: str, users: int, apart: float | None, C: float) -> rs.Logistic:
    table = rs.data.read(str(folder / f"{name}.gz"))
    X, y = np.asarray(table.x.todense() if hasattr(table.x, "todense") else table.x), np.asarray(table.y)
    y, rng = np.where(y == y.max(), 1.0, -1.0), np.random.default_rng(0)
    order, parts = rng.permutation(len(y)), [np.array([], int)] * users
    if apart is None:
        parts = np.array_split(order, users)
    else:
        for label in (-1, 1):
            rows = order[y[order] == label]
            cuts = (np.cumsum(rng.dirichlet(np.full(users, apart)))[:-1] * len(rows)).astype(int)
            parts = [np.append(part, more) for part, more in zip(parts, np.split(rows, cuts), strict=True)]
    parts = [part for part in parts if len(part)]
    return rs.Logistic(
        [X[part] for part in parts], [y[part] for part in parts], reg=1 / (C * len(parts)), intercept=True
    )


def fedpi(problem: Any, enough: float, metric: str) -> tuple[float, float]:
    """Rounds, and numbers that each user sent and was sent."""
    stop = rs.Stop(gap=enough)
    run = rs.solve(problem, rs.fedpi("auto"), MOST, anderson=5, stop=stop, metric=metric, progress=False)
    numbers = float((run.history.bytes_up + run.history.bytes_down).sum()) / 8 / problem.users
    return (run.state.round if run.status == "stopped" else np.inf), numbers


def splitting(problem: Any, enough: float, t: float) -> tuple[float, float]:
    bound, memory = NewtonProx().bind(problem, True), dict[str, Any]()

    def prox(v: Any) -> Any:
        nonlocal memory
        p, memory = bound.rows(Ask(0, t, None, 0), torch.from_numpy(v), memory)
        return p.numpy()

    for k, w in enumerate(a2dr(prox, np.zeros((problem.users, problem.dim))), 1):
        if float(problem.gap(torch.from_numpy(w)[None])) <= enough:
            return k, 2.0 * k * problem.dim
        if k == MOST:
            break
    return np.inf, np.nan


def newton(problem: Any, enough: float) -> tuple[float, float]:
    """Newton's method on f, halved while f does not fall: a gradient and a Hessian per step, a value per attempt."""
    d, w, rounds, numbers = problem.dim, torch.zeros(1, problem.dim, dtype=torch.float64), 0, 0.0
    value = float(problem.weights @ problem.value(w))
    while rounds < MOST:
        g = problem.weights @ problem.grad(w)
        H = torch.tensordot(problem.weights, problem.hessian(w), 1)
        step, rounds, numbers = torch.linalg.solve(H, g), rounds + 1, numbers + d * (d + 3) / 2 + d
        for part in (1.0, 0.5, 0.25, 0.125, 0.0625):
            new = w - part * step
            now = float(problem.weights @ problem.value(new))
            if now < value:
                break
            rounds, numbers = rounds + 1, numbers + d + 1
        w, value = new, now
        if float(problem.gap(w)) <= enough:
            return rounds, numbers
    return np.inf, np.nan


def lbfgs(problem: Any, enough: float) -> tuple[float, float]:
    evaluations = 0

    def both(x: Any) -> tuple[float, Any]:
        nonlocal evaluations
        w = torch.from_numpy(np.array(x))[None]
        evaluations += 1
        if float(problem.gap(w)) <= enough:
            raise StopIteration
        return float(problem.weights @ problem.value(w)), (problem.weights @ problem.grad(w)).numpy()

    try:
        options = {"maxiter": 10**5, "maxfun": 10**5, "ftol": 0, "gtol": 0}
        scipy.optimize.minimize(both, np.zeros(problem.dim), jac=True, method="L-BFGS-B", options=options)
    except StopIteration:
        return evaluations, evaluations * (2.0 * problem.dim + 1)
    return np.inf, np.nan


def methods(problem: Any, enough: float) -> Iterator[tuple[str, Callable[[], tuple[float, float]]]]:
    yield "FedPi, mean Hessian", lambda: fedpi(problem, enough, "auto")
    yield "FedPi, identity", lambda: fedpi(problem, enough, "identity")
    for t in STEPS:
        yield f"A2DR, t = {t:g}", lambda t=t: splitting(problem, enough, t)  # type: ignore[misc]
    yield "Newton", lambda: newton(problem, enough)
    yield "L-BFGS", lambda: lbfgs(problem, enough)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, users, apart, C in CASES:
        made: Any = built(Path(sys.argv[1]), name, users, apart, C)
        print(f"\n{name}, {users} users, {'alike' if apart is None else f'Dirichlet({apart})'}, C = {C}", flush=True)
        for label, solve in methods(made, TARGET * abs(made.fstar)):
            began = time.process_time()
            rounds, numbers = solve()
            seconds = time.process_time() - began
            print(f"{label:20} {rounds:5} rounds, {numbers:9.0f} numbers per user, {seconds:.2f} s", flush=True)
