"""Round and THE LOOP: a generator over an engine. Stopping, recording and showing wrap it from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.iteration.acceleration import Gram
from resolvent.iteration.certificates import Certificates, Evidence, certificates, gather
from resolvent.iteration.engine import Ask, Engine, Look, Present, Spread
from resolvent.iteration.facts import Memory
from resolvent.iteration.meeting import Gathering, Met
from resolvent.iteration.metric import Metric, moved
from resolvent.iteration.part import Cost
from resolvent.iteration.participation import Presence
from resolvent.iteration.parts import Memories, Parts
from resolvent.iteration.scheme import Scheme, mix
from resolvent.iteration.state import State

PLAIN = Parts()
DOWNWARDS = 1 << 40
"""Added to the number of a round where coordinates are drawn for the way down: others than for the way up."""


class Round(NamedTuple):
    """What happened in a round. Metrics are methods: nothing is computed until somebody asks."""

    state: State
    eta: float
    who: Tensor | None
    """Who answered, by index among the users here; None: everyone."""
    participants: int
    """How many answered, wherever they live."""
    step: tuple[Tensor, Tensor] | None
    """u and T u, T u from the meeting point as it was, before any extrapolation."""
    spread: Spread | None
    engine: Engine
    clock: float | None = None
    """When the round was closed, in seconds since the run began, where the engine keeps time."""
    meeting: Met | None = None
    """Where users met, before any extrapolation."""
    asked: int = 0
    """How many were sent a question, wherever they live; an answer may come in a later round."""
    cost: Cost = Cost()
    """Numbers that crossed in all, beside the questions and answers: for an automatic eta."""
    unsent: Tensor | None = None
    """beta gamma (z - zhat), (users here, d): how far what the meeting lacks could move T u; None: it has all of z."""
    look: Callable[[Round], dict[str, float]] | None = None
    """Computes `metrics`, where a run has more to say than the engine."""

    @property
    def number(self) -> int:
        """1, 2, ..."""
        return self.state.round

    @property
    def together(self) -> bool:
        """Whether users share one u."""
        return self.state.together

    @property
    def model(self) -> Tensor:
        """mean(z), (1, d), or the prox of g of it; with Anderson, of the last accepted point."""
        return self.state.w

    @property
    def metrics(self) -> dict[str, float]:
        """The value and gap of the model, and what is measured on validation and test data, computed when asked for."""
        if self.look is not None:
            return self.look(self)
        found = self.engine.inspect(self.state.w, self.state.p, self.state.memory, Look())
        if found is not None:
            return found
        return {name: float(values[0]) for name, values in self.engine.measure(self.state.w).items()}

    @property
    def value(self) -> float:
        """f of the model."""
        return self.metrics["value"]

    @property
    def certified(self) -> bool:
        """Whether every user's p belongs to the u beside it, is what a certificate needs, and is known at the meeting.

        A meeting that lacks a part of z knows neither mean(p) nor how far the p_i are apart.
        """
        state = self.state
        presence = state.parts.participation
        current = presence.complete and presence.z is None and state.aligned and self.step is not None
        certifies = self.engine.facts.operator.certifies is not None and self.unsent is None
        return certifies and current and not (self.together and self.who is not None)

    def evidence(self) -> Evidence | None:
        """What the residual and the certificates are computed from; None if nobody came."""
        if self.step is None:
            return None
        state, certified = self.state, self.certified
        error = None if state.error is None or not certified else self.engine.facts.peers.largest(state.error)
        p = state.p if certified else None
        meeting = None if self.meeting is None or self.meeting.normal is None else self.meeting
        return gather(
            self.engine, self.eta, self.step, p, self.spread, error, meeting, state.together, self.unsent, state.metric
        )

    @property
    def certificates(self) -> Certificates:
        """The residual, stationarity and consensus of this round."""
        return certificates([self.evidence()])[0]

    @property
    def residual(self) -> float:
        """|T u - u| in the lambda norm and the metric, plus |`unsent`|: a bound where the meeting lacks a part of z."""
        if self.step is None:
            return math.nan
        u, Tu = self.step
        rows = [Tu - u] if self.unsent is None else [Tu - u, self.unsent]
        gram = in_metric(self.engine, self.state.metric)
        return sum(math.sqrt(x) for x in gram(torch.stack(rows)).diagonal().tolist())

    @property
    def stationarity(self) -> float:
        """|sum_i lambda_i g_i + n|, g_i = (u_i - p_i) / eta, with n the subgradient of a penalty g at the model; where
        the operator bounds its error, the bound is added."""
        return self.certificates.stationarity

    @property
    def consensus(self) -> float:
        """How far the users' certified points are apart: sqrt(sum_i lambda_i |p_i - mean(p)|^2); with a penalty,
        from the model."""
        return self.certificates.consensus


def rounds(engine: Engine, scheme: Scheme, state: State, parts: Parts = PLAIN, seed: int = 0) -> Iterator[Round]:
    """The scheme, for ever. A round moves, then asks, then meets, so that every p_i belongs to the u_i beside it."""
    participation, send, meet = parts.participation, parts.send, parts.meet
    accelerate, step_size, average = parts.accelerate, parts.eta, parts.average
    down, lagging = parts.down, engine.facts.encodes and parts.send.compresses
    weigh = partial(engine.mean, news=True) if send.compresses else engine.mean
    facts, mixing, steady = engine.facts, scheme.fixed_mixing, step_size.fixed(scheme)  # what never changes: read once
    printed = participation.sampling(scheme)
    users, names, weights, centred = facts.users, facts.numbers, facts.weights, facts.wants_centre
    while True:
        t, past = state.round, state.parts
        asked = engine.present(participation.present(seed, t, users))
        if asked.came == 0 and not meet.releases:  # nobody came: nothing happens
            state = replace(state, round=t + 1, parts=replace(past, average=average.skip(past.average, t)))
            yield Round(state, state.eta, asked.who, 0, None, None, engine)
            continue
        eta, tuned, cost, looked, metric = steady or step_size(engine, scheme, state, meet)
        if looked and send.compresses and state.next is not None and not lagging:
            cost += Cost(up=users * facts.dim)  # at mean(p), which the meeting does not have
        before = state.metric if t else metric
        if t > 0 and (eta != state.eta or metric is not state.metric):
            past = replace(past, accelerate=accelerate.restart(past.accelerate))
            state = _changed(engine, scheme, parts, replace(state, parts=past), eta, metric)
        gram = in_metric(engine, metric)
        alpha, beta, gamma = mixing or scheme.mixing(t)

        ask = Ask(
            t, eta, asked.who, seed, names, metric=metric, metric_before=before, send=send, down=down, alpha=alpha,
            finite=not meet.releases,
        )  # fmt: skip
        u, p, presence, answer = _answered(engine, ask, state, asked, centred, meet.releases)
        who = answer.who
        if answer.came == 0 and not meet.releases:  # nobody has answered yet: only what users remember has changed
            left = replace(state.parts, average=average.skip(past.average, t))
            state = replace(state, round=t + 1, memory=answer.memory, parts=left)
            yield Round(state, state.eta, who, 0, None, None, engine, answer.clock, asked=answer.asked, cost=cost)
            continue

        z = mix(u, p, alpha)  # (gFL-1)
        presence, z, whose = presence.gathered(z, who)
        whoever = ask if who is ask.who else ask._replace(who=who)
        zhat, sent = (z, send.begin(z)) if lagging else send(z, past.send, whoever)
        step = alpha * eta / beta if beta else 0.0
        meeting, convened = meet(Gathering(zhat, whose, weigh, weights, step, t, seed, metric, facts.secret), past.meet)
        w = meeting.w if printed is None else printed.meeting(meeting.w, p, who, engine.mean)
        met, accelerated = accelerate.on_mean(past.accelerate, state.met, w, gram)
        Tu = _rows(mix(u, mix(z, met, beta), gamma), u)  # (gFL-2), (gFL-3)
        plain = Tu if met is w else _rows(mix(u, mix(z, w, beta), gamma), u)  # T itself does not extrapolate
        ahead, accelerated = accelerate.on_u(accelerated, u, Tu, gram)
        model = w if accelerated.accepted else state.w
        convened = meet.moved(convened, met, beta, gamma)
        moved_by: tuple[Tensor, Tensor] | None = (u, plain)
        if meet.releases:  # what nobody asks for again is forgotten, and who came is not told
            p, presence, moved_by = p if presence.seen is not None else u, presence.forgotten(u), None
            answer = answer._replace(came=meet.shown(answer.came), asked=meet.shown(answer.asked), error=None)

        averaged = average.include(past.average, t, eta, model)
        state = State(
            round=t + 1,
            u=u,
            p=p,
            w=model,
            met=met,
            eta=eta,
            metric=metric,
            next=ahead,
            memory=answer.memory,
            error=answer.error,
            parts=Memories(presence, sent, convened, accelerated, tuned, averaged, answer.down),
            aligned=who is None or (state.aligned and (eta == state.eta or math.isnan(state.eta))),
            together=state.together,
        )
        unsent = None if zhat is z else beta * gamma * (z - zhat)
        if lagging:
            unsent = _lag(answer.error, u, alpha * gamma * max(1.0, abs(1 - beta)), metric)
        yield Round(
            state, eta, who, answer.came, moved_by, answer.spread, engine, answer.clock, meeting, answer.asked, cost,
            unsent,
        )  # fmt: skip


def _rows(x: Tensor, u: Tensor) -> Tensor:
    """x with as many rows as u: where beta = gamma = 1 everybody moves to the meeting point, which is one row."""
    return x if x.shape == u.shape else x.expand_as(u)


def _lag(error: Tensor | None, u: Tensor, most: float, metric: Metric | None) -> Tensor | None:
    """Rows as long as what has not crossed could move T u at most, from the users' bounds on |p_i - what they sent|.

    Of users who have not answered nothing is known, and nothing counts. In a metric lengths depend on the direction.
    """
    if error is None:
        return None
    rows = torch.zeros_like(u)
    rows[:, 0] = most * error.nan_to_num(0.0).to(u) if metric is None else torch.nan
    return rows


class Answered(NamedTuple):
    """What came back in a round, beside u and p."""

    who: Tensor | None
    memory: Memory
    error: Tensor | None
    came: int
    """How many answered, wherever they live."""
    asked: int
    """How many were sent a question, wherever they live."""
    clock: float | None = None
    spread: Spread | None = None
    down: Any = None
    """What is remembered of where users are."""


def _answered(
    engine: Engine, ask: Ask, state: State, asked: Present, centred: bool, releases: bool = False
) -> tuple[Tensor, Tensor, Presence, Answered]:
    """Ask users where the last meeting sent them: u, p and who has taken part afterwards, and what came back.

    centred: whether they are told mean(u) as well; where only a meeting `releases` anything, what stands for it there.
    """
    presence = state.parts.participation
    if state.together:
        u = state.u if state.next is None else state.next
        mean = engine.local_mean(ask._replace(centre=u) if centred else ask, u, state.memory)
        who, came = ask.who if mean.who is None else mean.who, mean.came
        came = came if came is not None else asked.came if who is None else len(who)
        back = Answered(who, mean.memory, mean.error, came, asked.came, None, mean.spread, state.parts.down)
        return u, mean.p, presence, back
    rest, at = presence.asked_at(state.u, state.next, ask.who)
    if centred:
        where = at if ask.who is None else rest.index_copy(0, ask.who, at)
        if presence.follows and state.next is not None:
            where = state.next
        ask = ask._replace(centre=state.parts.meet.centre if releases else engine.mean(where))
    down, known = ask.down, state.parts.down
    if (
        down.compresses and not engine.facts.encodes
    ):  # users are where they have been told: what was sent to them moves them from where they answered last
        rows = at if ask.who is None else known.zhat.index_copy(0, ask.who, at)
        at = down(rows, known, ask._replace(t=ask.t + DOWNWARDS))[0]
        at = at if ask.who is None else at[ask.who]
    if asked.came == 0:
        return rest, rest, presence, Answered(ask.who, state.memory, None, 0, 0, down=known)
    answers = engine.local(ask, at, state.memory)
    who, came = answers.who, answers.came
    came = came if came is not None else asked.came if who is None else len(who)
    questions = asked.came if answers.asked is None else answers.asked
    if down.compresses:
        known = replace(known, zhat=answers.at if who is None else known.zhat.index_copy(0, who, answers.at))
    back = Answered(who, answers.memory, answers.error, came, questions, answers.clock, None, known)
    if came == 0:
        return state.u, state.p, presence, back
    u, p = answers.at, answers.p
    if who is not None:
        u, p = rest.index_copy(0, who, u), state.p.index_copy(0, who, p)
    return u, p, presence.after(who, engine.every), back


def in_metric(engine: Engine, metric: Metric | None) -> Gram:
    """Inner products of stacks of rows, sum_i lambda_i <a_i, M b_i>."""
    return engine.gram if metric is None else lambda rows: engine.gram(metric.coordinates(rows))


def _changed(engine: Engine, scheme: Scheme, parts: Parts, state: State, eta: float, metric: Metric | None) -> State:
    """A new eta or metric. A scheme exact in any keeps every p_i and g_i = M (u_i - p_i) / eta."""
    presence = state.parts.participation
    if not scheme.exact or presence.z is not None or state.next is None or parts.meet.releases:
        return state
    alpha, beta, gamma = scheme.mixing(state.round - 1)
    u = moved(state.u, state.p, (state.eta, state.metric), (eta, metric))
    z = mix(u, state.p, alpha)
    zhat = z if engine.facts.encodes else parts.send.unchanged(z, state.parts.send)
    gathering = Gathering(zhat, presence.whose, engine.mean, engine.facts.weights, alpha * eta / beta, state.round)
    gathering = gathering._replace(metric=metric)
    met = parts.meet(gathering, state.parts.meet)[0].w
    return replace(state, u=u, eta=eta, metric=metric, met=met, next=_rows(mix(u, mix(z, met, beta), gamma), u))
