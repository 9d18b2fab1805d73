"""Operators joined to a problem: how users' answers are computed, all at once, and what is kept between rounds.

A bound operator may keep caches, but what a later round needs from the past travels through `memory`, a dictionary of
(users, ...) tensors that belongs to the run's State.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.errors import BlewUp
from resolvent.iteration.engine import PERSONAL, Ask, Memory, Spread
from resolvent.problems.newton.factors import Factors, factors
from resolvent.problems.newton.prox import Guess, cold, newton_prox, points
from resolvent.problems.problem import Problem, select
from resolvent.problems.quadratic.affine import Affine


class Bound(Protocol):
    """An operator joined to a problem."""

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The answers p of those asked, a row each; u has their rows, or one row which they share."""
        ...

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        """mean(p), (1, d), of users who share u (1, d), and how far their answers are apart."""
        ...


@dataclass(eq=False)
class Filter:
    """Any operator on quadratics: a share c(eta, s) along each eigenvector, its maps kept while eta stays."""

    problem: Any
    share: Callable[[float, Tensor], Tensor]
    steady: bool
    kept: tuple[float, Affine] | None = None

    def maps(self, eta: float) -> Affine:
        if self.kept is None or self.kept[0] != eta:
            self.kept = (eta, self.problem.filtered(lambda s: self.share(eta, s), self.steady))
        return self.kept[1]

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return self.maps(ask.eta)(u, ask.who), memory

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        if ask.who is not None:
            return mean_of_rows(self, self.problem.weights, ask, u, memory)
        maps = self.maps(ask.eta)
        return maps.mean(u), maps.spread, memory


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


@dataclass(eq=False)
class Trained:
    """Networks. Memory: each user's buffers, running means say, and the latest answers of users who share u."""

    problem: Any
    answer: Callable[[Any, Ask, Tensor], Tensor]
    repeats: bool = False
    """Whether every round computes the same function of u: then, on CUDA, all of its steps are one launch."""
    captured: tuple[float, Callable[[Tensor], Tensor]] | None = None

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        who, u = ask.who, u.expand(self.problem.users if ask.who is None else len(ask.who), -1)
        past = memory if who is None else {name: tensor[who] for name, tensor in memory.items()}
        if self.repeats and who is None and u.is_cuda and self.problem.stateless:
            if self.captured is None or self.captured[0] != ask.eta:
                self.captured = ask.eta, self.problem.captured(lambda u: self.answer(self.problem, ask, u))
            p, now = self.captured[1](u).clone(), {}
        else:
            part = (self.problem if who is None else self.problem.take(who)).remembering(past)
            with part.working():
                p = self.answer(part, ask.among(self.problem.users), u)
            now = part.memory()
        _finite(p, ask)
        return p, self._kept(now, who, memory)

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        p, memory = self.rows(ask, u, memory)
        mean, spread = mean_and_spread(self.problem.weights, ask, p)
        return mean, spread, self._kept({PERSONAL: p}, ask.who, memory)

    def _kept(self, now: Memory, who: Tensor | None, memory: Memory) -> Memory:
        """Memory with what those asked have now; users who never answered have what the problem begins with."""
        if who is None:
            return memory | now
        begun = self.problem.remembering({}).memory() | {PERSONAL: self.problem.start.expand(self.problem.users, -1)}
        old = {name: memory.get(name, begun[name]) for name in now}
        return memory | {name: old[name].index_copy(0, who, rows) for name, rows in now.items()}


def _finite(p: Tensor, ask: Ask) -> None:
    """Refuse answers that are not finite, with the user's name."""
    bad = ~torch.isfinite(p).all(1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        user = first if ask.who is None else int(ask.who[first])
        raise BlewUp(
            f"user {user} answered NaN or infinity in round {ask.t + 1} (eta = {ask.eta:g}): its loss blew up or was "
            "none from the start; look at that user's data, or take smaller local steps"
        )


@dataclass(eq=False)
class Newton:
    """Newton's method, warm-started. Memory: each user's last answers x and the gradients g there, newest first, the
    anchor of its kept factorisation with the steps it owes, and the error of its last answer. The first step of a round
    needs no gradient: g is known."""

    problem: Any
    tol: float
    kept: Factors | None = None

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = self.problem if ask.who is None else self.problem.take(ask.who)
        u = u.expand(part.users, -1)
        memory = memory or self._blank(u)
        kept = self._kept(memory["anchor"])
        mine, past = kept, memory
        if ask.who is not None:
            mine, past = kept.take(ask.who), {key: tensor[ask.who] for key, tensor in memory.items()}
        solved = newton_prox(part, u, ask.eta, self._guess(part, u, ask.eta, past), mine, self.tol)
        if solved.wrong:
            solved.demand(ask.eta, f" in round {ask.t + 1}", ask.among(self.problem.users).names)
        now = vars(solved.guess) | {"anchor": mine.anchor, "error": solved.error}
        if ask.who is not None:
            now = {key: memory[key].index_copy(0, ask.who, rows) for key, rows in now.items()}
            kept.put(ask.who, mine)
        kept.anchor = now["anchor"]
        return solved.x, now

    def _blank(self, like: Tensor) -> Memory:
        m, d = self.problem.users, self.problem.dim
        k = points(d)
        shapes = {"x": (m, k, d), "g": (m, k, d), "debt": (m,), "anchor": (m, d + 1), "error": (m,)}
        return {name: like.new_full(shape, torch.nan) for name, shape in shapes.items()}

    def _guess(self, part: Any, u: Tensor, eta: float, past: Memory) -> Guess:
        x, g, debt = past["x"], past["g"], past["debt"]
        fresh = debt.isnan()
        if not bool(fresh.any()):
            return Guess(x, g, debt)
        new, rows = cold(part, u, eta), fresh[:, None, None]
        return Guess(torch.where(rows, new.x, x), torch.where(rows, new.g, g), torch.where(fresh, new.debt, debt))

    def _kept(self, anchor: Tensor) -> Factors:
        """The factorisations at these anchors: those at hand, or made anew after a resume, with the same bits."""
        if self.kept is None or self.kept.anchor is not anchor:
            self.kept = factors(self.problem, anchor)
            which = ~anchor[:, 0].isnan()
            if bool(which.any()):
                self.kept.renew(self.problem, which, anchor)
            self.kept.anchor = anchor
        return self.kept

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        return mean_of_rows(self, self.problem.weights, ask, u, memory)


def mean_of_rows(bound: Bound, weights: Tensor, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
    """The mean of the answers where there is no shorter way than asking for all of them."""
    p, memory = bound.rows(ask, u, memory)
    return *mean_and_spread(weights, ask, p), memory


def mean_and_spread(weights: Tensor, ask: Ask, p: Tensor) -> tuple[Tensor, Spread]:
    """The weighted mean (1, d) of answers, and how far they are apart."""
    lam = weights if ask.who is None else select(weights, ask.who)
    mean = (lam @ p).unsqueeze(0)
    spread = (lam @ (p - mean).square().sum(1)).unsqueeze(0)
    return mean, lambda u: spread
