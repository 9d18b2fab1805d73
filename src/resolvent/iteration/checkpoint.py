"""A State as named tensors and plain numbers, and back, without losing a bit: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.iteration import packing
from resolvent.iteration.parts import Memories
from resolvent.iteration.state import State


def pack(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, numbers): the numbers are JSON, whose floats keep every bit."""
    return packing.pack(state)


def unpack(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> State:
    """The State that was packed.

    Of one that was stored before parts had memories of their own, the model is read, and nothing can go on from it.
    """
    state = packing.unpack(tensors, numbers)
    if not isinstance(state, State):
        raise ValueError(f"a State is needed, but {type(state).__name__} came")
    if "parts" not in numbers:
        average = packing.unpack(tensors, numbers.get("average"))
        return replace(state, parts=Memories(eta=None, average=average))
    return state


def moved(state: State, device: torch.device) -> State:
    """The same State on another device."""
    if state.u.device == device:
        return state
    tensors, numbers = pack(state)
    return unpack({name: tensor.to(device) for name, tensor in tensors.items()}, numbers)
