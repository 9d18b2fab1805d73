"""Newton's method with a line search on F (objective.py), and a certificate of the answer (curvature.py).

Steps go down along F: the line search asks for the sign of its slope, which costs one product per trial. Far from the
solution of badly scaled data F bends in layers that are thinner than the rounding of z, and steps would jump from one
to the next for ever. Then the losses are softened to T phi(t / T), and T falls from the size of the predictors to 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from resolvent.problems.reference.curvature import Certified, Iterate, certificate
from resolvent.problems.reference.objective import Floats, Objective, share_of_step

STEPS_WITHOUT_SOFTENING = 40
"""A good start needs a handful."""
MAX_STEPS = 400
COOLING = 0.03
RIDGE_SHARES = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10)
"""Of the largest curvature that a coordinate can have."""
NOISE_FACTOR = 16.0
"""Where curvatures jump, steps go on until the error is at most so many times what rounding contributes to it."""


def minimise(objective: Objective, start: Floats) -> Certified:
    """A minimiser of F with its certificate, from a start.

    With fewer rows than features the minimiser lies in the span of the rows (there is a ridge then) and is found there.
    """
    n, d = objective.C.shape
    if n >= d:
        return _minimise(objective, start)
    if np.ndim(objective.ridge) > 0:
        return _in_span(objective, start)
    basis, R = np.linalg.qr(objective.C.T)
    solution = _minimise(replace(objective, C=np.ascontiguousarray(R.T), rotated=True), basis.T @ start)
    return replace(solution, z=basis @ solution.z)


def _in_span(objective: Objective, start: Floats) -> Certified:
    """The same where some coordinates have another ridge than the rest: these are left as they are."""
    ridge = np.asarray(objective.ridge)
    same = ridge == ridge.max()
    basis, R = np.linalg.qr(objective.C[:, same].T)
    C = np.hstack([R.T, objective.C[:, ~same]])
    kappa = np.concatenate([np.full(R.shape[0], ridge.max()), ridge[~same]])
    begin = np.concatenate([basis.T @ start[same], start[~same]])
    solution = _minimise(replace(objective, C=C, ridge=kappa, rotated=True), begin)
    z = np.empty_like(start)
    z[same], z[~same] = basis @ solution.z[: R.shape[0]], solution.z[R.shape[0] :]
    return replace(solution, z=z)


def _minimise(objective: Objective, start: Floats) -> Certified:
    """From the start, and from 0 with softened losses where that does not get there."""
    with np.errstate(all="ignore"):
        solution = _descend(objective, start, soft=False)
        if np.isfinite(solution.error):
            return solution
        if objective.loss.curvature_rate is None and objective.least_ridge == 0:
            return _by_ridges(objective, start)
        if not np.any(objective.ridge):  # there may be nothing to find
            return solution
        return _descend(objective, np.zeros_like(start), soft=True)


def _by_ridges(objective: Objective, z: Floats) -> Certified:
    """Where some points have no curvature at all: with ridges that fall to the objective's own."""
    most = float(np.abs(objective.loss.largest_curvature @ np.square(objective.C)).max(initial=0)) or 1.0
    for share in RIDGE_SHARES:
        z = _descend(replace(objective, ridge=objective.ridge + share * most), z, soft=False).z
    return _descend(objective, z, soft=False)


def _descend(objective: Objective, z: Floats, soft: bool) -> Certified:
    """Down to where steps gain nothing more, and the certificate of the best iterate close to the solution."""
    best, smooth = Certified(z), objective.loss.curvature_rate is not None
    least, closest, T = np.inf, None, _softness(objective, z) if soft else 1.0
    for _ in range(MAX_STEPS if soft else STEPS_WITHOUT_SOFTENING):
        here = Iterate.at(objective, z, T)
        if here is None or (not np.any(objective.ridge) and objective.loss.shows_no_minimum(here.t)):
            break
        near = float(np.abs(here.along).max(initial=0)) <= 0.5 * T
        if near and T == 1:
            settled = here.decrement >= least / 2
            if here.decrement < least:
                least, closest = here.decrement, here
            if (settled or least == 0) and closest is not None:
                new, closest = certificate(objective, closest), None
                best = new if new.error <= best.error else best
                if least == 0 or (np.isfinite(best.error) if smooth else best.error <= NOISE_FACTOR * best.noise):
                    break
        z = z - (1.0 if near and smooth else _length(objective, here, T)) * here.h
        if near:
            T = max(1.0, T * COOLING)
    return best if closest is None else min(best, certificate(objective, closest), key=lambda each: each.error)


def _softness(objective: Objective, z: Floats) -> float:
    """As large as predictors are, here and after a step down."""
    t = objective.predictors(z)
    gradient = objective.gradient(z, objective.loss.slope(t))
    if np.ndim(objective.ridge) == 0:
        reach = objective.C @ gradient / (objective.ridge or 1.0)
    else:
        reach = objective.C @ (gradient / np.where(np.asarray(objective.ridge) > 0, objective.ridge, 1.0))
    return max(1.0, float(np.abs(t).max(initial=0)), float(np.abs(reach).max(initial=0)))


def _length(objective: Objective, here: Iterate, T: float) -> float:
    """How much of the Newton step -h to take from z."""
    linear, square = objective.pull(here.z, here.h), objective.pull(here.h, here.h)

    def past(share: float) -> bool:
        slope = objective.loss.slope((here.t - share * here.along) / T) @ here.along
        return bool(slope + linear - share * square < 0)

    return share_of_step(past)
