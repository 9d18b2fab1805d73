"""How far a point can be from the minimiser of F (objective.py), and that there is a minimiser at all.

Let g be the gradient and Q the Hessian of F at z. Where |phi'''| <= M phi'', the curvature k_j = omega_j phi''_j of a
loss changes at most by the factor e^(M |c_j . v|) along any step v. So with lambda^2 = g . Q^-1 g, the lengths
rho_j^2 = c_j . Q^-1 c_j and rho their largest, where M rho lambda < 1, a minimiser z* EXISTS, and

    |z - z*|_Q <= -log(1 - M rho lambda) / (M rho) =: R,        F(z) - F* <= lambda R,
    |z - z*| <= |Q^-1 g| + sum_j |Q^-1 c_j| k_j (e^(M rho_j R) - 1) rho_j R.

Rows with next to no curvature, as those far out on the tails of their losses, may be left out of rho, as long as Q
without them is nearly Q. The last sum includes all rows.

Where there is no such M, as for losses whose curvature jumps, the ridge certifies: |z - z*| <= |g| / kappa. So do the
losses whose curvature does not fall close by: let Q' <= Q have for each row the least curvature within rho_j R of its
predictor. If Q' >= theta Q and lambda <= theta R, F rises beyond R, so that a minimiser exists, and

    |z - z*|_Q <= lambda / theta,        F(z) - F* <= lambda^2 / (2 theta).

The rounding errors of g are estimated, a few units in the last place of every predictor and of every term. They enter
lambda and |Q^-1 g| as Q^-1 acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from resolvent.problems.reference.objective import EPS, Floats, Objective

WELL = 1e-3
"""Smallest pivot of a scaled Cholesky factorisation that is trusted."""


class Factor:
    """R with R^T R = Q = sum_j k_j c_j c_j^T + kappa I, up to an order of the columns, for curvatures k_j.

    By Cholesky where scaled columns are far from dependent. Else by QR of the rows with pivoting, the largest rows
    first: small rows then retain their own precision beside large ones.
    """

    def __init__(self, objective: Objective, curvature: Floats) -> None:
        self.order: Any = slice(None)
        R = self._cholesky(objective, curvature)
        if R is None:
            R, self.order = self._qr(objective, curvature)
        self.R = R

    @staticmethod
    def _cholesky(objective: Objective, curvature: Floats) -> Floats | None:
        d = objective.C.shape[1]
        H = objective.ridge * np.eye(d)
        for part in objective.blocks():
            rows = objective.C[part] * np.sqrt(curvature[part, None])
            H += rows.T @ rows  # NumPy computes half of it, since it is symmetric
        size = np.sqrt(H.diagonal())
        if not (np.isfinite(size).all() and (size > 0).all()):
            return None
        try:
            L = np.linalg.cholesky(H / size / size[:, None])
        except np.linalg.LinAlgError:
            return None
        return np.asarray((L * size[:, None]).T, np.float64) if L.diagonal().min() > WELL else None

    @staticmethod
    def _qr(objective: Objective, curvature: Floats) -> tuple[Floats, Any]:
        from scipy.linalg import qr

        d = objective.C.shape[1]
        rows = np.vstack([np.sqrt(curvature)[:, None] * objective.C, np.sqrt(objective.ridge) * np.eye(d)])
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
        if isinstance(self.order, slice):  # well-conditioned: a product is as precise as a solve, and faster
            halves = rows @ self._inverse
            return np.linalg.norm(halves, axis=1), np.linalg.norm(halves @ self._inverse.T, axis=1)
        columns = self.half(rows.T)
        return np.linalg.norm(columns, axis=0), np.linalg.norm(self.back(columns), axis=0)


LEAST_SHARES = (0.0, 1e-12, 1e-6, 1e-3)
"""The least shares in the curvature that a row must have to count in rho. The best of these choices is used."""
MAX_FADING_ROWS = 1000
"""More rows than these, beside the features, that may lose their curvature show that a point is far from a solution."""


@dataclass(frozen=True, eq=False)
class Certified:
    """A point z and bounds on |z - z*| and on F(z) - F*, infinite where nothing is certified; `noise` is what rounding
    contributes to the first bound."""

    z: Floats
    error: float = np.inf
    excess: float = np.inf
    noise: float = np.inf


@dataclass(frozen=True, eq=False)
class Iterate:
    """z with its predictors t, the slopes and curvatures of the losses, Q's factor, the Newton step h = Q^-1 g, lambda
    (the Newton decrement) and C h. The losses are softened to T phi(t / T)."""

    z: Floats
    t: Floats
    slope: Floats
    curvature: Floats
    factor: Factor
    h: Floats
    decrement: float
    along: Floats

    @staticmethod
    def at(objective: Objective, z: Floats, T: float = 1.0) -> Iterate | None:
        """None where something is not finite, or nothing bends in some direction."""
        t = objective.predictors(z)
        slope, curvature = objective.loss.derivatives(t / T)
        curvature = curvature / T
        factor = Factor(objective, curvature)
        if not factor.R.diagonal().all():
            return None
        half = factor.half(objective.gradient(z, slope))
        h = factor.back(half)
        decrement = float(np.linalg.norm(half))
        if not (np.isfinite(h).all() and np.isfinite(decrement)):
            return None
        return Iterate(z, t, slope, curvature, factor, h, decrement, objective.C @ h)


def gradient_rounding(objective: Objective, z: Floats, t: Floats, curvature: Floats) -> tuple[Floats, Floats]:
    """Of the gradient at z: the error of each row's slope (n,), and that of their sum, one per coordinate (d,)."""
    size, slopes = objective.predictor_sizes(z), objective.loss.slope_size(t)
    summed = np.abs(objective.ridge * z)
    for part in objective.blocks():
        summed += slopes[part] @ objective.sizes(part)
    return EPS * (4 * slopes + curvature * (4 + np.sqrt(len(z))) * size), 8 * EPS * summed


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Of an iterate: |c_j| in the norm of Q^-1 and |Q^-1 c_j| of each row; lambda and |Q^-1 g| with their rounding."""

    length: Floats
    reach: Floats
    decrement: float
    noise: float

    @staticmethod
    def of(objective: Objective, here: Iterate, slopes: Floats, summed: Floats) -> Surroundings:
        length, reach = np.empty_like(here.slope), np.empty_like(here.slope)
        for part in objective.blocks():
            length[part], reach[part] = here.factor.lengths(objective.C[part])
        axes = here.factor.lengths(np.eye(len(here.z)))
        decrement = here.decrement + float(slopes @ length) + float(summed @ axes[0])
        noise = float(slopes @ reach) + float(summed @ axes[1]) + 2 * EPS * float(np.linalg.norm(here.z))
        return Surroundings(length, reach, decrement, noise)


def certificate(objective: Objective, here: Iterate) -> Certified:
    """The bounds of this module's docstring for an iterate with T = 1, rounding errors included."""
    slopes, summed = gradient_rounding(objective, here.z, here.t, here.curvature)
    around, rate = Surroundings.of(objective, here, slopes, summed), objective.loss.curvature_rate
    if rate is not None:
        return _by_curvature(objective, here, around, rate)
    by_ridge, nearby = _by_ridge(objective, here, slopes, summed), _by_least_curvature(objective, here, around)
    return nearby if nearby.error < by_ridge.error else by_ridge


def excess(objective: Objective, z: Floats) -> float:
    """A bound on F(z) - F*; infinite where there is none."""
    try:
        here = Iterate.at(objective, z)
        return np.inf if here is None else float(certificate(objective, here).excess)
    except (np.linalg.LinAlgError, ValueError):
        return np.inf


def _by_curvature(objective: Objective, here: Iterate, around: Surroundings, rate: float) -> Certified:
    """The best over a few choices of rows."""
    curvature, length, decrement = here.curvature, around.length, around.decrement
    radius = min(_radius(rate, length, curvature * length**2, decrement, least) for least in LEAST_SHARES)
    if not np.isfinite(radius):
        return Certified(here.z, noise=around.noise)
    change = np.minimum(curvature * np.expm1(rate * length * radius), objective.loss.largest_curvature)
    second = float((around.reach * change) @ length) * radius
    return Certified(here.z, float(np.linalg.norm(here.h)) + around.noise + second, decrement * radius, around.noise)


def _radius(rate: float, length: Floats, share: Floats, decrement: float, least: float) -> float:
    """A bound on |z - z*|_Q from the rows whose share in the curvature is at least `least`; infinite if there is none.

    Without the others Q is at least `retained` times Q, and lengths under its inverse grow accordingly.
    """
    active = share >= least
    retained = 1 - float(share[~active].sum())
    rho = rate * float(length[active].max(initial=0))
    if not (retained > 0.5 and rho * decrement < 0.5 * retained):
        return np.inf
    return float(-np.log1p(-rho * decrement / retained) / rho if rho > 0 else decrement) / retained


def _by_ridge(objective: Objective, here: Iterate, slopes: Floats, summed: Floats) -> Certified:
    """F is strongly convex with modulus kappa, whatever its curvature does."""
    kappa = objective.least_ridge
    if kappa == 0:
        return Certified(here.z)
    rows = np.empty_like(here.slope)
    for part in objective.blocks():
        rows[part] = np.linalg.norm(objective.C[part], axis=1)
    blur = float(slopes @ rows) + float(np.linalg.norm(summed))
    noise = blur / kappa + 2 * EPS * float(np.linalg.norm(here.z))
    slope = float(np.linalg.norm(objective.gradient(here.z, here.slope))) + blur
    return Certified(here.z, slope / kappa + noise, slope**2 / (2 * kappa), noise)


def _by_least_curvature(objective: Objective, here: Iterate, around: Surroundings) -> Certified:
    """From the rows that retain their curvature nearby."""
    stretch = 1 / float(np.linalg.svd(here.factor.R, compute_uv=False)[-1])  # the most of |v| / |v|_Q
    for share in (0.99, 0.5, 0.1):
        radius = around.decrement / share
        lost = here.curvature - objective.loss.least_curvature(here.t, around.length * radius)
        if 1 - _weight(objective, here, lost, around.length) >= share:
            excess = around.decrement * radius / 2
            return Certified(here.z, stretch * radius + around.noise, excess, around.noise)
    return Certified(here.z, noise=around.noise)


def _weight(objective: Objective, here: Iterate, lost: Floats, length: Floats) -> float:
    """The largest eigenvalue, beside Q, of the curvature that some rows may lose."""
    if not np.isfinite(lost).all():
        return np.inf
    some = np.flatnonzero(lost > 0)
    bound = float(lost[some] @ length[some] ** 2)
    if bound <= 0.01 or len(some) > len(here.z) + MAX_FADING_ROWS:
        return bound
    rows = here.factor.half((objective.C[some] * np.sqrt(lost[some])[:, None]).T)
    return float(np.linalg.norm(rows, 2) ** 2) if np.isfinite(rows).all() else np.inf
