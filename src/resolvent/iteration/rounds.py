"""THE LOOP: a generator over an engine. Stopping, recording and showing wrap it from outside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from resolvent.iteration.asking import Answered, answered
from resolvent.iteration.engine import Ask, Engine
from resolvent.iteration.meeting import Gathering, Meet
from resolvent.iteration.metric import moved
from resolvent.iteration.part import Cost
from resolvent.iteration.participation import Presence
from resolvent.iteration.parts import Memories, Parts
from resolvent.iteration.round import Round, gram_in
from resolvent.iteration.scheme import Scheme, mix
from resolvent.iteration.state import State
from resolvent.iteration.tuning import Chosen

PLAIN = Parts()


def rounds(engine: Engine, scheme: Scheme, state: State, parts: Parts = PLAIN, seed: int = 0) -> Iterator[Round]:
    """The scheme, for ever. A round moves, then asks, then meets, so that every p_i belongs to the u_i beside it."""
    send, meet, accelerate, average = parts.send, parts.meet, parts.accelerate, parts.average
    facts, mixing, steady = engine.facts, scheme.fixed_mixing, parts.eta.fixed(scheme)  # what never changes: read once
    weigh = partial(engine.mean, news=True) if send.compresses else engine.mean
    encoded = facts.encodes and send.compresses  # users send zhat themselves: z is not here
    printed, waits = parts.participation.sampling(scheme), not meet.releases
    while True:
        t = state.round
        asked = engine.present(parts.participation.present(seed, t, facts.users))
        if asked.came == 0 and waits:  # nobody came: nothing happens
            state = _unmoved(state, parts)
            yield Round(state, state.eta, asked.who, 0, None, None, engine)
            continue
        chosen = steady or parts.eta(engine, scheme, state, meet)
        eta, metric, cost = chosen.eta, chosen.metric, _cost(chosen, engine, state, parts)
        alpha, beta, gamma = mixing or scheme.mixing(t)
        before, gram = state.metric if t else metric, gram_in(engine, metric)
        if t > 0 and (eta != state.eta or metric is not state.metric):
            state = _changed(engine, scheme, parts, state, chosen)

        ask = Ask(t, eta, asked.who, seed, facts.numbers, None, None, metric, before, send, parts.down, alpha, waits)
        answer = answered(engine, ask, state, asked, meet)
        u, p, who, past = answer.u, answer.p, answer.who, state.parts
        if answer.came == 0 and waits:  # nobody has answered yet: only what users remember has changed
            state = _unmoved(replace(state, memory=answer.memory), parts)
            yield Round(state, state.eta, who, 0, None, None, engine, answer.clock, asked=answer.asked, cost=cost)
            continue

        z = mix(u, p, alpha)  # (gFL-1)
        presence, z, whose = answer.presence.gathered(z, who)
        zhat, sent = (z, send.begin(z)) if encoded else send(z, past.send, ask._replace(who=who))
        step = alpha * eta / beta if beta else 0.0
        gathering = Gathering(zhat, whose, weigh, facts.weights, step, t, seed, metric, facts.secret)
        meeting, convened = meet(gathering, past.meet)
        w = meeting.w if printed is None else printed.meeting(meeting.w, p, who, engine.mean)
        met, accelerated = accelerate.on_mean(past.accelerate, state.met, w, gram)
        Tu = _rows(mix(u, mix(z, met, beta), gamma), u)  # (gFL-2), (gFL-3)
        plain = Tu if met is w else _rows(mix(u, mix(z, w, beta), gamma), u)  # T itself does not extrapolate
        ahead, accelerated = accelerate.on_u(accelerated, u, Tu, gram)
        model = w if accelerated.accepted else state.w

        if meet.releases:  # what nobody asks for again is forgotten, and who came is not told
            p, presence, answer = _forgotten(presence, answer, meet)
        unsent = None if zhat is z else beta * gamma * (z - zhat)
        if encoded:
            unsent = _lag(answer, alpha * gamma * max(1.0, abs(1 - beta)), metric is None)
        convened, averaged = meet.moved(convened, met, beta, gamma), average.include(past.average, t, eta, model)
        state = State(
            t + 1, u, p, model, met, eta, metric, ahead, answer.memory, answer.error,
            Memories(presence, sent, convened, accelerated, chosen.memory, averaged, answer.down),
            aligned=who is None or (state.aligned and (eta == state.eta or math.isnan(state.eta))),
            together=state.together,
            users=state.users,
        )  # fmt: skip
        yield Round(
            state, eta, who, answer.came, (u, plain) if waits else None, answer.spread, engine, answer.clock, meeting,
            answer.asked, cost, unsent,
        )  # fmt: skip


def _rows(x: Tensor, u: Tensor) -> Tensor:
    """x with as many rows as u: where beta = gamma = 1 everybody moves to the meeting point, which is one row."""
    return x if x.shape == u.shape else x.expand_as(u)


def _unmoved(state: State, parts: Parts) -> State:
    """After a round in which nobody has answered."""
    average = parts.average.skip(state.parts.average, state.round)
    return replace(state, round=state.round + 1, parts=replace(state.parts, average=average))


def _cost(chosen: Chosen, engine: Engine, state: State, parts: Parts) -> Cost:
    """What choosing eta and the metric cost: looking at mean(p) too, where the meeting has only what was sent of it."""
    facts = engine.facts
    lacks_p = parts.send.compresses and not facts.encodes and state.next is not None
    return chosen.cost + Cost(up=facts.users * facts.dim) if chosen.looked and lacks_p else chosen.cost


def _changed(engine: Engine, scheme: Scheme, parts: Parts, state: State, chosen: Chosen) -> State:
    """A new eta or metric. A scheme exact in any keeps every p_i and g_i = M (u_i - p_i) / eta."""
    past, eta, metric = state.parts, chosen.eta, chosen.metric
    state = replace(state, parts=replace(past, accelerate=parts.accelerate.restart(past.accelerate)))
    presence = past.participation
    if not scheme.exact or presence.z is not None or state.next is None or parts.meet.releases:
        return state
    alpha, beta, gamma = scheme.mixing(state.round - 1)
    u = moved(state.u, state.p, (state.eta, state.metric), (eta, metric))
    z = mix(u, state.p, alpha)
    zhat = z if engine.facts.encodes else parts.send.unchanged(z, past.send)
    gathering = Gathering(zhat, presence.whose, engine.mean, engine.facts.weights, alpha * eta / beta, state.round)
    met = parts.meet(gathering._replace(metric=metric), past.meet)[0].w
    return replace(state, u=u, eta=eta, metric=metric, met=met, next=_rows(mix(u, mix(z, met, beta), gamma), u))


def _forgotten(presence: Presence, answer: Answered, meet: Meet) -> tuple[Tensor, Presence, Answered]:
    """p, who has taken part, and the answers, as far as a later round or a reader of a private run may see them."""
    came, asked = meet.shown(answer.came), meet.shown(answer.asked)
    p = answer.p if presence.seen is not None else answer.u
    return p, presence.forgotten(answer.u), answer._replace(came=came, asked=asked, error=None)


def _lag(answer: Answered, most: float, euclidean: bool) -> Tensor | None:
    """Rows as long as what has not crossed could move T u at most, from the users' bounds on |p_i - what they sent|.

    Of users who have not answered nothing is known, and nothing counts. In a metric lengths depend on the direction.
    """
    if answer.error is None:
        return None
    rows = torch.zeros_like(answer.u)
    rows[:, 0] = most * answer.error.nan_to_num(0.0).to(rows) if euclidean else torch.nan
    return rows
