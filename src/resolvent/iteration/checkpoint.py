"""A State as named tensors and plain numbers, and back, without losing a bit: what a checkpoint holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.iteration import packing
from resolvent.iteration.state import State


def pack(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, numbers): the numbers are JSON, whose floats keep every bit."""
    return packing.pack(state)


def unpack(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> State:
    """The State that was packed."""
    state = packing.unpack(tensors, numbers)
    if not isinstance(state, State):
        raise ValueError(f"a State is needed, but {type(state).__name__} came")
    return state


def moved(state: State, device: torch.device) -> State:
    """The same State on another device."""
    if state.u.device == device:
        return state
    tensors, numbers = pack(state)
    return unpack({name: tensor.to(device) for name, tensor in tensors.items()}, numbers)
