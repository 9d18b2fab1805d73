"""The prox of a smooth convex f by Newton's method, many users at once, with factorisations that are kept.

x = prox(u) solves e(x) = x - u + eta grad f(x) = 0. The map e is strongly monotone with modulus 1, so |x - prox(u)| <=
|e(x)|: the error is known. Steps use B = (I + eta H)^-1 made at an earlier point and eta, the `anchor`, corrected by
the secant pairs (s, y) between points of this or of earlier rounds: where x changed by s, e + u changed by y. One B
serves over many rounds, until the steps it cost beyond the fewest possible would have paid for a new one.

This is quick and nearly always enough. Whoever is not within the bound afterwards, or whose gradient's own rounding
error is beyond it, is solved anew, alone, by a method that cannot fail to descend: `careful_prox` of the problem, or
Newton's method with a line search (safeguard.py). What is still not within the bound is said in `Solved.wrong`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.errors import BadAnswer
from resolvent.problems.newton.factors import Factors, factors
from resolvent.problems.newton.safeguard import WORST, Careful, prox_with_line_search
from resolvent.problems.products import rows_times

FEWEST = 2
"""Gradients a round that no new factorisation would save."""
PRICE = 20
"""Gradients that a new factorisation costs about."""
PATIENCE = 8
"""Steps in one round after which it is made at once."""
POINTS = 9
"""Answers of earlier rounds that are kept: one more than the secant pairs between them."""
MOST = 32
"""Steps of the quick way."""
CLOSE = 1e-6
"""Relative to u, where Newton's method converges quadratically."""
TOO_SHORT = 1e-10
COARSE = {torch.float64: WORST, torch.float32: 1e-2}
"""Rounding errors of e, relative to 1 + |u|, beyond which its size says too little."""


class Smooth(Protocol):
    """What Newton's method needs of a problem."""

    def grad(self, W: Tensor) -> Tensor: ...
    def hessian(self, W: Tensor) -> Tensor: ...
    def take(self, who: Tensor) -> Smooth: ...


@dataclass(frozen=True, eq=False)
class Guess:
    """Where a round begins: each user's last answers x and the gradients g there, newest first, (users, k, d), and the
    steps that its B owes, (users,): infinitely many where there is no B yet."""

    x: Tensor
    g: Tensor
    debt: Tensor


@dataclass(frozen=True, eq=False)
class Solved:
    """Where it ends, a bound on the distance to the exact prox, |e(x)| or a better one, and what is wrong with whom."""

    guess: Guess
    error: Tensor
    wrong: dict[int, str] = field(default_factory=dict)

    @property
    def x(self) -> Tensor:
        return self.guess.x[:, 0]

    def demand(self, eta: float, where: str = "", names: Tensor | None = None) -> None:
        """Refuse answers that are not what they must be, with the first user's name."""
        for row, words in self.wrong.items():
            user = row if names is None else int(names[row])
            raise BadAnswer(
                f"the prox of user {user}{where} at eta = {eta:g} was not found to the tolerance, {words}; "
                "look at that user's data and functions, scale the features, or take a smaller eta"
            )


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
        """A bound on the rounding error of e at x, about, from how much f can bend; None where that is unknown."""
        if hasattr(self.problem, "rounding"):
            here: Tensor = self.eta * self.problem.rounding(x)
            return here
        L: Tensor | None = getattr(self.problem, "lipschitz", None)
        return None if L is None else (8 * torch.finfo(x.dtype).eps) * (self.size + (1 + self.eta * L) * length(x))

    def enough(self, g: Tensor, tol: float) -> Tensor:
        """An |e| that will do: tol (1 + |u|), or what round-off allows where the gradient is g."""
        round_off = torch.add(self.size, length(g), alpha=self.eta) * (4 * torch.finfo(g.dtype).eps)
        return torch.maximum((1 + self.size) * tol, round_off)

    def at(self, x: Tensor, g: Tensor | None = None) -> Point:
        """The point x, where the gradient may be known."""
        g = self.problem.grad(x) if g is None else g
        e = torch.add(x - self.u, g, alpha=self.eta)
        return Point(x, g, e, length(e))

    def along(self, here: Point, step: Tensor, exact: Tensor) -> Point:
        """The end of a step back. With an exact Hessian it is halved until it no longer overshoots the minimum of
        eta f + |. - u|^2 / 2 along it by much: that function is convex, with slope e . step."""
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


def points(dim: int) -> int:
    """How many points are kept: d pairs say everything."""
    return min(POINTS, dim + 1)


def cold(problem: Smooth, u: Tensor, eta: float) -> Guess:
    """Without a past: at u or at 0, whichever is nearer to the solution."""
    equation, zero = Equation(problem, u, eta), torch.zeros_like(u)
    one, other = equation.at(u), equation.at(zero)
    begin = one.where(one.norm <= other.norm, other)
    x, g = (rows.unsqueeze(1).repeat(1, points(u.shape[1]), 1) for rows in (begin.x, begin.g))
    return Guess(x, g, u.new_full((len(u),), torch.inf))


def newton_prox(
    problem: Smooth, u: Tensor, eta: float, guess: Guess | None = None, kept: Factors | None = None, tol: float = 0.0
) -> Solved:
    """prox_eta f_i(u_i) for each row, until |e| <= tol (1 + |u|) or round-off."""
    kept = factors(problem, u) if kept is None else kept
    guess = cold(problem, u, eta) if guess is None else guess
    equation, debt = Equation(problem, u, eta), guess.debt
    here = equation.at(guess.x[:, 0], guess.g[:, 0])
    enough, seen = equation.enough(here.g, tol), list[Point]()
    bound = enough
    for k in range(MOST):
        todo = ~(here.norm <= enough)
        if not bool(todo.any()):
            break
        exact = todo if k % PATIENCE == PATIENCE - 1 else todo & (_stuck(here, seen[0]) if seen else debt > PRICE)
        renewing = bool(exact.any())
        # What earlier rounds tell went into this round's first step, which tells more.
        s, y = equation.pairs(here, *(_stacked(seen) if seen else (guess.x[:, 1:], guess.g[:, 1:])))
        if renewing:
            kept.renew(problem, exact, torch.cat([here.x, torch.full_like(u[:, :1], eta)], 1))
            keep = ~exact[:, None, None]
            s, y, debt = s * keep, y * keep, torch.where(exact, 0, debt)
        step = todo.unsqueeze(1) * corrected(kept, here.e, s, y)
        new = equation.along(here, step, exact) if renewing else equation.at(here.x - step)
        better = new.norm < here.norm
        if renewing:
            # Close to the solution a true Newton step that gains nothing has met the round-off of the gradient.
            close = here.norm <= CLOSE * (1 + equation.size)
            enough = torch.where(exact & close & _stuck(new, here), torch.inf, enough)
            better = better | (exact & ~close)
        here, seen = new.where(better, here), [here, *seen][: u.shape[1]]
        if k >= FEWEST:
            debt = debt + todo
    here, error, wrong = judged(equation, here, bound, tol)
    if not hasattr(problem, "careful_prox"):  # functions of a user's own
        wrong = not_convex(equation, here, guess) | wrong
    return Solved(Guess(_pushed(here.x, guess.x), _pushed(here.g, guess.g), debt), error, wrong)


def judged(equation: Equation, here: Point, bound: Tensor, tol: float) -> tuple[Point, Tensor, dict[int, str]]:
    """The points with bounds on their errors. Those beyond it and beyond round-off are solved anew, as are those whose
    round-off may be large."""
    error, blur, size = here.norm, equation.blur(here.x), 1 + equation.size
    doubtful = ~(error <= bound)
    if blur is not None:
        doubtful = (doubtful & ~(error <= blur)) | ~(blur <= COARSE[error.dtype] * size)
    if not bool(doubtful.any()):
        return here, error, {}
    wrong = dict[int, str]()
    x, error = here.x.clone(), error.clone()  # a user's answer is its own, whoever else is solved anew
    for row in doubtful.nonzero().flatten().tolist():
        found = _alone(equation, row, here.x[row], tol)
        x[row], error[row] = found.x, found.error
        if found.wrong is not None:
            wrong[row] = found.wrong
    return equation.at(x), error, wrong


def not_convex(equation: Equation, here: Point, guess: Guess) -> dict[int, str]:
    """Users whose gradient fell along the way from their last answer: (g - g') . (x - x') >= 0 where f is convex.

    Points must be well apart and the fall large, so that round-off is not mistaken for one.
    """
    s, y = here.x - guess.x[:, 0], here.g - guess.g[:, 0]
    square = (s * s).sum(1)
    apart = square.sqrt() > 1e-3 * (length(here.x) + length(guess.x[:, 0]))
    falls = apart & (equation.eta * (s * y).sum(1) < -1e-3 * square)
    words = "its function is not convex: between two points that were visited its gradient falls"
    return dict.fromkeys(falls.nonzero().flatten().tolist(), words) if bool(falls.any()) else {}


def _alone(equation: Equation, row: int, x: Tensor, tol: float) -> Careful:
    """One user's prox, whatever its company. Where u itself is not finite there is none: NaN, as any prox answers."""
    u, eta = equation.u[row], equation.eta
    if not bool(torch.isfinite(length(u, 0))):
        return Careful(torch.full_like(u, torch.nan), torch.nan)
    one: Any = equation.problem.take(torch.tensor([row], device=u.device))
    begin = x if bool(torch.isfinite(x).all()) else u
    if hasattr(one, "careful_prox"):
        careful: Careful = one.careful_prox(u, eta, begin, tol)
        return careful
    return prox_with_line_search(one, u, eta, begin, tol)


def corrected(kept: Factors, e: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """s theta + B (e - y theta), with theta such that y theta is as near to e as can be: exact along the pairs seen.

    Rounds move in much the same direction, so that pairs differ by little, but that little says most: theta is had from
    the triangle of QR, which does not square it. A pair in which nothing but round-off is new counts for nothing.
    """
    k = y.shape[1]
    factors, _ = torch.geqrf(torch.cat([y, e.unsqueeze(1)], 1).mT)
    new = factors.diagonal(dim1=1, dim2=2)[:, :k]
    new.masked_fill_(new.abs() <= 64 * torch.finfo(y.dtype).eps * length(y, 2), torch.inf)
    theta = torch.linalg.solve_triangular(factors[:, :k, :k], factors[:, :k, k:], upper=True).squeeze(2)
    return kept.apply(e - rows_times(theta, y)) + rows_times(theta, s)


def _stuck(new: Point, old: Point) -> Tensor:
    """Where a step has not even halved |e|."""
    return ~(new.norm <= old.norm / 2)


def _stacked(seen: Sequence[Point]) -> tuple[Tensor, Tensor]:
    return torch.stack([point.x for point in seen], 1), torch.stack([point.g for point in seen], 1)


def _pushed(new: Tensor, rows: Tensor) -> Tensor:
    """The newest first, and the oldest dropped."""
    return torch.cat([new.unsqueeze(1), rows[:, :-1]], 1)


def length(x: Tensor, dim: int = 1) -> Tensor:
    """The Euclidean norm along an axis."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return norm
