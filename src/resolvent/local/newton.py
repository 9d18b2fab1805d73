"""The prox by Newton's method, warm-started from earlier rounds: with cached inverses, or by conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.iteration.engine import Ask
from resolvent.iteration.facts import Memory
from resolvent.local.bound import Bound, of_those_asked, rows_of, with_rows
from resolvent.problems.newton.inverses import Inverses, empty_inverses
from resolvent.problems.newton.matrix_free import LOOSE, POINTS, matrix_free_prox
from resolvent.problems.newton.prox import WarmStart, cold_start, newton_prox, retained_points


@dataclass(eq=False)
class Newton(Bound):
    """Newton's method with one cached inverse per user.

    Memory: each user's last answers x and the gradients g there, newest first; the anchor of its cached inverse, with
    the extra steps that this has cost (`debt`); and the error of its last answer. The first step of a round needs no
    gradient: g is known.
    """

    problem: Any
    tol: float
    cached: Inverses | None = None

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = of_those_asked(self.problem, ask)
        u = u.expand(part.users, -1)
        k, d = retained_points(self.problem.dim), self.problem.dim
        memory = memory or _blank(self.problem.users, u, x=(k, d), g=(k, d), debt=(), anchor=(d + 1,), error=())
        inverses = self._inverses(memory["anchor"])
        mine = inverses if ask.who is None else inverses.take(ask.who)
        past = rows_of(memory, ask.who)
        start = _warm(past, past["debt"], past["debt"].isnan(), part, u, ask.eta)
        solved = newton_prox(part, u, ask.eta, start, mine, self.tol)
        if solved.wrong and ask.finite:
            solved.demand(ask.eta, f" in round {ask.t + 1}", ask.among(self.problem.users).names)
        for row in solved.wrong:  # counts for nothing, and begins anew
            solved.warm.x[row] = solved.warm.debt[row] = torch.nan
        now = vars(solved.warm) | {"anchor": mine.anchor, "error": solved.error}
        memory = with_rows(memory, ask.who, now)
        if ask.who is not None:
            inverses.put(ask.who, mine)
        inverses.anchor = memory["anchor"]
        return solved.x, memory

    def _inverses(self, anchor: Tensor) -> Inverses:
        """The inverses at these anchors: the cached ones, or computed again after a resume, with the same bits."""
        if self.cached is None or self.cached.anchor is not anchor:
            self.cached = empty_inverses(self.problem, anchor)
            which = ~anchor[:, 0].isnan()
            if bool(which.any()):
                self.cached.renew(self.problem, which, anchor)
            self.cached.anchor = anchor
        return self.cached


@dataclass(eq=False)
class MatrixFreeNewton(Bound):
    """Newton's method with conjugate gradients, for models of many parameters.

    Memory: each user's last answers x and the gradients g there, newest first, and the error of its last answer. A user
    who has answered before solves to LOOSE times the way that its u has gone since, or to tol: answers become exact as
    a run settles. A first answer is as precise as the way from the start allows.
    """

    problem: Any
    tol: float

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = of_those_asked(self.problem, ask)
        u = u.expand(part.users, -1)
        size = (POINTS, self.problem.dim)
        memory = memory or _blank(self.problem.users, u, x=size, g=size, error=())
        now = {name: rows.clone() for name, rows in rows_of(memory, ask.who).items()}
        names = ask.among(self.problem.users).names
        for who, group in part.groups:
            at: Any = slice(None) if who is None else who
            past, U = {name: rows[at] for name, rows in now.items()}, u[at]
            start = _warm(past, torch.zeros_like(U[:, 0]), past["x"][:, 0, 0].isnan(), group, U, ask.eta)
            solved = matrix_free_prox(group, U, ask.eta, start, self.tol, LOOSE)
            if solved.wrong and ask.finite:
                solved.demand(ask.eta, f" in round {ask.t + 1}", None if names is None else names[at])
            for row in solved.wrong:  # counts for nothing, and begins anew
                solved.warm.x[row] = torch.nan
            now["x"][at], now["g"][at], now["error"][at] = solved.warm.x, solved.warm.g, solved.error
        return now["x"][:, 0], with_rows(memory, ask.who, now)


def _blank(users: int, like: Tensor, **shapes: tuple[int, ...]) -> Memory:
    """The memory of users who have never answered: NaN."""
    return {name: like.new_full((users, *shape), torch.nan) for name, shape in shapes.items()}


def _warm(past: Memory, debt: Tensor, fresh: Tensor, part: Any, u: Tensor, eta: float) -> WarmStart:
    """What users remember; those who have never answered, the fresh ones, begin anew."""
    x, g = past["x"], past["g"]
    if not bool(fresh.any()):
        return WarmStart(x, g, debt)
    new, rows = cold_start(part, u, eta, x.shape[1]), fresh[:, None, None]
    return WarmStart(torch.where(rows, new.x, x), torch.where(rows, new.g, g), torch.where(fresh, new.debt, debt))
