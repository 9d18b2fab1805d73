"""Automatic eta for schemes that solve the original problem at any eta: FedPi and FedSplit.

Two things must converge: the mean of the p_i, which moves by eta |mean g| per round, and the g_i, which move by the
distance of the p_i to their mean over eta. A large eta helps the first and hurts the second. On quadratics both finish
together at eta = 1 / sqrt(mu L), with mu and L the least and the largest curvature of f = sum_i lambda_i f_i.

- Where users know their Hessians, eta is that, from the mean Hessian at the mean of the p_i (`balanced`).
- Elsewhere it follows how far the mean of the p_i and the g_i have travelled (`travelled`): eta = |d mean(p)| / |d g|.
- Where the prox is inexact, p and g tell nothing of f, and eta stays where it starts.

eta is chosen before the first round and reconsidered after 1, 2, 4, 8, ... rounds, LOOKS times at most. It is changed
only if it is off by a factor of WORTHWHILE. So it changes finitely often, and the theorems for constant eta apply. A
change keeps every p_i and every g_i = (u_i - p_i) / eta: u <- p + (eta'/eta) (u - p).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.iteration.acceleration import Gram
from resolvent.iteration.engine import Engine
from resolvent.iteration.meeting import Meet
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import NO_MEMORY, Cost, NoMemory, Part
from resolvent.iteration.scheme import Scheme

Mean = Callable[[Tensor], Tensor]

LOOKS = 20
"""How often eta is reconsidered."""
WORTHWHILE = 2.0
"""The least factor by which eta is changed: a change costs the acceleration its memory."""
RELEVANT = 1e-8
"""A direction counts if it holds this share of what f - f* was at the first look, as a quadratic model sees it."""
WIDEST = 100.0
"""The largest factor by which eta changes at a later look."""
CAUTION, DAMPING = 0.5, 0.7
"""eta <- eta^(1 - DAMPING) (CAUTION |d mean(p)| / |d g|)^DAMPING."""


@remembered
@dataclass(frozen=True, eq=False)
class Tuning:
    """The next eta, when it is reconsidered, and p and g as they were at the last look."""

    eta: float
    looks: int = 0
    since: int = 0
    """The round of the first look."""
    due: int = 0
    """The round of the next look."""
    gain: float = 0.0
    """f - f* at the first look, as a quadratic model sees it."""
    p: Tensor | None = None
    g: Tensor | None = None

    def wanted(self, t: int) -> bool:
        """Whether eta is to be reconsidered before round t."""
        return t >= self.due and self.looks < LOOKS

    def looked(self, t: int, eta: float | None, **found: Any) -> Tuning:
        """After the look before round t, which found this eta, or nothing."""
        since = self.since if self.looks else t
        now = self.eta
        if eta is not None and not now / WORTHWHILE < eta < now * WORTHWHILE:
            now = eta if self.looks == 0 else max(now / WIDEST, min(now * WIDEST, eta))
        due = t + max(1, t - since)
        return replace(self, eta=now, looks=self.looks + 1, since=since, due=due, **found)


class Chosen(NamedTuple):
    """The step size of the round to come, what is remembered of how it was found, and what finding it cost in all."""

    eta: float
    memory: Any
    cost: Cost = Cost()
    looked: bool = False
    """Whether mean(p) was needed for it."""


class StepSize(Part):
    """chosen = step_size(engine, scheme, state, meet): the eta of the round to come."""

    def __call__(self, engine: Engine, scheme: Scheme, state: Any, meet: Meet) -> Chosen:
        raise NotImplementedError

    def fixed(self, scheme: Scheme) -> Chosen | None:
        """What it chooses in every round, where that is always the same; else None."""
        return None

    def go_on(self, past: Any, eta: float) -> Any:
        """What it remembers where another step size has remembered `past`, of a run whose last eta is this."""
        return past


@dataclass(frozen=True)
class Scheduled(StepSize):
    """The scheme's own eta, a number or a schedule."""

    def __call__(self, engine: Engine, scheme: Scheme, state: Any, meet: Meet) -> Chosen:
        return Chosen(scheme.eta_at(state.round), NO_MEMORY)

    def fixed(self, scheme: Scheme) -> Chosen | None:
        return Chosen(scheme.eta_at(0), NO_MEMORY) if scheme.changes == "never" else None

    def go_on(self, past: Any, eta: float) -> NoMemory:
        return NO_MEMORY


@dataclass(frozen=True)
class Automatic(StepSize):
    """eta is found while running, from eta0 on."""

    eta0: float = 1.0

    def begin(self, u: Tensor) -> Tuning:
        return Tuning(self.eta0)

    def go_on(self, past: Any, eta: float) -> Tuning:
        return past if isinstance(past, Tuning) else Tuning(self.eta0 if math.isnan(eta) else eta)

    def __call__(self, engine: Engine, scheme: Scheme, state: Any, meet: Meet) -> Chosen:
        """An inexact prox tells nothing of f. Curvature is asked for at mean(p), which stays where it is when eta
        changes: a gradient and half of a symmetric Hessian come back, or, of a long model, products one by one."""
        tuning, begun, t, facts = state.parts.eta, state.next is not None, state.round, engine.facts
        waits = not tuning.wanted(t) or (begun and not state.parts.participation.complete)
        if waits or facts.operator.certifies != "p":
            return Chosen(tuning.eta, tuning)
        at = engine.mean(state.p)
        curved = engine.curvature(at)
        if curved is None:
            tuning = travelled(tuning, t, state.u, state.p, engine.mean, engine.gram) if begun else tuning
            return Chosen(tuning.eta, tuning, looked=True)
        tuning, products = balanced(tuning, t, *meet.curvature(at, *curved)), 1 + len(curved[0])
        vectors = (products, products) if facts.matrix_free else ((facts.dim + 3) / 2, 1)
        return Chosen(tuning.eta, tuning, Cost(*(int(facts.users * each) * facts.dim for each in vectors)), True)


def balanced(tuning: Tuning, t: int, gradient: Tensor, hessian: Tensor) -> Tuning:
    """1 / sqrt(mu L) of f, from its gradient (d,) and its Hessian (d, d) at a point; as it was where f is flat.

    In the direction v of eigenvalue s, f - f* is about (g . v)^2 / (2 s): directions in which there is next to nothing
    to gain have no say, or they would slow the others down.
    """
    if not bool(torch.isfinite(hessian).all() and torch.isfinite(gradient).all()):
        return tuning.looked(t, None)
    s, V = torch.linalg.eigh(hessian.double())
    gain = (V.T @ gradient.double()).square() / (2 * s)
    gain = torch.where(s > len(s) * torch.finfo(hessian.dtype).eps * s[-1], gain, 0)
    first = tuning.gain if tuning.looks else float(gain.sum())
    counts = gain > RELEVANT * first
    least = float(s[counts].min()) if bool(counts.any()) else 0.0
    eta = 1 / math.sqrt(least) / math.sqrt(float(s[-1])) if least > 0 else None
    return tuning.looked(t, eta, gain=first)


def travelled(tuning: Tuning, t: int, u: Tensor, p: Tensor, mean: Mean, gram: Gram) -> Tuning:
    """The next eta from how far mean(p), and g beside its own mean, have gone since the last look."""
    g = (u - p) / tuning.eta
    if tuning.p is None or tuning.g is None:
        return tuning.looked(t, None, p=p, g=g)
    pull = g - tuning.g
    way, pulled = mean(p - tuning.p), float(gram((pull - mean(pull)).unsqueeze(0)))
    moved = float(way.square().sum())
    if not (moved > 0 and pulled > 0 and math.isfinite(moved) and math.isfinite(pulled)):
        return tuning.looked(t, None, p=p, g=g)
    aim = DAMPING * (math.log(CAUTION) + 0.5 * (math.log(moved) - math.log(pulled)) - math.log(tuning.eta))
    return tuning.looked(t, tuning.eta * math.exp(max(-50.0, min(50.0, aim))), p=p, g=g)
