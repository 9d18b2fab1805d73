"""What rounds with noise spend of a privacy budget, by Google's dp-accounting (the extra `privacy`).

A `Stretch` is so many rounds at one noise multiplier and one chance of taking part. Where everybody takes part,
rounds of Gaussian noise are one Gaussian mechanism, whose epsilon has a closed form (Balle and Wang, 2018). Poisson
samples are composed as privacy loss distributions, whose discretisation errs upwards: epsilon is never too small.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from resolvent.errors import InputError

Stretch = tuple[float, float, int]
"""Noise multiplier (standard deviation over sensitivity), chance of taking part, rounds."""
Stretches = tuple[Stretch, ...]

INTERVAL, SHARE = 1e-3, 0.2
"""The width of the bins of privacy losses: at most this, and this share of the standard deviation of one round's loss.
Bins add about SHARE^2 / 6 of itself to the variance of all rounds, and half of that, 0.3 %, to epsilon."""
BITS = 4
"""While a run of samples goes on, rounds are counted up to so many binary digits after the first."""
FAINT = 0.1
"""With less noise than this being drawn at random is not counted on: losses would need tables without end."""
VAIN = 1e4
"""So many rounds at a noise of 1 say nothing any more: epsilon, above 5000, is told as infinite."""
LEAST, MOST = 1e-2, 1e7
"""Noise multipliers among which one is looked for."""
CLOSE = 1e-3
"""The relative width to which it is found; the larger end is taken."""


def _library() -> Any:
    try:
        return import_module("dp_accounting")
    except ModuleNotFoundError:
        raise InputError(
            "privacy is counted by dp-accounting, which is not installed here: pip install 'resolvent[privacy]'"
        ) from None


def longer(spent: Stretches, noise: float, rate: float, rounds: int = 1) -> Stretches:
    """So many rounds more."""
    if rounds and spent and spent[-1][:2] == (noise, rate):
        *before, (_, _, done) = spent
        return (*before, (noise, rate, done + rounds))
    return (*spent, (noise, rate, rounds)) if rounds else spent


@lru_cache(maxsize=4096)
def epsilon(spent: Stretches, delta: float) -> float:
    """The least epsilon that is known to hold at this delta, for one user added or removed."""
    library = _library()
    if not spent:
        return 0.0
    spent = tuple((noise, 1.0 if noise < FAINT else rate, rounds) for noise, rate, rounds in spent)
    if all(rate == 1 for _, rate, _ in spent):
        together = sum(rounds / noise**2 for noise, _, rounds in spent)
        if together > VAIN:
            return math.inf
        with np.errstate(all="ignore"):  # of its search, on the way
            return float(library.get_epsilon_gaussian(1 / math.sqrt(together), delta))
    accountant = library.pld.PLDAccountant(
        library.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=_interval(spent)
    )
    for noise, rate, rounds in spent:
        event = library.GaussianDpEvent(noise)
        accountant.compose(event if rate == 1 else library.PoissonSampledDpEvent(rate, event), rounds)
    return float(accountant.get_epsilon(delta))


def _interval(spent: Stretches) -> float:
    """The variance of a round's privacy loss is about rate^2 (exp(1 / noise^2) - 1): its mean."""
    total = sum(n * rate**2 * math.expm1(max(noise, FAINT) ** -2) for noise, rate, n in spent)
    return min(INTERVAL, SHARE * math.sqrt(total / sum(n for _, _, n in spent)))


def epsilon_so_far(spent: Stretches, delta: float, planned: int) -> float:
    """The same while a run goes on, without an hour of accounting: samples are counted up to the next of a few numbers
    of rounds, though not beyond the `planned` ones of the last stretch. It is exact in the end, and before never too
    small."""
    if spent and spent[-1][1] < 1:
        *before, (noise, rate, rounds) = spent
        grain = 1 << max(0, rounds.bit_length() - 1 - BITS)
        spent = (*before, (noise, rate, max(rounds, min(-(-rounds // grain) * grain, planned))))
    return epsilon(spent, delta)


@lru_cache(maxsize=256)
def noise_for(
    budget: float, delta: float, rate: float, rounds: int, spent: Stretches = (), scale: float = 1.0
) -> float:
    """About the least noise with which so many rounds more end within the budget: never one that passes it.

    scale: what a unit of this noise counts as in the accounting.
    """

    def spends(noise: float) -> float:
        return epsilon(longer(spent, noise * scale, rate, rounds), delta)

    high = 1.0
    while spends(high) > budget:
        high *= 2
        if high > MOST:
            raise InputError(f"no noise up to {MOST:g} keeps {rounds} rounds within epsilon = {budget:g}: give more")
    while high > LEAST and spends(high / 2) <= budget:
        high /= 2
    low = high / 2
    while high > low * (1 + CLOSE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spends(middle) <= budget else (middle, high)
    return high
