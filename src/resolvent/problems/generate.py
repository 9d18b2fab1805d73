"""The paper's synthetic problems (its appendix A), by seed."""

from __future__ import annotations

import math
import sys

import numpy as np

from resolvent.errors import real, refuse, whole
from resolvent.problems.least_squares import LeastSquares
from resolvent.problems.logistic import Logistic


def make_least_squares(
    users: int = 25, dim: int = 100, rows: int = 5000, noise: float = 0.5, shift: float = 0.0, seed: int = 0
) -> LeastSquares:
    """A_i and w_star standard normal, b_i = A_i w_i + noise, w_i = w_star + shift N(0, I): users who disagree."""
    _check(users=users, dim=dim, rows=rows)
    noise, shift = (float(real(x, name, math.isfinite, "a finite number is needed"))
                    for name, x in (("noise", noise), ("shift", shift)))  # fmt: skip
    rng = np.random.default_rng(whole(seed, "seed", least=0))
    w_star = rng.standard_normal(dim)
    w = w_star + shift * rng.standard_normal((users, dim))
    A = rng.standard_normal((users, rows, dim))
    b = np.matmul(A, w[:, :, None])[:, :, 0] + noise * rng.standard_normal((users, rows))
    return LeastSquares(A, b)


def make_logistic(users: int = 10, dim: int = 100, rows: int = 1000, seed: int = 0) -> Logistic:
    """A_i and w_0 standard normal, P(b = 1) = sigmoid(a . w_0)."""
    _check(users=users, dim=dim, rows=rows)
    rng = np.random.default_rng(whole(seed, "seed", least=0))
    w_0 = rng.standard_normal(dim)
    A = rng.standard_normal((users, rows, dim))
    probability = 1 / (1 + np.exp(-(A @ w_0)))
    return Logistic(A, np.where(rng.random((users, rows)) < probability, 1.0, -1.0))


def _check(**counts: int) -> None:
    for name, count in counts.items():
        whole(count, name)
    if math.prod(counts.values()) * 8 > sys.maxsize:
        refuse("users, dim or rows", "far too large", "the data must fit into memory: take smaller numbers")
