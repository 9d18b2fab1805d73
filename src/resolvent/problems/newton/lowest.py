"""The minimum of f = sum_i lambda_i f_i over many parameters: Newton's method with conjugate gradients, in float64.

No d x d matrix is made. Where f is strongly convex with modulus mu, a point with gradient g has

    |w - w*| <= |g| / mu,        f(w) - f* <= |g|^2 / (2 mu),

whatever led to it. Elsewhere the problem may know a ball in which a minimiser lies: then f(w) - f* <= |g| times how far
that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.problems.newton.conjugate import conjugate
from resolvent.problems.newton.minimum import SURE, Minimum

STEPS = 100
PRODUCTS = 1000
"""In one step, at most."""
SMALL = 1e-16
"""f(w) - f* relative to f(w) that is aimed at."""
HALVINGS = 40


class Pooled(Protocol):
    """What this needs of a problem in float64."""

    @property
    def weights(self) -> Tensor: ...
    @property
    def dim(self) -> int: ...
    def value(self, W: Tensor) -> Tensor: ...
    def grad(self, W: Tensor) -> Tensor: ...
    def hessian_times(self, W: Tensor) -> Callable[[Tensor], Tensor]: ...
    def rounding(self, W: Tensor) -> Tensor: ...
    def value_rounding(self, W: Tensor) -> Tensor: ...
    def preconditioner(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """A positive definite map (1, d) -> (1, d), close to the inverse of the Hessian of f at w (1, d)."""
        ...

    def excess(self, w: Tensor, size: float) -> float:
        """A bound on f(w) - f* where the gradient of f has this length at w (d,); infinite where there is none."""
        ...


def lowest(problem: Pooled) -> Minimum:
    """The minimum of f, certified, or why it is not known."""
    w = problem.weights.new_zeros((1, problem.dim))
    g = _gradient(problem, w)
    precondition, since = problem.preconditioner(w), float(g.norm())
    for _ in range(STEPS):
        size = float(g.norm())
        blur = float(problem.weights @ problem.rounding(w))
        if not size > blur / 16 or problem.excess(w[0], size) <= SMALL * abs(_value(problem, w)):
            break
        if size < 0.1 * since:  # close by it is worth another one
            precondition, since = problem.preconditioner(w), size * 1e-3
        h = _step(problem, w, g, precondition)
        new, there = _along(problem, w, h, g)
        if not float(there.norm()) < size and not _value(problem, new) < _value(problem, w):
            break  # round-off
        w, g = new, there
    value, size = _value(problem, w), float(g.norm()) + float(problem.weights @ problem.rounding(w))
    rounding = float(problem.weights @ problem.value_rounding(w))
    if problem.excess(w[0], size) + rounding <= SURE * abs(value):
        return Minimum(w[0].cpu().numpy(), value)
    return Minimum.unknown("no minimiser could be certified: there may be none, or reg is too small beside the data")


def _value(problem: Pooled, w: Tensor) -> float:
    return float(problem.weights @ problem.value(w))


def _gradient(problem: Pooled, w: Tensor) -> Tensor:
    return (problem.weights @ problem.grad(w)).unsqueeze(0)


def _step(problem: Pooled, w: Tensor, g: Tensor, precondition: Any) -> Tensor:
    """H^-1 g, to a part of |g| that falls with it."""
    product = problem.hessian_times(w)

    def times(v: Tensor) -> Tensor:
        return (problem.weights @ product(v)).unsqueeze(0)

    size = float(g.norm())
    part = min(0.1, max(1e-3, size / (1 + abs(_value(problem, w)))))
    return conjugate(times, g, torch.tensor([part * size]), PRODUCTS, precondition=precondition)


def _along(problem: Pooled, w: Tensor, h: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """w - t h and the gradient there, with t halved while the step overshoots the lowest point along it by much."""
    slope, t = float((g * h).sum()), 1.0
    for _ in range(HALVINGS):
        new = w - t * h
        there = _gradient(problem, new)
        if float((there * h).sum()) >= -slope / 2:
            return new, there
        t /= 2
    return w, g
