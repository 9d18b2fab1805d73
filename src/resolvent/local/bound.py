"""Operators joined to a problem: how the answers of users are computed, all users at once.

A bound operator may cache what it can compute again. What a later round needs from the past travels through `memory`,
a dictionary of (users, ...) tensors with one row per user, which belongs to the run's State.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.engine import Ask, Spread
from resolvent.iteration.facts import Memory
from resolvent.problems.problem import Problem, select
from resolvent.problems.quadratic.affine import Affine


class Bound(Protocol):
    """An operator joined to a problem."""

    problem: Any

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The answers p of the users asked, one row each; u has their rows, or one row that they share."""

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        """mean(p), (1, d), of users who share u (1, d), and the spread of their answers."""
        p, memory = self.rows(ask, u, memory)
        return *mean_and_spread(self.problem.weights, ask, p), memory


@dataclass(eq=False)
class Plain(Bound):
    """An operator without a past: a function of (problem, ask, u)."""

    problem: Problem
    answer: Callable[[Problem, Ask, Tensor], Tensor]

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = of_those_asked(self.problem, ask)
        rows = u.expand(part.users, -1)
        return row_for_each(self.answer(part, ask.among(self.problem.users), rows), rows), memory


def row_for_each(p: Any, u: Tensor) -> Tensor:
    """An operator's answer at u, refused where it is of another shape: it would be broadcast."""
    if not isinstance(p, Tensor) or p.shape != u.shape:
        came = f"of shape {tuple(p.shape)}" if isinstance(p, Tensor) else f"a {type(p).__name__}"
        refuse("the answer of local", came, f"{tuple(u.shape)}, a row for each user who is asked, is needed")
    return p


@dataclass(eq=False)
class Filter(Bound):
    """On quadratics, the operator that goes the share c(eta, s) of the way to the minimiser along each eigenvector, of
    eigenvalue s. Its maps are cached while eta stays the same."""

    problem: Any
    share: Callable[[float, Tensor], Tensor]
    steady: bool
    cached: tuple[float, Affine] | None = None

    def maps(self, eta: float) -> Affine:
        if self.cached is None or self.cached[0] != eta:
            self.cached = (eta, self.problem.filtered(lambda s: self.share(eta, s), self.steady))
        return self.cached[1]

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return self.maps(ask.eta)(u, ask.who), memory

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        if ask.who is not None:
            return super().mean(ask, u, memory)
        maps = self.maps(ask.eta)
        return maps.mean(u), maps.spread, memory


def of_those_asked(problem: Any, ask: Ask) -> Any:
    """The problem of the users who are asked."""
    return problem if ask.who is None else problem.take(ask.who)


def mean_and_spread(weights: Tensor, ask: Ask, p: Tensor) -> tuple[Tensor, Spread]:
    """The weighted mean (1, d) of answers, and their spread around it."""
    lam = weights if ask.who is None else select(weights, ask.who)
    mean = (lam @ p).unsqueeze(0)
    spread = (lam @ (p - mean).square().sum(1)).unsqueeze(0)
    return mean, lambda u: spread


def rows_of(memory: Memory, who: Tensor | None) -> Memory:
    """The memory of some users; None: of all."""
    return memory if who is None else {name: tensor[who] for name, tensor in memory.items()}


def with_rows(memory: Memory, who: Tensor | None, now: Memory) -> Memory:
    """What all users remember once some of them remember `now`. `memory` has every entry of it, or all users do."""
    if who is None:
        return memory | now
    return memory | {name: memory[name].index_copy(0, who, rows) for name, rows in now.items()}
