"""The equation that a prox solves, x - u + eta grad f(x) = 0, for every user at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

TOO_SHORT = 1e-10
"""Part of a step below which it is not halved again."""


class Smooth(Protocol):
    """What Newton's method needs of a problem."""

    @property
    def convex(self) -> bool: ...
    def grad(self, W: Tensor) -> Tensor: ...
    def hessian(self, W: Tensor) -> Tensor: ...
    def take(self, who: Tensor) -> Smooth: ...


@dataclass(frozen=True, eq=False)
class Point:
    """A point of each user, with the gradient, e and |e| there."""

    x: Tensor
    g: Tensor
    e: Tensor
    norm: Tensor

    def where(self, mark: Tensor, other: Point) -> Point:
        """These points for the users marked, the others' for the rest."""
        if bool(mark.all()):
            return self
        rows = mark.unsqueeze(1)
        x, g, e = (torch.where(rows, a, b) for a, b in ((self.x, other.x), (self.g, other.g), (self.e, other.e)))
        return Point(x, g, e, torch.where(mark, self.norm, other.norm))


@dataclass(frozen=True, eq=False)
class Equation:
    """x - u + eta grad f(x) = 0, for each user."""

    problem: Smooth
    u: Tensor
    eta: float

    @cached_property
    def size(self) -> Tensor:
        return length(self.u)

    def blur(self, x: Tensor) -> Tensor | None:
        """An estimate of the rounding error of e at x, from a bound on the curvature of f; None without one."""
        if hasattr(self.problem, "rounding"):
            here: Tensor = self.eta * self.problem.rounding(x)
            return here
        L: Tensor | None = getattr(self.problem, "lipschitz", None)
        return None if L is None else (8 * torch.finfo(x.dtype).eps) * (self.size + (1 + self.eta * L) * length(x))

    def wanted(self, tol: float) -> Tensor:
        """The |e| that is asked for."""
        return (1 + self.size) * tol

    def enough(self, g: Tensor, tol: float) -> Tensor:
        """The |e| to be reached: `wanted`, or what round-off allows where the gradient is g."""
        round_off = torch.add(self.size, length(g), alpha=self.eta) * (4 * torch.finfo(g.dtype).eps)
        return torch.maximum(self.wanted(tol), round_off)

    def at(self, x: Tensor, g: Tensor | None = None) -> Point:
        """The point x; its gradient is computed where it is not given."""
        g = self.problem.grad(x) if g is None else g
        e = torch.add(x - self.u, g, alpha=self.eta)
        return Point(x, g, e, length(e))

    def along(self, here: Point, step: Tensor, exact: Tensor) -> Point:
        """here.x - step. With an exact Hessian the step is halved while it overshoots the minimum along it by much,
        that of eta f + |. - u|^2 / 2: this function is convex, with slope e . step."""
        slope = (here.e * step).sum(1)
        shrink = torch.ones_like(slope)
        while True:
            new = self.at(here.x - shrink.unsqueeze(1) * step)
            short = exact & ~((new.e * step).sum(1) >= -slope / 2) & (shrink > TOO_SHORT)
            if not bool(short.any()):
                return new
            shrink = torch.where(short, shrink / 2, shrink)

    def pairs(self, here: Point, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """By how much x and e + u changed since earlier points (users, k, d)."""
        s = here.x.unsqueeze(1) - x
        return s, torch.add(s, here.g.unsqueeze(1) - g, alpha=self.eta)


def length(x: Tensor, dim: int = 1) -> Tensor:
    """The Euclidean norm along an axis."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return norm
