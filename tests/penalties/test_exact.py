"""Certified minima and gaps against arithmetic with fifty digits."""

from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.problems.reference import Minimum

DIGITS = 50


class Exact:
    """f + l1 |w| (+ l2/2 |w|^2 on penalised coordinates) in many digits, and its minimiser on a given face."""

    def __init__(
        self, A: Any, b: Any, lam: Any, l1: float, l2: float, reg: Any, logistic: bool, intercept: bool
    ) -> None:
        one = (lambda X: np.column_stack([X, np.ones(len(X))])) if intercept else (lambda X: X)
        self.rows = [
            (mp.matrix(one(X).tolist()), [mp.mpf(float(v)) for v in y], mp.mpf(float(w)))
            for X, y, w in zip(A, b, lam, strict=True)
        ]
        self.d, self.logistic, last = self.rows[0][0].cols, logistic, intercept
        ridge = sum(mp.mpf(float(w)) * mp.mpf(float(r)) for w, r in zip(lam, reg, strict=True)) + mp.mpf(l2)
        self.ridge = [ridge] * (self.d - last) + [mp.mpf(0)] * last
        self.l1 = [mp.mpf(l1)] * (self.d - last) + [mp.mpf(0)] * last

    def value(self, w: Any) -> Any:
        total = sum(r / 2 * x * x + t * abs(x) for r, t, x in zip(self.ridge, self.l1, w, strict=True))
        for X, y, lam in self.rows:
            for t, c in zip(X * mp.matrix(w), y, strict=True):
                total += lam * (mp.log1p(mp.exp(-c * t)) if self.logistic else (t - c) ** 2 / 2)
        return total

    def slopes(self, w: Any) -> tuple[Any, Any]:
        g, H = mp.matrix([r * x for r, x in zip(self.ridge, w, strict=True)]), mp.diag(self.ridge)
        for X, y, lam in self.rows:
            t = X * mp.matrix(w)
            if self.logistic:
                q = [1 / (1 + mp.exp(c * s)) for s, c in zip(t, y, strict=True)]
                first, second = [-c * p for c, p in zip(y, q, strict=True)], [p * (1 - p) for p in q]
            else:
                first, second = [s - c for s, c in zip(t, y, strict=True)], [mp.mpf(1)] * len(y)
            g += lam * (X.T * mp.matrix(first))
            H += lam * (X.T * mp.diag(second) * X)
        return g, H

    def minimiser(self, near: Any) -> Any:
        """Newton's method over the coordinates that are not zero or not penalised, and the conditions at the others."""
        moving = [j for j in range(self.d) if near[j] != 0 or self.l1[j] == 0]
        w = [mp.mpf(float(x)) for x in near]
        sign = [mp.sign(x) for x in w]
        for _ in range(8 if self.logistic else 2):
            g, H = self.slopes(w)
            if not moving:
                break
            right = mp.matrix([g[j] + self.l1[j] * sign[j] for j in moving])
            part = mp.matrix([[H[i, j] for j in moving] for i in moving])
            for j, h in zip(moving, mp.lu_solve(part, right), strict=True):
                w[j] -= h
        g, _ = self.slopes(w)
        assert all(abs(g[j]) <= self.l1[j] for j in range(self.d) if j not in moving)
        assert all(mp.sign(w[j]) == sign[j] or self.l1[j] == 0 for j in moving)
        return w


@pytest.mark.parametrize("seed", range(8))
def test_certificates_bound_the_true_gap_and_gaps_have_correct_digits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logistic, wide, intercept, l2 = seed % 2 == 1, seed in (4, 5), seed in (2, 3, 4, 7), 0.3 * (seed in (6, 7))
    d, columns = 6, np.geomspace(1, 30.0 if seed in (0, 1) else 1.0, 6)
    A = [rng.standard_normal((2 if wide else 9, d)) * columns for _ in range(2)]
    b = [X @ (rng.standard_normal(d) / columns) + 0.5 * rng.standard_normal(len(X)) for X in A]
    if logistic:
        b = [np.where(y > 0, 1.0, -1.0) for y in b]
        b[0][0] = -b[0][1]
    lam = np.array([0.25, 0.75])
    l1 = 0.2 * float(np.abs(sum(w * X.T @ y for X, y, w in zip(A, b, lam, strict=True))).max()) / (1 + logistic)
    penalty = rs.ElasticNet(l1, l2) if l2 else rs.L1(l1)
    more: dict[str, Any] = {"weights": lam, "penalty": penalty, "intercept": intercept}
    problem: Any = rs.Logistic(A, b, reg=0.0, **more) if logistic else rs.LeastSquares(A, b, **more)
    found = problem.minimum
    assert isinstance(found, Minimum)
    with mp.workdps(DIGITS):
        exact = Exact(A, b, lam, l1, l2, [0.0, 0.0], logistic, intercept)
        star = exact.minimiser(found.w)
        best = exact.value(star)
        assert 0 <= exact.value([mp.mpf(float(x)) for x in found.w]) - best <= found.bound
        assert found.bound < 1e-10 * found.value
        assert abs(found.value - best) < 1e-14 * best
        for size in (1.0, 1e-2, 1e-4, 1e-6, 1e-8):
            for inside in (True, False):
                step = size * rng.standard_normal(problem.dim) / (1 if intercept else columns)
                w = np.where(inside & (found.w == 0), 0.0, found.w + step)
                true = exact.value([mp.mpf(float(x)) for x in w]) - best
                gap = float(problem.gap(torch.tensor(w)[None])[0])
                assert abs(gap - true) <= 1e-6 * true + 1e-30 * best, (size, inside, gap, float(true))
