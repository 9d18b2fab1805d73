"""The one door to a minimum: whoever finds a candidate, it is accepted only with a bound on f(w) - f*.

A pool is all that users minimise together. It names candidates, each with a bound on how far the objective can be above
its minimum there (bound.py, curvature.py; strong convexity for wide problems; the duality gap for absolute values), and
it evaluates the objective together with a bound on the rounding of that. One test decides for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from resolvent.problems.reference.objective import Floats
from resolvent.problems.room import gib, room

SURE = 1e-10
"""f(w) - f* relative to |f(w)| beyond which w is no minimiser."""
NOTHING = 1e-14
"""The same relative to the size of the objective's terms: where f* is zero, round-off is all that is left of them."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """A minimiser w (d,) and the value there, which is at most `bound` above the least value, rounding included.

    `s` is a subgradient of the penalty at w (without its l2), `mu` the multiplier of a ball. Where plain sums round by
    more than the bound, values are `sharp`: computed with predictors as if in twice the precision.
    """

    w: Floats
    value: float
    bound: float
    s: Floats | None = None
    mu: float = 0.0
    sharp: bool = False


@dataclass(frozen=True)
class Unknown:
    """Why no minimum is known."""

    why: str


@dataclass(frozen=True, eq=False)
class Candidate:
    """A point, and a bound on how far the objective can be above its minimum there."""

    w: Floats
    excess: float
    s: Floats | None = None
    mu: float = 0.0


@dataclass(frozen=True)
class Value:
    """The objective at a point, a bound on the rounding error of that number, and the size of the terms that it sums,
    such as its value at the origin."""

    value: float
    rounding: float
    size: float
    sharp: bool = False


class Pool(Protocol):
    """All that users minimise together."""

    def candidates(self) -> Iterator[Candidate | Unknown]:
        """Points that may be minimisers, or why there is none: the last word, if no candidate is accepted."""

    def values(self, w: Floats) -> Iterator[Value]:
        """The objective at w, as often as it can be computed with fewer rounding errors."""


def minimum(pool: Pool | Unknown) -> Minimum | Unknown:
    """The minimum of a pool, or why it is not known."""
    if isinstance(pool, Unknown):
        return pool
    unknown = Unknown(
        "no minimiser could be certified: features of very different scales, or a tiny reg, leave round-off too large, "
        "or nothing bounds the model in some direction"
    )
    nearly: list[Minimum] = []
    with np.errstate(all="ignore"):
        for candidate in pool.candidates():
            if isinstance(candidate, Unknown):
                unknown = candidate
                break
            if not np.isfinite(candidate.excess):
                continue
            for at in pool.values(candidate.w):
                bound = candidate.excess + at.rounding
                here = Minimum(candidate.w, at.value, bound, candidate.s, candidate.mu, at.sharp)
                if bound <= SURE * abs(at.value):
                    return here
                if bound <= NOTHING * at.size < np.inf:  # taken only if nobody does better
                    nearly.append(here)
    if nearly:
        return min(nearly, key=lambda each: each.bound)
    return unknown


def too_large(count: int) -> Unknown | None:
    """That finding a minimum takes more bytes than the machine has; None where it fits."""
    if count <= room():
        return None
    return Unknown(f"finding the minimum takes {gib(count)}, and this machine has {gib(room())}")
