"""Convex sets and the projections onto them.

A set is anything with `dim`, `project(x)` and `contains(x, tol)` over points x of shape (..., d). All of them compute
in the dtype and on the device of x. Those here are constraints at the meeting point too: g is 0 inside and infinite
outside, and `tangent(x, v)` projects v onto the tangent cone at x.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.errors import real, refuse, whole
from resolvent.iteration.penalties import Penalty, length
from resolvent.problems.inputs import as_tensor, finite, refuse_shape

TOL = 1e-9
"""How far outside a set, as a length, a point may lie and still be called inside."""
TOL_SINGLE = 1e-4
"""The same in float32."""
EDGE = 64.0
"""Units in the last place by which a point may miss the boundary of a set and still lie on it."""


class ConvexSet(Protocol):
    """A closed convex set of R^dim."""

    @property
    def dim(self) -> int | None:
        """None: of any dimension."""

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the set to each x, (..., d)."""

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        """Whether each x lies inside, or outside by a length of about tol at most, (...)."""


class Constraint(ConvexSet, Penalty):
    """A set with the verbs of a penalty."""

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The projection of v onto the tangent cone at x."""
        raise NotImplementedError

    def value(self, w: Tensor) -> Tensor:
        """0 inside and infinite outside, to within rounding."""
        tol = TOL if w.dtype == torch.float64 else TOL_SINGLE
        size = 1 + length(w)
        rows = zip(w.reshape(-1, w.shape[-1]), size.reshape(-1), strict=True)
        inside = torch.stack([self.contains(x, tol * float(s)) for x, s in rows]).reshape(w.shape[:-1])
        return torch.zeros_like(size).masked_fill(~inside, torch.inf)

    def prox(self, w: Tensor, step: float) -> Tensor:
        """The projection, whatever the step."""
        return self.project(w)

    def distance(self, w: Tensor, v: Tensor) -> Tensor:
        """The distance of v to the normal cone at w: the length of its projection onto the tangent cone."""
        return length(self.tangent(w, v)).masked_fill(torch.isinf(self.value(w)), torch.inf)

    def check(self, dim: int) -> None:
        """A set given by numbers fits any length; others their own."""
        if self.dim not in (None, 1, dim):
            refuse("the penalty", f"a set of dimension {self.dim}", f"one of {dim} coordinates is needed")


def outward(v: Tensor, normal: Tensor) -> Tensor:
    """v without its part along the outward normals of length one: its projection onto a half-space through 0."""
    return v - (v * normal).sum(-1, keepdim=True).clamp_min(0) * normal


@dataclass(frozen=True, eq=False, init=False)
class Box(Constraint):
    """{x : low <= x <= high}; either bound may be infinite, and a number stands for all coordinates."""

    low: Tensor
    high: Tensor
    separable = True

    def __init__(self, low: float | Any, high: float | Any) -> None:
        lo, hi = as_tensor(low, "low"), as_tensor(high, "high")
        try:
            lo, hi = (bound.to(torch.result_type(lo, hi)) for bound in torch.broadcast_tensors(lo, hi))
        except RuntimeError:
            refuse_shape("low", lo, f"high has {tuple(hi.shape)}, and the two must agree")
        lo, hi = torch.atleast_1d(lo), torch.atleast_1d(hi)
        if lo.ndim != 1 or lo.numel() == 0:
            refuse_shape("low", lo, "one bound for each coordinate is needed")
        # NaN fails every comparison, so it is refused here too.
        bad = ~((lo <= hi) & (lo < torch.inf) & (hi > -torch.inf))
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            refuse(f"low[{at}]", float(lo[at]), f"high[{at}] is {float(hi[at])}, and low <= high is needed")
        store(self, low=lo, high=hi)

    @property
    def dim(self) -> int:
        return len(self.low)

    def project(self, x: Tensor) -> Tensor:
        return x.clamp(self.low.to(x), self.high.to(x))

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        return ((x >= self.low.to(x) - tol) & (x <= self.high.to(x) + tol)).all(-1)

    def held(self, x: Tensor) -> Tensor:
        return (x <= self.low.to(x)) | (x >= self.high.to(x))

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        upwards = torch.where(x <= self.low.to(x), v.clamp_min(0), v)
        return torch.where(x >= self.high.to(x), upwards.clamp_max(0), upwards)

    def __str__(self) -> str:
        return f"Box({_words(self.low)}, {_words(self.high)})"


@dataclass(frozen=True)
class Orthant(Constraint):
    """{x : x >= 0}, its own dual and so an obtuse cone: its reflector, |x| in every coordinate, is idempotent."""

    dim: int | None = None
    """None: of any dimension, as a constraint."""
    separable = True

    def __post_init__(self) -> None:
        if self.dim is not None:
            whole(self.dim, "dim")

    def project(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        return (x >= -tol).all(-1)

    def held(self, x: Tensor) -> Tensor:
        return x <= 0

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return torch.where(x <= 0, v.clamp_min(0), v)

    def __str__(self) -> str:
        return "Orthant()"


@dataclass(frozen=True, eq=False, init=False)
class Ball(Constraint):
    """{x : |x - centre| <= radius}."""

    centre: Tensor
    radius: float

    def __init__(self, centre: Any, radius: float) -> None:
        real(radius, "radius", lambda r: 0 <= r < math.inf, "a finite number >= 0 is needed")
        store(self, centre=vector(centre, "centre"), radius=float(radius))

    @property
    def dim(self) -> int:
        return len(self.centre)

    def project(self, x: Tensor) -> Tensor:
        centre = self.centre.to(x)
        away = x - centre
        length = away.norm(dim=-1, keepdim=True)
        return torch.where(length > self.radius, centre + away * (self.radius / length), x)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        return (x - self.centre.to(x)).square().sum(-1).sqrt() <= self.radius + tol

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        if self.radius == 0:
            return torch.zeros_like(v)
        away = x - self.centre.to(x)
        length = away.norm(dim=-1, keepdim=True)
        edge = length >= self.radius - blur(x, self.radius + x.norm(dim=-1, keepdim=True))
        return torch.where(edge, outward(v, away / length.clamp_min(torch.finfo(x.dtype).tiny)), v)

    def __str__(self) -> str:
        return f"Ball({_words(self.centre)}, {self.radius:g})"


@dataclass(frozen=True)
class Simplex(Constraint):
    """{x : x >= 0, sum x = total}: models that are mixtures; of any dimension."""

    total: float = 1.0
    dim = None

    def __post_init__(self) -> None:
        total = real(self.total, "total", lambda x: sys.float_info.min <= x < math.inf, "a finite number > 0 is needed")
        object.__setattr__(self, "total", total)

    def project(self, x: Tensor) -> Tensor:
        """(x - nu)_+ with the nu for which the sum is right."""
        return (x - _level(x, torch.zeros_like(x, dtype=torch.bool), self.total)).clamp_min(0)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        summed: Tensor = (x.sum(-1) - self.total).abs() <= tol * x.shape[-1] ** 0.5
        return summed & (x >= -tol).all(-1)

    def held(self, x: Tensor) -> Tensor:
        return x <= 0

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The nearest direction that sums to zero and does not fall where x is 0."""
        inside = x > 0
        moved = v - _level(v, inside, 0.0)
        return torch.where(inside, moved, moved.clamp_min(0))

    def __str__(self) -> str:
        return f"Simplex({self.total:g})"


def vector(data: Any, argument: str) -> Tensor:
    x = finite(torch.atleast_1d(as_tensor(data, argument)), argument, of="coordinate")
    if x.ndim != 1:
        refuse_shape(argument, x, "one vector is needed")
    return x


def blur(x: Tensor, size: Tensor) -> Tensor:
    """How far rounding may move a point of this size."""
    return EDGE * torch.finfo(x.dtype).eps * size


def _words(x: Tensor) -> str:
    return f"{float(x[0]):g}" if bool((x == x[0]).all()) else f"{float(x.min()):g}..{float(x.max()):g}"


def store(frozen: object, **fields: Tensor | float) -> None:
    """The fields of a frozen dataclass, from its own __init__, which takes arrays and lists but stores tensors."""
    for name, value in fields.items():
        object.__setattr__(frozen, name, value)


def _level(x: Tensor, always: Tensor, total: float) -> Tensor:
    """nu with sum over `always` of (x - nu) plus sum over the others of (x - nu)_+ equal to total, (..., 1).

    The others that count are the largest ones: nu is where the k largest, and those that always count, sum to total,
    for the largest k whose smallest entry is still above nu.
    """
    least = torch.full_like(x, -torch.inf)
    ranked = torch.where(always, least, x).sort(dim=-1, descending=True).values
    counted = torch.where(torch.isinf(ranked), 0, ranked).cumsum(-1)
    base, members = torch.where(always, x, 0).sum(-1, keepdim=True), always.sum(-1, keepdim=True)
    k = torch.arange(1, x.shape[-1] + 1, device=x.device)
    levels = (base + counted - total) / (members + k)
    valid = (ranked > levels) & ~torch.isinf(ranked)
    last = valid.sum(-1, keepdim=True)  # a prefix
    alone = (base - total) / members.clamp_min(1)
    return torch.where(last > 0, levels.gather(-1, (last - 1).clamp_min(0)), alone)
