"""The prox of one user's smooth convex function by Newton's method with a line search, where the fast method failed.

F(x) = eta f(x) + |x - u|^2 / 2 is strongly convex with modulus 1, and e(x) is its gradient. A step h with h . e > 0
goes down. It is halved until the slope of F along it is not yet positive, which is at least half the way to the lowest
point: since F is convex, that gains at least half of what the best length would. What contradicts convexity on the
way is reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_STEPS = 200
MAX_HALVINGS = 100
LEAST_CURVATURE = 1e-3
"""Of F, that a step reckons with where f is not convex."""
WORST, WORST_UNITS = 1e-8, 1e3
"""Relative to 1 + |u| + |x|, and to that in units in the last place: a prox that round-off leaves with fewer digits is
refused."""


@dataclass(frozen=True, eq=False)
class SafeProx:
    """A point x (d,), a bound on its distance to the prox, and what is wrong with it, or None."""

    x: Tensor
    error: float
    wrong: str | None = None


def prox_with_line_search(one: Any, u: Tensor, eta: float, x: Tensor, tol: float) -> SafeProx:
    """prox_eta f(u) for a problem of one user, u (d,) and x (d,), to tol (1 + |u|) or round-off."""
    descent, wanted = Descent(one, u, eta), tol * (1 + float(u.norm()))
    e, best, floor = descent.gradient(x), torch.inf, None
    for _ in range(MAX_STEPS):
        size = float(e.norm())
        if not torch.isfinite(e).all():
            return SafeProx(x, torch.inf, "its gradient is NaN or infinite")
        if size <= wanted:
            break
        Q = descent.curvature(x)
        blur = descent.blur(x, Q)
        if 16 * size <= blur and 16 * size <= (floor := descent.round_off(x, e)):
            break
        wrong = definite(Q, one.convex)
        if wrong is not None:
            return SafeProx(x, size, wrong)
        if not one.convex:  # a step that goes down where F curves downwards too
            s, V = torch.linalg.eigh(Q)
            Q = (V * s.abs().clamp_min(LEAST_CURVATURE)) @ V.mT
        h = torch.cholesky_solve(e.unsqueeze(1), torch.linalg.cholesky(Q)).squeeze(1)
        best = min(best, size)
        new, wrong = descent.along(x, h, e, best / 2, blur)
        if wrong is not None:
            return SafeProx(x, size, wrong)
        if torch.equal(new, x):
            break
        x, e, floor = new, descent.gradient(new), None
    size, floor = float(e.norm()), descent.round_off(x, e) if floor is None else floor
    reach = 1 + float(u.norm()) + float(x.norm())
    worst = max(WORST, WORST_UNITS * torch.finfo(x.dtype).eps)
    if size <= max(wanted, min(floor, worst * reach)):
        return SafeProx(x, size if floor <= tol * reach else size + floor)
    why = "its hessian may not be the derivative of its grad, or its rows are scaled too differently"
    return SafeProx(x, size, f"Newton's method does not get nearer: {why}")


@dataclass(frozen=True, eq=False)
class Descent:
    """F of one user."""

    one: Any
    u: Tensor
    eta: float

    def gradient(self, x: Tensor) -> Tensor:
        g: Tensor = self.one.grad(x.unsqueeze(0))[0]
        return torch.add(x - self.u, g, alpha=self.eta)

    def curvature(self, x: Tensor) -> Tensor:
        Q: Tensor = self.one.hessian(x.unsqueeze(0))[0] * self.eta
        Q.diagonal().add_(1)
        return Q

    def blur(self, x: Tensor, Q: Tensor) -> float:
        """Of e, at most, if the hessian is right: a unit in the last place of x goes through the curvature Q."""
        size = float(Q.norm()) * float(x.norm()) + 2 * float(self.u.norm())
        return 16 * torch.finfo(x.dtype).eps * size

    def round_off(self, x: Tensor, e: Tensor) -> float:
        """Of e, about, whatever the hessian is: by how much e changes with every coordinate of x, in its own units."""
        eps = torch.finfo(x.dtype).eps
        part = math.sqrt(eps)
        size = sum(float((self.gradient(x + h) - e).norm()) for h in part * torch.diag(x)) / part
        return 16 * eps * (size + 2 * float(self.u.norm()))

    def along(self, x: Tensor, h: Tensor, e: Tensor, halved: float, blur: float) -> tuple[Tensor, str | None]:
        """x - t h for a t that goes down, or for t = 1 where |e| falls to `halved`; and what is wrong, if anything."""
        slope, t, blur = float(e @ h), 1.0, blur * float(h.norm())
        for _ in range(MAX_HALVINGS):
            new = x - t * h
            there = self.gradient(new)
            left = float(there @ h)
            if self.one.convex and left > slope - 0.9 * t * float(h @ h) + blur:
                return x, "f is not convex: its gradient turns the wrong way along a step"
            if left >= 0 or (t == 1 and float(there.norm()) <= halved):
                return new, None
            t /= 2
        return x, None


def definite(Q: Tensor, convex: bool = True) -> str | None:
    """What is wrong with I + eta H, if anything is."""
    if not bool(torch.isfinite(Q).all()):
        return "its hessian is NaN or infinite"
    if float((Q - Q.mT).norm()) > max(1e-6, 1e4 * torch.finfo(Q.dtype).eps) * float(Q.norm()):  # a metric stretches
        return "its hessian is not symmetric"
    if convex and int(torch.linalg.cholesky_ex(Q)[1]) != 0:
        return "its hessian is not that of a convex function: I + eta H is not positive definite"
    return None
