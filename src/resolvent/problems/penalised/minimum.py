"""The minimum of f + g for rows of losses with a ridge, and gaps to it without cancellation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from resolvent.iteration.penalties import Penalty
from resolvent.problems.newton.objective import EPS, Floats, Objective
from resolvent.problems.penalised import ball
from resolvent.problems.penalised.barrier import approximate
from resolvent.problems.penalised.certify import excess
from resolvent.problems.penalised.faces import Face, descend
from resolvent.problems.penalised.terms import Terms, Tilted, terms
from resolvent.problems.room import gib, room

SURE = 1e-10
"""F(w) - F* relative to |F(w)| beyond which w is no minimiser."""
NOTHING = 1e-15
"""The same relative to F(0): where F* is zero, round-off is all that is left of it."""
WIDE = 2000
"""The most coordinates for which the minimum is sought: it takes some fifty factorisations of d^3/3 operations."""
NEAR_BY, FAR_OFF = 1e-6, 1e-3
"""Gaps relative to |F*|. Up to the first a gap is a sum of divergences; beyond the second none is computed."""


@dataclass(frozen=True, eq=False)
class Least:
    """A minimiser w of f + g, a subgradient of g there (without l2), a ball's multiplier, and the value; or why not."""

    w: Floats | None
    value: float | None
    s: Floats | None = None
    mu: float = 0.0
    excess: float = 0.0
    """A bound on how far the value is above the minimum."""
    why: str | None = None

    @staticmethod
    def unknown(why: str) -> Least:
        return Least(None, None, why=why)


def least(objective: Objective, penalty: Penalty, lowest: float, constant: float = 0.0) -> Least:
    """The minimum of objective + constant + g; `lowest` is a lower bound on the objective, -inf where none is known."""
    n, d = objective.C.shape
    g = terms(penalty, d)
    if g is None:
        return Least.unknown(f"no certified minimum is known with the penalty {penalty}")
    if d > WIDE:
        return Least.unknown(f"the minimum with a penalty is sought for at most {WIDE} coordinates, and there are {d}")
    needed = 8 * (4 * n * d + 6 * d * d)
    if needed > room():
        return Least.unknown(f"finding the minimum takes {gib(needed)}, and this machine has {gib(room())}")
    with np.errstate(all="ignore"):
        found = _in_ball(objective, g) if g.centre is not None else _separable(objective, g, lowest)
    if found.w is None or found.value is None:
        return found
    scale = abs(found.value + constant)
    t, size = objective.predictors(found.w), objective.predictor_sizes(found.w)
    rounding = objective.value_rounding(found.w, t, (4 + np.sqrt(d)) * EPS * size)
    if not found.excess + rounding <= SURE * scale + NOTHING * abs(_at_zero(objective, g) + constant):
        return Least.unknown(
            "no minimiser of f + g could be certified: features of very different scales leave round-off too large, "
            "or nothing bounds the model in some direction"
        )
    return replace(found, value=found.value + constant)


def _at_zero(objective: Objective, g: Terms) -> float:
    return objective.value(np.clip(np.zeros(len(g.l1)), g.low, g.high))


def _separable(objective: Objective, g: Terms, lowest: float) -> Least:
    """In coordinates that give columns a length of about one; those that bounds fix are put in first."""
    held = g.low == g.high
    ridge = np.broadcast_to(objective.ridge, g.l1.shape) + g.l2
    fixed = np.where(held, g.low, 0.0)
    size = _lengths(objective, fixed, ridge)
    some = ~held
    part = Objective(
        np.ascontiguousarray(objective.C[:, some] / size[some]),
        objective.offset + objective.C @ fixed,
        objective.loss,
        ridge[some] / size[some] ** 2,
        objective.rotated,
    )
    own = g.take(some).scaled(size[some])
    if g.a is not None:
        own = replace(own, total=g.total - float(g.a @ fixed))
    face = descend(part, own, approximate(part, own)) if some.any() else Face(fixed[:0], some[:0])
    x = np.where(np.abs(face.w) < 1e-250, 0.0, face.w)
    face = Face(x, face.moving & (x != 0) | face.moving & (own.l1 == 0))
    bound = excess(part, own, face, lowest)
    w = fixed.copy()
    w[some] = x / size[some]
    w = np.clip(w, g.low, g.high)
    slope = objective.gradient(w, objective.loss.slope(objective.predictors(w))) + g.l2 * w
    s = np.zeros_like(w)
    s[some] = _subgradient(own, face, slope[some] / size[some]) * size[some]
    s[held] = -slope[held]
    value = objective.value(w) + float(g.l1 @ np.abs(w) + g.l2 @ (w * w) / 2)
    return Least(w, value, s, excess=bound)


def _subgradient(g: Terms, face: Face, v: Floats) -> Floats:
    """That of g at the minimiser which -grad f is, to rounding; with a fixed sum, beside the common slope."""
    if g.a is not None:
        some = face.moving & (g.a > 0)
        if some.any():
            v = v - g.a * float(np.mean(v[some] / g.a[some]))
    return np.asarray(np.where(face.moving, g.l1 * np.sign(face.w), g.nearest(face.w, -v)), np.float64)


def _in_ball(objective: Objective, g: Terms) -> Least:
    assert g.centre is not None
    ridge = np.broadcast_to(objective.ridge, g.l1.shape)
    offset, size = objective.predictors(g.centre), _lengths(objective, g.centre, ridge)
    tilt = ridge * g.centre / size
    shifted = Tilted(objective.C / size, offset, objective.loss, ridge / size**2, objective.rotated, tilt)
    found = ball.minimise(shifted, g.members, g.radius, size)
    w = g.centre + found.z
    return Least(w, objective.value(w), mu=found.mu, excess=found.excess)


def _lengths(objective: Objective, at: Floats, ridge: Floats) -> Floats:
    """Of the Hessian's columns at a point, to the nearest power of two, so that scaling by them is exact."""
    _, curvature = objective.loss.derivatives(objective.predictors(at))
    bend = np.maximum(curvature, 0) @ objective.C**2 + ridge
    return np.asarray(np.exp2(np.round(np.log2(np.where(bend > 0, np.sqrt(bend), 1.0)))), np.float64)


@dataclass(frozen=True, eq=False)
class Penalised:
    """f + g around its minimum. `value` and `divergence` are those of f, one model (d,) in float64 at a time:
    f(w), and f(w) - f(w*) - <grad f(w*), w - w*> without cancellation."""

    penalty: Penalty
    least: Least
    value: Callable[[Tensor], Tensor]
    divergence: Callable[[Tensor], Tensor]

    @property
    def fstar(self) -> float | None:
        """min f + g; None where it is not certified."""
        return self.least.value

    def minimiser(self, like: Tensor) -> Tensor | None:
        """Where it is, (d,), of the kind of `like`."""
        return None if self.least.w is None else torch.from_numpy(self.least.w).to(like)

    def gap(self, W: Tensor) -> Tensor | None:
        """F(w) - F* for each row of W, in float64: near the minimiser a sum of terms of which none is negative."""
        star = self.least.value
        return None if star is None else torch.stack([self._gap(w, star) for w in W])

    def _gap(self, given: Tensor, star: float) -> Tensor:
        w = given.double()
        g = self.penalty.value(w)
        if not bool(torch.isfinite(g)):
            g = self.penalty.value(given).double()  # a point in float32 lies in a set as nearly as float32 can tell
        if not bool(torch.isfinite(g)):
            return g
        plain, size = self.value(w) + g - star, abs(star)
        if bool(plain > FAR_OFF * size):
            return plain
        close = self.divergence(w) + self._beside(w)
        return close if bool(close <= NEAR_BY * size) or size == 0 else plain

    def _beside(self, w: Tensor) -> Tensor:
        """g(w) - g(w*) - <s, w - w*>, term by term."""
        g = terms(self.penalty, len(w))
        assert g is not None
        assert self.least.w is not None
        x, best = w.detach().cpu().numpy(), self.least.w
        e = x - best
        total = float(g.l2 @ (e * e) / 2)
        if g.centre is not None:
            own, away = e[g.members], (x - g.centre)[g.members]
            total += self.least.mu / 2 * (float(own @ own) + max(0.0, g.radius**2 - float(away @ away)))
        elif self.least.s is not None:
            s = self.least.s
            kinks = np.where(g.l1 > 0, g.l1 * np.abs(x) - s * x, -s * e)
            total += float(np.maximum(kinks, 0).sum())
        return torch.as_tensor(total, dtype=torch.float64, device=w.device)
