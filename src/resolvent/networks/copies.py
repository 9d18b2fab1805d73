"""A module outside of training: a copy with given parameters, what is not trained, and what it is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from resolvent.networks.layout import ParameterLayout, copied


def with_values(module: nn.Module, layout: ParameterLayout, w: Tensor, buffers: dict[str, Tensor]) -> nn.Module:
    """A copy of the module with these parameters, and with these buffers where they are given."""
    made = copied(module)
    layout.load(made, w.detach())
    for name, buffer in made.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
    return made


def untrained(module: nn.Module, first_buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters that require no gradient, and the buffers that training began with."""
    return {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad} | first_buffers


def described(module: nn.Module, layout: ParameterLayout, fixed: list[str]) -> dict[str, Any]:
    """What the module is made of, in plain values: names and shapes."""
    return {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "parameters": [[n, list(shape)] for n, shape in zip(layout.names, layout.shapes, strict=True)],
        "fixed": fixed,
    }
