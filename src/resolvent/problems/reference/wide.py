"""A pool of so many parameters that no d x d matrix is made: Newton's method with conjugate gradients, in float64.

Where f is strongly convex with modulus mu, a point with gradient g has

    |w - w*| <= |g| / mu,        f(w) - f* <= |g|^2 / (2 mu),

whatever led to it. Elsewhere the problem may know a ball in which a minimiser lies: then f(w) - f* <= |g| times how far
that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from resolvent.problems.newton.krylov import conjugate
from resolvent.problems.reference.door import Candidate, Unknown, Value
from resolvent.problems.reference.objective import Floats

MAX_STEPS = 100
MAX_PRODUCTS = 1000
"""In one step."""
TARGET = 1e-16
"""f(w) - f* relative to f(w) that is aimed at."""
MAX_HALVINGS = 40


class WideProblem(Protocol):
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

    def excess(self, w: Tensor, size: float) -> float:
        """A bound on f(w) - f* where the gradient of f has this length at w (d,); infinite where there is none."""


@dataclass(frozen=True, eq=False)
class WidePool:
    """f = sum_i lambda_i f_i of a problem in float64."""

    problem: WideProblem

    def candidates(self) -> Iterator[Candidate | Unknown]:
        w, g = self._descend()
        size = float(g.norm()) + float(self.problem.weights @ self.problem.rounding(w))
        yield Candidate(w[0].cpu().numpy(), self.problem.excess(w[0], size))
        yield Unknown("no minimiser could be certified: there may be none, or reg is too small beside the data")

    def values(self, w: Floats) -> Iterator[Value]:
        at = torch.from_numpy(w).to(self.problem.weights).unsqueeze(0)
        yield Value(
            self._value(at), float(self.problem.weights @ self.problem.value_rounding(at)), self._value(self._zero)
        )

    @property
    def _zero(self) -> Tensor:
        return self.problem.weights.new_zeros((1, self.problem.dim))

    def _descend(self) -> tuple[Tensor, Tensor]:
        """A point (1, d) at which steps gain nothing more, and the gradient there."""
        problem, w = self.problem, self._zero
        g = self._gradient(w)
        precondition, since = problem.preconditioner(w), float(g.norm())
        for _ in range(MAX_STEPS):
            size = float(g.norm())
            blur = float(problem.weights @ problem.rounding(w))
            if not size > blur / 16 or problem.excess(w[0], size) <= TARGET * abs(self._value(w)):
                break
            if size < 0.1 * since:  # close by it is worth another one
                precondition, since = problem.preconditioner(w), size * 1e-3
            new, there = self._along(w, self._step(w, g, precondition), g)
            if not float(there.norm()) < size and not self._value(new) < self._value(w):
                break  # round-off
            w, g = new, there
        return w, g

    def _value(self, w: Tensor) -> float:
        return float(self.problem.weights @ self.problem.value(w))

    def _gradient(self, w: Tensor) -> Tensor:
        return (self.problem.weights @ self.problem.grad(w)).unsqueeze(0)

    def _step(self, w: Tensor, g: Tensor, precondition: Callable[[Tensor], Tensor]) -> Tensor:
        """H^-1 g, to a part of |g| that falls with it."""
        product, size = self.problem.hessian_times(w), float(g.norm())

        def times(v: Tensor) -> Tensor:
            return (self.problem.weights @ product(v)).unsqueeze(0)

        part = min(0.1, max(1e-3, size / (1 + abs(self._value(w)))))
        return conjugate(times, g, torch.tensor([part * size]), MAX_PRODUCTS, precondition=precondition)

    def _along(self, w: Tensor, h: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """w - t h and the gradient there, with t halved while the step overshoots the lowest point along it by much."""
        slope, t = float((g * h).sum()), 1.0
        for _ in range(MAX_HALVINGS):
            new = w - t * h
            there = self._gradient(new)
            if float((there * h).sum()) >= -slope / 2:
                return new, there
            t /= 2
        return w, g
