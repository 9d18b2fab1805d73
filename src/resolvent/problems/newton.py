"""The prox of a smooth convex f by Newton's method, many users at once, with factorisations that are kept.

x = prox(u) solves e(x) = x - u + eta grad f(x) = 0. The map e is strongly monotone with modulus 1, so |x - prox(u)| <=
|e(x)|: the error is known. Steps use B = (I + eta H)^-1 made at an earlier point and eta, the `anchor`, corrected by
the secant pairs (s, y) of this and of earlier rounds: where x changed by s, e + u changed by y. One B serves over many
rounds, until the steps it cost beyond the fewest possible would have paid for a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
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
PAIRS = 3
"""Secant pairs kept from earlier rounds."""
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
    """Where a round begins: a point x, the gradient g there, pairs (users, PAIRS, d) and the steps B owes (users,)."""

    x: Tensor
    g: Tensor
    s: Tensor
    y: Tensor
    debt: Tensor


@dataclass(frozen=True, eq=False)
class Solved:
    """Where it ends, and |e(x)|, a bound on the distance to the exact prox."""

    guess: Guess
    error: Tensor

    @property
    def x(self) -> Tensor:
        return self.guess.x


def cold(problem: Smooth, u: Tensor, eta: float) -> Guess:
    """Without a past: at u or at 0, whichever is nearer to the solution."""
    zero = torch.zeros_like(u)
    g, g0 = problem.grad(u), problem.grad(zero)
    near = length(eta * g).unsqueeze(1) <= length(eta * g0 - u).unsqueeze(1)
    pairs = u.new_zeros((len(u), PAIRS, u.shape[1]))
    return Guess(torch.where(near, u, zero), torch.where(near, g, g0), pairs, pairs, u.new_zeros(len(u)))


def newton_prox(
    problem: Smooth, u: Tensor, eta: float, guess: Guess | None = None, kept: Kept | None = None, tol: float = 0.0
) -> Solved:
    """prox_eta f_i(u_i) for each row, until |e| <= tol (1 + |u|) or round-off."""
    kept = Kept.empty(u.shape[0], u.shape[1], u) if kept is None else kept
    begun = guess = cold(problem, u, eta) if guess is None else guess
    x, g, s, y, debt = guess.x, guess.g, guess.s, guess.y, guess.debt
    e = x - u + eta * g
    norm, size = length(e), length(u)
    enough = torch.maximum(tol * (1 + size), 4 * torch.finfo(u.dtype).eps * (size + eta * length(g)))
    close = CLOSE * (1 + size)
    stale, done = kept.anchor[:, 0].isnan() | (debt > PRICE), torch.zeros_like(norm, dtype=torch.bool)
    before = x, e
    for k in range(MOST):
        todo = (norm > enough) & ~done
        if not bool(todo.any()):
            break
        if k > 0:  # earlier rounds' pairs say what this round's first step does: they are dropped
            change = ((x - before[0]).unsqueeze(1), (e - before[1]).unsqueeze(1))
            s, y = change if k == 1 else (torch.cat([s, change[0]], 1), torch.cat([y, change[1]], 1))
        before = x, e
        exact = todo & stale if k % PATIENCE < PATIENCE - 1 else todo
        renewing = bool(exact.any())
        if renewing:
            kept.renew(problem, exact, torch.cat([x, torch.full_like(x[:, :1], eta)], 1))
            keep = ~exact[:, None, None]
            s, y, debt = s * keep, y * keep, torch.where(exact, 0, debt)
        step = todo.unsqueeze(1) * -corrected(kept, e, s, y)
        new, g_new = _along(problem, u, eta, x, step, (e * step).sum(1), exact) if renewing else _end(problem, x, step)
        e_new = new - u + eta * g_new
        norm_new = length(e_new)
        better, stale = todo & (norm_new < norm), todo & ~(norm_new <= norm / 2)
        if renewing:
            # Close to the solution a true Newton step that gains nothing has met the round-off of the gradient.
            done = done | (exact & stale & (norm <= close))
            better = better | (exact & (norm > close))
        if bool(better.all()):
            x, g, e, norm = new, g_new, e_new, norm_new
        else:
            mark = better.unsqueeze(1)
            x, g, e = (torch.where(mark, a, b) for a, b in ((new, x), (g_new, g), (e_new, e)))
            norm = torch.where(better, norm_new, norm)
        if k >= FEWEST:
            debt = debt + todo
    s = torch.cat([begun.s, (x - begun.x).unsqueeze(1)], 1)[:, 1:]
    y = torch.cat([begun.y, (x - begun.x + eta * (g - begun.g)).unsqueeze(1)], 1)[:, 1:]
    return Solved(Guess(x, g, s, y, debt), norm)


def corrected(kept: Kept, e: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """s theta + B (e - y theta), with theta such that y theta is as near to e as can be: exact along the pairs seen."""
    scale = 1 / length(y, 2).clamp_min(
        torch.finfo(y.dtype).tiny
    )  # pairs of very different sizes count the same; zero pairs say nothing
    y = y * scale.unsqueeze(-1)
    theta = (y * e.unsqueeze(1)).sum(2)
    if y.shape[1] > 1:
        gram = torch.bmm(y, y.mT)
        gram.diagonal(dim1=1, dim2=2).add_(4096 * torch.finfo(y.dtype).eps)
        theta = torch.linalg.solve(gram, theta)
    left = e - (y * theta.unsqueeze(-1)).sum(1)
    return kept.apply(left) + (s * (theta * scale).unsqueeze(-1)).sum(1)


def _end(problem: Smooth, x: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """The end of a step, and the gradient there."""
    new = x + step
    return new, problem.grad(new)


def _along(
    problem: Smooth, u: Tensor, eta: float, x: Tensor, step: Tensor, slope: Tensor, exact: Tensor
) -> tuple[Tensor, Tensor]:
    """The end of the step and its gradient. With an exact Hessian the step is halved until it no longer overshoots the
    minimum of eta f + |. - u|^2 / 2 along it by much: that function is convex, with slope e . step."""
    shrink = torch.ones_like(slope)
    while True:
        new, g = _end(problem, x, shrink.unsqueeze(1) * step)
        ahead = ((new - u + eta * g) * step).sum(1)
        short = exact & ~(ahead <= -slope / 2) & (shrink > TOO_SHORT)
        if not bool(short.any()):
            return new, g
        shrink = torch.where(short, shrink / 2, shrink)


def length(x: Tensor, dim: int = 1) -> Tensor:
    """The Euclidean norm along an axis."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return norm
