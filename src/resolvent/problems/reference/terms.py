"""What a penalty consists of, for the central solver: slopes, ridges and bounds per coordinate, a sum, or a ball."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from resolvent.iteration.penalties import ElasticNet, Penalty, split
from resolvent.problems.reference.objective import Floats
from resolvent.problems.sets import Ball, Box, Orthant, Simplex


@dataclass(frozen=True, eq=False)
class Terms:
    """g(w) = sum_j l1_j |w_j| + l2_j/2 w_j^2 over low <= w <= high, and where they are given: a . w = total, or
    |w - centre| <= radius over `members`, the coordinates that are not free."""

    l1: Floats
    l2: Floats
    low: Floats
    high: Floats
    members: np.ndarray
    a: Floats | None = None
    total: float = 0.0
    centre: Floats | None = None
    radius: float = 0.0

    @property
    def norms(self) -> bool:
        """Whether g has no constraint: l1 and l2 are all of it."""
        bounded = np.isfinite(self.low).any() or np.isfinite(self.high).any()
        return not bounded and self.a is None and self.centre is None

    def take(self, some: np.ndarray) -> Terms:
        """These coordinates alone."""
        return replace(
            self,
            l1=self.l1[some],
            l2=self.l2[some],
            low=self.low[some],
            high=self.high[some],
            members=self.members[some],
            a=None if self.a is None else self.a[some],
        )

    def scaled(self, size: Floats) -> Terms:
        """In the coordinates x = size w."""
        return replace(
            self,
            l1=self.l1 / size,
            l2=self.l2 / size**2,
            low=self.low * size,
            high=self.high * size,
            a=None if self.a is None else self.a / size,
        )

    def nearest(self, w: Floats, v: Floats) -> Floats:
        """The subgradient of g without l2 and without the sum, at a feasible w, that is nearest to v."""
        s = np.where(w == 0, np.clip(v, -self.l1, self.l1), self.l1 * np.sign(w))
        rest = v - s
        return s + np.where(w <= self.low, np.minimum(rest, 0), 0) + np.where(w >= self.high, np.maximum(rest, 0), 0)


def no_penalty(dim: int) -> Terms:
    """g = 0."""
    zero, far = np.zeros(dim), np.full(dim, np.inf)
    return Terms(zero, zero, -far, far, np.ones(dim, dtype=bool))


def terms(penalty: Penalty, dim: int) -> Terms | None:
    """The terms of a penalty; None where it is one that the solver does not know."""
    own, alone = split(penalty)
    members = np.ones(dim, dtype=bool)
    members[list(alone)] = False
    nothing = replace(no_penalty(dim), members=members)
    if isinstance(own, ElasticNet):
        return replace(nothing, l1=_spread(own.l1.numpy(), members), l2=_spread(own.l2.numpy(), members))
    if isinstance(own, Box):
        low, high = (_spread(bound.double().cpu().numpy(), members) for bound in (own.low, own.high))
        return replace(nothing, low=np.where(members, low, -np.inf), high=np.where(members, high, np.inf))
    if isinstance(own, Orthant):
        return replace(nothing, low=np.where(members, 0.0, -np.inf))
    if isinstance(own, Simplex):
        return replace(nothing, low=np.where(members, 0.0, -np.inf), a=members.astype(float), total=own.total)
    if isinstance(own, Ball) and own.radius > 0:
        return replace(nothing, centre=_spread(own.centre.double().cpu().numpy(), members), radius=own.radius)
    return None


def _spread(given: Floats, members: np.ndarray) -> Floats:
    """A number, or one per member, over all coordinates; 0 at the others."""
    out = np.zeros(len(members))
    out[members] = given
    return out
