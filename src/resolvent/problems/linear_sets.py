"""Sets that directions and linear equations describe: half-spaces, obtuse cones, affine sets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import real, refuse
from resolvent.problems.inputs import as_tensor, finite, refuse_shape
from resolvent.problems.sets import TOL, Constraint, blur, outward, store, vector


@dataclass(frozen=True, eq=False, init=False)
class Halfspace(Constraint):
    """{x : normal.x <= offset}, stored with a normal of length one. Its reflector is idempotent."""

    normal: Tensor
    offset: float

    def __init__(self, normal: Any, offset: float) -> None:
        unit, length = _direction(normal, "normal")
        real(offset, "offset", math.isfinite, "a finite number is needed")
        store(self, normal=unit, offset=float(offset) / length)

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
        edge = self._excess(x) >= -blur(x, abs(self.offset) + x.norm(dim=-1))
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
        obtuse = "the cone is obtuse, and convex, from pi/4 to pi/2 only"
        real(angle, "angle", lambda a: math.pi / 4 <= a <= math.pi / 2, obtuse)
        store(self, axis=unit, angle=float(angle))

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
        edge = torch.where(cos * width - sin * along >= -blur(x, size), outward(v, normal), v)
        return torch.where(size == 0, self.project(v), edge)


@dataclass(frozen=True, eq=False, init=False)
class AffineSet(Constraint):
    """{x : matrix x = offset}, stored as an equal system with orthonormal rows: x - M^T (M x - b) then projects."""

    matrix: Tensor
    offset: Tensor

    def __init__(self, matrix: Any, offset: Any) -> None:
        M = finite(as_tensor(matrix, "matrix"), "matrix", of="row")
        if M.ndim != 2:
            refuse_shape("matrix", M, "(equations, d) is needed")
        b = as_tensor(offset, "offset").to(M)
        if b.shape != M.shape[:1]:
            refuse_shape("offset", b, f"one number for each of the {len(M)} rows of matrix is needed")
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
        store(self, matrix=right, offset=left.T @ b / s)

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


def _direction(data: Any, argument: str) -> tuple[Tensor, float]:
    """A vector scaled to length one, and its length."""
    x = vector(data, argument)
    length = float(x.norm())
    if not (math.isfinite(length) and length > 0):
        refuse(argument, f"of length {length}", "a direction, so a finite length > 0, is needed")
    return x / length, length
