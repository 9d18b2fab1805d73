"""Automatic eta for schemes that solve the original problem at any eta: FedPi and FedSplit.

Two things must converge: the mean of the p_i, which moves by eta |mean g| per round, and the g_i, which move by the
distance of the p_i to their mean over eta. A large eta helps the first and hurts the second. On quadratics both finish
together at eta = 1 / sqrt(mu L), with mu and L the least and the largest curvature of f = sum_i lambda_i f_i.

- Where users know their Hessians, eta is that, from the mean Hessian at the mean of the p_i (`balanced`).
- With `curved` it is the scale of a metric, that of the mean Hessian (`in_metric`), which is chosen with it.
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
from resolvent.iteration.engine import Curvature, Engine
from resolvent.iteration.meeting import Meet
from resolvent.iteration.metric import FullMetric, Metric, change, of_hessian, of_products, subgradients
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import NO_MEMORY, Cost, NoMemory, Part
from resolvent.iteration.scheme import Scheme

Mean = Callable[[Tensor], Tensor]

LOOKS = 20
"""How often eta is reconsidered."""
WORTHWHILE = 2.0
"""The least factor by which eta is changed, or the metric along some direction: a change costs the acceleration its
memory, and no factor below it takes the error of a round, 1 / (1 + curvature / metric), from 1/2 to more than 2/3."""
RELEVANT = 1e-8
"""A direction counts if it holds this share of what f - f* was at the first look, as a quadratic model sees it."""
WIDEST = 100.0
"""The largest factor by which eta changes at a later look."""
ROUNDING = 16.0
"""Units in the last place that a sum is off by, at most, and times sqrt(eps) what a prox may be off by."""
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
    unit: float = math.nan
    """The eta at which the metric is f's Hessian."""
    p: Tensor | None = None
    g: Tensor | None = None

    def wanted(self, t: int) -> bool:
        """Whether eta is to be reconsidered before round t."""
        return t >= self.due and self.looks < LOOKS

    def looked(self, t: int, eta: float | None, **found: Any) -> Tuning:
        """After the look before round t, which found this eta, or nothing."""
        since = self.since if self.looks else t
        now = self.eta
        if eta is not None and far(now, eta):
            now = eta if self.looks == 0 else max(now / WIDEST, min(now * WIDEST, eta))
        due = t + max(1, t - since)
        return replace(self, eta=now, looks=self.looks + 1, since=since, due=due, **found)


def far(now: float, eta: float) -> bool:
    """Whether a change pays."""
    return not now / WORTHWHILE < eta < now * WORTHWHILE


class Chosen(NamedTuple):
    """The step size of the round to come, what is remembered of how it was found, and what finding it cost in all."""

    eta: float
    memory: Any
    cost: Cost = Cost()
    looked: bool = False
    """Whether mean(p) was needed for it."""
    metric: Metric | None = None
    """That of the round to come; None: the identity."""


class StepSize(Part):
    """chosen = step_size(engine, scheme, state, meet): the eta of the round to come."""

    curved = False
    """Whether it chooses a metric too."""

    def __call__(self, engine: Engine, scheme: Scheme, state: Any, meet: Meet) -> Chosen:
        raise NotImplementedError

    def fixed(self, scheme: Scheme) -> Chosen | None:
        """What it chooses in every round, where that is always the same; else None."""
        return None

    def go_on(self, past: Any, eta: float) -> Any:
        """What it remembers where another step size has remembered `past`, of a run whose last eta is this."""
        return past


def kept(given: FullMetric | None, state: Any) -> Metric | None:
    """The metric that was given: as the object that the last round had, where it is the same, else from now on."""
    now = state.metric
    if given is None or (now is not None and given.equals(now)):
        return now if given is not None else None
    return replace(given, since=state.round)


def told(metric: Metric | None, state: Any, engine: Engine) -> Cost:
    """What it costs to tell users a metric that is new."""
    new = metric is not None and metric is not state.metric
    return Cost(down=engine.facts.users * metric.numbers) if new else Cost()  # type: ignore[union-attr]


@dataclass(frozen=True)
class Scheduled(StepSize):
    """The scheme's own eta, a number or a schedule, in the metric that was given."""

    given: FullMetric | None = None

    def __call__(self, engine: Engine, scheme: Scheme, state: Any, meet: Meet) -> Chosen:
        metric = kept(self.given, state)
        return Chosen(scheme.eta_at(state.round), NO_MEMORY, told(metric, state, engine), metric=metric)

    def fixed(self, scheme: Scheme) -> Chosen | None:
        plain = self.given is None and scheme.changes == "never"
        return Chosen(scheme.eta_at(0), NO_MEMORY) if plain else None

    def go_on(self, past: Any, eta: float) -> NoMemory:
        return NO_MEMORY


@dataclass(frozen=True)
class Automatic(StepSize):
    """eta is found while running, from eta0 on; with `curved` the metric too, where users know their Hessians.

    In a metric that was given, eta is found in its coordinates, where everything is as in the identity.
    """

    eta0: float = 1.0
    curved: bool = False
    given: FullMetric | None = None

    def begin(self, u: Tensor) -> Tuning:
        return Tuning(self.eta0)

    def go_on(self, past: Any, eta: float) -> Tuning:
        return past if isinstance(past, Tuning) else Tuning(self.eta0 if math.isnan(eta) else eta)

    def __call__(self, engine: Engine, scheme: Scheme, state: Any, meet: Meet) -> Chosen:
        """An inexact prox tells nothing of f. Curvature is asked for at mean(p), which stays where it is when eta
        changes: a gradient and half of a symmetric Hessian come back, or, of a long model, products one by one."""
        tuning, begun, t, facts = state.parts.eta, state.next is not None, state.round, engine.facts
        metric: Metric | None = state.metric if self.curved else kept(self.given, state)
        waits = not tuning.wanted(t) or (begun and not state.parts.participation.complete)
        if waits or facts.operator.certifies != "p":
            return Chosen(tuning.eta, tuning, told(metric, state, engine), metric=metric)
        if self.curved and metric is not None and facts.quadratic:  # the same Hessian everywhere
            return Chosen(tuning.eta, tuning.looked(t, None), metric=metric)
        at = engine.mean(state.p)
        curved = engine.curvature(at)
        if curved is None and self.curved and metric is not None:  # somebody is away: it stays until the next look
            return Chosen(tuning.eta, tuning.looked(t, None), looked=True, metric=metric)
        if curved is None:
            u, p = (state.u, state.p) if metric is None else map(metric.coordinates, (state.u, state.p))
            tuning = travelled(tuning, t, u, p, engine.mean, engine.gram) if begun else tuning
            return Chosen(tuning.eta, tuning, told(metric, state, engine), True, metric)
        products = 1 + len(curved.gradient)
        vectors = (products, products) if facts.matrix_free else ((facts.dim + 3) / 2, 1)
        cost = Cost(*(int(facts.users * each) * facts.dim for each in vectors))
        if not self.curved:
            seen = meet.curvature(at, curved.gradient, curved.hessian)
            if metric is not None:
                seen = metric.pull(curved.gradient), metric.curvature(curved.hessian)
            tuning = balanced(tuning, t, *seen)
        else:
            tuning, metric = in_metric(tuning, curved, state, engine, meet.penalises)
        return Chosen(tuning.eta, tuning, cost + told(metric, state, engine), True, metric)


def in_metric(
    tuning: Tuning, seen: Curvature, state: Any, engine: Engine, penalised: bool
) -> tuple[Tuning, Metric | None]:
    """The metric of f's Hessian, with eta its scale; both as they were where they are still good enough."""
    t, now = state.round, state.metric
    if seen.basis is None:
        chosen = of_hessian(seen.hessian, engine.facts.dtype, t, penalised)
    else:
        relevant, first, _ = relevant_curvature(tuning, seen.gradient, seen.hessian)
        chosen, tuning = of_products(seen.hessian, seen.basis, seen.beyond, relevant, t), replace(tuning, gain=first)
    tuning = tuning.looked(t, None)
    if chosen is None:
        return tuning, now
    metric, unit = chosen
    tuning = replace(tuning, unit=unit)
    new = replace(tuning, eta=unit) if penalised else scaled(tuning, metric, state, engine)
    if now is not None and change(now, state.eta, metric, new.eta) <= WORTHWHILE:
        return replace(tuning, p=new.p, g=new.g), now
    return new, metric


def scaled(tuning: Tuning, metric: Metric, state: Any, engine: Engine) -> Tuning:
    """The scale of a metric. At `unit` it is that of f's Hessian; users who are alike go further in a round at a larger
    one, as far as what `travelled` looks at allows, seen in the metric.

    At r times `unit` the rounding of eta grad f is about r eps / sqrt(metric.least) of u, and a prox can be no more
    exact. That bounds r: among users who are alike, what g has travelled is rounding, and its inverse is anything.

    With a penalty it stays at `unit`, which is 1 / sqrt(mu L) of f in its own metric, the best that is known of
    Douglas-Rachford splitting for f + g: at a larger one the subgradient of g is found more slowly.
    """
    if state.next is None:
        return replace(tuning, eta=tuning.unit)
    g, eta = subgradients(state.u, state.p, (state.eta, state.metric)), tuning.unit
    if tuning.p is not None and tuning.g is not None:
        pull, eps = g - tuning.g, torch.finfo(g.dtype).eps
        moved = float(metric.coordinates(engine.mean(state.p - tuning.p)).norm())
        pulled = math.sqrt(float(engine.gram(metric.pull(pull - engine.mean(pull)).unsqueeze(0))))
        size = float(engine.gram(metric.coordinates(state.p).unsqueeze(0)))
        if moved <= ROUNDING * eps * math.sqrt(size):  # that p has moved at all is not certain
            eta = state.eta
        elif moved < math.inf and pulled < math.inf:
            eta = CAUTION * moved / pulled if pulled > 0 else math.inf
        eta = max(tuning.unit, min(eta, tuning.unit * math.sqrt(metric.least / eps) / ROUNDING))
    return replace(tuning, eta=eta, p=state.p, g=g)


def balanced(tuning: Tuning, t: int, gradient: Tensor, hessian: Tensor) -> Tuning:
    """1 / sqrt(mu L) of f, from its gradient (d,) and its Hessian (d, d) at a point; as it was where f is flat.

    In the direction v of eigenvalue s, f - f* is about (g . v)^2 / (2 s): directions in which there is next to nothing
    to gain have no say, or they would slow the others down.
    """
    if not bool(torch.isfinite(hessian).all() and torch.isfinite(gradient).all()):
        return tuning.looked(t, None)
    least, first, largest = relevant_curvature(tuning, gradient, hessian)
    return tuning.looked(t, 1 / math.sqrt(least) / math.sqrt(largest) if least > 0 else None, gain=first)


def relevant_curvature(tuning: Tuning, gradient: Tensor, hessian: Tensor) -> tuple[float, float, float]:
    """The least curvature along which f still falls by much, 0 where there is none; what there is to gain in all, as at
    the first look; and the largest curvature."""
    s, V = torch.linalg.eigh(hessian.double())
    gain = (V.T @ gradient.double()).square() / (2 * s)
    gain = torch.where(s > len(s) * torch.finfo(hessian.dtype).eps * s[-1], gain, 0)
    first = tuning.gain if tuning.looks else float(gain.sum())
    counts = gain > RELEVANT * first
    return float(s[counts].min()) if bool(counts.any()) else 0.0, first, float(s[-1])


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
