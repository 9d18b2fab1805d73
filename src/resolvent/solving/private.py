"""Private runs: what is refused, since it would tell more of users than the meeting releases; and their meeting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration import accountant
from resolvent.iteration.facts import Facts
from resolvent.iteration.meeting import Meet, TheMean
from resolvent.iteration.participation import Bernoulli, Participation
from resolvent.iteration.parts import Parts
from resolvent.iteration.privacy import Privacy, UserPrivacy
from resolvent.iteration.private_mean import PrivateMean, Spent, beside_count
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.state import State
from resolvent.local.normalised import NormalisedSteps
from resolvent.solving.stopping import Stop

FEWEST = 2
"""A sum of one user's contribution is that user's."""
MORE = 2.0
"""Times the planned noise that rounds may have where some were released twice; with more the model would be lost."""
EQUAL = 1e-6
"""Weights that differ by no more of themselves are equal."""


def check_private(
    privacy: Privacy, facts: Facts, scheme: Scheme, participation: Participation, meet: Meet, parts: dict[str, Any]
) -> None:
    """Refuse what is not exactly private. parts: by keyword, those that have no place of their own here."""
    if not isinstance(privacy, UserPrivacy):
        return
    assert privacy.delta is not None
    if facts.users < FEWEST:
        refuse("privacy", quoted(privacy), "among one user nobody is hidden: 2 users at least are needed")
    if not privacy.delta < 1 / facts.users:
        refuse(
            "delta",
            privacy.delta,
            f"a number below 1 / users = {1 / facts.users:.3g} is needed, far below it if possible",
        )
    lightest, heaviest = float(facts.weights.min()), float(facts.weights.max())
    if heaviest - lightest > EQUAL * heaviest:
        needed = "each must change the sum equally little: give the problem equal weights"
        refuse("weights", "not equal", f"users of a private run have equal weights, since {needed}")
    if chance(participation, scheme) < 1 and privacy.local:
        why = "how much noise users add together tells how many came: let everybody take part"
        refuse("participation", str(participation), f"everybody is needed with local noise, since {why}")
    if type(meet) is not TheMean:
        refuse("meet", quoted(meet), "a private run has a meeting of its own: leave it out")
    if scheme.auto:
        refuse("eta", '"auto"', "it would be found from users' data, which nobody accounts for: give a number")
    if facts.here < facts.users:
        refuse("privacy", quoted(privacy), 'every rank has its own users\' rows only: take engine = "in_process"')
    for name in ("send", "down"):
        if parts[name].compresses:
            refuse(name, quoted(parts[name]), "what is added up over rounds is not fresh in every round: leave it out")
    if getattr(parts["accelerate"], "title", "") and getattr(parts["accelerate"], "on", "mean") == "u":
        refuse(
            "accelerate",
            quoted(parts["accelerate"]),
            'u is each user\'s own, and only means are released: take on="mean"',
        )
    local = scheme.local
    if facts.g is not None and local is not None and local.forward and getattr(local, "batch", None) is not None:
        refuse(
            "batch", local.batch, "with batches the step of the penalty depends on users' numbers of rows: leave it out"
        )
    if isinstance(local, NormalisedSteps) and local.scale is None:
        refuse(
            "batch", local.batch, "how far users go follows from all users' numbers of rows: leave it out, or give "
            "rs.NormalisedSteps a scale"
        )  # fmt: skip
    preparation = facts.lookup("preparation")
    if preparation is not None and preparation.computed:
        raise InputError(
            "privacy is asked for, but means, spreads, categories or what replaces missing values come from the users' "
            "rows and are stored with the model: take standardise = false and columns of numbers without gaps, scaled "
            "by what is publicly known"
        )
    if facts.lookup("balanced_classes"):
        refuse("class_weight", '"balanced"', "it counts all users' classes, which nobody accounts for: give numbers")
    if facts.lookup("running_statistics"):
        raise InputError(
            "privacy is asked for, but the network has running statistics of users' data (batch norm), without which "
            "it cannot be handed out: take group norm or layer norm"
        )


def chance(participation: Participation, scheme: Scheme) -> float:
    """The chance of a user to take part in a round; refused where it is not known, or absent users count as well."""
    if participation.full or participation.asks_everybody:
        return 1.0
    if not isinstance(participation, Bernoulli):
        needed = "the chance of each user must be known, and independent of the others': everybody, or"
        refuse("participation", str(participation), f'{needed} rs.Bernoulli(p, absent="paper"), is needed')
    if participation.absent == "hold":
        why = "it keeps contributions of absent users in the mean, so that being absent hides nobody"
        how = 'take absent="paper" (FedAvg, FedProx, FedRP and their kin), or let everybody take part'
        refuse("absent", '"hold"', f"{why}: {how}")
    if not scheme.projects:
        refuse("participation", str(participation), f"users of {scheme.name} have u_i of their own, which absent users "
               "would leave behind: let everybody take part, or take an algorithm with beta = 1")  # fmt: skip
    return participation.p


def check_ending(privacy: Privacy, stop: Any, held_out: dict[str, Any]) -> None:
    """Refuse to end by, or to measure, what is not released."""
    if not isinstance(privacy, UserPrivacy):
        return
    public = privacy.held_out == "public"
    if isinstance(stop, Stop):
        limits = {name: getattr(stop, name) for name in ("gap", "residual", "certificates")}
        given = next((name for name, limit in limits.items() if limit is not None), None)
        if given is not None:
            refuse(
                f"stop.{given}",
                limits[given],
                "when a run ends would tell of users' rows: give a number of rounds alone",
            )
        if stop.metric is not None and not public:
            how = 'say held_out="public" if the held-out rows are no user\'s'
            refuse("stop.metric", quoted(stop.metric), f"when a run ends would tell of users' rows: {how}")
    elif stop is not None:
        refuse(
            "stop",
            "a function of the round",
            "when a run ends would tell of users' rows: give a number of rounds alone",
        )
    for name, data in held_out.items():
        if data is not None and not public:
            refuse(
                name,
                "given",
                'metrics on held-out rows tell of these rows: say held_out="public" if they are no user\'s',
            )


def check_start(privacy: Privacy, start: Any) -> None:
    """Refuse to go on privately from what was not private, or the other way round."""
    shape = () if isinstance(start, State) else _shape(start)
    if privacy.asked and not isinstance(start, State) and len(shape) == 2 and shape[0] > 1:
        refuse("start", f"of shape {shape}", "a private run begins at one vector, which everybody may know")
    if not isinstance(start, State):
        return
    past, rows = start.parts.meet, start.u
    was = isinstance(past, Spent)
    if privacy.asked and not was and (start.round or bool((rows != rows[:1]).any())):
        refuse("start", "the State of a run without privacy", "its u has been made of users' rows: begin at a vector")
    if isinstance(privacy, UserPrivacy) and was and privacy.quantile is None and past.clip != privacy.clip:
        refuse("clip", privacy.clip, f"{past.clip:g} is needed, with which the run that goes on began")
    if was and not privacy.asked:
        refuse("start", "the State of a private run", "going on without privacy would undo it: give privacy as before")


def _shape(start: Any) -> tuple[int, ...]:
    try:
        return tuple(np.shape(start))
    except Exception:  # rows of unequal lengths, which are refused where they are read
        return ()


def private_mean(privacy: UserPrivacy, facts: Facts, rate: float, rounds: int, start: Any) -> PrivateMean:
    """The meeting, with the noise that the budget leaves for so many rounds."""
    past = start.parts.meet if isinstance(start, State) and isinstance(start.parts.meet, Spent) else None
    spent: accountant.Stretches = () if past is None else past.stretches
    unit, counted = (0.5, 1.0) if privacy.local else (1.0, rate)
    noise = _noise(privacy, past, rounds, unit, counted)
    done = 0
    if spent:
        last, chance_then, rounds_then = spent[-1]
        done = rounds_then if (last, chance_then) == (noise * unit, counted) else 0
    made = PrivateMean(privacy, noise, rate, facts.users, done + rounds)
    if privacy.quantile is not None:
        beside_count(noise, made.expected / 20)
    return made


def check_budget(privacy: Any, past: Any, rounds: int) -> None:
    """Refuse to let a run have so many rounds more where its budget does not allow them."""
    if isinstance(privacy, UserPrivacy) and isinstance(past, Spent) and past.stretches:
        _noise(privacy, past, rounds, 0.5 if privacy.local else 1.0, past.stretches[-1][1])


def _noise(privacy: UserPrivacy, past: Spent | None, rounds: int, unit: float, rate: float) -> float:
    """As a multiple of clip. A run that goes on within the same budget keeps its noise."""
    delta, budget = privacy.delta, privacy.epsilon
    assert delta is not None
    if budget is None:
        assert privacy.noise is not None
        return privacy.noise
    spent = () if past is None else past.stretches
    if past is not None and (past.epsilon, past.delta) == (budget, delta):
        total = accountant.epsilon(accountant.longer(spent, past.noise * unit, rate, rounds), delta)
        if total > budget:
            _overspent(past, budget, delta, rounds, f"{rounds} more at its noise would spend {total:.4g}")
        return past.noise
    if past is not None and not accountant.epsilon(spent, delta) < budget:
        _overspent(past, budget, delta, rounds, "nothing is left")
    noise = accountant.noise_for(budget, delta, rate, rounds, spent, unit)
    if past is not None and past.epsilon is not None and math.isnan(past.epsilon) and noise > MORE * past.noise:
        needs = f"{rounds} more would need a noise of {noise:.3g} clip in place of {past.noise:.3g}"
        _overspent(past, budget, delta, rounds, needs)
    return noise


def _overspent(past: Spent, budget: float, delta: float, rounds: int, why: str) -> None:
    now = accountant.epsilon(past.stretches, delta)
    done = f"{past.rounds} rounds have spent epsilon = {now:.4g} of {budget:g}, and {why}"
    raise InputError(f"the privacy budget does not allow {rounds} more rounds: {done}; only a larger epsilon does")


def charged(state: State, last: State) -> State:
    """An earlier state with all that was spent by the last one: what came after it was released as well."""
    memory, spent = state.parts.meet, last.parts.meet
    if not (isinstance(memory, Spent) and isinstance(spent, Spent)):
        return state
    return replace(state, parts=replace(state.parts, meet=replace(memory, stretches=spent.stretches)))


def spent_by(state: State, parts: Parts) -> float:
    """Epsilon that a state's rounds have spent."""
    meet = getattr(parts.meet, "first", parts.meet)
    memory: Spent = state.parts.meet
    planned = meet.planned if isinstance(meet, PrivateMean) else 0
    return accountant.epsilon_so_far(memory.stretches, memory.delta, planned)
