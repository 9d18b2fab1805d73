"""The prox by Newton's method, warm-started from earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.iteration.engine import Ask, Memory, Spread
from resolvent.local.bound import mean_of_rows
from resolvent.local.memory import rows_of, with_rows
from resolvent.problems.newton.inverses import Inverses, empty_inverses
from resolvent.problems.newton.prox import WarmStart, cold_start, newton_prox, retained_points


@dataclass(eq=False)
class Newton:
    """Newton's method, warm-started.

    Memory: each user's last answers x and the gradients g there, newest first; the anchor of its cached inverse, with
    the extra steps that this has cost (`debt`); and the error of its last answer. The first step of a round needs no
    gradient: g is known.
    """

    problem: Any
    tol: float
    cached: Inverses | None = None

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = self.problem if ask.who is None else self.problem.take(ask.who)
        u = u.expand(part.users, -1)
        memory = memory or self._blank(u)
        inverses = self._inverses(memory["anchor"])
        mine = inverses if ask.who is None else inverses.take(ask.who)
        solved = newton_prox(part, u, ask.eta, _warm(part, u, ask.eta, rows_of(memory, ask.who)), mine, self.tol)
        if solved.wrong:
            solved.demand(ask.eta, f" in round {ask.t + 1}", ask.among(self.problem.users).names)
        now = vars(solved.warm) | {"anchor": mine.anchor, "error": solved.error}
        memory = with_rows(memory, ask.who, now)
        if ask.who is not None:
            inverses.put(ask.who, mine)
        inverses.anchor = memory["anchor"]
        return solved.x, memory

    def _blank(self, like: Tensor) -> Memory:
        m, d = self.problem.users, self.problem.dim
        k = retained_points(d)
        shapes = {"x": (m, k, d), "g": (m, k, d), "debt": (m,), "anchor": (m, d + 1), "error": (m,)}
        return {name: like.new_full(shape, torch.nan) for name, shape in shapes.items()}

    def _inverses(self, anchor: Tensor) -> Inverses:
        """The inverses at these anchors: the cached ones, or computed again after a resume, with the same bits."""
        if self.cached is None or self.cached.anchor is not anchor:
            self.cached = empty_inverses(self.problem, anchor)
            which = ~anchor[:, 0].isnan()
            if bool(which.any()):
                self.cached.renew(self.problem, which, anchor)
            self.cached.anchor = anchor
        return self.cached

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        return mean_of_rows(self, self.problem.weights, ask, u, memory)


def _warm(part: Any, u: Tensor, eta: float, past: Memory) -> WarmStart:
    """What users remember, and a cold start for those who have never answered."""
    x, g, debt = past["x"], past["g"], past["debt"]
    fresh = debt.isnan()
    if not bool(fresh.any()):
        return WarmStart(x, g, debt)
    new, rows = cold_start(part, u, eta), fresh[:, None, None]
    return WarmStart(torch.where(rows, new.x, x), torch.where(rows, new.g, g), torch.where(fresh, new.debt, debt))
