"""The exact minimiser of f + g by an active-set method, from an approximation.

A face holds some coordinates at a kink or a bound and lets the others move; on it f + g is smooth. Newton's method goes
down on a face until a coordinate meets a bound or changes its sign, and holds that one too. At the lowest point of the
face, the coordinate that would gain most by moving is released. Where moving columns depend on each other, the point
goes along the dependence, in which f stays as it is, until a coordinate meets a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resolvent.problems.reference.objective import EPS, Floats, Objective, share_of_step
from resolvent.problems.reference.terms import Terms

DEPENDENT = 1e-12
"""The least pivot of columns of length one that are taken to be independent."""
SETTLED = 3
"""Newton steps at rounding level after which a face's lowest point is found."""


@dataclass(frozen=True, eq=False)
class Face:
    """A point w, and which coordinates may move. The others are held where they are."""

    w: Floats
    moving: np.ndarray


def descend(objective: Objective, g: Terms, near: Floats) -> Face:
    """The minimiser and its face, as exactly as rounding allows; certificates tell how well it did."""
    face, calm = _identified(objective, g, near), 0
    least = np.inf
    for _ in range(60 + 6 * len(near)):
        here = _Look.at(objective, g, face)
        h, flat = here.step()
        if flat is not None:
            face = _along(g, face, flat, here)
            calm = 0
            continue
        length, blocked = _room(g, face.w, h, face.moving)
        size = float(np.sqrt(max(float(here.slope @ h), 0.0)))
        if length < 1 and size > here.noise:
            face, calm = _hold(g, face, h, length, blocked), 0
            least = np.inf
            continue
        if length >= 1:
            share = 1.0 if size < 0.1 else here.share(h)
            face = Face(np.where(face.moving, face.w - share * h, face.w), face.moving)
        calm = calm + 1 if size <= max(here.noise, 0.0) or size >= 0.5 * least else 0
        least = min(least, size)
        if calm < SETTLED:
            continue
        released = _released(objective, g, face)
        if released is None:
            return face
        face, calm, least = released, 0, np.inf
    return face


@dataclass(frozen=True, eq=False)
class _Look:
    """Slopes of f + g on the face, and the rows whose Gram matrix is the Hessian there."""

    objective: Objective
    g: Terms
    face: Face
    t: Floats
    slope: Floats
    rows: Floats
    noise: float

    @staticmethod
    def at(objective: Objective, g: Terms, face: Face) -> _Look:
        t = objective.predictors(face.w)
        loss, curvature = objective.loss.derivatives(t)
        grad = objective.gradient(face.w, loss) + g.l1 * np.sign(face.w)
        slope = np.where(face.moving, grad, 0.0)
        ridge = np.broadcast_to(objective.ridge, face.w.shape)[face.moving]
        rows = [np.sqrt(np.maximum(curvature, 0))[:, None] * objective.C[:, face.moving]]
        if np.any(ridge):
            rows.append(np.diag(np.sqrt(ridge)))
        if g.a is not None:
            rows.append(g.a[None, face.moving])
        size = objective.loss.slope_size(t) + np.maximum(curvature, 0) * (np.abs(objective.C) @ np.abs(face.w))
        stacked = np.vstack(rows)
        return _Look(objective, g, face, t, slope, stacked, 4 * EPS * float(np.linalg.norm(size)) + 1e-300)

    def step(self) -> tuple[Floats, Floats | None]:
        """Newton's step h on the face, to be subtracted; or, where the moving columns depend on each other, a direction
        in which f is flat."""
        from scipy.linalg import qr, solve_triangular

        h = np.zeros_like(self.face.w)
        m = self.rows.shape[1]
        if m == 0:
            return h, None
        R, order = qr(self.rows, mode="r", pivoting=True, check_finite=False)[:2]
        rank = int(np.count_nonzero(np.abs(R.diagonal()) > DEPENDENT * max(abs(R[0, 0]), 1e-300)))
        if rank < m:
            v = np.zeros(m)
            v[order[:rank]] = -solve_triangular(R[:rank, :rank], R[:rank, rank], check_finite=False)
            v[order[rank]] = 1.0
            flat = np.zeros_like(h)
            flat[self.face.moving] = v
            return h, flat

        def inverse(x: Floats) -> Floats:
            half = solve_triangular(R[:m], x[order], trans="T", check_finite=False)
            out = np.empty_like(x)
            out[order] = solve_triangular(R[:m], half, check_finite=False)
            return out

        g = self.slope[self.face.moving]
        own = inverse(g)
        if self.g.a is not None:
            a = self.g.a[self.face.moving]
            across = inverse(a)
            if a @ across > 0:
                own = own - across * ((a @ own) / (a @ across))
        h[self.face.moving] = own
        return h, None

    def share(self, h: Floats) -> float:
        """The share of the step that brings the slope along it to zero, at most 1."""
        along, ridge = self.objective.C @ h, self.objective.ridge * h
        rest = float((self.g.l1 * np.sign(self.face.w)) @ h)
        if self.objective.tilt is not None:
            rest += float(self.objective.tilt @ h)

        def past(share: float) -> bool:
            pull = self.objective.loss.slope(self.t - share * along) @ along
            return bool(pull + ridge @ (self.face.w - share * h) + rest < 0)

        return share_of_step(past) or 1e-60


def _identified(objective: Objective, g: Terms, near: Floats) -> Face:
    """Which coordinates lie at a kink or a bound: those that are nearer to it than their slope would carry them."""
    t = objective.predictors(near)
    loss, curvature = objective.loss.derivatives(t)
    v = objective.gradient(near, loss)
    if g.a is not None:  # slopes beside the common one
        inside = g.a > 0
        weight = near * g.a * inside
        v = v - g.a * (float((v / np.where(inside, g.a, 1)) @ weight) / float(weight.sum()))
    bend = objective.bends(curvature)
    w, moving = near.copy(), bend > 0
    zero = (g.l1 > 0) & (np.abs(near) * bend <= g.l1 - np.abs(v))
    low, high = (near - g.low) * bend <= v, (g.high - near) * bend <= -v
    for some, value in ((zero, 0.0), (low & np.isfinite(g.low), g.low), (high & np.isfinite(g.high), g.high)):
        w = np.where(some, value, w)
        moving = moving & ~some
    w = np.where((bend <= 0) & (g.l1 > 0), 0.0, w)
    if g.a is not None and moving[g.a > 0].any():  # what was moved to a bound is made up for by the others
        some = moving & (g.a > 0)
        w[some] *= (g.total - float(g.a[~some] @ w[~some])) / float(g.a[some] @ w[some])
    return Face(w, moving)


def _room(g: Terms, w: Floats, h: Floats, moving: np.ndarray) -> tuple[float, int]:
    """How much of the step -h can be taken before a coordinate meets a bound or zero, and which one does."""
    with np.errstate(divide="ignore", invalid="ignore"):
        down, up = np.where(g.l1 * (w > 0) > 0, np.maximum(g.low, 0.0), g.low), g.high
        up = np.where(g.l1 * (w < 0) > 0, np.minimum(up, 0.0), up)
        room = np.where(h > 0, (w - down) / h, np.where(h < 0, (up - w) / -h, np.inf))
    room = np.where(moving, room, np.inf)
    first = int(np.argmin(room)) if len(room) else -1
    return (float(room[first]), first) if len(room) else (np.inf, -1)


def _hold(g: Terms, face: Face, h: Floats, length: float, blocked: int) -> Face:
    """After a step that was cut short: the coordinate that met a bound stays there."""
    w, moving = np.where(face.moving, face.w - length * h, face.w), face.moving.copy()
    ends = [g.low[blocked], g.high[blocked], *([0.0] if g.l1[blocked] > 0 else [])]
    w[blocked] = min(ends, key=lambda end: abs(end - w[blocked]))
    moving[blocked] = False
    return Face(w, moving)


def _along(g: Terms, face: Face, flat: Floats, here: _Look) -> Face:
    """Downwards along a direction in which f is flat, or either way where g is flat too, to the first bound."""
    down = flat if float(here.slope @ flat) >= 0 else -flat
    for h in (down, -down):
        length, blocked = _room(g, face.w, h, face.moving)
        if np.isfinite(length):
            return _hold(g, face, h, length, blocked)
    moving = face.moving.copy()  # nothing bounds it: hold one coordinate of it where it is
    moving[int(np.argmax(np.abs(flat)))] = False
    return Face(face.w, moving)


def _released(objective: Objective, g: Terms, face: Face) -> Face | None:
    """The face with the coordinate released that gains most by moving; None where none gains beyond rounding."""
    w, t = face.w, objective.predictors(face.w)
    loss, curvature = objective.loss.derivatives(t)
    v = objective.gradient(w, loss)
    bend = objective.bends(curvature)
    sizes = np.abs(objective.C)
    blur = 8 * EPS * (objective.loss.slope_size(t) @ sizes + np.abs(objective.ridge * w))
    blur += 4 * EPS * (np.maximum(curvature, 0) * (sizes @ np.abs(w))) @ sizes
    if g.a is not None and (face.moving & (g.a > 0)).any():
        some = face.moving & (g.a > 0)
        common = float(np.mean(v[some] / g.a[some]))
        v = v - g.a * common
    gain = _gain(g, w, v)
    gain = np.where(face.moving | (bend <= 0) | (gain <= 4 * blur + 1e-13 * g.l1), 0.0, gain)
    if not gain.any():
        return None
    best = int(np.argmax(gain**2 / np.where(bend > 0, bend, 1)))
    moving = face.moving.copy()
    moving[best] = True
    w = w.copy()
    if g.l1[best] > 0 and w[best] == 0:  # a sign for its kink, at a distance that is nothing
        w[best] = -np.sign(v[best]) * 1e-300
    return Face(w, moving)


def _gain(g: Terms, w: Floats, v: Floats) -> Floats:
    """How steeply f + g falls as each coordinate leaves where it is held: 0 where it rises."""
    up = -(v + g.l1 * np.where(w >= 0, 1.0, -1.0))
    down = v + g.l1 * np.where(w <= 0, -1.0, 1.0)
    up, down = np.where(w >= g.high, 0, up), np.where(w <= g.low, 0, down)
    return np.maximum(np.maximum(up, down), 0)
