"""A module's buffers, such as running means, in what users remember."""

from __future__ import annotations

from torch import Tensor

BUFFER = "buffer."
"""The prefix of buffers' names in memory."""


def own_buffers(memory: dict[str, Tensor]) -> dict[str, Tensor]:
    """Users' buffers in what they remember, by their names in the module."""
    return {name.removeprefix(BUFFER): rows for name, rows in memory.items() if name.startswith(BUFFER)}


def as_memory(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same the other way around."""
    return {BUFFER + name: rows for name, rows in buffers.items()}


def remembered(first: dict[str, Tensor], memory: dict[str, Tensor], users: int) -> dict[str, Tensor]:
    """Each user's buffers, (users, ...): those in memory, or those that the module came with."""
    own = own_buffers(memory)
    return {name: own.get(name, b.unsqueeze(0).expand(users, *b.shape)) for name, b in first.items()}
