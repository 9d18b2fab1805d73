"""What users remember between rounds: a dictionary of (users, ...) tensors, one row per user.

A question to some users reads and changes their rows only.
"""

from __future__ import annotations

from torch import Tensor

from resolvent.iteration.engine import Memory


def rows_of(memory: Memory, who: Tensor | None) -> Memory:
    """The memory of some users; None: of all."""
    return memory if who is None else {name: tensor[who] for name, tensor in memory.items()}


def with_rows(memory: Memory, who: Tensor | None, now: Memory) -> Memory:
    """What all users remember once some of them remember `now`. `memory` has every entry of it, or all users do."""
    if who is None:
        return memory | now
    return memory | {name: memory[name].index_copy(0, who, rows) for name, rows in now.items()}
