"""Dropout in a module: as layers, inside of attention and recurrent layers, and as functions that forward calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LAYERS = nn.modules.dropout._DropoutNd
WITH_A_RATE = (nn.MultiheadAttention, nn.RNNBase)
"""Layers that drop out inside, at a rate that is their attribute `dropout`."""
FUNCTIONS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.alpha_dropout,
    torch.feature_dropout,
}
"""Dropout as functions of the tensor, the rate, and whether it is on."""
BACKWARD = {torch.autograd.backward, torch.autograd.grad}
ATTENTION = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}
"""Functions that drop out inside, and the place of their argument `dropout_p`."""


def drops_out(model: nn.Module) -> bool:
    """Whether a layer of the module drops out at random."""
    rates = ((m.p if isinstance(m, LAYERS) else m.dropout) for m in _layers(model) if m.training)
    return any(rate > 0 for rate in rates)


def _layers(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, (LAYERS, *WITH_A_RATE))]


@contextmanager
def dropout_off(model: nn.Module, functions: bool = False) -> Iterator[None]:
    """The module's layers drop nothing meanwhile; with `functions`, nor do functions that are called."""
    before = [(m, m.training, getattr(m, "dropout", 0.0)) for m in _layers(model)]
    try:
        for m, _, _ in before:
            if isinstance(m, LAYERS):
                m.training = False
            else:
                m.dropout = 0.0
        with NoDropout() if functions else ExitStack():
            yield
    finally:
        for m, training, rate in before:
            m.training = training
            if not isinstance(m, LAYERS):
                m.dropout = rate


class NoDropout(TorchFunctionMode):
    """Makes dropout functions do nothing; `met`: one was called that would have done something.

    torch.autograd.backward, but not `Tensor.backward`, leaves it on for whatever backward calls again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in BACKWARD:
            return self._backward(func, args, dict(kwargs))
        if func in ATTENTION:
            return self._attention(func, list(args), dict(kwargs))
        if func not in FUNCTIONS:
            return func(*args, **kwargs)
        x, p, on = (*args, *(None,) * 3)[:3]
        x = kwargs.get("input", x)
        on = kwargs.get("training", kwargs.get("train", on))
        self.met |= on is not False and kwargs.get("p", p) != 0
        return x

    def _attention(self, func: Any, args: list[Any], options: dict[str, Any]) -> Any:
        place = ATTENTION[func]
        rate = args[place] if len(args) > place else options.get("dropout_p", 0.0)
        self.met |= rate > 0 and options.get("training", True)
        if len(args) > place:
            args[place] = 0.0
        else:
            options["dropout_p"] = 0.0
        return func(*args, **options)

    def _backward(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """torch asks a mode about tensors, and takes it off meanwhile; about edges of the graph it does not."""
        outputs = _tuple(args[0])
        name = "grad_tensors" if func is torch.autograd.backward else "grad_outputs"
        grads = _tuple(options.get(name)) or (None,) * len(outputs)
        options[name] = [torch.ones_like(o) if g is None else g for o, g in zip(outputs, grads, strict=True)]
        if options.get("inputs") is not None:
            options["inputs"] = _edges(options["inputs"])
        with self:
            return func(*(_edges(arg) for arg in args), **options)


def _tuple(tensors: Any) -> tuple[Any, ...]:
    return () if tensors is None else (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)


def _edges(tensors: Any) -> list[Any]:
    return [get_gradient_edge(t) if isinstance(t, torch.Tensor) else t for t in _tuple(tensors)]
