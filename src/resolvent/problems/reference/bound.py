"""How far F = f + g can be above its minimum at a point w: the bound by which every minimum is accepted.

For a subgradient s of g at w, with r = grad f(w) + s and any minimiser x, convexity says

    F(w) - F* <= sum_j r_j (w_j - x_j)   less what f bends on the way.

What r can gain is bounded coordinate by coordinate. Over some coordinates, the face, curvature does it (curvature.py):
F falls by `own` at most there. Over the others it is |r_j| times how far x_j can be away: bounds hold x, and so does
l1, since sum_j l1_j |x_j| <= F(w) - min f. The face may be all coordinates, those that move, or none: the best of these
three bounds counts. Rounding errors of gradients are estimated as in curvature.py, and enter every bound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from resolvent.problems.reference.curvature import excess as excess_by_curvature
from resolvent.problems.reference.curvature import gradient_rounding
from resolvent.problems.reference.faces import Face
from resolvent.problems.reference.objective import EPS, Floats, Objective
from resolvent.problems.reference.terms import Terms

MAX_EXTENDED = 1 << 22
"""The most numbers in rows for which gradients are computed in extended precision, which is slow."""


def excess(objective: Objective, g: Terms, face: Face, least: float) -> float:
    """A bound on F(w) - F*; infinite where nothing is certain. `least` is a lower bound on f, -inf if none is known.

    `objective` has l2 of g in its ridge."""
    w = face.w
    v, blur, bend = _slopes(objective, w)
    common = _common(g, face, v)
    s = g.nearest(w, -(v - common)) - common
    firm = _slack(g, w, v - common) if g.a is None else np.full_like(w, -np.inf)
    bounds = []
    for some in (np.ones_like(face.moving), face.moving, np.zeros_like(face.moving)):
        if g.a is not None and some.any() and not some.all():
            continue  # coordinates on a face with a fixed sum are not free to move
        own = excess_by_curvature(_restricted(objective, w, s, some), w[some]) if some.any() else 0.0
        # Over the distance to the face's own minimiser, at most sqrt(2 own) in the norm of the Hessian, slopes change.
        change = blur + 2 * np.sqrt(2 * own * bend)
        rest = np.where(some, 0.0, np.abs(v + s) + np.where(firm > change, 0.0, change))
        bounds.append(own + _reach(objective, g, w, rest, least))
    return min(bound if bound >= 0 else np.inf for bound in bounds)  # NaN is none


def _restricted(objective: Objective, w: Floats, s: Floats, some: np.ndarray) -> Objective:
    """f + <s, .> over these coordinates, with the others as they are in w."""
    tilt = s if objective.tilt is None else s + objective.tilt
    if some.all():
        return replace(objective, tilt=tilt)
    return replace(
        objective,
        C=np.ascontiguousarray(objective.C[:, some]),
        offset=objective.offset + objective.C[:, ~some] @ w[~some],
        ridge=np.broadcast_to(objective.ridge, w.shape)[some],
        tilt=tilt[some],
    )


def _common(g: Terms, face: Face, v: Floats) -> Floats:
    """What a fixed sum takes off every slope: the common slope of those that move."""
    if g.a is None:
        return np.zeros_like(v)
    some = face.moving & (g.a > 0)
    shared = v[some] / g.a[some] if some.any() else (v / np.where(g.a > 0, g.a, np.inf))[g.a > 0]
    return g.a * float(np.mean(shared) if some.any() else np.min(shared))


def _reach(objective: Objective, g: Terms, w: Floats, r: Floats, least: float) -> float:
    """sum_j r_j |w_j - x_j| for a minimiser x, where a sum, bounds or l1 hold it; infinite where nothing does."""
    rest = r > 0
    if g.a is not None:
        inside = g.a > 0
        return np.inf if rest[~inside].any() else 2 * g.total * float(np.max(r[inside] / g.a[inside], initial=0))
    width = g.high - g.low
    boxed = rest & np.isfinite(width)
    total = float(r[boxed] @ width[boxed])
    kinked = rest & ~boxed & (g.l1 > 0)
    if kinked.any():
        level = objective.value(w) + float(g.l1 @ np.abs(w)) - least + float(g.l1[kinked] @ np.abs(w[kinked]))
        total += float(np.max(r[kinked] / g.l1[kinked])) * level
    return np.inf if (rest & ~boxed & ~kinked).any() else total


def _slack(g: Terms, w: Floats, v: Floats) -> Floats:
    """How far the slope of a held coordinate is from letting it move."""
    at_zero = np.where((w == 0) & (g.l1 > 0), g.l1 - np.abs(v), -np.inf)
    low = np.where(w <= g.low, v + g.l1 * np.sign(w), -np.inf)
    high = np.where(w >= g.high, -(v + g.l1 * np.sign(w)), -np.inf)
    return np.maximum(np.maximum(at_zero, low), np.where(g.low == g.high, np.inf, high))


def _slopes(objective: Objective, w: Floats) -> tuple[Floats, Floats, Floats]:
    """The gradient of f, its rounding error and the curvature, coordinate by coordinate."""
    t = objective.predictors(w)
    slope, curvature = objective.loss.derivatives(t)
    bend = objective.bends(curvature)
    if objective.loss.curvature_rate == 0 and objective.C.size <= MAX_EXTENDED:
        extended = _extended_gradient(objective, w)
        if extended is not None:
            return (*extended, bend)
    slopes, blur = gradient_rounding(objective, w, t, curvature)
    for part in objective.blocks():
        blur = blur + slopes[part] @ objective.sizes(part)
    return objective.gradient(w, slope), blur, bend


def _extended_gradient(objective: Objective, w: Floats) -> tuple[Floats, Floats] | None:
    """Of least squares, whose slopes are linear: the gradient in extended precision, where the machine has it, and a
    bound on its error."""
    eps = float(np.finfo(np.longdouble).eps)
    if not eps < EPS / 1e3:
        return None
    C, zero = objective.C.astype(np.longdouble), np.zeros(len(objective.C))
    target, weight = objective.loss.slope(zero), objective.loss.derivatives(zero)[1]
    e = weight * (objective.offset + C @ w) + target
    size = weight * (np.abs(objective.offset) + np.abs(objective.C) @ np.abs(w)) + np.abs(target)
    own, rest = e @ C, objective.ridge * w + (0.0 if objective.tilt is None else objective.tilt)
    total = np.asarray(own + rest, np.float64)
    error = (2 + len(w)) * eps * (size @ np.abs(objective.C)) + EPS * (2 * np.abs(rest) + np.abs(total))
    if (weight != 1).any():  # targets times weights are rounded
        error = error + EPS * (np.abs(target) @ np.abs(objective.C))
    return total, np.asarray(error, np.float64)
