"""The questions of a round: users are asked where the last meeting sent them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from resolvent.iteration.engine import Ask, Engine, Present, Spread
from resolvent.iteration.facts import Memory
from resolvent.iteration.meeting import Gathering, Meet
from resolvent.iteration.participation import Presence
from resolvent.iteration.state import State

DOWNWARDS = 1 << 40
"""Added to the number of a round where coordinates are drawn for the way down: others than for the way up."""


class Answered(NamedTuple):
    """What came back in a round."""

    u: Tensor
    """Where users are now, and their answers there."""
    p: Tensor
    presence: Presence
    """Who has taken part, these answers included."""
    who: Tensor | None
    """Whose answers came, by index among the users here; None: everyone's."""
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


def answered(engine: Engine, ask: Ask, state: State, present: Present, meet: Meet) -> Answered:
    """Ask those present.

    The meeting says what stands for mean(u) where users want to know it. With a penalty it is the last meeting point:
    there users come to rest, and mean(u) stays apart from it.
    """
    if state.together:
        return _by_one_vector(engine, ask, state, present)
    presence, down, known = state.parts.participation, ask.down, state.parts.down
    rest, at = presence.asked_at(state.u, state.next, ask.who)
    if engine.facts.wants_centre:
        where = at if ask.who is None else rest.index_copy(0, ask.who, at)
        if presence.follows and state.next is not None:
            where = state.next
        met = state.w if meet.penalises else None
        gathering = Gathering(where, None, engine.mean, engine.facts.weights, 0.0)
        ask = ask._replace(centre=meet.centre(gathering, state.parts.meet) if met is None else met)
    if down.compresses and not engine.facts.encodes:  # what was sent to users moves them from where they answered last
        rows = at if ask.who is None else known.zhat.index_copy(0, ask.who, at)
        at = down(rows, known, ask._replace(t=ask.t + DOWNWARDS))[0]
        at = at if ask.who is None else at[ask.who]
    if present.came == 0:
        return Answered(rest, rest, presence, ask.who, state.memory, None, 0, 0, down=known)
    answers = engine.local(ask, at, state.memory)
    who = answers.who
    came = _how_many(answers.came, who, present)
    questions = present.came if answers.asked is None else answers.asked
    if down.compresses:
        known = replace(known, zhat=answers.at if who is None else known.zhat.index_copy(0, who, answers.at))
    u, p = answers.at, answers.p
    if came == 0:
        u, p = state.u, state.p
    else:
        presence = presence.after(who, engine.every)
        if who is not None:
            u, p = rest.index_copy(0, who, u), state.p.index_copy(0, who, p)
    return Answered(u, p, presence, who, answers.memory, answers.error, came, questions, answers.clock, None, known)


def _by_one_vector(engine: Engine, ask: Ask, state: State, present: Present) -> Answered:
    """Where users share u: the mean of their answers."""
    u = state.u if state.next is None else state.next
    mean = engine.local_mean(ask._replace(centre=u) if engine.facts.wants_centre else ask, u, state.memory)
    who = ask.who if mean.who is None else mean.who
    came = _how_many(mean.came, who, present)
    presence, down = state.parts.participation, state.parts.down
    return Answered(u, mean.p, presence, who, mean.memory, mean.error, came, present.came, None, mean.spread, down)


def _how_many(came: int | None, who: Tensor | None, present: Present) -> int:
    """How many answered: what the engine says, else all of those who are named, else all who were asked."""
    return came if came is not None else present.came if who is None else len(who)
