"""The prox of a smooth convex f by Newton's method, many users at once, with factorisations that are kept.

x = prox(u) solves e(x) = x - u + eta grad f(x) = 0. The map e is strongly monotone with modulus 1, so |x - prox(u)| <=
|e(x)|: the error is known. Steps use (I + eta H)^-1 made at an earlier point and eta, the `anchor`, with Broyden's
correction; it serves, over many rounds, until it leads nowhere within a few steps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PATIENCE = 6
"""Steps after which a kept factorisation that has not led to the solution is renewed."""
MOST = 200
CLOSE = 1e-6
"""Relative to u, where Newton's method converges quadratically."""
TINY, TOO_SHORT = 1e-300, 1e-10


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
        self.inverse[who] = torch.cholesky_inverse(torch.linalg.cholesky(H))
        self.anchor = torch.where(which.unsqueeze(1), anchor, self.anchor)

    def apply(self, e: Tensor) -> Tensor:
        """(I + eta H)^-1 e."""
        return torch.bmm(e.unsqueeze(1), self.inverse).squeeze(1)


@dataclass(frozen=True, eq=False)
class Solved:
    """x, the gradient there, and |e(x)|, a bound on the distance to the exact prox."""

    x: Tensor
    g: Tensor
    error: Tensor


def newton_prox(
    problem: Smooth,
    u: Tensor,
    eta: float,
    start: tuple[Tensor, Tensor] | None = None,
    kept: Kept | None = None,
    tol: float = 0.0,
) -> Solved:
    """prox_eta f_i(u_i) for each row, until |e| <= tol (1 + |u|) or round-off; `start` is a point and its gradient."""
    kept = Kept.empty(u.shape[0], u.shape[1], u) if kept is None else kept
    x, g = cold(problem, u, eta) if start is None else start
    e = x - u + eta * g
    norm, size, eps = e.norm(dim=1), u.norm(dim=1), torch.finfo(u.dtype).eps
    steps: list[Tensor] = []
    stale = kept.anchor[:, 0].isnan()
    ground = torch.zeros_like(stale)
    for k in range(MOST):
        enough = torch.maximum(tol * (1 + size), 4 * eps * (size + eta * g.norm(dim=1)))
        todo = (norm > enough) & ~ground
        if not bool(todo.any()):
            break
        stale = todo & (stale | (k % PATIENCE == PATIENCE - 1))
        if bool(stale.any()):
            kept.renew(problem, stale, torch.cat([x, torch.full_like(x[:, :1], eta)], 1))
            steps = [torch.where(stale.unsqueeze(1), 0, s) for s in steps]
        step = torch.where(todo.unsqueeze(1), secant(steps, -kept.apply(e)), 0)
        length, new, g_new = _shortened(problem, u, eta, x, step, (e * step).sum(1), stale)
        e_new = new - u + eta * g_new
        norm_new = e_new.norm(dim=1)
        # Close to the solution a true Newton step that gains nothing has met the round-off of the gradient.
        ground = ground | (todo & stale & (norm_new > norm / 2) & (norm <= CLOSE * (1 + size)))
        better = todo & ((norm_new < norm) | (stale & (norm > CLOSE * (1 + size))))
        stale = todo & ~(norm_new <= norm / 2)
        mark = better.unsqueeze(1)
        steps = [*(torch.where(mark, s, 0) for s in steps), torch.where(mark & (length == 1), step, 0)]
        x, g, e = torch.where(mark, new, x), torch.where(mark, g_new, g), torch.where(mark, e_new, e)
        norm = torch.where(better, norm_new, norm)
    return Solved(x, g, norm)


def cold(problem: Smooth, u: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """Where to start without a past, and the gradient there: u or 0, whichever is nearer to the solution."""
    zero = torch.zeros_like(u)
    g, g0 = problem.grad(u), problem.grad(zero)
    near = (eta * g).norm(dim=1, keepdim=True) <= (eta * g0 - u).norm(dim=1, keepdim=True)
    return torch.where(near, u, zero), torch.where(near, g, g0)


def secant(steps: list[Tensor], step: Tensor) -> Tensor:
    """Broyden's correction of a step made with a kept Hessian, from the steps before it (zero rows correct nothing)."""
    for s, after in itertools.zip_longest(steps, steps[1:]):
        part = (s * step).sum(1, keepdim=True) / (s * s).sum(1, keepdim=True).clamp_min(TINY)
        step = torch.where(part < 0.9, step / (1 - part), step) if after is None else step + part * after
    return step


def _shortened(
    problem: Smooth, u: Tensor, eta: float, x: Tensor, step: Tensor, slope: Tensor, exact: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The step and its end. With an exact Hessian it is halved until it no longer overshoots the minimum of
    eta f + |. - u|^2 / 2 along it by much: convex there, with slope e . step."""
    length = torch.ones_like(slope)
    while True:
        new = x + length.unsqueeze(1) * step
        g = problem.grad(new)
        ahead = ((new - u + eta * g) * step).sum(1)
        short = exact & ~(ahead <= -slope / 2) & (length > TOO_SHORT)
        if not bool(short.any()):
            return length.unsqueeze(1), new, g
        length = torch.where(short, length / 2, length)
