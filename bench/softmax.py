"""FedPi with Anderson acceleration on softmax regression of MNIST and sparse logistic regression of a9a, beside A2DR
with the same users' proxes and scikit-learn's solvers on the pooled rows: rounds (or iterations) and seconds until
f - f* is 1e-6 of f*.

    python -m bench.softmax mnist FOLDER 0.01       # the folder with train-images-idx3-ubyte.gz, and C of scikit-learn
    python -m bench.softmax a9a FILE                # a9a.gz
    python -m bench.softmax rcv                     # made by seed: 20,000 x 5,000 rows, 0.1 % filled

Seconds are those of the processor: other programs on the machine do not count. Time spent on f* is told apart.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import resolvent as rs
from bench.a2dr import a2dr
from resolvent.iteration.engine import Ask
from resolvent.local.operators import NewtonProx

TARGET = 1e-6
USERS = 20
MOST = 400
STEPS = (1e-3, 1e-2, 0.1, 1.0)
"""Of A2DR, which does not choose its own: 0.1 is its default."""


def mnist(folder: str, C: str) -> None:
    """7,840 parameters, 20 users of 3,000 images."""
    images = rs.data.mnist(folder)
    X = images.x_train.reshape(len(images.x_train), -1).double().numpy() / 255
    y = images.y_train.numpy()
    A, labels = X.reshape(USERS, -1, X.shape[1]), y.reshape(USERS, -1)
    problem = rs.Softmax(A, labels, reg=1 / (float(C) * USERS))
    ours(f"softmax, MNIST, C = {C}", problem)
    if float(C) < 1:
        splitting(problem, STEPS[1:3])
        theirs(problem, X, y, float(C), ("lbfgs", "newton-cg"))


def a9a(file: str) -> None:
    """Logistic regression, 123 parameters, sparse rows of 20 users, C = 1."""
    table = rs.data.read(file)
    parts = np.array_split(np.arange(len(table.y)), USERS)
    rows = [sp.csr_array(table.x[part]) for part in parts]
    problem = rs.Logistic(rows, [table.y[part] for part in parts], reg=1 / USERS)
    ours("logistic, a9a, sparse", problem)
    splitting(problem, STEPS)
    theirs(problem, sp.csr_matrix(table.x), table.y, 1.0, ("lbfgs", "newton-cg", "newton-cholesky", "saga"))


def rcv() -> None:
    """Rows of the shape of a text collection, over 10 users: no dense matrix is made (it would take 800 MB)."""
    rng = np.random.default_rng(0)
    rows = [sp.random_array((2000, 5000), density=1e-3, rng=rng, format="csr") for _ in range(10)]
    w = rng.standard_normal(5000)
    labels = [np.where(a @ w + 0.1 * rng.standard_normal(2000) > 0, 1.0, -1.0) for a in rows]
    ours("logistic, 20,000 x 5,000, 0.1 % filled", rs.Logistic(rows, labels, reg=0.1))
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB of memory, torch included")


def ours(name: str, problem: Any) -> None:
    began = time.process_time()
    least = problem.fstar
    print(f"\n{name}: f* = {least:.10g}, found in {time.process_time() - began:.1f} s")
    began = time.process_time()
    run = rs.solve(problem, rs.fedpi("auto"), rounds=MOST, anderson=5, stop=rs.Stop(gap=TARGET * abs(least)))
    gap = run.history.gap.iloc[-1] / abs(least)
    looks = int(run.history.bytes_up.sum()) // (8 * problem.dim * problem.users) - len(run.history)
    print(f"fedpi, Anderson 5: {len(run.history)} rounds, {time.process_time() - began:.1f} s, gap {gap:.1e};", end=" ")
    print(f"eta {run.history.eta.iloc[-1]:.2g}, from {looks} vectors per user beside those of the rounds", flush=True)


def splitting(problem: Any, steps: tuple[float, ...]) -> None:
    """A2DR with each of these steps."""
    for t in steps:
        began, bound, memory = time.process_time(), NewtonProx().bind(problem, True), dict[str, Any]()

        def prox(v: Any, t: float = t, bound: Any = bound) -> Any:
            nonlocal memory
            p, memory = bound.rows(Ask(0, t, None, 0), torch.from_numpy(v), memory)
            return p.numpy()

        for k, w in enumerate(a2dr(prox, np.zeros((problem.users, problem.dim))), 1):
            gap = float(problem.gap(torch.from_numpy(w)[None])) / abs(problem.fstar)
            if gap <= TARGET or k == MOST:
                break
        print(f"A2DR, t = {t}: {k} rounds, {time.process_time() - began:.1f} s, gap {gap:.1e}", flush=True)


def theirs(problem: Any, X: Any, y: Any, C: float, solvers: tuple[str, ...]) -> None:
    """The least number of iterations that reaches the target, doubled until it does, and the seconds of that run."""
    from sklearn.linear_model import LogisticRegression

    for solver in solvers:
        most = 8
        while most <= 4096:
            began = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = LogisticRegression(C=C, fit_intercept=False, solver=solver, tol=1e-14, max_iter=most).fit(X, y)
            seconds = time.process_time() - began
            w = torch.from_numpy(np.ravel(fitted.coef_)).unsqueeze(0)
            gap = float(problem.gap(w)) / abs(problem.fstar)
            if gap <= TARGET:
                break
            most *= 2
        print(f"scikit-learn {solver}: at most {most} iterations, {seconds:.1f} s, gap {gap:.1e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds: dict[str, Callable[..., None]] = {"mnist": mnist, "a9a": a9a, "rcv": rcv}
    kinds[sys.argv[1]](*(str(Path(name)) for name in sys.argv[2:]))
