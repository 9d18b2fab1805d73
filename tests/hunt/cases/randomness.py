"""Hashed randomness: a word is the same whether it is drawn alone or among others."""

from __future__ import annotations

import numpy as np

from hunt.family import Family
from resolvent import randomness


def alone_as_among_others(seed: int) -> str:
    rng = np.random.default_rng(seed)
    users, t = int(rng.integers(2, 200)), int(rng.integers(0, 10**6))
    all_of_them = randomness.words(seed, randomness.PRESENCE, t, np.arange(users))
    one = int(rng.integers(users))
    assert randomness.words(seed, randomness.PRESENCE, t, np.array([one]))[0] == all_of_them[one]
    assert len(np.unique(all_of_them)) == users
    return "right"


FAMILIES = [Family("randomness alone and together", alone_as_among_others, few=20, many=500)]
