"""A run in words and numbers that processes can compare: those that run one loop together must run the same."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import Tensor

from resolvent.iteration.state import State


def described(given: dict[str, Any], plain: dict[str, Any], start: Any) -> dict[str, Any]:
    """What must not differ: arguments of `solve` without their addresses in memory, plain ones, and the start."""
    words = {name: f"{_plain(str(value))} [{_digest(_plain(repr(value)).encode())}]" for name, value in given.items()}
    return words | plain | _start(start)


def _plain(words: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", words)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _start(start: Any) -> dict[str, Any]:
    """Where the run begins, as far as all processes share it: rows of u are each process's own."""
    if isinstance(start, State):
        facts = {"the round to go on from": start.round, "the eta to go on with": repr(start.eta)}
        return facts | {"the model to go on from": _sum(start.w), "sharing one vector": start.together}
    if start is None:
        return {"start": "where the problem begins"}
    vector = torch.as_tensor(start)
    return {"start": "rows of users" if vector.ndim == 2 and len(vector) > 1 else f"a vector, {_sum(vector)}"}


def _sum(tensor: Tensor) -> str:
    return _digest(tensor.detach().cpu().contiguous().double().numpy().tobytes())
