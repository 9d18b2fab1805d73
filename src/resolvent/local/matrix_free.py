"""The prox by Newton's method with conjugate gradients, for models of many parameters, warm-started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.iteration.engine import Ask, Memory, Spread
from resolvent.local.bound import mean_of_rows
from resolvent.local.memory import rows_of, with_rows
from resolvent.problems.newton.matrix_free import LOOSE, POINTS, fresh_start, matrix_free_prox
from resolvent.problems.newton.prox import WarmStart


@dataclass(eq=False)
class MatrixFreeNewton:
    """Memory: each user's last answers x and the gradients g there, newest first, and the error of its last answer.

    A user who has answered before solves to LOOSE times the way that its u has gone since, or to tol: answers become
    exact as a run settles. A first answer is as precise as the way from the start allows.
    """

    problem: Any
    tol: float

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = self.problem if ask.who is None else self.problem.take(ask.who)
        u = u.expand(part.users, -1)
        memory = memory or self._blank(u)
        past = rows_of(memory, ask.who)
        names = ask.among(self.problem.users).names
        now = {name: past[name].clone() for name in past}
        for who, group in part.groups:
            at: Any = slice(None) if who is None else who
            start = _warm(group, u[at], ask.eta, past["x"][at], past["g"][at])
            solved = matrix_free_prox(group, u[at], ask.eta, start, self.tol, LOOSE)
            if solved.wrong:
                solved.demand(ask.eta, f" in round {ask.t + 1}", None if names is None else names[at])
            now["x"][at], now["g"][at], now["error"][at] = solved.warm.x, solved.warm.g, solved.error
        return now["x"][:, 0], with_rows(memory, ask.who, now)

    def _blank(self, like: Tensor) -> Memory:
        m, d = self.problem.users, self.problem.dim
        shapes = {"x": (m, POINTS, d), "g": (m, POINTS, d), "error": (m,)}
        return {name: like.new_full(shape, torch.nan) for name, shape in shapes.items()}

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        return mean_of_rows(self, self.problem.weights, ask, u, memory)


def _warm(part: Any, u: Tensor, eta: float, x: Tensor, g: Tensor) -> WarmStart:
    """What users remember, and a fresh start for those who have never answered."""
    fresh = x[:, 0, 0].isnan()
    debt = torch.zeros_like(u[:, 0])
    if not bool(fresh.any()):
        return WarmStart(x, g, debt)
    new, rows = fresh_start(part, u, eta), fresh[:, None, None]
    return WarmStart(torch.where(rows, new.x, x), torch.where(rows, new.g, g), debt)
