"""Weighted logistic losses minimised for sure: Newton's method with a line search, and a certificate of the answer.

    F(z) = sum_j omega_j log(1 + exp(-(o_j + c_j . z))) + kappa/2 |z|^2,   g = grad F,   Q = Hessian of F at z.

Steps go down along F: the line search asks for the sign of its slope, which costs one product per trial. Far from the
solution of badly scaled data F bends in layers that are thinner than the rounding of z, and steps would jump from one
to the next for ever. Then the losses are softened to T log(1 + exp(-m / T)), and T falls from the size of the margins
to 1.

The certificate. Along any step v the curvature k_j = omega_j phi''_j of a loss changes at most by the factor
e^|c_j . v|. So with lambda^2 = g . Q^-1 g, rho_j^2 = c_j . Q^-1 c_j and rho their largest, where rho lambda < 1, a
minimiser z* EXISTS, and

    |z - z*|_Q <= -log(1 - rho lambda) / rho =: R,        F(z) - F* <= lambda R,
    |z - z*| <= |Q^-1 g| + sum_j |Q^-1 c_j| k_j (e^(rho_j R) - 1) rho_j R.

Rows with next to no curvature, those far on either side, may be left out of rho, as long as Q without them is nearly Q;
the last sum has them all.

The rounding errors of g are estimated, a few units in the last place of every margin and of every term, and enter
lambda and |Q^-1 g|, seen through Q^-1 as they act.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
PLAIN = 40
"""Steps without softening: a good start needs a handful."""
STEPS = 400
COOLING = 0.03
WELL = 1e-3
"""Smallest pivot of a scaled Cholesky factorisation that is trusted."""
SHARES = (0.0, 1e-12, 1e-6, 1e-3)
"""A row's least share in the curvature to be counted in rho; the choice that says most is taken."""
BLOCK = 1 << 18
"""Numbers in one block of weighted rows."""


@dataclass(frozen=True, eq=False)
class Losses:
    """Rows c_j (n, d), offsets o_j and weights omega_j (n,), and kappa.

    `turned` rows are coordinates in another basis: each is known to a unit in the last place of its length only.
    """

    C: Floats
    offset: Floats
    weight: Floats
    ridge: float
    turned: bool = False

    def margins(self, z: Floats) -> Floats:
        m: Floats = self.offset + self.C @ z
        return m

    def value(self, z: Floats) -> float:
        return float(self.weight @ np.logaddexp(0, -self.margins(z)) + self.ridge / 2 * (z @ z))

    def gradient(self, z: Floats, s: Floats) -> Floats:
        g: Floats = self.ridge * z - self.C.T @ (self.weight * s)
        return g

    def sizes(self, part: slice) -> Floats:
        """What rounding errors of these rows are relative to, entry by entry."""
        size = np.abs(self.C[part])
        return np.broadcast_to(np.linalg.norm(size, axis=1)[:, None], size.shape) if self.turned else size

    def blocks(self) -> Iterator[slice]:
        rows = max(1, BLOCK // max(1, self.C.shape[1]))
        for first in range(0, len(self.C), rows):
            yield slice(first, first + rows)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x), exact in both tails."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


class Factor:
    """R with R^T R = sum_j k_j c_j c_j^T + kappa I, up to an order of the columns.

    By Cholesky where scaled columns are far from dependent. Else by QR of the rows with pivoting, the largest rows
    first: small rows then keep their own precision beside large ones.
    """

    def __init__(self, losses: Losses, curvature: Floats) -> None:
        self.order: Any = slice(None)
        R = self._cholesky(losses, curvature)
        if R is None:
            R, self.order = self._qr(losses, curvature)
        self.R = R

    @staticmethod
    def _cholesky(losses: Losses, curvature: Floats) -> Floats | None:
        d = losses.C.shape[1]
        H = losses.ridge * np.eye(d)
        for part in losses.blocks():
            rows = losses.C[part] * np.sqrt(curvature[part, None])
            H += rows.T @ rows  # NumPy takes half the products, since it is symmetric
        size = np.sqrt(H.diagonal())
        if not (np.isfinite(size).all() and (size > 0).all()):
            return None
        try:
            L = np.linalg.cholesky(H / size / size[:, None])
        except np.linalg.LinAlgError:
            return None
        return np.asarray((L * size[:, None]).T, np.float64) if L.diagonal().min() > WELL else None

    @staticmethod
    def _qr(losses: Losses, curvature: Floats) -> tuple[Floats, Any]:
        from scipy.linalg import qr

        d = losses.C.shape[1]
        rows = np.vstack([np.sqrt(curvature)[:, None] * losses.C, np.sqrt(losses.ridge) * np.eye(d)])
        rows = rows[np.argsort(-np.abs(rows).max(1), kind="stable")]
        R, order = qr(rows, mode="r", pivoting=True, overwrite_a=True, check_finite=False)
        return R[:d], order

    def half(self, g: Floats) -> Floats:
        """R^-T g, for one vector or for columns: |R^-T g| is the norm of g under Q^-1."""
        from scipy.linalg import solve_triangular

        y: Floats = solve_triangular(self.R, g[self.order], trans="T", check_finite=False)
        return y

    def back(self, y: Floats) -> Floats:
        """R^-1 y, so that back(half(g)) = Q^-1 g."""
        from scipy.linalg import solve_triangular

        h = np.empty_like(y)
        h[self.order] = solve_triangular(self.R, y, check_finite=False)
        return h

    @cached_property
    def _inverse(self) -> Floats:
        return self.back(np.eye(len(self.R)))

    def lengths(self, rows: Floats) -> tuple[Floats, Floats]:
        """|R^-T c| and |Q^-1 c| of each row c."""
        if isinstance(self.order, slice):  # well-conditioned: a product is as good as a solution, and faster
            halves = rows @ self._inverse
            return np.linalg.norm(halves, axis=1), np.linalg.norm(halves @ self._inverse.T, axis=1)
        columns = self.half(rows.T)
        return np.linalg.norm(columns, axis=0), np.linalg.norm(self.back(columns), axis=0)


@dataclass(frozen=True, eq=False)
class Certified:
    """A point z, bounds on |z - z*| and on F(z) - F*, infinite where nothing is certified, and `noise`, what rounding
    contributes to the first of them."""

    z: Floats
    error: float = np.inf
    excess: float = np.inf
    noise: float = np.inf


def minimise(losses: Losses, z: Floats) -> Certified:
    """A minimiser of F with its certificate, from z, and from 0 with softened losses where that does not get there."""
    with np.errstate(all="ignore"):
        found = _descend(losses, z, soft=False)
        if np.isfinite(found.error) or losses.ridge == 0:  # without a ridge there may be nothing to find
            return found
        return _descend(losses, np.zeros_like(z), soft=True)


def _descend(losses: Losses, z: Floats, soft: bool) -> Certified:
    """Down to where steps gain nothing more, and the certificate of the best point close to the solution."""
    best = Certified(z)
    least, point, T = np.inf, None, _softness(losses, z) if soft else 1.0
    for _ in range(STEPS if soft else PLAIN):
        here = Point.at(losses, z, T)
        if here is None or (losses.ridge == 0 and bool((here.m > 0).all())):  # every row on the right side: no minimum
            break
        near = float(np.abs(here.along).max(initial=0)) <= 0.5 * T
        if near and T == 1:
            settled = here.decrement >= least / 2
            if here.decrement < least:
                least, point = here.decrement, here
            if (settled or least == 0) and point is not None:
                new, point = certificate(losses, point), None
                best = new if new.error <= best.error else best
                if least == 0 or np.isfinite(best.error):
                    break
        z = z - (1.0 if near else _length(losses, here, T)) * here.h
        if near:
            T = max(1.0, T * COOLING)
    return best if point is None else min(best, certificate(losses, point), key=lambda found: found.error)


@dataclass(frozen=True, eq=False)
class Point:
    """z with the slopes s of the losses, their curvatures, Q's factor, the step h = Q^-1 g, lambda, and C h."""

    z: Floats
    m: Floats
    s: Floats
    curvature: Floats
    factor: Factor
    h: Floats
    decrement: float
    along: Floats

    @staticmethod
    def at(losses: Losses, z: Floats, T: float) -> Point | None:
        """None where something is not finite."""
        m = losses.margins(z)
        s = sigmoid(-m / T)
        curvature = losses.weight * s * sigmoid(m / T) / T
        factor = Factor(losses, curvature)
        half = factor.half(losses.gradient(z, s))
        h = factor.back(half)
        decrement = float(np.linalg.norm(half))
        if not (np.isfinite(h).all() and np.isfinite(decrement)):
            return None
        return Point(z, m, s, curvature, factor, h, decrement, losses.C @ h)


def _softness(losses: Losses, z: Floats) -> float:
    """As large as margins are, here and after a step down."""
    m = losses.margins(z)
    reach = losses.C @ losses.gradient(z, sigmoid(-m)) / (losses.ridge or 1.0)
    return max(1.0, float(np.abs(m).max(initial=0)), float(np.abs(reach).max(initial=0)))


def _length(losses: Losses, here: Point, T: float) -> float:
    """How far to go from z along -h: at most 1, and at least 0.9 of the way to the lowest point, never past it.

    F is convex along the step, so this gains at least 0.9 of what the best length would.
    """
    z, h, m, along = here.z, here.h, here.m, here.along
    linear, square = losses.ridge * (z @ h), losses.ridge * (h @ h)

    def past(t: float) -> bool:
        return bool((losses.weight * sigmoid((t * along - m) / T)) @ along - linear + t * square > 0)

    if not past(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(200):
        t = (low + high) / 2
        low, high = (low, t) if past(t) else (t, high)
        if high - low <= 0.1 * low:
            break
    return low


def certificate(losses: Losses, point: Point) -> Certified:
    """The bounds of this module's docstring, the best over a few choices of rows, with rounding errors counted."""
    z, s, curvature, decrement = point.z, point.s, point.curvature, point.decrement
    d, far = losses.C.shape[1], float(np.linalg.norm(z))
    size, length, reach = np.abs(losses.offset), np.empty_like(s), np.empty_like(s)
    for part in losses.blocks():
        size[part] += losses.sizes(part) @ np.abs(z)
        length[part], reach[part] = point.factor.lengths(losses.C[part])
    blur = EPS * (4 * losses.weight * s + curvature * (4 + np.sqrt(d)) * size)  # of omega_j s_j, each
    summed = np.abs(losses.ridge * z)  # the sizes of what adds up to g, coordinate by coordinate
    for part in losses.blocks():
        summed += (losses.weight[part] * s[part]) @ losses.sizes(part)
    axes = point.factor.lengths(np.eye(d))
    decrement = decrement + float(blur @ length) + 8 * EPS * float(summed @ axes[0])
    noise = float(blur @ reach) + 8 * EPS * float(summed @ axes[1]) + 2 * EPS * far
    radius = min(_radius(length, curvature * length**2, decrement, least) for least in SHARES)
    if not np.isfinite(radius):
        return Certified(z, noise=noise)
    change = np.minimum(curvature * np.expm1(length * radius), losses.weight / 4)
    second = float((reach * change) @ length) * radius
    return Certified(z, float(np.linalg.norm(point.h)) + noise + second, decrement * radius, noise)


def _radius(length: Floats, share: Floats, decrement: float, least: float) -> float:
    """A bound on |z - z*|_Q from the rows whose share in the curvature is at least `least`; infinite if there is none.

    Without the others Q is at least `kept` times Q, and lengths under its inverse grow accordingly.
    """
    active = share >= least
    kept = 1 - float(share[~active].sum())
    rho = float(length[active].max(initial=0))
    if not (kept > 0.5 and rho * decrement < 0.5 * kept):
        return np.inf
    return float(-np.log1p(-rho * decrement / kept) / rho if rho > 0 else decrement) / kept
