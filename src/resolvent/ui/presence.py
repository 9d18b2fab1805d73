"""Who took part in which round, and who was late.

It need not be stored: who is drawn, and how long an answer takes, is a pure function of (seed, round, user).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent import config as configs
from resolvent.iteration.participation import Participation, Stragglers
from resolvent.runs import Folder

ABSENT, CAME, LATE, AT_WORK = 0, 1, 2, 3
MAX_USERS, MAX_ROUNDS = 60, 400
"""How many of them are shown, at most."""
MAX_SIMULATED = 20_000
"""Rounds of stragglers that are simulated, at most: each depends on those before."""
SIMULATED = ("in-process", "debug")
"""Engines whose users come as the configuration says."""


def presence(run: Folder, rounds: int) -> dict[str, Any]:
    """The last rounds of a run: one string per user, one digit per round (0 absent, 1 came, 2 late, 3 at work)."""
    users = int(run.about["problem"]["users"])
    first = max(0, rounds - MAX_ROUNDS)
    shown = {"users": users, "first": first + 1, "rounds": rounds, "who": []}
    if run.from_python:
        return shown | {"kind": "unknown"}
    config = configs.read(run.config)
    taking_part = config.participation
    if taking_part.full or not rounds:
        return shown | {"kind": "everyone"}
    if config.run.engine not in SIMULATED or (isinstance(taking_part, Stragglers) and rounds > MAX_SIMULATED):
        return shown | {"kind": "unknown"}
    table = states(taking_part, config.run.seed, users, first, rounds)
    kind = "stragglers" if isinstance(taking_part, Stragglers) else "drawn"
    return shown | {"kind": kind, "who": ["".join(map(str, row)) for row in table[:MAX_USERS].tolist()]}


def states(taking_part: Participation, seed: int, users: int, first: int, last: int) -> NDArray[np.int8]:
    """What each user did in rounds first, ..., last - 1, counted from 0: (users, rounds)."""
    if isinstance(taking_part, Stragglers):
        return _delayed(taking_part, seed, users, last)[:, first:]
    table = np.zeros((users, last - first), dtype=np.int8)
    for t in range(first, last):
        who = taking_part.present(seed, t, users)
        table[slice(None) if who is None else who.numpy(), t - first] = CAME
    return table


def _delayed(stragglers: Stragglers, seed: int, users: int, rounds: int) -> NDArray[np.int8]:
    """As the engine with delays counts: a question starts everyone who is idle, a round closes after a share."""
    table = np.zeros((users, rounds), dtype=np.int8)
    due, asked, clock = np.full(users, math.inf), np.zeros(users, dtype=int), 0.0
    closing = max(math.ceil(stragglers.close * users), 1) - 1
    for t in range(rounds):
        idle = np.isinf(due)
        due[idle] = clock + stragglers.seconds(seed, t, users)[idle]
        asked[idle] = t
        clock = np.sort(due)[closing]
        answered = due <= clock
        table[:, t] = np.where(answered, np.where(asked == t, CAME, LATE), AT_WORK)
        due[answered] = math.inf
    return table
