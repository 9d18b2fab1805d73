"""Rounds of FedPi with automatic eta against the best constant of a decade grid, over random problems.

    python -m bench.eta             # every kind of problem, plain, accelerated and sampled: some ten minutes
    python -m bench.eta 10          # ten problems of each
    python -m bench.eta 10 lasso    # of the kinds with this word in their names

A run counts until f - f* is 1e-6 of what it was at the start. A kind of problem is a function of a random generator.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import resolvent as rs
from resolvent.iteration.penalties import penalised

TARGET = 1e-6
MOST = 3000
"""Rounds after which a run is given up."""
DECADES = range(-5, 6)
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "anderson": {"anderson": 5},
    "sampled": {"participation": rs.Bernoulli(0.2)},
}


def thin(rng: np.random.Generator) -> rs.LeastSquares:
    """Users with at most as many rows as there are columns, many with one; scales of users up to 1e-2..1e2 apart."""
    users, d = rng.integers(2, 20), rng.integers(2, 12)
    size, apart, shift = 10 ** rng.uniform(-3, 3), rng.choice([0, 1, 2]), rng.choice([0, 1, 3])
    w, A, b = rng.standard_normal(d), [], []
    for _ in range(users):
        n, scale = rng.integers(1, d + 1), size * 10 ** rng.uniform(-apart, apart)
        A.append(scale * (rng.standard_normal((n, d)) + shift))
        b.append(A[-1] @ w + scale * rng.choice([0.01, 1]) * rng.standard_normal(n))
    return rs.LeastSquares(A, b)


def tall(rng: np.random.Generator) -> rs.LeastSquares:
    """Users with more rows than columns, columns of different scales, alike or not."""
    users, d = rng.integers(2, 20), rng.integers(2, 12)
    size, apart, columns = 10 ** rng.uniform(-3, 3), rng.choice([0, 1, 2]), np.geomspace(1, 10 ** rng.uniform(0, 2), d)
    w, differ, A, b = rng.standard_normal(d), rng.choice([0.1, 1]), [], []
    for _ in range(users):
        n, scale = rng.integers(d, 5 * d), size * 10 ** rng.uniform(-apart, apart)
        A.append(scale * rng.standard_normal((n, d)) * columns / math.sqrt(n))
        b.append(A[-1] @ (w + differ * rng.standard_normal(d)) + 0.1 * scale * rng.standard_normal(n))
    return rs.LeastSquares(A, b)


def logistic(rng: np.random.Generator) -> rs.Logistic:
    """Labels from models that differ between users or not, rows of scales 1e-2..1e2."""
    users, d, size = rng.integers(2, 12), rng.integers(2, 8), 10 ** rng.uniform(-2, 2)
    apart, columns, shift = rng.choice([0, 1]), np.geomspace(1, rng.choice([1, 10]), d), rng.choice([0, 1])
    w, differ, A, b = rng.standard_normal(d) * rng.choice([0.3, 2]) / math.sqrt(d), rng.choice([0, 1]), [], []
    for _ in range(users):
        n = rng.integers(5, 60)
        X = rng.standard_normal((n, d)) * columns + shift
        chance = 1 / (1 + np.exp(-X @ (w + differ * rng.standard_normal(d))))
        b.append(np.where(rng.random(n) < chance, 1.0, -1.0))
        A.append(X * size * 10 ** rng.uniform(-apart, apart))
    return rs.Logistic(A, b, reg=rng.choice(np.array([None, 1e-3, 1.0])))


def deviations(rng: np.random.Generator) -> rs.AbsoluteDeviations:
    """Least absolute deviations with little or much noise."""
    users, d, size = rng.integers(5, 40), rng.integers(1, 6), 10 ** rng.uniform(-2, 2)
    A = size * rng.standard_normal((users, d))
    return rs.AbsoluteDeviations(A, A @ rng.standard_normal(d) + 10 ** rng.uniform(-1, 1) * rng.standard_normal(users))


def lasso(rng: np.random.Generator) -> Any:
    """Either kind of least squares, with an l1 penalty of 0.1 to 30 % of the least that leaves no coefficient."""
    plain = (thin if rng.random() < 0.5 else tall)(rng)
    t = float((plain.weights @ plain.grad(plain.weights.new_zeros(1, plain.dim))).abs().max())
    return penalised(plain, rs.L1(t * 10 ** rng.uniform(-3, -0.5)))


def sparse_logistic(rng: np.random.Generator) -> Any:
    """Logistic regression with such an l1 penalty."""
    plain = logistic(rng)
    t = float((plain.weights @ plain.grad(plain.weights.new_zeros(1, plain.dim))).abs().max())
    return penalised(plain, rs.L1(t * 10 ** rng.uniform(-3, -0.5)))


def boxed(rng: np.random.Generator) -> Any:
    """Least squares over the orthant."""
    return penalised((thin if rng.random() < 0.5 else tall)(rng), rs.Orthant())


KINDS: dict[str, Callable[[np.random.Generator], Any]] = {
    "least squares, thin users": thin,
    "least squares, tall users": tall,
    "logistic regression": logistic,
    "least absolute deviations": deviations,
    "lasso": lasso,
    "sparse logistic regression": sparse_logistic,
    "least squares, w >= 0": boxed,
}


def needed(problem: Any, eta: float | str, mode: str, most: int = MOST) -> float:
    """Rounds until f - f* is TARGET of what it was; infinite where it is not within `most`."""
    first = float(problem.gap(problem.weights.new_zeros(1, problem.dim))[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stop = rs.Stop(gap=TARGET * first)
        run = rs.solve(problem, rs.fedpi(eta), rounds=most, stop=stop, metric="identity", progress=False, **MODES[mode])
    return run.state.round if run.status == "stopped" else math.inf


def best(problem: Any, mode: str) -> float:
    """The fewest rounds of a constant eta among decades around 1 / sqrt(mu L) of f, or around the problem's own."""
    centre = _centre(problem)
    fewest: float = MOST
    reached = False
    for k in sorted(DECADES, key=abs):  # those in the middle first, so that few rounds are spent on the others
        rounds = needed(problem, centre * 10.0**k, mode, int(fewest))
        if rounds <= fewest:
            fewest, reached = rounds, True
    return fewest if reached else math.inf


def _centre(problem: Any) -> float:
    if "hessian" not in problem.offers:
        return 10.0 ** round(math.log10(problem.typical_eta))
    H = torch.tensordot(problem.weights, problem.hessian(problem.minimiser.unsqueeze(0)), 1)
    s = torch.linalg.eigvalsh(H)
    return 10.0 ** round(-0.5 * math.log10(float(s[s > 1e-10 * s[-1]][0] * s[-1])))


def drawn(kind: str, seed: int) -> Any:
    """The problem of a seed; None where it has no minimiser, or starts at it."""
    problem = KINDS[kind](np.random.default_rng(seed))
    if problem.minimiser is None or not float(problem.gap(problem.weights.new_zeros(1, problem.dim))[0]) > 0:
        return None
    return problem


def ratios_to_best(kind: str, mode: str, count: int) -> list[float]:
    """Rounds of automatic eta over those of the best constant, for the problems of which some constant solves."""
    problems = [p for p in (drawn(kind, seed) for seed in range(count)) if p is not None]
    pairs = [(best(p, mode), p) for p in problems]
    return [needed(p, "auto", mode, int(4 * b) + 20) / b for b, p in pairs if b < math.inf]


def main(count: int, word: str = "") -> None:
    torch.set_num_threads(1)
    print(f"{'problems':28} {'mode':10} {'n':>3}  within 1.3x   2x   3x   median   worst")
    for kind in (name for name in KINDS if word in name):
        for mode in MODES:
            ratios = np.array(ratios_to_best(kind, mode, count))
            shares = "  ".join(f"{100 * np.mean(ratios <= limit):3.0f} %" for limit in (1.3, 2, 3))
            print(
                f"{kind:28} {mode:10} {len(ratios):3}       {shares}   {np.median(ratios):5.2f}   {ratios.max():5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40, " ".join(sys.argv[2:]))
