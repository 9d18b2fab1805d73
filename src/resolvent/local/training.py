"""Gradient steps of users: on networks with what those remember between rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import BlewUp
from resolvent.iteration.engine import PERSONAL, Ask, Spread
from resolvent.iteration.facts import Memory
from resolvent.local.bound import Bound, Plain, mean_and_spread, of_those_asked, row_for_each, rows_of, with_rows
from resolvent.local.descent import seeds_in_turn


def stepping(problem: Any, answer: Callable[[Any, Ask, Tensor], Tensor], repeats: bool = False) -> Bound:
    """An operator that asks for gradients only: `answer(part, ask, u)` gives p, one row per user of `part`.

    On a network `part` trains: its gradients are of training mode, and it retains each user's buffers. `repeats`: every
    round computes the same function of u and the centre.
    """
    return Trained(problem, answer, repeats) if "training" in problem.offers else Plain(problem, answer)


@dataclass(eq=False)
class Trained(Bound):
    """Networks. Memory: each user's buffers, such as running means, and the latest answers of users who share u."""

    problem: Any
    answer: Callable[[Any, Ask, Tensor], Tensor]
    repeats: bool = False
    """Whether every round computes the same function of u and the centre. Then, on CUDA, its steps are one launch."""
    captured: tuple[float, Callable[..., Tensor]] | None = None
    elsewhere: Callable[[Ask, Tensor, Memory], tuple[Tensor, Memory]] | None = None
    """Who computes what `compute` would, for all users: several runs may do it at once."""

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        who, u = ask.who, u.expand(self.problem.users if ask.who is None else len(ask.who), -1)
        compute = self.compute if self.elsewhere is None or who is not None else self.elsewhere
        p, now = compute(ask, u, memory)
        _finite(p, ask)
        return p, self._remembered(memory, who, now)

    def compute(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The answers at rows u, one per user asked, whatever they are, and what these users remember now."""
        who = ask.who
        if self.repeats and who is None and self.problem.stateless:
            if self.captured is None or self.captured[0] != ask.eta:
                self.captured = ask.eta, self.problem.captured(partial(self._repeated, ask._replace(centre=None)))
            with self.problem.working():
                return self.captured[1](u, *([] if ask.centre is None else [ask.centre])).clone(), {}
        part, among = of_those_asked(self.problem, ask), ask.among(self.problem.users)
        part = part.remembering(rows_of(memory, who), seeds_in_turn(part, among))
        with part.working():
            p = row_for_each(self.answer(part, among, u), u)
        return p, part.memory()

    def _repeated(self, ask: Ask, u: Tensor, centre: Tensor | None = None) -> Tensor:
        return self.answer(self.problem, ask._replace(centre=centre), u)

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        p, memory = self.rows(ask, u, memory)
        mean, spread = mean_and_spread(self.problem.weights, ask, p)
        return mean, spread, self._remembered(memory, ask.who, {PERSONAL: p})

    def _remembered(self, memory: Memory, who: Tensor | None, now: Memory) -> Memory:
        """What all users remember. Users who have never answered remember what the problem begins with."""
        if who is not None and not now.keys() <= memory.keys():
            first = {PERSONAL: self.problem.start.expand(self.problem.users, -1)}
            begun = self.problem.remembering({}).memory() | first
            memory = {name: begun[name] for name in now} | memory
        return with_rows(memory, who, now)


def _finite(p: Tensor, ask: Ask) -> None:
    """Raise BlewUp, with the user's name, where an answer is not finite."""
    if not ask.finite:
        return
    bad = ~torch.isfinite(p).all(1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        user = first if ask.who is None else int(ask.who[first])
        user = user if ask.names is None else int(ask.names[user])
        raise BlewUp(
            f"user {user} answered NaN or infinity in round {ask.t + 1} (eta = {ask.eta:g}): its loss became infinite "
            "or was NaN from the first step; check that user's data, or take smaller local steps"
        )
