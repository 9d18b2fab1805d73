"""Whether an answer is plausible beside the others': one that leads far away from all of them is withheld.

An answer moves its user from u_i to p_i. Its reach is the larger of |u_i| and |p_i - u_i|: how far the run has come, or
how far this answer leads. An answer is implausible where |p_i - u_i| is more than `most` times the median of the
other users' largest reaches so far. The largest so far, because distances shrink as a run converges, at a different
rate for every user; and |u_i|, because users who begin at their own minimum do not move at all.

It is withheld at once, as if it had not come: had it been taken, everybody would be drawn along, and the others' next
answers would lead as far. After PATIENCE such answers in a row the user is not asked again, and holds its last pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.iteration.facts import Memory

REACH, STRIKES = "flower.reach", "flower.strikes"
"""Entries of the memory: every user's largest reach so far, and its implausible answers in a row."""
PATIENCE = 3
"""Implausible answers in a row after which a user is left out."""
LEAST_OTHERS = 2
"""Users beside whom an answer is judged, at least: of two users, nobody knows which one is wrong."""


class Implausible(NamedTuple):
    """An answer that was withheld: how far it leads, and the median of the others' reaches."""

    user: int
    distance: float
    median: float

    def __str__(self) -> str:
        return f"its answer leads {self.distance:.3g} away from its point, and the others' median is {self.median:.3g}"


def judge(
    pairs: Mapping[int, tuple[Tensor, Tensor]], memory: Memory, users: int, most: float
) -> tuple[list[Implausible], Memory]:
    """Which of these answers (u_i, p_i) are implausible, and the entries of the memory afterwards."""
    reach = memory.get(REACH, torch.zeros(users, dtype=torch.float64)).clone()
    strikes = memory.get(STRIKES, torch.zeros(users, dtype=torch.int64)).clone()
    moved = {i: float(torch.linalg.vector_norm(p.double() - u.double())) for i, (u, p) in pairs.items()}
    now = reach.clone()
    for i, (u, _) in pairs.items():
        now[i] = max(float(reach[i]), moved[i], float(torch.linalg.vector_norm(u.double())))
    withheld = []
    for i, distance in moved.items():
        others = sorted(x for j, x in enumerate(now.tolist()) if j != i and x > 0)
        median = others[len(others) // 2] if len(others) >= LEAST_OTHERS else torch.inf
        if distance > most * median:
            withheld.append(Implausible(i, distance, median))
            strikes[i] += 1
        else:
            reach[i], strikes[i] = now[i], 0
    return withheld, {REACH: reach, STRIKES: strikes}


def left_out(memory: Memory) -> set[int]:
    """The users who are not asked any more."""
    strikes = memory.get(STRIKES)
    return set() if strikes is None else set(torch.nonzero(strikes >= PATIENCE).flatten().tolist())
