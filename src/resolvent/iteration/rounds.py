"""Engine, Round and THE LOOP: a generator over an engine. Stopping, recording and showing wrap it from outside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.iteration import averaging
from resolvent.iteration.anderson import Anderson, Past
from resolvent.iteration.certificates import Signs, no_spread, read
from resolvent.iteration.engine import Ask, Engine, Spread
from resolvent.iteration.participation import Participation
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.state import State, mix
from resolvent.iteration.tuning import Tuning, balanced, travelled


class Round(NamedTuple):
    """What happened in a round. Metrics are methods: nothing is computed until somebody asks."""

    state: State
    eta: float
    who: Tensor | None
    step: tuple[Tensor, Tensor] | None
    """u and T u, T u from the meeting point as it was, before any extrapolation."""
    spread: Spread | None
    engine: Engine
    curvature: int = 0
    """How many users were asked for their gradient and Hessian at the model."""

    @property
    def number(self) -> int:
        """1, 2, ..."""
        return self.state.round

    @property
    def participants(self) -> int:
        return self.engine.users if self.who is None else len(self.who)

    @property
    def together(self) -> bool:
        """Whether users share one u."""
        return self.state.together

    @property
    def model(self) -> Tensor:
        """mean(z), (1, d); with Anderson, of the last accepted point."""
        return self.state.w

    @property
    def certified(self) -> bool:
        """Whether every user's p belongs to the u beside it, and is what a certificate needs."""
        state = self.state
        current = state.complete and state.z is None and state.aligned and self.step is not None
        return self.engine.certifies is not None and current and not (self.together and self.who is not None)

    def signs(self) -> Signs | None:
        """What the residual and the certificates are read from; None if nobody came."""
        if self.step is None:
            return None
        (u, Tu), p, engine, certified = self.step, self.state.p, self.engine, self.certified
        error = self.state.memory["error"].max() if certified and "error" in self.state.memory else None
        if self.together:
            spread = no_spread if engine.certifies == "u" else self.spread
            return Signs(self.eta, self.step, (u, p) if certified else None, None, spread, error)
        step = Tu - u
        if not certified:
            return Signs(self.eta, self.step, None, engine.gram(step.unsqueeze(0)))
        means = engine.mean(u), engine.mean(p)
        apart = u - means[0] if engine.certifies == "u" else p - means[1]
        return Signs(self.eta, self.step, means, engine.gram(torch.stack([step, apart])), None, error)

    @property
    def residual(self) -> float:
        """|T u - u| in the lambda norm."""
        if self.step is None:
            return math.nan
        u, Tu = self.step
        return math.sqrt(float(self.engine.gram((Tu - u).unsqueeze(0))))

    @property
    def stationarity(self) -> float:
        """|sum_i lambda_i g_i|, g_i = (u_i - p_i) / eta; where the operator bounds its error, the bound is added."""
        return read([self.signs()])[0].stationarity

    @property
    def consensus(self) -> float:
        """How far the users' certified points are apart: sqrt(sum_i lambda_i |p_i - mean(p)|^2)."""
        return read([self.signs()])[0].consensus


def rounds(
    engine: Engine,
    scheme: Scheme,
    state: State,
    *,
    participation: Participation,
    accelerate: Anderson,
    seed: int = 0,
    average: str | None = None,
) -> Iterator[Round]:
    """The scheme, for ever. A round moves, then asks, then meets, so that every p_i belongs to the u_i beside it."""
    while True:
        t = state.round
        who = participation.present(seed, t, engine.users)
        who = None if who is None else who.to(engine.device)
        if who is not None and len(who) == 0:  # nobody came: nothing happens
            state = replace(state, round=t + 1, average=averaging.skip(average, state.average, t))
            yield Round(state, state.eta, who, None, None, engine)
            continue

        tuning, curvature = _tuned(engine, state)
        eta = scheme.eta_at(t) if tuning is None else tuning.eta
        if t > 0 and eta != state.eta:
            state = _changed(engine, scheme, state, eta)
        alpha, beta, gamma = scheme.mixing(t)
        u, seen = _move(state, who), state.seen

        ask, spread = Ask(t, eta, who, seed), None
        if state.together:
            p, spread, memory = engine.local_mean(ask, u, state.memory)
        elif who is None:
            p, memory = engine.local(ask, u, state.memory)
        else:
            answers, memory = engine.local(ask, u[who], state.memory)
            p = state.p.index_copy(0, who, answers)
            seen = None if seen is None else seen.index_fill(0, who, True)

        z = mix(u, p, alpha)  # (gFL-1)
        if state.z is None or who is None:
            w = engine.mean(z, _those(seen))
        else:  # Algorithm 1 as printed: absent users keep their z, those present meet
            z = state.z.index_copy(0, who, z[who])
            w = engine.mean(z, who)
        met, past = accelerate.on_mean(state.past, state.met, w, engine.gram)
        Tu = mix(u, mix(z, met, beta), gamma).expand_as(u)  # (gFL-2), (gFL-3)
        plain = Tu if met is w else mix(u, mix(z, w, beta), gamma).expand_as(u)  # T itself does not extrapolate
        ahead, past = accelerate.on_u(past, u, Tu, engine.gram)
        model = w if past.accepted else state.w
        state = State(
            round=t + 1,
            u=u,
            p=p,
            w=model,
            met=met,
            eta=eta,
            next=ahead,
            z=None if state.z is None else z,
            seen=seen,
            memory=memory,
            past=past,
            average=averaging.include(average, state.average, t, eta, model),
            tuning=tuning,
            aligned=who is None or (state.aligned and (eta == state.eta or math.isnan(state.eta))),
            together=state.together,
        )
        yield Round(state, eta, who, (u, plain), spread, engine, curvature)


def _move(state: State, who: Tensor | None) -> Tensor:
    """u after the last meeting. Under "hold" only those present move, and nobody before the first answer."""
    if state.next is None:
        return state.u
    if state.seen is None or who is None:
        return state.next
    movers = who[state.seen[who]]
    return state.u.index_copy(0, movers, state.next[movers])


def _changed(engine: Engine, scheme: Scheme, state: State, eta: float) -> State:
    """A new eta. Acceleration starts anew; a scheme exact at any eta keeps every p_i and g_i = (u_i - p_i) / eta."""
    state = replace(state, past=Past(first=state.past.first))
    if not scheme.exact or state.z is not None or state.next is None:
        return state
    alpha, beta, gamma = scheme.mixing(state.round - 1)
    u = torch.lerp(state.p, state.u, eta / state.eta)
    z = mix(u, state.p, alpha)
    met = engine.mean(z, _those(state.seen))
    return replace(state, u=u, eta=eta, met=met, next=mix(u, mix(z, met, beta), gamma).expand_as(u))


def _tuned(engine: Engine, state: State) -> tuple[Tuning | None, int]:
    """The automatic eta of the round to come, and how many users were asked for their curvature.

    An inexact prox tells nothing of f. Curvature is asked for at mean(p), which stays where it is when eta changes.
    """
    tuning, begun = state.tuning, state.next is not None
    if tuning is None or not tuning.wanted(state.round) or engine.certifies != "p" or (begun and not state.complete):
        return tuning, 0
    curved = engine.curvature(engine.mean(state.p))
    if curved is not None:
        return balanced(tuning, state.round, *curved), engine.users
    return travelled(tuning, state.round, state.u, state.p, engine.mean, engine.gram) if begun else tuning, 0


def _those(seen: Tensor | None) -> Tensor | None:
    """The users seen so far, by index; None: all of them."""
    return None if seen is None or bool(seen.all()) else seen.nonzero().flatten()
