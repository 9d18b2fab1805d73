"""The prox of a smooth f by Newton's method, all users at once, with cached inverses.

x = prox(u) solves e(x) = x - u + eta grad f(x) = 0. For convex f the map e is strongly monotone with modulus 1, so
|e(x)| bounds the error |x - prox(u)|; otherwise the Hessian at x must show that x is a minimum. Steps use
B = (I + eta H)^-1, computed at an earlier point and eta, the `anchor`. They are corrected by the secant pairs (s, y)
between points of this or of earlier rounds: where x changed by s, e + u changed by y. One B serves for many rounds,
until the extra steps that it cost would have paid for a new one.

This is fast and nearly always enough. A user whose error is not within the bound afterwards, or whose gradient has a
larger rounding error than that, is solved again, alone, by a method that is sure to descend: `careful_prox` of the
problem, or Newton's method with a line search (safeguard.py). `Solved.wrong` names the users whose error is still not
within the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import BadAnswer
from resolvent.problems.newton.equation import Equation, Point, Smooth, length
from resolvent.problems.newton.inverses import Inverses, empty_inverses
from resolvent.problems.newton.safeguard import WORST, SafeProx, prox_with_line_search
from resolvent.problems.products import rows_times

FEWEST = 2
"""Gradients per round that no new inverse would save."""
PRICE = 20
"""What a new inverse costs, in gradients, roughly."""
PATIENCE = 8
"""Steps in one round after which a new inverse is computed at once."""
MAX_POINTS = 9
"""Answers of earlier rounds that are retained: one more than the secant pairs between them."""
MAX_STEPS = 32
"""Steps with cached inverses, at most."""
CLOSE = 1e-6
"""|e| relative to 1 + |u| where Newton's method converges quadratically."""
COARSE = {torch.float64: WORST, torch.float32: 1e-2}
"""Rounding errors of e, relative to 1 + |u|, beyond which |e| is no useful bound."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Where a round begins: each user's last answers x and the gradients g there, newest first, (users, k, d).

    `debt` (users,) counts the extra steps that its B has cost: infinitely many where there is no B yet.
    """

    x: Tensor
    g: Tensor
    debt: Tensor


@dataclass(frozen=True, eq=False)
class Solved:
    """The answers, as the warm start of the next round; a bound on each one's distance to the exact prox, |e(x)| or a
    better one; and what is wrong with which user."""

    warm: WarmStart
    error: Tensor
    wrong: dict[int, str] = field(default_factory=dict)

    @property
    def x(self) -> Tensor:
        return self.warm.x[:, 0]

    def demand(self, eta: float, where: str = "", names: Tensor | None = None) -> None:
        """Raise BadAnswer, with the first user's name, where an answer is wrong."""
        for row, message in self.wrong.items():
            user = row if names is None else int(names[row])
            raise BadAnswer(
                f"the prox of user {user}{where} at eta = {eta:g} was not found to the tolerance, {message}; "
                "check that user's data and functions, scale the features, or take a smaller eta"
            )


def retained_points(dim: int) -> int:
    """How many points are retained: d pairs determine the Hessian."""
    return min(MAX_POINTS, dim + 1)


def cold_start(problem: Smooth, u: Tensor, eta: float, points: int) -> WarmStart:
    """For users without a past: so many points at u or at 0, whichever has the smaller |e|."""
    equation, zero = Equation(problem, u, eta), torch.zeros_like(u)
    one, other = equation.at(u), equation.at(zero)
    begin = one.where(one.norm <= other.norm, other)
    x, g = (rows.unsqueeze(1).repeat(1, points, 1) for rows in (begin.x, begin.g))
    return WarmStart(x, g, u.new_full((len(u),), torch.inf))


def newton_prox(
    problem: Smooth,
    u: Tensor,
    eta: float,
    start: WarmStart | None = None,
    inverses: Inverses | None = None,
    tol: float = 0.0,
) -> Solved:
    """prox_eta f_i(u_i) for each row, until |e| <= tol (1 + |u|) or round-off."""
    inverses = empty_inverses(problem, u) if inverses is None else inverses
    start = cold_start(problem, u, eta, retained_points(u.shape[1])) if start is None else start
    equation, debt = Equation(problem, u, eta), start.debt
    here = equation.at(start.x[:, 0], start.g[:, 0])
    bound, seen = equation.enough(here.g, tol), list[Point]()
    enough, coarse = bound, bool((bound > equation.wanted(tol)).any())
    for k in range(MAX_STEPS + 1):
        if coarse and k > 0:  # a start far away has a longer gradient, and so more round-off, than the points after it
            enough = torch.where(torch.isinf(enough), enough, torch.minimum(bound, equation.enough(here.g, tol)))
        todo = ~(here.norm <= enough)
        if k == MAX_STEPS or not bool(todo.any()):
            break
        exact = todo if k % PATIENCE == PATIENCE - 1 else todo & (_stuck(here, seen[0]) if seen else debt > PRICE)
        renewing = bool(exact.any())
        # Earlier rounds' pairs went into this round's first step, which yields a better pair.
        s, y = equation.pairs(here, *(_stacked(seen) if seen else (start.x[:, 1:], start.g[:, 1:])))
        if renewing:
            inverses.renew(problem, exact, torch.cat([here.x, torch.full_like(u[:, :1], eta)], 1))
            old = ~exact[:, None, None]  # a new inverse needs no correction by pairs
            s, y, debt = s * old, y * old, torch.where(exact, 0, debt)
        step = todo.unsqueeze(1) * corrected(inverses, here.e, s, y)
        new = equation.along(here, step, exact) if renewing else equation.at(here.x - step)
        better = new.norm < here.norm
        if renewing:
            # Close to the solution, a true Newton step that gains nothing has reached the round-off of the gradient.
            close = here.norm <= CLOSE * (1 + equation.size)
            enough = torch.where(exact & close & _stuck(new, here), torch.inf, enough)
            better = better | (exact & ~close)
        here, seen = new.where(better, here), [here, *seen][: u.shape[1]]
        if k >= FEWEST:
            debt = debt + todo
    here, error, wrong = checked(equation, here, bound, tol, todo)
    if not problem.convex:
        error, no_minimum = minimal(equation, here.x, error)
        wrong = no_minimum | wrong
    elif not hasattr(problem, "careful_prox"):  # functions given by the caller
        wrong = not_convex(equation, here, start) | wrong
    return Solved(WarmStart(pushed(here.x, start.x), pushed(here.g, start.g), debt), error, wrong)


def checked(
    equation: Equation, here: Point, bound: Tensor, tol: float, unfinished: Tensor
) -> tuple[Point, Tensor, dict[int, str]]:
    """The points with bounds on their errors. Users whose error is beyond `bound` and beyond round-off are solved
    again, as are users whose round-off may be large, and those who ran out of steps."""
    error, blur, size = here.norm, equation.blur(here.x), 1 + equation.size
    doubtful = ~(error <= bound)
    if blur is not None:
        doubtful = (doubtful & ~(error <= blur)) | ~(blur <= COARSE[error.dtype] * size)
    doubtful = doubtful | unfinished
    if not bool(doubtful.any()):
        return here, error, {}
    wrong = dict[int, str]()
    x, error = here.x.clone(), error.clone()  # a user's answer does not depend on who else is solved again
    for row in doubtful.nonzero().flatten().tolist():
        alone = _alone(equation, row, here.x[row], tol)
        x[row], error[row] = alone.x, alone.error
        if alone.wrong is not None:
            wrong[row] = alone.wrong
    return equation.at(x), error, wrong


def not_convex(equation: Equation, here: Point, start: WarmStart) -> dict[int, str]:
    """Users whose gradient decreased on the way from their last answer: (g - g') . (x - x') >= 0 where f is convex.

    Points must be well apart and the decrease large, so that round-off is not mistaken for one.
    """
    s, y = here.x - start.x[:, 0], here.g - start.g[:, 0]
    square = (s * s).sum(1)
    apart = square.sqrt() > 1e-3 * (length(here.x) + length(start.x[:, 0]))
    falls = apart & (equation.eta * (s * y).sum(1) < -1e-3 * square)
    message = "its function is not convex: between two points that were visited its gradient falls"
    return dict.fromkeys(falls.nonzero().flatten().tolist(), message) if bool(falls.any()) else {}


def minimal(equation: Equation, x: Tensor, error: Tensor) -> tuple[Tensor, dict[int, str]]:
    """For f that are not convex: bounds on errors, with the modulus that e has at x in place of 1; and the users for
    whom x, where e is 0, is no minimum of f + |. - u|^2 / (2 eta), but a maximum or a saddle."""
    H = equation.eta * equation.problem.hessian(x)
    H.diagonal(dim1=1, dim2=2).add_(1)
    finite = torch.isfinite(H).all(2).all(1)
    s = torch.linalg.eigvalsh(H.where(finite[:, None, None], torch.eye(x.shape[1]).to(H)))
    lowest = s[:, 0] - x.shape[1] * torch.finfo(x.dtype).eps * s.abs().amax(1)
    message = "f + |. - u|^2 / (2 eta) has no minimum where its gradient is 0: 1 + eta times a curvature of f is {:.3g}"
    wrong = {i: message.format(float(s[i, 0])) for i in (lowest <= 0).nonzero().flatten().tolist()}
    return error / lowest.clamp(torch.finfo(x.dtype).tiny, 1), wrong


def _alone(equation: Equation, row: int, x: Tensor, tol: float) -> SafeProx:
    """One user's prox, solved alone. Where u itself is not finite it is NaN, as for any prox."""
    u, eta = equation.u[row], equation.eta
    if not bool(torch.isfinite(length(u, 0))):
        return SafeProx(torch.full_like(u, torch.nan), torch.nan)
    one: Any = equation.problem.take(torch.tensor([row], device=u.device))
    begin = x if bool(torch.isfinite(x).all()) else u
    if hasattr(one, "careful_prox"):
        careful: SafeProx = one.careful_prox(u, eta, begin, tol)
        return careful
    return prox_with_line_search(one, u, eta, begin, tol)


def corrected(inverses: Inverses, e: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """s theta + B (e - y theta), with theta such that y theta is nearest to e: exact along the pairs seen.

    Rounds move in much the same direction, so pairs differ by little, and that little matters most: theta comes from
    the triangle of QR, which does not square it. A pair that differs from the others by round-off alone is ignored.
    """
    k = y.shape[1]
    qr, _ = torch.geqrf(torch.cat([y, e.unsqueeze(1)], 1).mT)
    new = qr.diagonal(dim1=1, dim2=2)[:, :k]
    new.masked_fill_(new.abs() <= 64 * torch.finfo(y.dtype).eps * length(y, 2), torch.inf)
    theta = torch.linalg.solve_triangular(qr[:, :k, :k], qr[:, :k, k:], upper=True).squeeze(2)
    return inverses.apply(e - rows_times(theta, y)) + rows_times(theta, s)


def _stuck(new: Point, old: Point) -> Tensor:
    """Where a step has not even halved |e|."""
    return ~(new.norm <= old.norm / 2)


def _stacked(seen: Sequence[Point]) -> tuple[Tensor, Tensor]:
    return torch.stack([point.x for point in seen], 1), torch.stack([point.g for point in seen], 1)


def pushed(new: Tensor, rows: Tensor) -> Tensor:
    """The newest first, and the oldest dropped."""
    return torch.cat([new.unsqueeze(1), rows[:, :-1]], 1)
