"""Small problems whose every answer is a formula: the paper's examples, and projections onto convex sets.

A set is anything with `dim`, `project(x)` and `contains(x, tol)` over points x of shape (..., d). All of them compute
in the dtype and on the device of x.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.problems.problem import FLOAT, Problem, as_rows, as_tensor, as_weights, select

TOL = 1e-9
"""How far outside a set, as a length, a point may lie and still be called inside."""


class Quadratics:
    """f_i(w) = curvature_i/2 |w - centre_i|^2, curvature (users,) > 0 and centre (users, d), or (users,) if d = 1."""

    users: int
    dim: int
    weights: Tensor
    curvature: Tensor
    centre: Tensor

    offers = frozenset({"value", "grad", "prox", "hessian"})
    convex = True
    closed_form = True

    def __init__(self, curvature: Any, centre: Any, weights: Any = None) -> None:
        centre = as_tensor(centre, "centre")
        centre = finite(centre.unsqueeze(1) if centre.ndim == 1 else centre, "centre")
        if centre.ndim != 2:
            refuse("centre", f"of shape {tuple(centre.shape)}", "(users, d) is needed, or (users,) for d = 1")
        self.users, self.dim = centre.shape
        curvature = finite(as_tensor(curvature, "curvature").to(centre), "curvature")
        if curvature.shape != (self.users,):
            needed = f"one number for each of the {self.users} centres is needed"
            refuse("curvature", f"of shape {tuple(curvature.shape)}", needed)
        if bool((curvature <= 0).any()):
            user = int((curvature <= 0).nonzero()[0])
            refuse("curvature", f"{float(curvature[user])} for user {user}", "it must be > 0")
        self.curvature, self.centre = curvature, centre
        self.weights = as_weights(weights, self.users, centre)

    def value(self, W: Tensor) -> Tensor:
        return self.curvature / 2 * (as_rows(W, self) - self.centre).square().sum(1)

    def grad(self, W: Tensor) -> Tensor:
        return self.curvature[:, None] * (as_rows(W, self) - self.centre)

    def hessian(self, W: Tensor) -> Tensor:
        as_rows(W, self)
        return self.curvature[:, None, None] * torch.eye(self.dim).to(self.centre)

    def prox(self, U: Tensor, eta: float) -> Tensor:
        step = eta * self.curvature[:, None]
        return (as_rows(U, self) + step * self.centre) / (1 + step)

    def take(self, who: Tensor) -> Quadratics:
        return Quadratics(self.curvature[who], self.centre[who], select(self.weights, who))

    @property
    def lipschitz(self) -> Tensor:
        return self.curvature

    @property
    def convexity(self) -> Tensor:
        return self.curvature

    @property
    def minimiser(self) -> Tensor:
        pull = self.weights * self.curvature
        return pull @ self.centre / pull.sum()

    @property
    def fstar(self) -> float:
        return float(self.weights @ self.value(self.minimiser))

    def gap(self, W: Tensor) -> Tensor:
        """f(w) - f* = sum_i lambda_i curvature_i / 2 |w - w*|^2: a square, so that nothing cancels near w*."""
        return self.weights @ self.curvature / 2 * (points(W, self) - self.minimiser).square().sum(1)


def plus_minus(scale: float = 1.0) -> Quadratics:
    """The paper's f_+(w) = (w+1)^2/2 and scale * f_-(w) = scale * (w-1)^2/2; their minimiser is (scale-1)/(scale+1)."""
    if not (math.isfinite(scale) and scale > 0):
        refuse("scale", scale, "a finite number > 0 is needed")
    return Quadratics([1.0, scale], [-1.0, 1.0])


class HalfSquares:
    """f_i(w) = |(shift_i - w)_+|^2 / 2, with shift 0 where not given, else (users,) or (users, d).

    Without shift, users are homogeneous and the reflector 2 prox - id is idempotent exactly when eta >= 1, although f_i
    is the indicator of no cone: the example after the proof of Theorem thm:rp, where it is (w)_+ at eta = 1.
    """

    users: int
    dim: int
    weights: Tensor
    shift: Tensor

    offers = frozenset({"value", "grad", "prox", "hessian"})
    convex = True
    closed_form = True
    fstar = 0.0

    def __init__(self, users: int, dim: int = 1, shift: Any = None, weights: Any = None) -> None:
        self.users, self.dim = count(users, "users"), count(dim, "dim")
        shift = torch.zeros(users, dim, dtype=FLOAT) if shift is None else finite(as_tensor(shift, "shift"), "shift")
        if shift.shape not in ((users,), (users, dim)):
            refuse("shift", f"of shape {tuple(shift.shape)}", f"({users},) or ({users}, {dim}) is needed")
        self.shift = shift.unsqueeze(1).expand(users, dim) if shift.ndim == 1 else shift
        self.weights = as_weights(weights, users, self.shift)

    def _below(self, W: Tensor) -> Tensor:
        return (self.shift - as_rows(W, self)).clamp(min=0)

    def value(self, W: Tensor) -> Tensor:
        return self._below(W).square().sum(1) / 2

    def grad(self, W: Tensor) -> Tensor:
        return -self._below(W)

    def hessian(self, W: Tensor) -> Tensor:
        """A generalised Hessian: f_i bends once, at shift_i, where the flat side's is taken."""
        return torch.diag_embed((self._below(W) > 0).to(self.shift))

    def prox(self, U: Tensor, eta: float) -> Tensor:
        return as_rows(U, self) + eta / (1 + eta) * self._below(U)

    def take(self, who: Tensor) -> HalfSquares:
        shift = self.shift[who]
        return HalfSquares(len(shift), self.dim, shift, select(self.weights, who))

    @property
    def lipschitz(self) -> Tensor:
        return torch.ones_like(self.weights)

    @property
    def convexity(self) -> Tensor:
        return torch.zeros_like(self.weights)

    @property
    def minimiser(self) -> Tensor:
        """The smallest point, in every coordinate, that lies below nobody's shift."""
        return self.shift.amax(0)

    def gap(self, W: Tensor) -> Tensor:
        """f itself, since f* = 0."""
        return torch.stack([self.weights @ self.value(w) for w in points(W, self)])


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


class Indicators:
    """f_i is 0 in sets[i] and infinite elsewhere, so that its prox, whatever eta, is the projection.

    "In" means to within the length `tol` (1e-9, or 1e-4 in float32). Whether the sets have a common point is not looked
    into: where one is known, give it as `minimiser`, and f* = 0 and the gap (0 or infinite) are known with it.
    """

    offers = frozenset({"value", "prox"})
    convex = True
    closed_form = True
    lipschitz = None

    def __init__(
        self, sets: Sequence[ConvexSet], weights: Any = None, minimiser: Any = None, tol: float | None = None
    ) -> None:
        self.sets = tuple(sets)
        if not self.sets:
            refuse("sets", "empty", "one set a user is needed")
        self.users, self.dim = len(self.sets), self.sets[0].dim
        for user, each in enumerate(self.sets):
            if each.dim != self.dim:
                refuse(f"sets[{user}]", f"of dimension {each.dim}", f"that of user 0 is {self.dim}, and all must agree")
        like = _kind(self.sets)
        self.weights = as_weights(weights, self.users, like)
        self.tol = (TOL if like.dtype == FLOAT else 1e-4) if tol is None else tol
        if not self.tol >= 0:
            refuse("tol", tol, "a length >= 0 is needed")
        # Users who share one set object, as homogeneous users do, are projected together.
        members: dict[int, list[int]] = {}
        for user, each in enumerate(self.sets):
            members.setdefault(id(each), []).append(user)
        self._groups = [(self.sets[who[0]], torch.tensor(who, device=like.device)) for who in members.values()]
        self.minimiser = None if minimiser is None else self._common(minimiser)

    def _common(self, minimiser: Any) -> Tensor:
        w = finite(as_tensor(minimiser, "minimiser").to(self.weights), "minimiser", of="coordinate")
        if w.shape != (self.dim,):
            refuse("minimiser", f"of shape {tuple(w.shape)}", f"one point of length {self.dim} is needed")
        outside = self.value(w) > 0
        if bool(outside.any()):
            refuse("minimiser", f"outside sets[{int(outside.nonzero()[0])}]", "a point common to all sets is needed")
        return w

    def value(self, W: Tensor) -> Tensor:
        W = as_rows(W, self).expand(self.users, -1)
        out = torch.full_like(self.weights, torch.inf)
        for each, who in self._groups:
            out[who] = out[who].masked_fill(each.contains(W[who], self.tol), 0.0)
        return out

    def grad(self, W: Tensor) -> NoReturn:
        refuse("grad", "asked of indicators, which have none", "a scheme with a prox, such as fedpi, is needed")

    def prox(self, U: Tensor, eta: float) -> Tensor:
        U = as_rows(U, self).expand(self.users, -1)
        out = torch.empty_like(U)
        for each, who in self._groups:
            out[who] = each.project(U[who])
        return out

    def take(self, who: Tensor) -> Indicators:
        chosen = torch.arange(self.users, device=who.device)[who].tolist()
        return Indicators([self.sets[i] for i in chosen], select(self.weights, who), self.minimiser, self.tol)

    @property
    def convexity(self) -> Tensor:
        return torch.zeros_like(self.weights)

    @property
    def fstar(self) -> float | None:
        return None if self.minimiser is None else 0.0

    def gap(self, W: Tensor) -> Tensor | None:
        """0 or infinite; users of weight zero have no say (0 * inf = 0)."""
        if self.minimiser is None:
            return None
        return torch.stack([self.value(w)[self.weights > 0].sum() for w in points(W, self)])


@dataclass(frozen=True, eq=False, init=False)
class Box:
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


@dataclass(frozen=True)
class Orthant:
    """{x : x >= 0}, its own dual and so an obtuse cone: its reflector, |x| in every coordinate, is idempotent."""

    dim: int

    def __post_init__(self) -> None:
        count(self.dim, "dim")

    def project(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        return (x >= -tol).all(-1)


@dataclass(frozen=True, eq=False, init=False)
class Ball:
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


@dataclass(frozen=True, eq=False, init=False)
class Halfspace:
    """{x : normal.x <= offset}, kept with a normal of length one. Its reflector is idempotent."""

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


@dataclass(frozen=True, eq=False, init=False)
class ObtuseCone:
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


@dataclass(frozen=True, eq=False, init=False)
class AffineSet:
    """{x : matrix x = offset}, kept as an equivalent system with orthonormal rows: x - M^T (M x - b) then projects."""

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


def finite(X: Tensor, argument: str, of: str = "user") -> Tensor:
    """X itself, refused where it is empty or not finite; `of` says what an index of its first axis stands for."""
    if X.numel() == 0 or X.ndim == 0:
        refuse(argument, f"of shape {tuple(X.shape)}", f"at least one {of} is needed")
    bad = ~torch.isfinite(X).reshape(len(X), -1).all(1)
    if bool(bad.any()):
        refuse(argument, f"NaN or infinite for {of} {int(bad.nonzero()[0])}", "finite numbers are needed")
    return X


def count(number: Any, argument: str) -> int:
    """A number of users or dimensions."""
    try:
        n = operator.index(number)
    except TypeError:
        n = 0
    if n < 1:
        refuse(argument, repr(number), "a whole number >= 1 is needed")
    return n


def points(W: Any, problem: Problem) -> Tensor:
    """W as any number of points of the problem's space, (rows, d)."""
    rows: Tensor = torch.atleast_2d(as_tensor(W, "W").to(problem.weights))
    if rows.ndim != 2 or rows.shape[1] != problem.dim:
        refuse("W", f"of shape {tuple(rows.shape)}", f"points of length {problem.dim}, stacked in rows, are needed")
    return rows


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


def _set(frozen: object, **fields: Tensor | float) -> None:
    """The fields of a frozen dataclass, from its own __init__, which takes NumPy and lists but keeps tensors."""
    for name, value in fields.items():
        object.__setattr__(frozen, name, value)


def _kind(sets: Sequence[ConvexSet]) -> Tensor:
    """An empty tensor of the dtype and device of the sets' own data; of float64 where they have none (orthants)."""
    data = [x for each in sets for x in getattr(each, "__dict__", {}).values() if isinstance(x, Tensor)]
    if not data:
        return torch.empty(0, dtype=FLOAT)
    return torch.empty(0, dtype=reduce(torch.promote_types, (x.dtype for x in data)), device=data[0].device)
