"""The prox of a sum of tilted absolute values, exactly:

    P(x) = sum_j s_j(b_j - a_j . x) + |x - u|^2 / 2,    s_j(r) = max(high_j r, low_j r),    low_j <= 0 <= high_j.

Its dual has a number y_j in [low_j, high_j] per row, and x = u + A^T y. Rows that are orthogonal to each other do not
meet: y_j = (b_j - a_j . u) / |a_j|^2, clipped. Otherwise the method of multipliers finds y: in every step it minimises
a smooth function of x by Newton's method. After finitely many steps it knows which rows have no residual, and these
make x exact.

For any x, and any y in its bounds, with d = x - u - A^T y,

    |x - x*|^2 / 2 <= P(x) - P* <= sum_j (s_j(r_j) - y_j r_j) + |d|^2 / 2,

a sum of terms that are never negative. Rounding of x = u + A^T y and of the residuals enters both bounds. Where the
rows E without a residual are independent, and neither their y_j nor the signs of the other residuals can change on the
way, |x - x*| is at most what the residuals of E ask for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from resolvent.problems.reference.objective import EPS, Floats

MAX_OUTER, MAX_NEWTON, MAX_HALVINGS = 40, 100, 60
GROWTH, MAX_GROWTH = 10.0, 1e5
"""By which the multipliers' step grows, and how far: round-off grows with it."""


@dataclass(frozen=True, eq=False)
class Pinball:
    """Rows A (n, d), targets b, and the bounds of the multipliers."""

    A: Floats
    b: Floats
    low: Floats
    high: Floats

    def residuals(self, x: Floats) -> Floats:
        r: Floats = self.b - self.A @ x
        return r

    def total(self, r: Floats) -> float:
        """sum_j s_j(r_j)."""
        return float(np.maximum(self.high * r, self.low * r).sum())

    def clip(self, y: Floats) -> Floats:
        return np.clip(y, self.low, self.high)


@dataclass(frozen=True, eq=False)
class Exact:
    """x and multipliers y, with bounds on the distance of x to the prox and on P(x) - P*."""

    x: Floats
    y: Floats
    error: float
    excess: float


def prox(rows: Pinball, u: Floats) -> Exact:
    """The prox at u, certified."""
    size = np.einsum("ij,ij->i", rows.A, rows.A)
    if not size.all():  # the loss of a row of zeros is a constant
        some = size > 0
        solution = prox(Pinball(rows.A[some], rows.b[some], rows.low[some], rows.high[some]), u)
        y = np.where(rows.b > 0, rows.high, rows.low)
        y[some] = solution.y
        return replace(solution, y=y)
    if orthogonal(rows.A):
        y = rows.clip(rows.residuals(u) / size)
        x = u + rows.A.T @ y
        reach = np.sqrt(size) @ np.abs(y) + np.linalg.norm(u)
        return replace(_bounded(rows, u, x, y), error=8 * EPS * float(reach))
    return _by_multipliers(rows, u, size)


def orthogonal(A: Floats) -> bool:
    """Whether the rows are orthogonal to each other, exactly."""
    n, d = A.shape
    if n <= 1:
        return True
    if n > d:
        return False
    K = A @ A.T
    return bool((np.diag(K.diagonal()) == K).all())


def _bounded(rows: Pinball, u: Floats, x: Floats, y: Floats) -> Exact:
    """With the bounds that x - u - A^T y and the residuals give.

    Rounding hides residuals of the rows inside their bounds, by which P may rise. x moves by no more than it takes to
    remove them: the smallest singular value of these rows tells how far, about, where they depend on each other.
    """
    r, away = rows.residuals(x), float(np.linalg.norm(x - u - rows.A.T @ y))
    blur, base = _rounding(rows, u, y)
    gap, ends = (_gap(rows, y, each) for each in (r, np.stack([r - blur, r + blur])))
    excess = float(ends.max(0).sum()) + (away + base) ** 2 / 2
    inside = (y > rows.low) & (y < rows.high)
    seen = np.sqrt(2 * float(gap.sum()) + away**2) + base + _hidden(rows.A[inside], blur[inside])
    return Exact(x, y, min(float(np.sqrt(2 * excess)), float(seen)), excess)


def _gap(rows: Pinball, y: Floats, r: Floats) -> Floats:
    """s_j(r_j) - y_j r_j."""
    return np.asarray((np.maximum(rows.high * r, rows.low * r) - y * r).clip(min=0))


def _rounding(rows: Pinball, u: Floats, y: Floats) -> tuple[Floats, float]:
    """Of residuals at x = u + A^T y, a few units in the last place of their terms, and of x itself."""
    size = np.abs(u) + np.abs(rows.A).T @ np.abs(y)
    return 4 * EPS * (np.abs(rows.b) + np.abs(rows.A) @ size), 4 * EPS * float(np.linalg.norm(size))


def _hidden(E: Floats, blur: Floats) -> float:
    """How far x is moved by residuals of this size in these rows."""
    if not len(E):
        return 0.0
    values = np.linalg.svd(E, compute_uv=False)
    least = values[values > max(E.shape) * EPS * values[0]][-1]
    return float(np.linalg.norm(blur)) / float(least)


def _by_multipliers(rows: Pinball, u: Floats, size: Floats) -> Exact:
    """x - u - A^T y = 0 and y = clip(y + s r) for steps s that grow, and the exact x once the rows at 0 are known."""
    y = rows.clip(np.zeros_like(rows.b))
    x, step = u + rows.A.T @ y, 1.0 / float(np.median(size))
    longest = MAX_GROWTH * step
    best = _certified(rows, u, y)
    for _ in range(MAX_OUTER):
        x = _newton(rows, u, x, y, step)
        y = rows.clip(y + step * rows.residuals(x))
        before = best.error
        for candidate in (_polished(rows, u, y), _projected(rows, u, y), _certified(rows, u, y)):
            best = min(best, candidate, key=lambda solution: solution.error)
        size_here = 1 + float(np.linalg.norm(u)) + float(np.linalg.norm(best.x))
        settled = best.error <= 1e-7 * size_here and best.error > before / 2
        if best.error <= 1e-13 * size_here or settled:
            break
        step = min(step * GROWTH, longest)
    return best


def _newton(rows: Pinball, u: Floats, x: Floats, y: Floats, step: float) -> Floats:
    """The minimiser of |x - u|^2 / 2 + sum_j max_v v r_j - (v - y_j)^2 / (2 step), v in its bounds."""

    def gradient(x: Floats) -> Floats:
        g: Floats = x - u - rows.A.T @ rows.clip(y + step * rows.residuals(x))
        return g

    g = gradient(x)
    for _ in range(MAX_NEWTON):
        inner = y + step * rows.residuals(x)
        free = rows.A[(inner > rows.low) & (inner < rows.high)]
        h = _solved(free, step, g)
        slope = float(g @ h)
        if not slope > 0:
            break
        t, low, high = 1.0, 0.0, 1.0
        new = gradient(x - h)
        if float(new @ h) < 0:  # past the lowest point along h: the slope there is found by halving
            for _ in range(MAX_HALVINGS):
                t = (low + high) / 2
                new = gradient(x - t * h)
                ahead = float(new @ h)
                low, high = (t, high) if ahead >= 0 else (low, t)
                if abs(ahead) <= 1e-3 * slope:
                    break
        x, before, g = x - t * h, float(np.linalg.norm(g)), new
        after = float(np.linalg.norm(g))
        if after <= 1e-15 * (1 + float(np.linalg.norm(u))) or (after >= before and t == 1.0):
            break
    return x


def _solved(free: Floats, step: float, g: Floats) -> Floats:
    """(I + step A^T A)^-1 g for these rows, in the smaller of the two spaces."""
    n, d = free.shape
    if n == 0:
        return g
    if n < d:
        return g - free.T @ _quotient(np.eye(n) / step + free @ free.T, free @ g)
    return _quotient(np.eye(d) + step * (free.T @ free), g)


def _quotient(K: Floats, g: Floats) -> Floats:
    """K^-1 g; of least length where rows are so long that the identity is lost beside them."""
    try:
        return np.asarray(np.linalg.solve(K, g))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(K, g, rcond=None)[0])


def _certified(rows: Pinball, u: Floats, y: Floats) -> Exact:
    """By the duality gap."""
    return _bounded(rows, u, u + rows.A.T @ y, y)


def _projected(rows: Pinball, u: Floats, y: Floats) -> Exact:
    """With x moved to where the rows inside their bounds have no residual: they may depend on each other."""
    inside = (y > rows.low) & (y < rows.high)
    x = u + rows.A.T @ y
    if inside.any():
        x = x + np.linalg.lstsq(rows.A[inside], rows.residuals(x)[inside], rcond=None)[0]
    return _bounded(rows, u, x, y)


def _polished(rows: Pinball, u: Floats, y: Floats) -> Exact:
    """With the residuals of the rows inside their bounds made 0, and the bound that this gives."""
    inside = (y > rows.low) & (y < rows.high)
    E = rows.A[inside]
    if not len(E):
        return replace(_certified(rows, u, y), error=_settled(rows, u, y, inside, None))
    if len(E) > E.shape[1]:
        return _certified(rows, u, y)
    Q, R = np.linalg.qr(E.T)
    if not np.abs(R.diagonal()).min() > 1e-8 * np.abs(R.diagonal()).max():
        return _certified(rows, u, y)
    x = u + rows.A.T @ y
    for _ in range(3):
        y = y.copy()
        y[inside] += _multipliers(R, rows.residuals(x)[inside])
        x = u + rows.A.T @ y
    if (y < rows.low).any() or (y > rows.high).any():
        return _certified(rows, u, rows.clip(y))
    solution = _certified(rows, u, y)
    return replace(solution, error=min(solution.error, _settled(rows, u, y, inside, (Q, R))))


def _multipliers(R: Floats, r: Floats) -> Floats:
    """(E E^T)^-1 r with E^T = Q R."""
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(R, solve_triangular(R, r, trans="T")))


def _settled(rows: Pinball, u: Floats, y: Floats, inside: Any, factor: tuple[Floats, Floats] | None) -> float:
    """A bound on |x - x*| where nothing changes sides on the way to x*; infinite where something may."""
    from scipy.linalg import solve_triangular

    x = u + rows.A.T @ y
    r = rows.residuals(x)
    blur, moved = _rounding(rows, u, y)
    room = np.ones(0)
    if factor is not None:
        _, R = factor
        left = float(np.linalg.norm(np.abs(r[inside]) + blur[inside]))
        shrink = float(np.linalg.norm(solve_triangular(R, np.eye(len(R))), 2))  # 1 / the least singular value of E
        moved += shrink * left
        room = np.minimum(y - rows.low, rows.high - y)[inside] - shrink**2 * left
    sign = np.where(y >= rows.high, 1.0, -1.0)
    held = (~inside) & (rows.high > rows.low)
    apart = (sign * r - blur - np.linalg.norm(rows.A, axis=1) * moved)[held]
    return moved if (room > 0).all() and (apart > 0).all() else np.inf
