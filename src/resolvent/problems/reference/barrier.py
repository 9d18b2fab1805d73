"""A first approximation to the minimiser of f + g by a path of smooth problems.

Every kink and every bound is replaced by a logarithmic barrier of weight mu: l1 |w| becomes the least value over
u > |w| of l1 u - mu log(u^2 - w^2), and a bound is kept by -mu log of the distance to it. These functions are
self-concordant, so that Newton's method with a line search is reliable. mu falls until the error, at most mu per
barrier, is negligible.
"""

from __future__ import annotations

import numpy as np

from resolvent.problems.reference.objective import Floats, Objective
from resolvent.problems.reference.terms import Terms

MU_FACTOR = 0.1
FINAL_ERROR = 1e-11
"""The error at the end, relative to the value at the start."""
MAX_STEPS = 40
"""Newton steps per mu at most."""


def approximate(objective: Objective, g: Terms) -> Floats:
    """A strictly feasible point near the minimiser."""
    w = _start(objective, g)
    barriers = np.count_nonzero(g.l1) + np.count_nonzero(np.isfinite(g.low)) + np.count_nonzero(np.isfinite(g.high))
    scale = max(abs(objective.value(w)) + float(g.l1 @ np.abs(w)), 1e-300)
    mu = scale / max(int(barriers), 1)
    last = FINAL_ERROR * mu
    while True:
        w = _centre(objective, g, w, mu)
        if mu <= last or not barriers:
            return w
        mu *= MU_FACTOR


def _start(objective: Objective, g: Terms) -> Floats:
    """Inside every bound: columns have length about one, so that a step of one is a step."""
    width = np.where(np.isfinite(g.high - g.low), 0.25 * (g.high - g.low), 1.0)
    w = np.clip(np.zeros(len(g.l1)), g.low + width, g.high - width)
    if g.a is None:
        return w
    inside = g.a > 0
    w[inside] = g.total / (np.count_nonzero(inside) * g.a[inside])
    return w


def _centre(objective: Objective, g: Terms, w: Floats, mu: float) -> Floats:
    """Newton's method on f + g with barriers of weight mu."""
    for _ in range(MAX_STEPS):
        t = objective.predictors(w)
        slope, curvature = objective.loss.derivatives(t)
        rows = objective.C * np.sqrt(np.maximum(curvature, 0))[:, None]
        pull, bend = _barriers(g, w, mu)
        grad = objective.gradient(w, slope) + pull
        H = rows.T @ rows
        H.flat[:: len(w) + 1] += objective.ridge + bend
        h = _solve(H, grad, g.a)
        decrement = float(grad @ h)
        if not np.isfinite(decrement) or decrement <= 1e-2 * mu:
            return w
        moved = _search(objective, g, w, h, decrement, mu)
        if moved is None:
            return w
        w = moved
    return w


def _search(objective: Objective, g: Terms, w: Floats, h: Floats, decrement: float, mu: float) -> Floats | None:
    """The first of w - h, w - h/2, ... that stays inside and lowers the value; None where rounding ends it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(h > 0, (w - g.low) / h, np.where(h < 0, (g.high - w) / -h, np.inf))
    share = min(1.0, 0.99 * float(np.min(room, initial=np.inf)))
    before = _value(objective, g, w, mu)
    for _ in range(40):
        ahead = w - share * h
        if _value(objective, g, ahead, mu) <= before - 0.1 * share * decrement:
            return ahead
        share /= 2
    return None


def _solve(H: Floats, grad: Floats, a: Floats | None) -> Floats:
    """H^-1 grad, or its part that keeps a . w."""
    size = 1 / np.sqrt(np.maximum(H.diagonal(), 1e-300))
    scaled = H * size * size[:, None]
    scaled.flat[:: len(size) + 1] += 1e-14
    right = np.column_stack([grad] if a is None else [grad, a]) * size[:, None]
    try:
        L = np.linalg.cholesky(scaled)
        h = np.linalg.solve(L.T, np.linalg.solve(L, right)) * size[:, None]
    except np.linalg.LinAlgError:
        h = np.linalg.lstsq(scaled, right, rcond=None)[0] * size[:, None]
    return np.asarray(h[:, 0] if a is None else h[:, 0] - h[:, 1] * (a @ h[:, 0]) / (a @ h[:, 1]), np.float64)


def _barriers(g: Terms, w: Floats, mu: float) -> tuple[Floats, Floats]:
    """Slopes and curvatures of the barriers."""
    below, above = w - g.low, g.high - w
    root = np.hypot(mu, g.l1 * w)
    pull = g.l1**2 * w / (mu + root) - mu / below + mu / above
    bend = g.l1**2 * mu / (root * (mu + root)) + mu / below**2 + mu / above**2
    return pull, bend


def _value(objective: Objective, g: Terms, w: Floats, mu: float) -> float:
    below, above = w - g.low, g.high - w
    if not ((below > 0).all() and (above > 0).all()):
        return np.inf
    kinks = g.l1 > 0
    lw = g.l1[kinks] * w[kinks]
    root = np.hypot(mu, lw)
    # l1 u = mu + root, and l1^2 (u^2 - w^2) = 2 mu (mu + root)
    smooth = float(np.sum(root - mu * np.log(mu + root)))
    logs = sum(float(np.log(side[np.isfinite(side)]).sum()) for side in (below, above))
    return objective.value(w) + smooth - mu * logs
