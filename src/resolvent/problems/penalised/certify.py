"""How far f + g can be above its minimum at a point: three bounds, the best of which counts.

For s a subgradient of g at w, F = f + g lies nowhere below f + <s, .> + const, and meets it at w. So:

tilted   what Newton's certificate says of the minimum of f + <s, .>. It needs curvature in every direction.
bounded  F(w) - F* <= sum_j |r_j| |w_j - x_j| with r = grad f(w) + s, for a minimiser x: bounds hold x, and so does l1,
         since l1 |x| <= F(w) - min f.
face     Newton's certificate on the face alone, and beside it what the coordinates that are held could gain, as above.

Rounding errors of gradients are estimated as in `newton.certificate`, and enter every bound.
"""

from __future__ import annotations

import numpy as np

from resolvent.problems.newton.certificate import Iterate, Rounding, certificate
from resolvent.problems.newton.objective import EPS, Floats, Objective
from resolvent.problems.penalised.faces import Face
from resolvent.problems.penalised.squares import Squares
from resolvent.problems.penalised.terms import Terms, Tilted


def excess(objective: Objective, g: Terms, face: Face, least: float) -> float:
    """A bound on F(w) - F*; infinite where nothing is certain. `least` is a lower bound on f, -inf if none is known."""
    v, blur, bend = _slopes(objective, face.w)
    with np.errstate(all="ignore"):
        common = _common(g, face, v)
        s = g.nearest(face.w, -(v - common)) - common
        found = [
            tilted(objective, face.w, s),
            _bounded(objective, g, face.w, np.abs(v + s) + blur, least),
            _on_face(objective, g, face, v - common, blur, bend, least) if g.a is None else np.inf,
        ]
    return min(bound if bound >= 0 else np.inf for bound in found)  # NaN is none


def _common(g: Terms, face: Face, v: Floats) -> Floats:
    """What a fixed sum takes off every slope: the common slope of those that move."""
    if g.a is None:
        return np.zeros_like(v)
    some = face.moving & (g.a > 0)
    shared = v[some] / g.a[some] if some.any() else (v / np.where(g.a > 0, g.a, np.inf))[g.a > 0]
    return g.a * float(np.mean(shared) if some.any() else np.min(shared))


def tilted(objective: Objective, w: Floats, s: Floats) -> float:
    """From the curvature of f + <s, .> at w; infinite where there is not enough of it."""
    own = Tilted(
        objective.C, objective.offset, objective.loss, objective.ridge, objective.rotated, s + _tilt(objective)
    )
    try:
        here = Iterate.at(own, w)
        return np.inf if here is None else float(certificate(own, here).excess)
    except (np.linalg.LinAlgError, ValueError):
        return np.inf


def _tilt(objective: Objective) -> Floats | float:
    return objective.tilt if isinstance(objective, Tilted) else 0.0


def _bounded(objective: Objective, g: Terms, w: Floats, r: Floats, least: float) -> float:
    """From bounds on a minimiser alone."""
    if g.a is not None:
        held = g.a > 0
        return 2 * g.total * float(np.max(r[held] / g.a[held])) if held.all() else np.inf
    return _reach(objective, g, w, r, least, twice=True)


def _reach(objective: Objective, g: Terms, w: Floats, r: Floats, least: float, twice: bool = False) -> float:
    """sum_j r_j |w_j - x_j| for a minimiser x, where bounds or l1 hold it; with `twice`, |w_j| + |x_j| for l1."""
    width, rest = g.high - g.low, r > 0
    boxed = rest & np.isfinite(width)
    total = float(r[boxed] @ width[boxed])
    kinked = rest & ~boxed & (g.l1 > 0)
    if kinked.any():
        level = objective.value(w) + float(g.l1 @ np.abs(w)) - least
        total += float(np.max(r[kinked] / g.l1[kinked])) * (level + float(g.l1 @ np.abs(w)) * twice)
    return np.inf if (rest & ~boxed & ~kinked).any() else total


def _on_face(objective: Objective, g: Terms, face: Face, v: Floats, blur: Floats, bend: Floats, least: float) -> float:
    """Newton's certificate over the moving coordinates; the held ones gain at most their slope beyond the kink."""
    some, w = face.moving, face.w
    own = 0.0
    if some.any():
        tilt = np.broadcast_to(_tilt(objective), w.shape)[some] + g.l1[some] * np.sign(w[some])
        ridge = np.broadcast_to(objective.ridge, w.shape)[some]
        rest = objective.offset + objective.C[:, ~some] @ w[~some]
        part = Tilted(np.ascontiguousarray(objective.C[:, some]), rest, objective.loss, ridge, objective.rotated, tilt)
        try:
            here = Iterate.at(part, w[some])
            own = np.inf if here is None else float(certificate(part, here).excess)
        except (np.linalg.LinAlgError, ValueError):
            return np.inf
    if not np.isfinite(own):
        return np.inf
    # Over the distance to the face's own minimiser, at most sqrt(2 own) in the norm of the Hessian, slopes change.
    change = 2 * np.sqrt(2 * own * bend)
    left = g.nearest(w, -v) + v
    off = np.where(some, 0.0, np.abs(left) + np.where(_slack(g, w, v) > blur + change, 0.0, blur + change))
    return own + _reach(objective, g, w, off, least)


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
    here = Iterate(w, t, slope, curvature, None, w, 0.0, t)  # type: ignore[arg-type]
    rounding = Rounding.at(objective, here)
    blur, bend = rounding.summed.copy(), np.broadcast_to(objective.ridge, w.shape).copy()
    for part in objective.blocks():
        blur += rounding.slopes[part] @ objective.sizes(part)
        bend += np.maximum(curvature[part], 0) @ objective.C[part] ** 2
    sharp = _sharp(objective, w)
    return (objective.gradient(w, slope), blur, bend) if sharp is None else (*sharp, bend)


def _sharp(objective: Objective, w: Floats) -> tuple[Floats, Floats] | None:
    """The gradient of least squares and its rounding error, where extended precision is to be had."""
    if not isinstance(objective.loss, Squares):
        return None
    found = objective.loss.gradient_and_rounding(objective.C, objective.offset, w)
    if found is None:
        return None
    rest = objective.ridge * w + _tilt(objective)
    total = found[0] + rest
    return total, np.asarray(found[1] + EPS * (2 * np.abs(rest) + np.abs(total)), np.float64)
