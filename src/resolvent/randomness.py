"""Randomness as a pure function of (seed, purpose, round, user, ...): nothing to save, nothing that depends on order.

Each draw is a hash of its coordinates (the finaliser of splitmix64, folded over them), so the same user draws the
same numbers in the same round whichever engine asks, however users are batched, and after any resume.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

PRESENCE, BATCHES, STEPS, PARTITION, SPLITS, SPEEDS, DELAYS, COMPRESSION = 1, 2, 3, 4, 5, 6, 7, 8
STEP_COUNTS, INITIAL_WEIGHTS, NOISE = 12, 20, 21
"""Purposes: who takes part, how rows are shuffled, anything a local step draws, who holds which rows, and for what; how
fast a user is, how long one answer takes it, and which coordinates it sends; how many local steps all users take in a
round; the weights that a network begins with; and the noise of private meetings."""

GOLDEN, MAX_WORD = 0x9E3779B97F4A7C15, 2**64 - 1
ROUNDS, LAST_SHIFT = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)), 31
"""The hash's constants: shifts and factors."""

_GOLDEN, _S11 = np.uint64(GOLDEN), np.uint64(11)
_M1, _M2 = (np.uint64(factor) for _, factor in ROUNDS)
_S30, _S27, _S31 = (np.uint64(shift) for shift in (*(shift for shift, _ in ROUNDS), LAST_SHIFT))


def _mix(x: Words) -> Words:
    """NumPy's arrays wrap around at 2^64 in silence."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


def _mix_one(x: int) -> int:
    """The same of a single number, which Python does several times faster."""
    for shift, factor in ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & MAX_WORD
    return x ^ (x >> LAST_SHIFT)


def folded(*coordinates: int | NDArray[np.int64]) -> Words:
    """The hash of coordinates that more may follow."""
    single = next((k for k, c in enumerate(coordinates) if not isinstance(c, int)), len(coordinates))
    start = 0
    for c in coordinates[:single]:
        assert isinstance(c, int)
        start = _mix_one(((start ^ (c & MAX_WORD)) + GOLDEN) & MAX_WORD)
    state = np.array([start], dtype=np.uint64)
    for c in coordinates[single:]:
        state = _mix((state ^ np.asarray(c, dtype=np.int64).astype(np.uint64)) + _GOLDEN)
    return state


def finished(state: Words, last: NDArray[np.int64]) -> Words:
    """The words of coordinates that were folded, and one more."""
    return _mix(_mix((state ^ last.astype(np.uint64)) + _GOLDEN))


def words(*coordinates: int | NDArray[np.int64]) -> Words:
    """64 random bits for each point of the broadcast coordinates."""
    return _mix(folded(*coordinates))


def uniforms(*coordinates: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each point of the broadcast coordinates."""
    return (words(*coordinates) >> _S11).astype(np.float64) * 2.0**-53
