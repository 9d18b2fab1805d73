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
        state = replace(state, parts=Memories(eta=None, average=average))
    _check(state)
    return state


def _check(state: State) -> None:
    """ValueError where its tensors are not rows of one length and type, as many as u has or one. Of those of `memory`,
    which are the operator's own, the first dimension is that of users."""
    u, d = state.u, state.u.shape[-1]
    if u.ndim != 2 or not u.is_floating_point() or state.p.shape != u.shape or state.w.shape != (1, d):
        raise ValueError("u, p or w is not of the shape of the others")
    counts = {len(u), state.users}
    for name, tensor in packing.pack(state)[0].items():
        field = name.rpartition(".")[2]
        if name.startswith("memory."):
            fits = tensor.ndim > 0 and len(tensor) in {1, *counts}
        elif name.startswith("metric."):
            width = d if field == "V" or state.metric is None else state.metric.V.shape[1]
            fits = tensor.is_floating_point() and len(tensor) == width
        elif name == "error" or field == "seen":
            fits = tensor.ndim == 1 and len(tensor) in counts
        else:
            fits = tensor.ndim == 2 and tensor.shape[1] == d and len(tensor) in {1, *counts} and tensor.dtype == u.dtype
        if not fits:
            raise ValueError(f"{name} is of shape {tuple(tensor.shape)} and type {tensor.dtype}, which does not fit u")


def moved(state: State, device: torch.device) -> State:
    """The same State on another device."""
    if state.u.device == device:
        return state
    tensors, numbers = pack(state)
    return unpack({name: tensor.to(device) for name, tensor in tensors.items()}, numbers)
