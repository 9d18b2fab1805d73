"""Whether g is a (sub)gradient of f at x, from values of f on the line x + h v, for steps h over six decades.

Convex f: g is a subgradient if and only if f(y) - f(x) >= g . (y - x) for every y. Both sides of x therefore enclose
the slope of g along v, whether f has a kink at x or not, and one violated inequality is proof. Otherwise f is taken to
be differentiable almost everywhere, and the slope must agree with differences of f once these have settled.

How exact the values are is measured rather than assumed: over the smallest steps, f(x + h v) + f(x - h v) - 2 f(x) is
little else than rounding, and so is a slope that rises as the step shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

STEPS = {torch.float64: (0.3, 1e-2, 1e-4, 1e-5, 1e-6), torch.float32: (0.3, 0.1, 0.03, 1e-2, 3e-3)}
"""Lengths of steps, in units of the length that matters here. The last one only shows rounding."""
SMALL = 3
"""The last SMALL steps show how exact values are."""
SAFETY = 10.0
"""Times the measured rounding error that is forgiven."""
SETTLED = 0.03
"""Slopes over three steps in a row, the longest ten times the shortest or more, that differ by less have settled."""


class Mismatch(NamedTuple):
    """Where g and f disagree: the user, the step's length, the change of f that g claims, and the one found."""

    user: int
    length: float
    claimed: float
    actual: float

    def __str__(self) -> str:
        return (
            f"along a step of length {self.length:.3g} it gives a change of {self.claimed:.6g}, but {self.actual:.6g}"
        )


@dataclass(frozen=True)
class Tolerance:
    """What is forgiven: a share of the change itself, and a share of |g| times the step."""

    change: float
    slope: float

    @staticmethod
    def of(dtype: torch.dtype) -> Tolerance:
        return Tolerance(1e-4, 1e-6) if dtype == torch.float64 else Tolerance(5e-3, 1e-4)


@dataclass(frozen=True)
class LineProfile:
    """How f changes from x (users, d) along steps d_k of both directions, (steps, 2, users), and how exactly."""

    x: Tensor
    steps: Tensor
    """(steps, 2, users, d)"""
    rises: Tensor
    """f(x + d_k) - f(x), NaN or infinite where f has no value; an upper bound of it where gradients are the source."""
    noise: Tensor
    """(steps, users)"""
    eps: Tensor
    """The unit roundoff of what is computed, (users,)."""

    @property
    def lengths(self) -> Tensor:
        lengths: Tensor = self.steps.norm(dim=3)
        return lengths

    def claimed(self, g: Tensor) -> Tensor:
        """g . d, (steps, 2, users)."""
        return (self.steps * g).sum(3)

    def forgiven(self, g: Tensor, error: Tensor | float) -> Tensor:
        """Rounding of values and of g, whose own error is known to be at most `error`, (steps, 2, users)."""
        tolerance = Tolerance.of(g.dtype)
        size = torch.maximum(self.claimed(g).abs(), self.rises.abs().nan_to_num(0, 0, 0))
        slope = tolerance.slope * g.norm(dim=1) + error
        steep = (self.rises / self.lengths).abs().nan_to_num(0, 0, 0).amax(1)
        points = self.eps * torch.maximum(g.norm(dim=1), steep) * self.x.norm(dim=1)
        rounding = SAFETY * (self.noise + points).unsqueeze(1)  # of values, and of the points themselves
        forgiven: Tensor = rounding + tolerance.change * size + slope * self.lengths
        return forgiven

    def subgradient(self, g: Tensor, error: Tensor | float = 0.0, bend: float = 0.0) -> Mismatch | None:
        """f(y) - f(x) >= g . (y - x) - bend |y - x|^2 / 2 must hold. `bend` is the curvature f may lack."""
        claimed = self.claimed(g)
        excess = claimed - self.rises - self.forgiven(g, error) - bend * self.lengths.square() / 2
        return self._worst(excess, claimed)

    def gradient(self, g: Tensor) -> Mismatch | None:
        """Where slopes of f have settled, that of g must lie between those of f to the left and to the right."""
        claimed, lengths = self.claimed(g), self.lengths.clamp_min(torch.finfo(g.dtype).tiny)
        right, left = self.rises[:, 0], -self.rises[:, 1]
        outside = torch.maximum(claimed[:, 0] - torch.maximum(left, right), torch.minimum(left, right) - claimed[:, 0])
        settled, spread = settle(((left + right) / lengths.sum(1)).unsqueeze(2))
        excess = outside - self.forgiven(g, 0.0)[:, 0] - 3 * spread * lengths[:, 0]
        return self._worst(torch.where(settled, excess, -1).unsqueeze(1).expand_as(claimed), claimed)

    def convex(self) -> Mismatch | None:
        """f(x + d) + f(x - d) >= 2 f(x) must hold; `found` is by how much the mean of both sides is above f(x)."""
        uneven = self.steps.sum(1).norm(dim=2) / self.lengths.amax(1).clamp_min(torch.finfo(self.x.dtype).tiny)
        size = self.rises.abs().nan_to_num(0, 0, 0).sum(1)
        forgiven = SAFETY * self.noise + (uneven + Tolerance.of(self.x.dtype).slope) * size
        excess = (-self.rises.sum(1) - forgiven).unsqueeze(1).expand_as(self.rises)
        return self._worst(excess, self.rises.sum(1, keepdim=True).expand_as(self.rises) / 2)

    def _worst(self, excess: Tensor, claimed: Tensor) -> Mismatch | None:
        excess = excess[:-1].nan_to_num(-1, -1, -1)  # the last step only shows rounding
        if not bool((excess > 0).any()):
            return None
        relative = torch.where(excess > 0, excess / self.lengths[:-1], -1)
        step, side, user = (int(i) for i in torch.unravel_index(relative.argmax(), excess.shape))
        at = step, side, user
        return Mismatch(user, float(self.lengths[at]), float(claimed[at]), float(self.rises[at]))


def settle(slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Of slopes (steps, users, any): where they agree with those over the neighbouring steps, and how well."""
    spread, size = torch.full_like(slopes[..., 0], torch.inf), slopes.norm(dim=2)
    spread[1:-1] = torch.maximum((slopes[1:-1] - slopes[:-2]).norm(dim=2), (slopes[1:-1] - slopes[2:]).norm(dim=2))
    return spread < SETTLED * size, spread


def line_of_values(value: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, reach: Tensor) -> LineProfile:
    """Along unit vectors v, steps up to `reach`, (users,)."""
    fx, points = value(x), _points(x, v, reach)
    there = torch.stack([torch.stack([value(y) for y in pair]) for pair in points])
    again = value(x)
    rises = there - fx
    second = rises.sum(1).abs().nan_to_num(0, 0, 0) + _unsteady(rises, (points - x).norm(dim=3))
    size = torch.maximum(there.abs().nan_to_num(0, 0, 0).amax(1), fx.abs())
    eps, least = _precision(there.flatten(0, 1))
    rounding = 50 * eps * size + least + (again - fx).abs().nan_to_num(0, 0, 0)
    return LineProfile(x, points - x, rises, _below(second) + rounding, eps)


def line_of_gradients(grad: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, reach: Tensor) -> LineProfile:
    """For convex f, f(y) - f(x) <= grad f(y) . (y - x): gradients bound what values would show."""
    gx, points = grad(x), _points(x, v, reach)
    there = torch.stack([torch.stack([grad(y) for y in pair]) for pair in points])
    steps = points - x
    eps, least = _precision(there.flatten(0, 1).movedim(1, 2).flatten(0, 1))
    rounding = 50 * eps * there.norm(dim=3).nan_to_num(0, 0, 0).amax(1) + least
    second = (there.sum(1) - 2 * gx).norm(dim=2).nan_to_num(0, 0, 0)
    return LineProfile(x, steps, (there * steps).sum(3), (_below(second) + rounding) * steps.norm(dim=3).amax(1), eps)


def _unsteady(rises: Tensor, lengths: Tensor) -> Tensor:
    """By how much slopes to one side rise when the step shrinks, as those of a convex f do not, (steps, users)."""
    slopes = rises / lengths
    excess = torch.zeros_like(rises)
    excess[1:] = (slopes[1:] - slopes[:-1]).clamp_min(0).nan_to_num(0, 0, 0) * lengths[1:]
    return excess.amax(1)


def _precision(answers: Tensor) -> tuple[Tensor, Tensor]:
    """eps and the smallest normal number, below which rounding is absolute, of the type that answers (any, users) are
    computed in: float32 where it holds each of them without loss."""
    coarse = ((answers.float().to(answers) == answers) | ~torch.isfinite(answers)).all(0)
    fine, single = torch.finfo(answers.dtype), torch.finfo(torch.float32)
    eps, least = (
        torch.where(coarse, torch.full_like(answers[0], a), b)
        for a, b in ((single.eps, fine.eps), (single.tiny, fine.tiny))
    )
    return eps, least


def _points(x: Tensor, v: Tensor, reach: Tensor) -> Tensor:
    step = reach.unsqueeze(1) * v
    return torch.stack([torch.stack([x + h * step, x - h * step]) for h in STEPS[x.dtype]])


def _below(second: Tensor) -> Tensor:
    """For each step the largest second difference over the SMALL last steps that are shorter, (steps, users)."""
    first = len(second) - SMALL
    rows = [second[max(first, k + 1) :] for k in range(len(second) - 1)]
    return torch.stack([*(row.amax(0) for row in rows), second[-1]])
