"""Operators joined to a problem: how the answers of users are computed, all users at once.

A bound operator may cache what it can compute again. What a later round needs from the past travels through `memory`
(memory.py), which belongs to the run's State.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from resolvent.iteration.engine import Ask, Memory, Spread
from resolvent.problems.problem import Problem, select


class Bound(Protocol):
    """An operator joined to a problem."""

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The answers p of the users asked, one row each; u has their rows, or one row that they share."""
        ...

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        """mean(p), (1, d), of users who share u (1, d), and the spread of their answers."""
        ...


@dataclass(eq=False)
class Plain:
    """An operator without a past: a function of (problem, ask, u)."""

    problem: Problem
    answer: Callable[[Problem, Ask, Tensor], Tensor]

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = self.problem if ask.who is None else self.problem.take(ask.who)
        return self.answer(part, ask.among(self.problem.users), u.expand(part.users, -1)), memory

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        return mean_of_rows(self, self.problem.weights, ask, u, memory)


def mean_of_rows(bound: Bound, weights: Tensor, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
    """The mean of the answers, for operators that compute it from all answers."""
    p, memory = bound.rows(ask, u, memory)
    return *mean_and_spread(weights, ask, p), memory


def mean_and_spread(weights: Tensor, ask: Ask, p: Tensor) -> tuple[Tensor, Spread]:
    """The weighted mean (1, d) of answers, and their spread around it."""
    lam = weights if ask.who is None else select(weights, ask.who)
    mean = (lam @ p).unsqueeze(0)
    spread = (lam @ (p - mean).square().sum(1)).unsqueeze(0)
    return mean, lambda u: spread
