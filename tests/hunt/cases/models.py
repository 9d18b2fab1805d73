"""Poisson, Huber, squared hinge, softmax and quantile regression on hard data, against arithmetic with many digits."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import scipy.sparse as sp
import torch

import resolvent as rs
from hunt.cases.logistic import DIGITS, norm
from hunt.family import Family
from resolvent.errors import BadAnswer
from resolvent.iteration.engine import Ask
from resolvent.problems.pinball.prox import Pinball, prox

DELTA = 0.75
SLOPES = {
    "poisson": lambda t, b: mp.exp(t) - b,
    "huber": lambda t, b: max(-mp.mpf(DELTA), min(mp.mpf(DELTA), t - b)),
    "hinge": lambda t, b: -2 * b * max(mp.mpf(0), 1 - b * t),
}
BENDS = {
    "poisson": lambda t, b: mp.exp(t),
    "huber": lambda t, b: mp.mpf(1) if abs(t - b) <= DELTA else mp.mpf(0),
    "hinge": lambda t, b: mp.mpf(2) if b * t < 1 else mp.mpf(0),
}


def drawn(rng: np.random.Generator, name: str) -> tuple[Any, Any]:
    """Rows and targets of one user: scales of data, rows and features from 1e-3 to 1e3."""
    n, d = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    A = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-3, 0 if name == "poisson" else 3)
    kind = int(rng.integers(4))
    if kind == 1:
        A *= 10.0 ** rng.uniform(-2, 2, (n, 1))
    elif kind == 2:
        A *= 10.0 ** rng.uniform(-2, 2, (1, d))
    elif kind == 3:
        A = np.rint(3 * rng.standard_normal((n, d)))
    b = {
        "poisson": rng.poisson(10.0 ** rng.uniform(-1, 3), n).astype(float),
        "huber": rng.standard_normal(n) * 10.0 ** rng.uniform(-2, 2),
        "hinge": rng.choice([-1.0, 1.0], n),
    }[name]
    return A, b


def made(name: str, A: Any, b: Any, reg: float) -> Any:
    if name == "huber":
        return rs.Huber([A], [b], DELTA, reg=reg)
    return (rs.Poisson if name == "poisson" else rs.SquaredHinge)([A], [b], reg=reg)


def gradient(name: str, A: Any, b: Any, reg: float, x: Any) -> Any:
    rows = [[mp.mpf(float(v)) for v in row] for row in A]
    slopes = [SLOPES[name](mp.fdot(row, x), mp.mpf(float(y))) for row, y in zip(rows, b, strict=True)]
    columns = zip(*rows, strict=True)
    return [mp.mpf(reg) * v + mp.fdot(slopes, column) for v, column in zip(x, columns, strict=True)]


def prox_of_one(seed: int) -> str:
    """|p - prox| <= |p - u + eta grad f(p)|, in many digits, which is within what is reported and promised."""
    rng = np.random.default_rng(seed)
    name = list(SLOPES)[seed % 3]
    A, b = drawn(rng, name)
    eta, reg = 10.0 ** rng.uniform(-4, 4), 0.0 if rng.random() < 0.5 else 10.0 ** rng.uniform(-4, 4)
    u = rng.standard_normal(A.shape[1]) * 10.0 ** rng.uniform(-3, 2)
    problem = made(name, A, b, reg)
    try:
        p, memory = rs.NewtonProx().bind(problem, True).rows(Ask(0, eta), torch.from_numpy(u).unsqueeze(0), {})
    except BadAnswer:
        size = np.abs(A).max() * (1 + np.linalg.norm(u) + eta * np.abs(A).sum() * (1 + np.abs(b).max()))
        assert size > 1e4, "refused a tame case"
        return "refused"
    x = p[0].numpy()
    with mp.workdps(DIGITS):
        at = [mp.mpf(float(v)) for v in x]
        e = [v - mp.mpf(float(w)) + eta * g for v, w, g in zip(at, u, gradient(name, A, b, reg, at), strict=True)]
        left = float(norm(e))  # at least the distance to the prox, by strong monotonicity
        steep = [
            float(BENDS[name](mp.fdot([mp.mpf(float(v)) for v in row], at), float(y)))
            for row, y in zip(A, b, strict=True)
        ]
    lengths, far = np.linalg.norm(A, axis=1), np.linalg.norm(x)
    unit = 16 * np.finfo(float).eps * (1 + np.linalg.norm(u) + far + eta * far * (reg + float(lengths**2 @ steep)))
    unit += 16 * np.finfo(float).eps * eta * float(lengths @ (1 + np.abs(b)) * (1 + max(steep)))
    promised = max(float(memory["error"]), 1e-8 * (1 + np.linalg.norm(u) + far))
    bound = promised * (1 + eta * (reg + float(lengths**2 @ steep)))  # e is that steep at most, where it is smooth
    assert left <= bound + unit, f"{name}: |e| is {left:.3g} where {float(memory['error']):.3g} is reported"
    return "right"


def minimum(seed: int) -> str:
    """A minimiser is one: the gradient there vanishes beside its terms, also without a regulariser."""
    rng = np.random.default_rng(seed)
    name = list(SLOPES)[seed % 3]
    parts = [drawn(rng, name)]
    A, b = parts[0]
    reg = 0.0 if rng.random() < 0.5 else 10.0 ** rng.uniform(-3, 1)
    problem = made(name, A, b, reg)
    if problem.minimiser is None:
        return "refused"
    w = problem.minimiser.numpy()
    with mp.workdps(DIGITS):
        at = [mp.mpf(float(v)) for v in w]
        g = np.array([float(v) for v in gradient(name, A, b, reg, at)])
        rows = [[mp.mpf(float(v)) for v in row] for row in A]
        slopes = np.array(
            [abs(float(SLOPES[name](mp.fdot(row, at), float(y)))) for row, y in zip(rows, b, strict=True)]
        )
        bends = np.array([float(BENDS[name](mp.fdot(row, at), float(y))) for row, y in zip(rows, b, strict=True)])
    t = np.abs(A) @ np.abs(w)
    size = np.abs(A).T @ (slopes + bends * (1 + t + np.abs(b))) + reg * np.abs(w)
    assert bool((np.abs(g) <= 1e-6 * size + 1e-12).all()), f"{name}: the gradient is {g} beside {size}"
    return "right"


def quantile(seed: int) -> str:
    """The value at a prox is the least to within its bound, and rises as strong convexity asks, far and near."""
    rng = np.random.default_rng(seed)
    A, b = drawn(rng, "huber")
    n, d = A.shape
    q, eta = float(rng.uniform(0.02, 0.98)), 10.0 ** rng.uniform(-3, 3)
    u = rng.standard_normal(d) * 10.0 ** rng.uniform(-2, 2)
    found = prox(Pinball(A, b, np.full(n, eta * (q - 1)), np.full(n, eta * q)), u)
    reach = 1 + np.linalg.norm(u) + np.linalg.norm(found.x)
    if found.error > 1e-6 * reach:
        return "refused"

    def F(x: Any) -> Any:
        at = [mp.mpf(float(v)) for v in x]
        r = [mp.mpf(float(y)) - mp.fdot([mp.mpf(float(v)) for v in row], at) for row, y in zip(A, b, strict=True)]
        return (
            eta * mp.fsum(max(q * v, (q - 1) * v) for v in r)
            + mp.fsum((v - mp.mpf(float(w))) ** 2 for v, w in zip(at, u, strict=True)) / 2
        )

    with mp.workdps(DIGITS):
        least = F(found.x)
        for size in (1.0, 1e-3, 1e-6, 1e-9):
            for _ in range(5):
                x = found.x + size * reach * rng.standard_normal(d)
                away = max(0.0, float(np.linalg.norm(x - found.x)) - found.error)
                rounding = 1e-14 * (abs(least) + away**2)  # of the prox itself, where it is a formula, and of `away`
                assert F(x) >= least - found.error**2 - found.excess - rounding + away**2 / 2 - (found.error * away), (
                    f"there is a lower point {size:g} away"
                )
    return "right"


def sparse(seed: int) -> str:
    """Sparse rows say what dense ones say."""
    rng = np.random.default_rng(seed)
    users, d = int(rng.integers(1, 4)), int(rng.integers(1, 8))
    A = [rng.standard_normal((int(rng.integers(1, 12)), d)) * (rng.random() < 0.6) for _ in range(users)]
    A = [a * (rng.random(a.shape) < 0.5) for a in A]
    intercept, reg = bool(rng.random() < 0.5), 10.0 ** rng.uniform(-2, 1)
    y = [rng.integers(0, 3, len(a)) for a in A]
    kinds: list[Any] = [
        lambda rows: rs.Softmax(rows, y, classes=[0, 1, 2], reg=reg, intercept=intercept),
        lambda rows: rs.Logistic(rows, [np.where(c > 0, 1.0, -1.0) for c in y], reg=reg, intercept=intercept),
        lambda rows: rs.Quantile(rows, y, 0.4, reg=reg, intercept=intercept),
        lambda rows: rs.LeastSquares(rows, y, intercept=intercept),
    ]
    make = kinds[seed % 4]
    dense, thin = make(A), make([sp.csr_array(a) for a in A])
    W = torch.from_numpy(rng.standard_normal((users, dense.dim)))
    torch.testing.assert_close(thin.value(W), dense.value(W), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(thin.grad(W), dense.grad(W), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(thin.prox(W, 0.7), dense.prox(W, 0.7), rtol=1e-7, atol=1e-7)
    if dense.fstar is not None and thin.fstar is not None:
        assert abs(dense.fstar - thin.fstar) <= 1e-8 * (1 + abs(dense.fstar))
    return "right"


FAMILIES = [
    Family("prox of models on hard data", prox_of_one, few=24, many=1000),
    Family("minimum of models", minimum, few=24, many=600),
    Family("prox of quantile regression", quantile, few=10, many=400),
    Family("sparse rows beside dense", sparse, few=12, many=400),
]
