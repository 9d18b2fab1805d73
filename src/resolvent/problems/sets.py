"""Convex sets and the projections onto them.

A set is anything with `dim`, `project(x)` and `contains(x, tol)` over points x of shape (..., d). All of them compute
in the dtype and on the device of x. Those here are constraints too (`constraint.py`): `tangent(x, v)` projects v onto
the tangent cone at x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.errors import refuse, whole
from resolvent.problems.constraint import TOL, Constraint, outward
from resolvent.problems.inputs import as_tensor, finite

EDGE = 64.0
"""Units in the last place by which a point may miss the boundary of a set and still lie on it."""


class ConvexSet(Protocol):
    """A closed convex set of R^dim."""

    @property
    def dim(self) -> int: ...

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the set to each x, (..., d)."""
        ...

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        """Whether each x lies inside, or outside by a length of about tol at most, (...)."""
        ...


@dataclass(frozen=True, eq=False, init=False)
class Box(Constraint):
    """{x : low <= x <= high}; either bound may be infinite, and a number stands for all coordinates."""

    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any) -> None:
        lo, hi = as_tensor(low, "low"), as_tensor(high, "high")
        try:
            lo, hi = (bound.to(torch.result_type(lo, hi)) for bound in torch.broadcast_tensors(lo, hi))
        except RuntimeError:
            refuse("low", f"of shape {tuple(lo.shape)}", f"high has {tuple(hi.shape)}, and the two must agree")
        lo, hi = torch.atleast_1d(lo), torch.atleast_1d(hi)
        if lo.ndim != 1 or lo.numel() == 0:
            refuse("low", f"of shape {tuple(lo.shape)}", "one bound for each coordinate is needed")
        # NaN fails every comparison, so it is refused here too.
        bad = ~((lo <= hi) & (lo < torch.inf) & (hi > -torch.inf))
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            refuse(f"low[{at}]", float(lo[at]), f"high[{at}] is {float(hi[at])}, and low <= high is needed")
        _set(self, low=lo, high=hi)

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
        if not (math.isfinite(radius) and radius >= 0):
            refuse("radius", radius, "a finite number >= 0 is needed")
        _set(self, centre=_vector(centre, "centre"), radius=float(radius))

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
        edge = length >= self.radius - _blur(x, self.radius + x.norm(dim=-1, keepdim=True))
        return torch.where(edge, outward(v, away / length.clamp_min(torch.finfo(x.dtype).tiny)), v)

    def __str__(self) -> str:
        return f"Ball({_words(self.centre)}, {self.radius:g})"


@dataclass(frozen=True, eq=False, init=False)
class Halfspace(Constraint):
    """{x : normal.x <= offset}, stored with a normal of length one. Its reflector is idempotent."""

    normal: Tensor
    offset: float

    def __init__(self, normal: Any, offset: float) -> None:
        unit, length = _direction(normal, "normal")
        if not math.isfinite(offset):
            refuse("offset", offset, "a finite number is needed")
        _set(self, normal=unit, offset=float(offset) / length)

    @property
    def dim(self) -> int:
        return len(self.normal)

    def _excess(self, x: Tensor) -> Tensor:
        return x @ self.normal.to(x) - self.offset

    def project(self, x: Tensor) -> Tensor:
        return x - self._excess(x).clamp(min=0).unsqueeze(-1) * self.normal.to(x)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        return self._excess(x) <= tol

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        edge = self._excess(x) >= -_blur(x, abs(self.offset) + x.norm(dim=-1))
        return torch.where(edge.unsqueeze(-1), outward(v, self.normal.to(x).expand_as(v)), v)


@dataclass(frozen=True, eq=False, init=False)
class ObtuseCone(Constraint):
    """{x : axis.x >= cos(angle) |x|}, all directions within `angle` of the axis, for d >= 2.

    Its dual is the cone of pi/2 - angle about the same axis, so it is obtuse (contains its dual) from pi/4, where it is
    the Lorentz cone and its own dual, to pi/2, a halfspace. Then R(x) = P_K(x) + P_K*(-x) lies in K: R is idempotent.
    """

    axis: Tensor
    angle: float

    def __init__(self, axis: Any, angle: float = math.pi / 3) -> None:
        unit, _ = _direction(axis, "axis")
        if len(unit) < 2:
            refuse("axis", "of length 1", "an angle needs at least two dimensions: use Orthant(1) or Halfspace")
        if not math.pi / 4 <= angle <= math.pi / 2:
            refuse("angle", angle, "the cone is obtuse, and convex, from pi/4 to pi/2 only")
        _set(self, axis=unit, angle=float(angle))

    @property
    def dim(self) -> int:
        return len(self.axis)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x = along * axis + across, and the length of across."""
        axis = self.axis.to(x)
        along = (x @ axis).unsqueeze(-1)
        across = x - along * axis
        return along, across, across.norm(dim=-1, keepdim=True)

    def project(self, x: Tensor) -> Tensor:
        """In the plane of x and the axis the cone is a wedge: outside it, project onto the nearer edge, or to 0."""
        along, across, width = self._split(x)
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        edge = cos * self.axis.to(x) + sin * across / width.clamp(min=torch.finfo(x.dtype).tiny)
        on_edge = (cos * along + sin * width).clamp(min=0) * edge
        return torch.where(cos * width <= sin * along, x, on_edge)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        along, _, width = self._split(x)
        return (math.cos(self.angle) * width - math.sin(self.angle) * along <= tol).squeeze(-1)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        along, across, width = self._split(x)
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        normal = cos * across / width.clamp(min=torch.finfo(x.dtype).tiny) - sin * self.axis.to(x)
        size = x.norm(dim=-1, keepdim=True)
        edge = torch.where(cos * width - sin * along >= -_blur(x, size), outward(v, normal), v)
        return torch.where(size == 0, self.project(v), edge)


@dataclass(frozen=True, eq=False, init=False)
class AffineSet(Constraint):
    """{x : matrix x = offset}, stored as an equal system with orthonormal rows: x - M^T (M x - b) then projects."""

    matrix: Tensor
    offset: Tensor

    def __init__(self, matrix: Any, offset: Any) -> None:
        M = finite(as_tensor(matrix, "matrix"), "matrix", of="row")
        if M.ndim != 2:
            refuse("matrix", f"of shape {tuple(M.shape)}", "(equations, d) is needed")
        b = as_tensor(offset, "offset").to(M)
        if b.shape != M.shape[:1]:
            refuse(
                "offset", f"of shape {tuple(b.shape)}", f"one number for each of the {len(M)} rows of matrix is needed"
            )
        finite(b, "offset", of="row")
        # Equations of equal size, so that the units in which one is written do not decide whether it counts.
        size = M.norm(dim=1)
        size = torch.where(size > 0, size, 1.0)
        M, b = M / size[:, None], b / size
        left, s, right = torch.linalg.svd(M, full_matrices=False)
        eps = torch.finfo(M.dtype).eps
        rank = int((s > eps * max(M.shape) * s[0]).sum())
        left, s, right = left[:, :rank], s[:rank], right[:rank]
        if bool((b - left @ (left.T @ b)).norm() > math.sqrt(eps) * b.norm()):
            refuse("offset", "inconsistent with matrix", "the equations matrix x = offset need a common solution")
        _set(self, matrix=right, offset=left.T @ b / s)

    @property
    def dim(self) -> int:
        return self.matrix.shape[1]

    def _residual(self, x: Tensor) -> Tensor:
        return x @ self.matrix.to(x).T - self.offset.to(x)

    def project(self, x: Tensor) -> Tensor:
        return x - self._residual(x) @ self.matrix.to(x)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        return self._residual(x).square().sum(-1).sqrt() <= tol

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        M = self.matrix.to(v)
        return v - (v @ M.T) @ M


def _vector(data: Any, argument: str) -> Tensor:
    x = finite(torch.atleast_1d(as_tensor(data, argument)), argument, of="coordinate")
    if x.ndim != 1:
        refuse(argument, f"of shape {tuple(x.shape)}", "one vector is needed")
    return x


def _direction(data: Any, argument: str) -> tuple[Tensor, float]:
    """A vector scaled to length one, and its length."""
    x = _vector(data, argument)
    length = float(x.norm())
    if not (math.isfinite(length) and length > 0):
        refuse(argument, f"of length {length}", "a direction, so a finite length > 0, is needed")
    return x / length, length


def _blur(x: Tensor, size: Tensor) -> Tensor:
    """How far rounding may move a point of this size."""
    return EDGE * torch.finfo(x.dtype).eps * size


def _words(x: Tensor) -> str:
    return f"{float(x[0]):g}" if bool((x == x[0]).all()) else f"{float(x.min()):g}..{float(x.max()):g}"


def _set(frozen: object, **fields: Tensor | float) -> None:
    """The fields of a frozen dataclass, from its own __init__, which takes arrays and lists but stores tensors."""
    for name, value in fields.items():
        object.__setattr__(frozen, name, value)
