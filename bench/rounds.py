"""Rounds, thousands of numbers that each user sends and is sent, and processor seconds until f + g is within 1e-6 and
1e-10 of its least value, relative to that (for least squares and the lasso: to where they began).

    python -m bench.rounds FOLDER               # with a9a.gz, mushrooms.gz, w8a.gz and covtype.npz
    python -m bench.rounds FOLDER lasso         # the cases with this word in their names
    python -m bench.rounds FOLDER "" 300        # at most so many processor seconds per run in place of 60

FedPi with automatic eta in the metric of the mean Hessian and in the identity, with Anderson 5; FedSplit with automatic
eta; A2DR with its default step, 0.1, and the best of five; and what somebody would do who may ask for gradients, or for
Hessians, at one model: Newton's method with a Hessian in every round, Newton's method with those that FedPi asks for,
and L-BFGS, which pay a round for every evaluation of f; and scikit-learn on pooled rows. No other method is tuned.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import sklearn.linear_model as pooled
import torch
from torch import Tensor

import resolvent as rs
from bench.a2dr import a2dr
from bench.lasso import sparse_rows
from resolvent.iteration.engine import Ask
from resolvent.local.operators import NewtonProx
from resolvent.problems.generate import make_least_squares, make_logistic

TARGETS, MOST = (1e-6, 1e-10), 400
STEPS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
LOOKS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
SETS = (("a9a", 20, None, 1), ("a9a", 20, 0.3, 1), ("a9a", 100, None, 1), ("a9a", 20, None, 100),
        ("mushrooms", 20, None, 1), ("mushrooms", 20, 0.3, 1), ("w8a", 20, None, 1), ("w8a", 20, 0.3, 1),
        ("covtype", 20, None, 1), ("covtype", 20, 0.3, 1), ("covtype", 100, None, 1))  # fmt: skip
"""The set, how many users, Dirichlet's concentration of their labels (None: users of equal sizes) and C."""


@dataclass(frozen=True)
class Case:
    """A problem, and what scikit-learn makes of its pooled rows at a tolerance: a model (1, d)."""

    name: str
    problem: Any
    fit: Callable[[float], Any]
    relative: float
    """What gaps are relative to."""


class Reached(Exception):
    """All targets are, or the time is over."""


@dataclass
class Watch:
    """Which targets a method has reached, after how many rounds, numbers and processor seconds."""

    case: Case
    limit: float
    began: float = field(default_factory=time.process_time)
    found: list[tuple[int, float, float]] = field(default_factory=list)

    def __call__(self, w: Tensor, rounds: int, numbers: float) -> bool:
        seconds, gap = time.process_time() - self.began, float(self.case.problem.gap(w)[0])
        while len(self.found) < len(TARGETS) and gap <= TARGETS[len(self.found)] * self.case.relative:
            self.found.append((rounds, numbers / 1000, seconds))
        return len(self.found) == len(TARGETS) or seconds > self.limit

    def check(self, w: Tensor, rounds: int, numbers: float) -> None:
        if self(w, rounds, numbers):
            raise Reached

    @property
    def cells(self) -> list[str]:
        cells = [f"{r}; {n:.3g}; {s:.2g} s" for r, n, s in self.found]
        return cells + ["not reached"] * (len(TARGETS) - len(cells))


def classified(folder: Path, name: str, users: int, apart: float | None, C: float) -> Case:
    """Logistic regression of a set's rows with an intercept, reg = 1 / (C users)."""
    rng = np.random.default_rng(0)
    if name == "covtype":
        held = np.load(folder / "covtype.npz")
        some = rng.permutation(len(held["y"]))[:20000]
        quant = held["quant"][some].astype(float)
        blocks = [(quant - quant.mean(0)) / quant.std(0), np.eye(4)[held["wilderness"][some]]]
        X, y = np.hstack([*blocks, np.eye(40)[held["soil"][some]]]), held["y"][some] == 2
    else:
        table = rs.data.read(str(folder / f"{name}.gz"))
        X, y = np.asarray(table.x.todense() if hasattr(table.x, "todense") else table.x), np.asarray(table.y)
        y = y == y.max()
    y, order, parts = np.where(y, 1.0, -1.0), rng.permutation(len(y)), [np.array([], int)] * users
    if apart is None:
        parts = np.array_split(order, users)
    else:
        for label in (-1, 1):
            rows = order[y[order] == label]
            cuts = (np.cumsum(rng.dirichlet(np.full(users, apart)))[:-1] * len(rows)).astype(int)
            parts = [np.append(part, more) for part, more in zip(parts, np.split(rows, cuts), strict=True)]
    parts = [part for part in parts if len(part)]
    problem = rs.Logistic([X[i] for i in parts], [y[i] for i in parts], reg=1 / (C * len(parts)), intercept=True)

    def fit(tol: float) -> Any:
        fitted = pooled.LogisticRegression(C=C, solver="newton-cholesky", tol=tol, max_iter=1000).fit(X, y)
        return np.append(fitted.coef_, fitted.intercept_)

    title = f"{name}, {len(parts)} {'alike' if apart is None else f'Dirichlet({apart})'}, C = {C}"
    return Case(title, problem, fit, abs(float(problem.fstar or 0.0)))


def made(kind: str) -> Case:
    """The paper's two problems, a lasso and a sparse logistic regression."""
    if kind == "least squares of the paper":
        problem: Any = make_least_squares(seed=0)
        A, b = (np.concatenate(parts) for parts in zip(*map(problem.rows.one, range(problem.users)), strict=True))
        fit: Any = lambda tol: pooled.LinearRegression(fit_intercept=False).fit(A, b).coef_  # noqa: E731
    elif kind == "logistic regression of the paper":
        problem = make_logistic(seed=0)
        A, b = (np.concatenate(parts) for parts in zip(*map(problem.rows.one, range(problem.users)), strict=True))
        C = 1 / (float(problem.reg[0]) * problem.users)
        fit = lambda tol: pooled.LogisticRegression(  # noqa: E731
            C=C, fit_intercept=False, solver="newton-cholesky", tol=tol
        ).fit(A, b).coef_  # fmt: skip
    else:
        labels, users = "logistic" in kind, 100 if "100" in kind else 20
        rows, y = sparse_rows(users, 100 if users == 100 else 500, 100 if labels else 200, labels)
        A, b = rows.reshape(-1, rows.shape[2]), y.ravel()
        t = 0.05 * np.abs(A.T @ b).max() / (2 if labels else 1)
        make = rs.Logistic if labels else rs.LeastSquares
        more: dict[str, Any] = {"reg": 0.0} if labels else {}
        problem = make(rows, y, penalty=rs.L1(t / users), **more)
        if labels:
            fit = lambda tol: pooled.LogisticRegression(  # noqa: E731
                C=1 / t, l1_ratio=1.0, solver="saga", fit_intercept=False, tol=tol, max_iter=10**5
            ).fit(A, b).coef_  # fmt: skip
        else:
            fit = lambda tol: pooled.Lasso(  # noqa: E731
                alpha=t / len(b), fit_intercept=False, tol=tol, max_iter=10**6
            ).fit(A, b).coef_  # fmt: skip
    return Case(kind, problem, fit, float(problem.gap(problem.weights.new_zeros(1, problem.dim))[0]))


MADE = ("least squares of the paper", "logistic regression of the paper", "lasso, 20", "lasso, 100",
        "sparse logistic regression, 20", "sparse logistic regression, 100")  # fmt: skip


def splitting(watch: Watch, scheme: str, metric: str, anderson: int) -> None:
    problem, numbers = watch.case.problem, 0.0

    def reached(r: Any) -> bool:
        nonlocal numbers
        numbers += 2 * problem.dim + (r.cost.up + r.cost.down) / problem.users
        return watch(r.model, r.number, numbers)

    rs.solve(
        problem, scheme, MOST, eta="auto", anderson=anderson, metric=metric, stop=reached, every=MOST, progress=False
    )


def accelerated(watch: Watch, t: float) -> None:
    """A2DR. A penalty is one more user, as in its own examples."""
    problem = watch.case.problem
    bound, memory = NewtonProx().bind(problem, True), dict[str, Any]()
    penalty = problem.penalty

    def prox(v: Any) -> Any:
        nonlocal memory
        p, memory = bound.rows(Ask(0, t, None, 0), torch.from_numpy(v[: problem.users]), memory)
        more = [] if penalty is None else [penalty.prox(torch.from_numpy(v[problem.users :]), t * problem.users)]
        return torch.cat([p, *more]).numpy()

    first = np.zeros((problem.users + (penalty is not None), problem.dim))
    for k, w in enumerate(a2dr(prox, first), 1):
        if watch(torch.from_numpy(w)[None], k, 2.0 * k * problem.dim) or k == MOST:
            break


def newton(watch: Watch, looks: tuple[int, ...] | None) -> None:
    """Newton's method on f, halved while f does not fall: a gradient per step, a value per attempt, and a Hessian in
    the steps `looks`, or in all of them."""
    problem = watch.case.problem
    d, w, rounds, numbers = problem.dim, torch.zeros(1, problem.dim, dtype=torch.float64), 0, 0.0
    value = float(problem.weights @ problem.value(w))
    for k in range(MOST):
        if looks is None or k in looks:
            factor = torch.linalg.cholesky(torch.tensordot(problem.weights, problem.hessian(w), 1))
            numbers += d * (d + 1) / 2
        g = (problem.weights @ problem.grad(w)).unsqueeze(1)
        step, rounds, numbers = torch.cholesky_solve(g, factor).T, rounds + 1, numbers + 2 * d
        for part in (1.0, 0.5, 0.25, 0.125, 0.0625):
            new = w - part * step
            now = float(problem.weights @ problem.value(new))
            if now < value:
                break
            rounds, numbers = rounds + 1, numbers + d + 1
        w, value = new, now
        watch.check(w, rounds, numbers)


def lbfgs(watch: Watch) -> None:
    """L-BFGS on f; with l1 on f + t sum(a + b) over w = a - b, a and b >= 0."""
    problem, evaluations = watch.case.problem, 0
    d, t = problem.dim, None if problem.penalty is None else float(problem.penalty.l1)

    def both(x: Any) -> tuple[float, Any]:
        nonlocal evaluations
        w = torch.from_numpy(np.array(x if t is None else x[:d] - x[d:]))[None]
        evaluations += 1
        watch.check(w, evaluations, evaluations * (2.0 * d + 1))
        value, slope = float(problem.weights @ problem.value(w)), (problem.weights @ problem.grad(w)).numpy()
        return (value, slope) if t is None else (value + t * x.sum(), np.append(t + slope, t - slope))

    options = {"maxiter": 10**5, "maxfun": 10**5, "ftol": 0, "gtol": 0}
    start, bounds = (np.zeros(d), None) if t is None else (np.zeros(2 * d), [(0, None)] * (2 * d))
    scipy.optimize.minimize(both, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)


def on_pooled_rows(case: Case) -> list[str]:
    """Seconds of the largest tolerance, a power of ten, with which scikit-learn gets there."""
    cells: list[str] = []
    for k in range(1, 15):
        began = time.process_time()
        w = torch.from_numpy(np.ravel(case.fit(10.0**-k)))[None]
        seconds, gap = time.process_time() - began, float(case.problem.gap(w)[0])
        while len(cells) < len(TARGETS) and gap <= TARGETS[len(cells)] * case.relative:
            cells.append(f"{seconds:.2g} s")
        if len(cells) == len(TARGETS) or seconds > 60:
            break
    return cells + ["not reached"] * (len(TARGETS) - len(cells))


def methods(smooth: bool) -> Iterator[tuple[str, Callable[[Watch], None]]]:
    yield "FedPi, mean Hessian", lambda watch: splitting(watch, "fedpi", "auto", 5)
    yield "FedPi, identity", lambda watch: splitting(watch, "fedpi", "identity", 5)
    yield "FedSplit", lambda watch: splitting(watch, "fedsplit", "identity", 0)
    for t in STEPS:
        yield f"A2DR, t = {t:g}", lambda watch, t=t: accelerated(watch, t)  # type: ignore[misc]
    if smooth:
        yield "Newton", lambda watch: newton(watch, None)
        yield "Newton, FedPi's looks", lambda watch: newton(watch, LOOKS)
    yield "L-BFGS", lbfgs


def cases(folder: Path, word: str) -> Iterator[Case]:
    for name, users, apart, C in SETS:
        if word in f"{name}, {users} {apart} {C}":
            yield classified(folder, name, users, apart, C)
    yield from (made(kind) for kind in MADE if word in kind)


def main(folder: str, word: str = "", limit: str = "60") -> None:
    for case in cases(Path(folder), word):
        print(f"\n{case.name}: {case.problem.users} users, d = {case.problem.dim}", flush=True)
        for label, solve in methods(case.problem.penalty is None):
            watch = Watch(case, float(limit))
            with suppress(Reached):
                solve(watch)
            print(f"{label:22} {'   '.join(f'{cell:22}' for cell in watch.cells)}", flush=True)
        print(f"{'scikit-learn, pooled':22} {'   '.join(f'{cell:22}' for cell in on_pooled_rows(case))}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
