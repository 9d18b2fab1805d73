"""Bytes that a user sends until a logistic regression is solved: EF21 and DIANA as their papers print them, and this
package's schemes with the same compressors.

    python -m bench.compression FOLDER          # with a9a.gz and w8a.gz
    python -m bench.compression FOLDER a9a

20 users with equal shares of the file, in its order; f_i is the mean of the logistic loss over a user's rows plus
|x|^2/200, without an intercept. The gap is (f(x) - f*) / (f(0) - f*). Numbers are doubles, places take four bytes, and
what comes down to users (all of x, for each) is not counted.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

import resolvent as rs
from resolvent.iteration.engine import Ask
from resolvent.problems.one_thread import one_thread

USERS, RIDGE, SHARE = 20, 1e-2, 0.1
TARGETS = (1e-2, 1e-4, 1e-6)
MOST, FEWER, EVERY = 20_000, 3_000, 10
"""Rounds at most: of the plain loops, and of the package; and between two looks at the gap."""
FACTORS, NEAR = tuple(2.0**k for k in range(10)), (1.0, 2.0, 4.0, 8.0)
"""Times the step size of the theory, where the best of them is taken; times 1/L."""
Array = NDArray[np.float64]
Gradients = Callable[[Array], Array]
"""All users' gradients, (users, d), at one x."""
Compress = Callable[[Array, int], Array]
"""Of rows, in a round."""


class Users:
    """The users' functions, sparse and plain."""

    def __init__(self, A: Array, b: Array) -> None:
        users, rows, self.dim = A.shape
        self.signed = scipy.sparse.csr_array(A.reshape(-1, self.dim) * b.reshape(-1, 1))
        own = [scipy.sparse.csr_array(a * y[:, None]).T for a, y in zip(A, b, strict=True)]
        self.by_user = scipy.sparse.block_diag(own, format="csr") / rows
        self.shape = (users, self.dim)

    def grad(self, x: Array) -> Array:
        pulls = 1 / (1 + np.exp(self.signed @ x))
        slopes: Array = RIDGE * x - (self.by_user @ pulls).reshape(self.shape)
        return slopes

    def value(self, x: Array) -> float:
        return float(np.logaddexp(0, -(self.signed @ x)).mean() + RIDGE / 2 * x @ x)


def ef21(grad: Gradients, x: Array, step: float, compress: Compress) -> Iterator[Array]:
    """Richtarik, Sokolov and Fatkhullin (2021), Algorithm 2, from g_i = C(grad f_i(x))."""
    g = compress(grad(x), 0)
    for t in itertools.count(1):
        x = x - step * g.mean(0)
        yield x
        g = g + compress(grad(x) - g, t)


def diana(grad: Gradients, x: Array, step: float, alpha: float, compress: Compress) -> Iterator[Array]:
    """Mishchenko, Gorbunov, Takac and Richtarik (2019), Algorithm 1 without momentum, from h_i = 0; `compress` is
    unbiased."""
    h = np.zeros_like(grad(x))
    for t in itertools.count():
        new = compress(grad(x) - h, t)
        x = x - step * (h + new).mean(0)
        h = h + alpha * new
        yield x


def compressor(send: Any, factor: float = 1.0) -> Compress:
    """C of one of the package's compressors, times a factor."""

    def compress(rows: Array, t: int) -> Array:
        new = torch.from_numpy(rows)
        sent: Array = send.receive(new, torch.zeros_like(new), Ask(t, 1.0)).numpy()
        return factor * sent

    return compress


def ef21_step(L: float, each: Array, mu: float, share: float) -> float:
    """The step of EF21's Theorem 2, for top-k, a contraction by 1 - share."""
    theta = 1 - math.sqrt(1 - share)
    beta = (1 - share) / theta
    return min(1 / (L + math.sqrt(float((each**2).mean()) * 2 * beta / theta)), theta / (2 * mu))


def diana_step(each: Array, share: float) -> float:
    """1 / ((1 + 6 omega/n) L): Gorbunov, Hanzely and Richtarik (2020), for random k, omega = 1/share - 1."""
    return 1 / ((1 + 6 * (1 / share - 1) / USERS) * float(each.max()))


def read(folder: Path, name: str) -> tuple[Array, Array]:
    """A (users, rows, d) and b (users, rows)."""
    table = rs.data.read(str(folder / f"{name}.gz"))
    X, y = np.asarray(table.x, dtype=np.float64), np.asarray(table.y)
    rows = len(y) // USERS
    b = np.where(y == y.max(), 1.0, -1.0)[: USERS * rows]
    return X[: USERS * rows].reshape(USERS, rows, -1), b.reshape(USERS, rows)


def rounds_to(gaps: Iterator[tuple[int, float]]) -> list[float]:
    """The first rounds with gaps below the targets; infinite where there are none."""
    rounds = [math.inf] * len(TARGETS)
    for t, gap in gaps:
        rounds = [t if old == math.inf and gap <= target else old for old, target in zip(rounds, TARGETS, strict=True)]
        if rounds[-1] < math.inf or not gap < 1e3:
            break
    return rounds


class Case:
    """A data set, its constants and its minimum."""

    def __init__(self, A: Array, b: Array) -> None:
        self.users, self.rows = Users(A, b), A.shape[1]
        self.problem = rs.Logistic(A, b, reg=self.rows * RIDGE)
        self.each = self.problem.lipschitz.numpy() / self.rows
        pooled = A.reshape(-1, A.shape[2])
        self.L = float(np.linalg.eigvalsh(pooled.T @ pooled).max() / (4 * len(pooled)) + RIDGE)
        self.least = self.problem.fstar / self.rows
        self.first = self.users.value(np.zeros(self.users.dim)) - self.least

    def plain(self, iterates: Iterator[Array], most: int = MOST) -> list[float]:
        every = itertools.islice(enumerate(iterates, 1), EVERY - 1, most, EVERY)
        with np.errstate(over="ignore", invalid="ignore"):
            return rounds_to((t, (self.users.value(x) - self.least) / self.first) for t, x in every)

    def best(self, run: Callable[[float], Iterator[Array]]) -> tuple[float, list[float]]:
        """The factor of the step with which the last target takes the fewest rounds, and its rounds."""
        factor, best = 1.0, [math.inf]
        for tried in FACTORS:  # none is given more rounds than the best so far has taken
            rounds = self.plain(run(tried), int(min(best[-1], MOST)))
            factor, best = (tried, rounds) if rounds[-1] < best[-1] else (factor, best)
        return factor, best

    def ours(self, scheme: rs.Scheme, send: Any = None, **more: Any) -> tuple[list[float], float]:
        """The rounds, and the bytes that a user sends in one."""
        stop = rs.Stop(gap=TARGETS[-1] * self.first * self.rows)
        run = rs.solve(self.problem, scheme, rounds=FEWER, every=EVERY, send=send, stop=stop, progress=False, **more)
        gaps = zip(run.history["round"], run.history.gap / (self.first * self.rows), strict=True)
        return rounds_to(iter(gaps)), float(run.history.bytes_up.sum()) / run.history["round"].iloc[-1] / USERS


def table(case: Case) -> Iterator[tuple[str, str, float, list[float]]]:
    """The method, its step, bytes per user and round, and rounds to the targets."""
    d, grad, x = case.users.dim, case.users.grad, np.zeros(case.users.dim)
    k = rs.TopK(SHARE).count(d)
    share, top = k / d, compressor(rs.TopK(SHARE))
    unbiased = compressor(rs.RandomK(SHARE), d / k)
    step = ef21_step(case.L, case.each, RIDGE, share)
    yield "EF21, top 10 %", "its theorem's", 12 * k, case.plain(ef21(grad, x, step, top))
    factor, rounds = case.best(lambda factor: ef21(grad, x, factor * step, top))
    yield "EF21, top 10 %", f"the best multiple, {factor:g} x", 12 * k, rounds
    yield "EF21, top 10 %", "1/L", 12 * k, case.plain(ef21(grad, x, 1 / case.L, top))
    step = diana_step(case.each, share)
    yield "DIANA, random 10 %", "its theorem's", 8 * k, case.plain(diana(grad, x, step, share, unbiased))
    factor, rounds = case.best(lambda factor: diana(grad, x, factor * step, share, unbiased))
    yield "DIANA, random 10 %", f"the best multiple, {factor:g} x", 8 * k, rounds
    eta, unit = rs.theory.best_eta(case.problem), 1 / (case.L * case.rows)
    for name, send in {"all": None, "top 10 %": rs.TopK(SHARE), "random 10 %": rs.RandomK(SHARE),
                       "4 bits": rs.Quantised(4)}.items():  # fmt: skip
        for scheme, words in ((rs.fedavg(unit), "1/L"), (rs.fedpi(eta), "1/sqrt(mu L)")):
            rounds, up = case.ours(scheme, send)
            yield f"`{'rs.fedavg' if scheme.forward else 'rs.fedpi'}`, {name}", words, up, rounds
    near = {factor: case.ours(rs.fedavg(factor * unit), rs.TopK(SHARE)) for factor in NEAR}
    factor = min(near, key=lambda factor: near[factor][0][::-1])
    yield "`rs.fedavg`, top 10 %", f"the best multiple of 1/L, {factor:g} x", near[factor][1], near[factor][0]
    rounds, up = case.ours(rs.fedpi("auto"), anderson=5)
    yield "`rs.fedpi`, all, Anderson 5", "automatic, in the metric", up, rounds


def main(folder: str, *names: str) -> None:
    """Print one table per set."""
    warnings.simplefilter("ignore", rs.ResolventWarning)
    heads = " | ".join(f"{target:g}" for target in TARGETS)
    for name in names or ("a9a", "w8a"):
        case = Case(*read(Path(folder), name))
        print(f"\n{name}: d = {case.users.dim}, {USERS} users x {case.rows}, L = {case.L:.3g}, mean of L_i "
              f"{case.each.mean():.3g}\n\n| method | step | {heads} |\n|---|---|{'---|' * len(TARGETS)}")  # fmt: skip
        for method, step, up, rounds in table(case):
            cells = " | ".join("-" if t == math.inf else f"{t * up / 1000:,.1f} ({t:,.0f})" for t in rounds)
            print(f"| {method} | {step} | {cells} |", flush=True)


if __name__ == "__main__":
    with one_thread():
        main(*sys.argv[1:])
