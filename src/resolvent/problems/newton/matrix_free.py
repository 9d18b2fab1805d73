"""The prox of a smooth convex f by Newton's method and conjugate gradients: no d x d matrix, products with H only.

x = prox(u) solves e(x) = x - u + eta grad f(x) = 0, and e is strongly monotone with modulus 1 + eta mu, so that
|x - prox(u)| <= |e(x)| / (1 + eta mu), whatever led to x. Steps solve (I + eta H) h = e to a part of |e|, from what the
secant pairs of earlier rounds say. A step that would overshoot is halved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resolvent.problems.newton.equation import Equation, Point, length
from resolvent.problems.newton.krylov import conjugate
from resolvent.problems.newton.prox import CLOSE, Solved, WarmStart, cold_start, pushed
from resolvent.problems.newton.safeguard import WORST
from resolvent.problems.products import rows_times

POINTS = 5
"""Answers of earlier rounds that are retained: vectors are long here."""
MAX_STEPS = 60
MAX_PRODUCTS = 2000
"""In one step, at most."""
PART = 0.05
"""A step need not be more precise than this part of |e|: far away it is not a good step anyway."""
LOOSE = 1e-2
"""An answer need not be more precise than this part of the way that u has gone since the last one."""
MAX_DENSE_DIM = 500
"""Up to so many parameters a d x d matrix per user is small."""


def matrix_free_prox(
    problem: Any, u: Tensor, eta: float, start: WarmStart | None = None, tol: float = 0.0, loose: float = 0.0
) -> Solved:
    """prox_eta f_i(u_i) for each row, until |e| is at most tol (1 + |u|), `loose` times |e| at the start, or what
    round-off leaves.

    The problem has `grad`, `hessian_times` and `hessian_diagonal`, or instead of the last `conditioner(W, eta)`: a
    positive definite map of rows (users, d) close to (I + eta H)^-1.
    """
    start = cold_start(problem, u, eta, POINTS) if start is None else start
    equation = Equation(problem, u, eta)
    here = equation.at(start.x[:, 0], start.g[:, 0])
    asked = loose * here.norm
    bound = enough = torch.maximum(equation.enough(here.g, tol), asked)
    past: tuple[Tensor, Tensor] | None = equation.pairs(here, start.x[:, 1:], start.g[:, 1:])
    for _ in range(MAX_STEPS):
        todo = ~(here.norm <= enough)
        if not bool(todo.any()):
            break
        new = _stepped(problem, equation, here, todo, enough, past)
        # Far away a step goes down along F without |e| getting smaller; close by that is round-off.
        far = (here.norm > CLOSE * (1 + equation.size)) & torch.isfinite(new.norm)
        better = todo & (far | (new.norm < here.norm))
        if not bool(better.any()) or torch.equal(new.x, here.x):
            break
        here, past = new.where(better, here), None
        # A start far away has a longer gradient, and so more round-off, than the points after it.
        enough = torch.minimum(bound, torch.maximum(equation.enough(here.g, tol), asked))
    error, wrong = _checked(equation, here, bound)
    mu = problem.convexity
    if mu is not None:
        error = error / (1 + eta * mu)
    warm = WarmStart(pushed(here.x, start.x), pushed(here.g, start.g), torch.zeros_like(error))
    return Solved(warm, error, wrong)


def grouped_prox(problem: Any, U: Tensor, eta: float) -> Tensor:
    """prox_eta f_i(u_i) to round-off, from u, for the groups that a problem is cut into."""
    x = torch.empty_like(U)
    for who, part in problem.groups:
        at: Any = slice(None) if who is None else who
        solved = matrix_free_prox(part, U[at], eta)
        solved.demand(eta, names=who)
        x[at] = solved.x
    return x


def _stepped(
    problem: Any,
    equation: Equation,
    here: Point,
    todo: Tensor,
    enough: Tensor,
    past: tuple[Tensor, Tensor] | None,
) -> Point:
    """After one step of Newton's method for the users marked."""
    product, eta = problem.hessian_times(here.x), equation.eta
    conditioner = problem.conditioner if hasattr(problem, "conditioner") else partial(_by_diagonal, problem)
    part = torch.clamp(here.norm / (1 + equation.size), 1e-4, PART) * here.norm
    goal = torch.where(todo, torch.maximum(enough / 2, part), torch.inf)

    def times(v: Tensor) -> Tensor:
        return torch.add(v, product(v), alpha=eta)

    begin = None if past is None else _along_pairs(here.e, *past)
    return equation.along(
        here,
        todo.unsqueeze(1) * conjugate(times, here.e, goal, MAX_PRODUCTS, begin, conditioner(here.x, eta)),
        todo,
    )


def _by_diagonal(problem: Any, x: Tensor, eta: float) -> Callable[[Tensor], Tensor]:
    scale = torch.clamp_min(1 + eta * problem.hessian_diagonal(x), 1)
    return lambda r: r / scale


def _along_pairs(e: Tensor, s: Tensor, y: Tensor) -> Tensor | None:
    """s theta, with theta such that y theta is nearest to e: what earlier rounds say of the step."""
    size = length(y, 2)
    if not bool((size > 0).any()):
        return None
    unit = torch.where(size > 0, 1 / size, 0).unsqueeze(2)
    theta = torch.linalg.lstsq((unit * y).mT, e.unsqueeze(2), rcond=None, driver="gelsd").solution.squeeze(2)
    h = rows_times(theta, unit * s)
    return torch.where(torch.isfinite(h).all(1, keepdim=True), h, 0)


def _checked(equation: Equation, here: Point, enough: Tensor) -> tuple[Tensor, dict[int, str]]:
    """Bounds on the errors, and what is wrong with which user."""
    error, size = here.norm, 1 + equation.size + length(here.x)
    blur = equation.blur(here.x)
    if blur is not None:
        error = torch.where(blur <= enough, error, error + blur)
    most = torch.maximum(enough, WORST * size if error.dtype == torch.float64 else 1e-2 * size)
    finite = torch.isfinite(equation.size)
    error = torch.where(finite, error, torch.nan)
    bad = (finite & ~(error <= most)).nonzero().flatten().tolist()
    message = "since its gradient is NaN or infinite, or round-off leaves a larger error"
    return error, dict.fromkeys(bad, message)
