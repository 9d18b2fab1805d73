"""Answers that take time: any engine, with simulated delays, which are known for all users, wherever they live.

A question starts every user who is not at work. Its answer is computed at once and delivered when its time has come: in
the round that closes after it. What is under way travels in the memory of the run, so a resumed run goes on with it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from resolvent.iteration.engine import Answers, Ask, Curvature, Engine, Look, MeanAnswer, Present, Traffic
from resolvent.iteration.facts import Facts, Memory
from resolvent.iteration.metric import moved
from resolvent.iteration.participation import Participation, Stragglers
from resolvent.iteration.state import State

PREFIX = "delayed."
"""The entries of the memory that belong to this engine; the others are the users'."""


def delayed(engine: Engine, participation: Participation) -> Engine:
    """The engine itself, or with the delays of rs.Stragglers."""
    return Delayed(engine, participation) if isinstance(participation, Stragglers) else engine


def forget_delays(engine: Engine, state: State) -> State:
    """A state as an engine without delays goes on from it: what was under way never arrives."""
    if isinstance(engine, Delayed) or not any(name.startswith(PREFIX) for name in state.memory):
        return state
    users = {name: tensor for name, tensor in state.memory.items() if not name.startswith(PREFIX)}
    return replace(state, memory=users)


class Delayed:
    """An engine whose answers arrive late."""

    def __init__(self, engine: Engine, stragglers: Stragglers) -> None:
        self.engine, self.stragglers = engine, stragglers

    @property
    def facts(self) -> Facts:
        return self.engine.facts

    @property
    def traffic(self) -> Traffic | None:
        return self.engine.traffic

    def __enter__(self) -> Self:
        self.engine.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.__exit__(*error)

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        users = {name: tensor for name, tensor in memory.items() if not name.startswith(PREFIX)}
        under_way = {name: tensor for name, tensor in memory.items() if name.startswith(PREFIX)} or self._nothing(u)
        at, p, due, eta, clock = (under_way[PREFIX + name] for name in ("at", "p", "due", "eta", "clock"))
        at, eta = self._now(at, p, eta, ask)
        idle = due.isinf().nonzero().flatten()
        error, shown = (under_way.get(PREFIX + name) for name in ("error_under_way", "error"))
        if len(idle):
            here = self._here(idle)
            answers = self.engine.local(ask._replace(who=here), u[here], users)
            takes = torch.from_numpy(self.stragglers.seconds(ask.seed, ask.t, len(due))).to(due)
            at, p = at.index_copy(0, here, u[here]), p.index_copy(0, here, answers.p)
            due, eta = due.index_copy(0, idle, clock + takes[idle]), eta.index_fill(0, here, ask.eta)
            users, error = answers.memory, answers.error
        clock = due.sort().values[max(math.ceil(self.stragglers.close * len(due)), 1) - 1].unsqueeze(0)
        arrived = (due <= clock).nonzero().flatten()
        under_way = {"at": at, "p": p, "due": due.index_fill(0, arrived, math.inf), "eta": eta, "clock": clock}
        who = self._here(arrived)
        if error is not None:  # the bound of an answer belongs to p once the answer has arrived
            shown = error if shown is None else shown.index_copy(0, who, error[who])
            under_way |= {"error": shown, "error_under_way": error}
        memory = users | {PREFIX + name: tensor for name, tensor in under_way.items()}
        return Answers(who, at[who], p[who], memory, shown, len(arrived), float(clock), len(idle))

    def _here(self, who: Tensor) -> Tensor:
        """Those of these users who live here, by index among them."""
        here = self.engine.present(who).who
        assert here is not None
        return here

    def _now(self, at: Tensor, p: Tensor, asked: Tensor, ask: Ask) -> tuple[Tensor, Tensor]:
        """The points that answers under way belong to at today's eta and metric, and the eta of each.

        p = prox_eta f(u) means that g = (u - p) / eta is a subgradient at p, so p is as well the prox of p + eta' g at
        eta'. Gradient steps have no such point: their answers stay where they were asked.
        """
        before = ask.metric_before
        changed = (asked > 0) & ((asked != ask.eta) | (before is not ask.metric))
        if self.facts.operator.certifies != "p" or not bool(changed.any()):
            return at, asked
        ratio = (ask.eta / torch.where(changed, asked, 1)).unsqueeze(1).to(p)
        now = p + ratio * moved(at - p, torch.zeros_like(p), (1.0, before), (1.0, ask.metric))
        return torch.where(changed.unsqueeze(1), now, at), torch.where(changed, ask.eta, asked)

    def _nothing(self, u: Tensor) -> Memory:
        nobody = u.new_full((self.facts.users,), math.inf, dtype=torch.float64)
        begun = {"at": u, "p": u, "due": nobody, "eta": nobody.new_zeros(len(u)), "clock": nobody.new_zeros(1)}
        return {PREFIX + name: tensor for name, tensor in begun.items()}

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        raise NotImplementedError("users with delays never share one u")

    def present(self, who: Tensor | None) -> Present:
        return self.engine.present(who)

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        return self.engine.mean(z, who, news)

    def gram(self, rows: Tensor) -> Tensor:
        return self.engine.gram(rows)

    def every(self, flags: Tensor) -> bool:
        return self.engine.every(flags)

    def curvature(self, w: Tensor) -> Curvature | None:
        return self.engine.curvature(w)

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        return self.engine.measure(w)

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        return self.engine.inspect(w, p, memory, look)
