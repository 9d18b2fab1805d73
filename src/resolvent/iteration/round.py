"""What happened in a round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.iteration.acceleration import Gram
from resolvent.iteration.certificates import Certificates, Evidence, certificates, gather
from resolvent.iteration.engine import Engine, Look, Spread
from resolvent.iteration.meeting import Met
from resolvent.iteration.metric import Metric
from resolvent.iteration.part import Cost
from resolvent.iteration.state import State


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
        metrics = self.engine.inspect(self.state.w, self.state.p, self.state.memory, Look())
        if metrics is not None:
            return metrics
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
        gram = gram_in(self.engine, self.state.metric)
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


def gram_in(engine: Engine, metric: Metric | None) -> Gram:
    """Inner products of stacks of rows in the metric, sum_i lambda_i <a_i, M b_i>."""
    return engine.gram if metric is None else lambda rows: engine.gram(metric.coordinates(rows))
