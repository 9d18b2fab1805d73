"""A configuration with everything that decides what it solves: long-run trends, who takes part, what users compute."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from resolvent.iteration.facts import Facts
from resolvent.iteration.part import Effect
from resolvent.iteration.participation import Attendance, Sampling
from resolvent.iteration.parts import Parts
from resolvent.iteration.penalties import Penalty
from resolvent.iteration.scheme import Scheme, cancels
from resolvent.local.choice import local_operator
from resolvent.local.law import Law, UserFacts
from resolvent.theory.trends import AUTOMATIC, CONSTANT, Trend, trend


@dataclass(frozen=True, eq=False)
class Setting:
    """Without a problem, convex f_i with an exact prox are meant."""

    scheme: Scheme
    problem: Facts | None
    parts: Parts

    # --- the numbers of the scheme -----------------------------------------------------------------------------------

    @cached_property
    def alpha(self) -> Trend:
        return trend(self.scheme.alpha)

    @cached_property
    def beta(self) -> Trend:
        return trend(self.scheme.beta)

    @cached_property
    def gamma(self) -> Trend:
        return trend(self.scheme.gamma)

    @cached_property
    def eta(self) -> Trend:
        return AUTOMATIC if self.scheme.eta is None else trend(self.scheme.eta)

    @property
    def outside(self) -> bool:
        """Whether alpha or beta leave [0, 2] or gamma leaves [0, 1], as far as their values show.

        The mean of proxes, at one u that all users share, is firmly nonexpansive: gamma may then be anything below 2.
        """
        tops = ((self.alpha, 2), (self.beta, 2), (self.gamma, 2 if self.firm and self.gamma.high < 2 else 1))
        return self.scheme.beyond and not all(t.low >= 0 and t.high <= top for t, top in tops)

    @property
    def firm(self) -> bool:
        """Whether a round without relaxation is the mean of proxes at one u: FedProx, with everybody present."""
        one = self.alpha.low == self.alpha.high == self.beta.low == self.beta.high == 1
        return one and not self.scheme.forward and not self.partial

    @property
    def stops(self) -> bool:
        """Whether u may come to rest anywhere: the sum of gamma_t or of eta_t is finite."""
        return self.gamma.stops or self.eta.stops

    @property
    def agrees(self) -> bool:
        """Whether p_i is the model at every fixed point, whatever users compute: alpha (beta - 1) = beta."""
        return cancels(self.alpha.limit, self.beta.limit)

    # --- what users compute ------------------------------------------------------------------------------------------

    @cached_property
    def law(self) -> Law:
        """What the local operator states of the fixed points, at the values that alpha, beta and eta tend to."""
        operator = local_operator(self.scheme, self.problem)
        return operator.law(self.alpha.limit, self.beta.limit, self.eta.limit, self.users)

    # --- the users ---------------------------------------------------------------------------------------------------

    @cached_property
    def counting(self) -> Any:
        """Which users have a positive weight."""
        assert self.problem is not None
        return self.problem.weights.cpu().numpy() > 0

    @cached_property
    def penalty(self) -> Penalty | None:
        """g at the meeting point, if there is one."""
        return None if self.problem is None else self.problem.g

    @property
    def alone(self) -> bool:
        """Whether one user has all the weight, and no penalty is beside it, so that everybody's model is its own."""
        return self.problem is not None and self.penalty is None and int(self.counting.sum()) == 1

    @property
    def users(self) -> UserFacts:
        """What the law may depend on: rows and curvatures of the users who count."""
        if self.problem is None:
            return UserFacts()
        sizes = self.problem.sizes
        rows = None if sizes is None else sizes.cpu().numpy()[self.counting]
        return UserFacts(rows, self._curvatures(self.problem), self.penalty is not None)

    def _curvatures(self, problem: Facts) -> tuple[Any, float] | None:
        """(L_i of the users who count, the least mu_i); None where L_i are not known or some f_i may not be convex."""
        if problem.lipschitz is None or not problem.convex:
            return None
        L = problem.lipschitz.detach().cpu().double().numpy()[self.counting]
        mu = problem.convexity
        least = 0.0 if mu is None else float(mu.detach().cpu().double().numpy()[self.counting].min())
        return (L, max(least, 0.0)) if np.isfinite(L).all() else None

    # --- who takes part ----------------------------------------------------------------------------------------------

    @cached_property
    def attendance(self) -> Attendance:
        return self.parts.participation.attendance(None if self.problem is None else self.problem.users)

    @property
    def partial(self) -> bool:
        """Whether some users are absent at times, while others are present."""
        return self.attendance.partial

    @property
    def stale(self) -> bool:
        """Whether Algorithm 1 leaves absent users behind."""
        several = self.problem is None or self.problem.users > 1
        printed = self.parts.participation.absent == "paper" and self.sampling is None
        return self.partial and printed and several

    @property
    def sampling(self) -> Sampling | None:
        """The rule of the algorithm's own paper for absent users, where it is neither "hold" nor Algorithm 1."""
        return self.parts.participation.sampling(self.scheme)

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Users with a positive weight who never take part, as far as can be seen."""
        ever = self.attendance.ever
        if not self.partial or self.attendance.random or ever is None:
            return ()
        counts = np.ones_like(ever) if self.problem is None else self.counting
        return tuple(np.flatnonzero(~ever & counts).tolist())

    # --- what its parts do -------------------------------------------------------------------------------------------

    @cached_property
    def laws(self) -> tuple[Effect, ...]:
        """What the parts of a round do to fixed points and theorems."""
        return self.parts.laws(self)


def never_moves(schedule: Trend) -> bool:
    """Whether it is zero in every round."""
    return schedule.kind == CONSTANT and schedule.limit == 0
