"""Weights of rows over twelve orders of magnitude, in every problem over rows, against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import resolvent as rs
from hunt.family import Family
from resolvent.errors import BadAnswer

KINDS: list[Any] = [
    rs.LeastSquares, rs.Logistic, rs.SquaredHinge, rs.Softmax, rs.Poisson, rs.Huber, rs.Quantile,
]  # fmt: skip
DELTA = 1.35


def losses(kind: Any, t: Any, b: Any) -> Any:
    """Of each row, from its score (its scores, of a softmax) and target."""
    if kind is rs.Softmax:
        return np.log(np.exp(t - t.max(1, keepdims=True)).sum(1)) + t.max(1) - t[np.arange(len(b)), b]
    r = t - b
    return {
        rs.LeastSquares: lambda: r**2 / 2,
        rs.Logistic: lambda: np.logaddexp(0, -b * t),
        rs.SquaredHinge: lambda: np.maximum(0, 1 - b * t) ** 2,
        rs.Poisson: lambda: np.exp(t) - b * t,
        rs.Huber: lambda: np.where(np.abs(r) <= DELTA, r**2 / 2, DELTA * (np.abs(r) - DELTA / 2)),
        rs.Quantile: lambda: np.abs(r) / 2,
    }[kind]()


def value(kind: Any, user: tuple[Any, Any, Any], reg: float, intercept: bool, w: Any) -> float:
    A, b, weight = user
    scores, d = (3 if kind is rs.Softmax else 1), A.shape[1]
    C, shift = w[: scores * d].reshape(scores, d), w[scores * d :] if intercept else np.zeros(scores)
    t = A @ C.T + shift
    return float(weight @ losses(kind, t if scores > 1 else t[:, 0], b) + reg / 2 * (C**2).sum())


def drawn(rng: np.random.Generator, kind: Any) -> tuple[Any, Any, Any]:
    n, d = int(rng.integers(3, 20)), 3
    A = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-1, 1)
    t = A[:, 0] / np.abs(A[:, 0]).max() + rng.standard_normal(n) / 2
    b = t
    if kind in (rs.Logistic, rs.SquaredHinge):
        b = np.where(t > 0.3, 1.0, -1.0)
    elif kind is rs.Softmax:
        b = np.append([0, 1, 2], np.digitize(t[3:], [-0.3, 0.3]))
    elif kind is rs.Poisson:
        b = rng.poisson(np.exp(t)).astype(float)
    weight = rng.exponential(size=n) * 10.0 ** rng.uniform(-6, 6) * (rng.random(n) < 0.8)
    weight[:3] += 1e-3
    return A, b, weight


def weighted(seed: int) -> str:
    """Values, gradients, proxes and the minimum are those of the weighted sum of the rows' losses."""
    rng = np.random.default_rng(seed)
    kind, intercept, reg = KINDS[seed % 7], bool(rng.random() < 0.5), 10.0 ** rng.uniform(-3, 1)
    users = [drawn(rng, kind) for _ in range(int(rng.integers(1, 4)))]
    A, b, weights = (list(part) for part in zip(*users, strict=True))
    rows = [sp.csr_array(a) for a in A] if rng.random() < 0.3 else A
    reg = 0.0 if kind is rs.LeastSquares else reg
    more = {} if kind is rs.LeastSquares else {"reg": reg}
    problem = kind(rows, b, sample_weight=weights, intercept=intercept, **more)

    def each(W: Any) -> Any:
        return np.array([value(kind, user, reg, intercept, w) for user, w in zip(users, W, strict=True)])

    W, D = (rng.standard_normal((len(users), problem.dim)) / 10 for _ in range(2))
    at = torch.from_numpy(W)
    np.testing.assert_allclose(problem.value(at).numpy(), each(W), rtol=1e-10)
    if kind is not rs.Quantile:
        h = 1e-6
        slopes, sizes = (each(W + h * D) - each(W - h * D)) / (2 * h), np.abs(each(W))
        along = (problem.grad(at).numpy() * D).sum(1)
        assert bool((np.abs(along - slopes) <= 1e-4 * np.abs(slopes) + 1e-8 * sizes).all()), "a gradient is wrong"
        eta = 10.0 ** rng.uniform(-3, 1)
        try:
            p = problem.prox(at, eta)
        except BadAnswer:
            return "refused"
        g = eta * problem.grad(p)
        away, size = (p + g - at).norm(dim=1), 1 + at.norm(dim=1) + eta * problem.grad(at).norm(dim=1)
        assert bool((away <= 1e-7 * size).all()), f"no prox: {away} beside {size}"
    if problem.fstar is None:
        return "refused"
    lam, w = problem.weights.numpy(), problem.minimiser.numpy()
    least = float(lam @ each(np.tile(w, (len(users), 1))))
    blur = 1e-14 * float(lam @ np.abs(each(np.zeros((len(users), len(w))))))
    assert abs(least - problem.fstar) <= 1e-9 * abs(problem.fstar) + blur, "f* is not the value at the minimiser"
    for _ in range(5):
        near = w + rng.standard_normal(len(w)) * 10.0 ** rng.uniform(-6, 0) * (1 + np.abs(w))
        below = problem.fstar - float(lam @ each(np.tile(near, (len(users), 1))))
        assert below <= 1e-10 * abs(problem.fstar) + blur, "there is a lower point"
    return "right"


FAMILIES = [Family("weights of rows", weighted, few=21, many=700)]
