"""Round and THE LOOP: a generator over an engine. Stopping, recording and showing wrap it from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.iteration import averaging
from resolvent.iteration.acceleration import Accelerate, Unaccelerated
from resolvent.iteration.certificates import Certificates, Evidence, certificates, gather
from resolvent.iteration.engine import Answers, Ask, Engine, Look, Present, Spread
from resolvent.iteration.meeting import Meet, Met, TheMean
from resolvent.iteration.participation import Participation
from resolvent.iteration.scheme import Scheme, mix
from resolvent.iteration.state import State
from resolvent.iteration.tuning import Tuning, balanced, travelled

PLAIN, MEAN = Unaccelerated(), TheMean()


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
    curvature: int = 0
    """How many users were asked for their gradient and Hessian at the model."""
    clock: float | None = None
    """When the round was closed, in seconds since the run began, where the engine keeps time."""
    meeting: Met | None = None
    """Where users met, before any extrapolation."""
    products: int = 0
    """How many products with the Hessian each of them was asked for, where a model is long."""
    asked: int = 0
    """How many were sent a question, wherever they live; an answer may come in a later round."""
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
        """Whether every user's p belongs to the u beside it, and is what a certificate needs."""
        state = self.state
        current = state.complete and state.z is None and state.aligned and self.step is not None
        certifies = self.engine.facts.operator.certifies is not None
        return certifies and current and not (self.together and self.who is not None)

    def evidence(self) -> Evidence | None:
        """What the residual and the certificates are computed from; None if nobody came."""
        if self.step is None:
            return None
        state, certified = self.state, self.certified
        error = None if state.error is None or not certified else self.engine.facts.peers.largest(state.error)
        p = state.p if certified else None
        meeting = None if self.meeting is None or self.meeting.normal is None else self.meeting
        return gather(self.engine, self.eta, self.step, p, self.spread, error, self.together)._replace(meeting=meeting)

    @property
    def certificates(self) -> Certificates:
        """The residual, stationarity and consensus of this round."""
        return certificates([self.evidence()])[0]

    @property
    def residual(self) -> float:
        """|T u - u| in the lambda norm."""
        if self.step is None:
            return math.nan
        u, Tu = self.step
        return math.sqrt(float(self.engine.gram((Tu - u).unsqueeze(0))))

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


def rounds(
    engine: Engine,
    scheme: Scheme,
    state: State,
    *,
    participation: Participation,
    accelerate: Accelerate = PLAIN,
    meet: Meet = MEAN,
    seed: int = 0,
    average: str | None = None,
) -> Iterator[Round]:
    """The scheme, for ever. A round moves, then asks, then meets, so that every p_i belongs to the u_i beside it."""
    users, mixing = engine.facts.users, scheme.fixed_mixing
    constant = scheme.eta_at(0) if scheme.changes == "never" else None  # numbers that never change are read once
    while True:
        t = state.round
        asked = engine.present(participation.present(seed, t, users))
        if asked.came == 0:  # nobody came: nothing happens
            state = replace(state, round=t + 1, average=averaging.skip(average, state.average, t))
            yield Round(state, state.eta, asked.who, 0, None, None, engine)
            continue

        tuning, curvature, products = _tuned(engine, state, meet)
        eta = tuning.eta if tuning is not None else constant or scheme.eta_at(t)
        if t > 0 and eta != state.eta:
            state = _changed(engine, scheme, meet, replace(state, past=accelerate.restart(state.past)), eta)
        alpha, beta, gamma = mixing or scheme.mixing(t)

        u, p, seen, spread, answers = _answered(engine, Ask(t, eta, asked.who, seed), state)
        who, came = answers.who, _count(asked, answers)
        questions = asked.came if answers.asked is None else answers.asked
        if came == 0:  # nobody has answered yet: only what users remember has changed
            left = averaging.skip(average, state.average, t)
            state = replace(state, round=t + 1, memory=answers.memory, average=left)
            yield Round(
                state, state.eta, who, 0, None, None, engine, curvature, answers.clock, None, products, questions
            )
            continue
        complete = state.complete or (seen is not None and engine.every(seen))

        z = mix(u, p, alpha)  # (gFL-1)
        if state.z is None or who is None:
            w = engine.mean(z, None if complete else _those(seen))
        else:  # Algorithm 1 as printed: absent users keep their z, those present meet
            z = state.z.index_copy(0, who, z[who])
            w = engine.mean(z, who)
        meeting = meet(w, alpha * eta / beta if beta else 0.0)
        w = meeting.w
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
            complete=complete,
            memory=answers.memory,
            error=answers.error,
            past=past,
            average=averaging.include(average, state.average, t, eta, model),
            tuning=tuning,
            aligned=who is None or (state.aligned and (eta == state.eta or math.isnan(state.eta))),
            together=state.together,
        )
        yield Round(
            state, eta, who, came, (u, plain), spread, engine, curvature, answers.clock, meeting, products, questions
        )


def _answered(engine: Engine, ask: Ask, state: State) -> tuple[Tensor, Tensor, Tensor | None, Spread | None, Answers]:
    """Ask users where the last meeting sent them: (u, p, seen) afterwards, the spread, and the answers."""
    if state.together:
        u = state.u if state.next is None else state.next
        mean = engine.local_mean(ask, u, state.memory)
        who = ask.who if mean.who is None else mean.who
        return u, mean.p, None, mean.spread, Answers(who, u, mean.p, mean.memory, mean.error, mean.came)
    rest, at = _sent(state, ask.who)
    answers = engine.local(ask, at, state.memory)
    who, seen = answers.who, state.seen
    if who is None:
        return answers.at, answers.p, None if seen is None else torch.ones_like(seen), None, answers
    u, p = rest.index_copy(0, who, answers.at), state.p.index_copy(0, who, answers.p)
    return u, p, None if seen is None else seen.index_fill(0, who, True), None, answers


def _sent(state: State, who: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where users stay who do not answer, (users, d), and where those asked are to answer, one row each.

    Under "hold" users move only by answering, and not before their first answer. As Algorithm 1 is printed, all move.
    """
    if state.next is None or state.seen is None:
        rest = state.u if state.next is None else state.next
        return rest, rest if who is None else rest[who]
    some = slice(None) if who is None else who
    if state.complete:
        return state.u, state.next[some]
    return state.u, torch.where(state.seen[some].unsqueeze(1), state.next[some], state.u[some])


def _changed(engine: Engine, scheme: Scheme, meet: Meet, state: State, eta: float) -> State:
    """A new eta. A scheme exact at any eta keeps every p_i and g_i = (u_i - p_i) / eta."""
    if not scheme.exact or state.z is not None or state.next is None:
        return state
    alpha, beta, gamma = scheme.mixing(state.round - 1)
    u = torch.lerp(state.p, state.u, eta / state.eta)
    z = mix(u, state.p, alpha)
    met = meet(engine.mean(z, None if state.complete else _those(state.seen)), alpha * eta / beta).w
    return replace(state, u=u, eta=eta, met=met, next=mix(u, mix(z, met, beta), gamma).expand_as(u))


def _tuned(engine: Engine, state: State, meet: Meet) -> tuple[Tuning | None, int, int]:
    """The automatic eta of the round to come, how many users were asked for their curvature, and for how many products.

    An inexact prox tells nothing of f. Curvature is asked for at mean(p), which stays where it is when eta changes.
    """
    tuning, begun = state.tuning, state.next is not None
    if tuning is None or not tuning.wanted(state.round) or (begun and not state.complete):
        return tuning, 0, 0
    if engine.facts.operator.certifies != "p":
        return tuning, 0, 0
    at = engine.mean(state.p)
    curved = engine.curvature(at)
    if curved is not None:
        return balanced(tuning, state.round, *meet.curvature(at, *curved)), engine.facts.users, len(curved[0])
    return travelled(tuning, state.round, state.u, state.p, engine.mean, engine.gram) if begun else tuning, 0, 0


def _count(asked: Present, answers: Answers) -> int:
    """How many answered, wherever they live."""
    if answers.came is not None:
        return answers.came
    return asked.came if answers.who is None else len(answers.who)


def _those(seen: Tensor | None) -> Tensor | None:
    """The users seen so far, by index; None: all of them."""
    return None if seen is None else seen.nonzero().flatten()
