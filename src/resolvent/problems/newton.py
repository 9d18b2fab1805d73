"""The prox of a smooth convex f by Newton's method, many users at once, with factorisations that are kept.

x = prox(u) solves e(x) = x - u + eta grad f(x) = 0. The map e is strongly monotone with modulus 1, so |x - prox(u)| <=
|e(x)|: the error is known. Steps use B = (I + eta H)^-1 made at an earlier point and eta, the `anchor`, corrected by
the secant pairs (s, y) between points of this or of earlier rounds: where x changed by s, e + u changed by y. One B
serves over many rounds, until the steps it cost beyond the fewest possible would have paid for a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from resolvent.problems.products import rows_times

FEWEST = 2
"""Gradients a round that no new factorisation would save."""
PRICE = 20
"""Gradients that a new factorisation costs about."""
PATIENCE = 8
"""Steps in one round after which it is made at once."""
POINTS = 9
"""Answers of earlier rounds that are kept: one more than the secant pairs between them."""
MOST = 200
CLOSE = 1e-6
"""Relative to u, where Newton's method converges quadratically."""
TOO_SHORT = 1e-10


class Smooth(Protocol):
    """What Newton's method needs of a problem."""

    def grad(self, W: Tensor) -> Tensor: ...
    def hessian(self, W: Tensor) -> Tensor: ...
    def take(self, who: Tensor) -> Smooth: ...


@dataclass(eq=False)
class Kept:
    """(I + eta H)^-1 for each user at its anchor: the point and, in a last column, eta. Rows of NaN have none yet."""

    anchor: Tensor
    inverse: Tensor

    @staticmethod
    def empty(users: int, dim: int, like: Tensor) -> Kept:
        return Kept(like.new_full((users, dim + 1), torch.nan), like.new_zeros((users, dim, dim)))

    def take(self, who: Tensor) -> Kept:
        return Kept(self.anchor[who], self.inverse[who])

    def renew(self, problem: Smooth, which: Tensor, anchor: Tensor) -> None:
        """Factorise at new anchors for the users marked in `which`."""
        who = which.nonzero().flatten()
        part = problem if len(who) == len(which) else problem.take(who)
        at, eta = anchor[who, :-1], anchor[who, -1]
        H = part.hessian(at) * eta[:, None, None]
        H.diagonal(dim1=1, dim2=2).add_(1)
        # One at a time, and each from a tensor of its own: kernels round by where in memory a matrix lies.
        self.inverse[who] = torch.stack([torch.cholesky_inverse(torch.linalg.cholesky(h.clone())) for h in H])
        self.anchor = torch.where(which.unsqueeze(1), anchor, self.anchor)

    def apply(self, e: Tensor) -> Tensor:
        """B e."""
        return rows_times(e, self.inverse)


@dataclass(frozen=True, eq=False)
class Guess:
    """Where a round begins: each user's last answers x and the gradients g there, newest first, (users, k, d), and the
    steps that its B owes, (users,): infinitely many where there is no B yet."""

    x: Tensor
    g: Tensor
    debt: Tensor


@dataclass(frozen=True, eq=False)
class Solved:
    """Where it ends, and |e(x)|, a bound on the distance to the exact prox."""

    guess: Guess
    error: Tensor

    @property
    def x(self) -> Tensor:
        return self.guess.x[:, 0]


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
    problem: Smooth, u: Tensor, eta: float, guess: Guess | None = None, kept: Kept | None = None, tol: float = 0.0
) -> Solved:
    """prox_eta f_i(u_i) for each row, until |e| <= tol (1 + |u|) or round-off."""
    kept = Kept.empty(u.shape[0], u.shape[1], u) if kept is None else kept
    guess = cold(problem, u, eta) if guess is None else guess
    equation, debt = Equation(problem, u, eta), guess.debt
    here = equation.at(guess.x[:, 0], guess.g[:, 0])
    enough, seen = equation.enough(here.g, tol), list[Point]()
    for k in range(MOST):
        todo = here.norm > enough
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
    return Solved(Guess(_pushed(here.x, guess.x), _pushed(here.g, guess.g), debt), here.norm)


def corrected(kept: Kept, e: Tensor, s: Tensor, y: Tensor) -> Tensor:
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
