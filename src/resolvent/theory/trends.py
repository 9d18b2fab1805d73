"""What alpha, beta, gamma or eta does in the long run: by what a schedule says of itself, else judged by its values.

A function of the round may do anything, and no number of values proves what it does for ever. The judgement is meant
to err on one side: where the values up to round 10^6 do not show a clear pattern, it is `UNCLEAR`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resolvent.iteration.schedules import Schedule

CONSTANT, SETTLES, VARIES, VANISHES, UNCLEAR = "constant", "settles", "varies", "vanishes", "unclear"

DENSE, DECADES, RUN, LONG = 1000, (3, 4, 5), 8, 3000
"""Every round below DENSE is looked at, then runs of RUN rounds in each decade from 10^d on, and in the last decade a
LONG one, so that what returns more often than that is seen."""
STILL = 1e-12
"""Relative spread up to which values count as equal."""
SLOWEST, FLATTENS = 0.15, 1 - 1e-6
"""A power of t that falls more slowly, or whose exponent falls below FLATTENS times that of the decade before, cannot
be told from a function that stops above zero: the exponents of c t^-s + a fall, those of c (t + h)^-s do not."""
DIES_OUT = 0.95
"""Values that drift one way stay above zero where the drift of a decade is less than DIES_OUT times that before."""


@dataclass(frozen=True)
class Trend:
    """How a schedule behaves: constant, settles at `limit` after finitely many changes, varies for ever between
    positive bounds, vanishes, or unclear."""

    kind: str
    limit: float
    """The value in the end; NaN where there is none, or where it is found while running."""
    sum_diverges: bool | None
    squares_converge: bool | None
    low: float
    high: float
    """The smallest and the largest value seen."""

    @property
    def steady(self) -> bool:
        """Whether the value is the same in every round, but for finitely many."""
        return self.kind in (CONSTANT, SETTLES)

    @property
    def stops(self) -> bool:
        """Whether the sum of all values is finite, so that what is multiplied by them may stop anywhere."""
        return self.sum_diverges is False


AUTOMATIC = Trend(SETTLES, math.nan, True, False, math.nan, math.nan)
"""An eta found while running, which changes finitely often."""


def trend(schedule: Schedule) -> Trend:
    """What the schedule does in the long run. What it declares of itself is believed."""
    first = float(schedule(0))
    if schedule.changes == "never":
        return _steady(CONSTANT, first, first, first)
    if schedule.vanishes and schedule.sum_diverges is not None:
        squares = schedule.squares_converge
        return Trend(VANISHES, 0.0, schedule.sum_diverges, squares, 0.0, first)
    judged = judge(schedule)
    declared = {
        name: getattr(schedule, name)
        for name in ("sum_diverges", "squares_converge")
        if getattr(schedule, name) is not None
    }
    return replace(judged, **declared) if judged.kind == VANISHES else judged


def judge(function: Callable[[int], float]) -> Trend:
    """The trend of a function of the round, by its values up to round 10^6."""
    try:
        decades = [np.array([float(function(t)) for t in times]) for times in _times()]
    except Exception:  # a list that ends, say: nothing is known of what comes after it
        return _unclear(math.nan, math.nan)
    every, tail = np.concatenate(decades), decades[-1]
    low, high = float(every.min()), float(every.max())
    if not np.isfinite(every).all() or low < 0:
        return _unclear(low, high)
    if np.ptp(tail) <= STILL * tail.max():
        kind = CONSTANT if np.ptp(every) <= STILL * high else SETTLES
        return _steady(kind, float(tail[-1]), low, high)
    return _falling(decades, low, high) or _varying(decades, low, high) or _unclear(low, high)


def _times() -> list[list[int]]:
    """The rounds looked at: below DENSE by decade, then runs that begin at logarithmically spaced rounds."""
    dense = [list(range(10)), list(range(10, 100)), list(range(100, DENSE))]
    starts = [np.unique(np.geomspace(10**d, 10 ** (d + 1) - RUN, 24).astype(int)).tolist() for d in DECADES]
    later = [[start + k for start in decade for k in range(RUN)] for decade in starts]
    later[-1] = sorted({*later[-1], *range(5 * 10**5, 5 * 10**5 + LONG)})
    return dense + later


def _steady(kind: str, limit: float, low: float, high: float) -> Trend:
    if limit == 0 and kind == SETTLES:
        return Trend(VANISHES, 0.0, False, True, low, high)
    return Trend(kind, limit, limit != 0, limit == 0, low, high)


def _unclear(low: float, high: float) -> Trend:
    return Trend(UNCLEAR, math.nan, None, None, low, high)


def _slopes(extremes: NDArray[np.float64]) -> NDArray[np.float64]:
    """s of t^-s between the later decades; infinite or NaN from where values are zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes: NDArray[np.float64] = -np.diff(np.log10(extremes))
    return slopes


def _limit(slopes: NDArray[np.float64]) -> float:
    """The exponent that slopes tend to: those of (t + h)^-s come ten times nearer to s in each decade."""
    with np.errstate(invalid="ignore"):
        return float(slopes[-1] + (slopes[-1] - slopes[-2]) / 9)


def _extremes(decades: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest and the smallest value of each of the later decades."""
    later = decades[2:]
    return np.array([d.max() for d in later]), np.array([d.min() for d in later])


def _falling(decades: list[NDArray[np.float64]], low: float, high: float) -> Trend | None:
    """The trend of values that fall in every round, like a power of t or faster; None where they do not."""
    values = np.concatenate(decades[2:])
    if (np.diff(values) > STILL * values[:-1]).any():  # what goes up and down may hide a limit above zero
        return None
    top, bottom = (_slopes(extremes) for extremes in _extremes(decades))
    if not (top >= SLOWEST).all() or any((slopes[1:] < FLATTENS * slopes[:-1]).any() for slopes in (top, bottom)):
        return None
    slowest, fastest = float(top[-1]), _limit(bottom)
    diverges = True if fastest <= 1.001 else (False if slowest >= 1.2 else None)
    squares = True if slowest >= 0.55 else (False if fastest <= 0.5 else None)
    return Trend(VANISHES, 0.0, diverges, squares, low, high)


def _varying(decades: list[NDArray[np.float64]], low: float, high: float) -> Trend | None:
    """The trend of values that stay between the same two bounds, the upper one positive; None where they drift."""
    top, bottom = _extremes(decades)
    if np.ptp(top) > 0.05 * top.max() or np.ptp(bottom) > 0.05 * top.max() or _drifts(top) or _drifts(bottom):
        return None
    return Trend(VARIES, math.nan, True, False, low, high)


def _drifts(extremes: NDArray[np.float64]) -> bool:
    """Whether they move one way, and in the last decade no less than in the one before."""
    moves = np.diff(extremes)
    one_way = bool((moves < 0).all() or (moves > 0).all())
    return one_way and bool(abs(moves[-1]) > DIES_OUT * abs(moves[-2]))
