"""The end of a net as one CUDA kernel: its last linear layers, the softmax, the cross entropy, and the way back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.compiler import Code
from resolvent.networks.stacked.cuda.geometry import HeadGeometry
from resolvent.networks.stacked.cuda.launch import GradientSlot, launch, thin_gradient
from resolvent.networks.stacked.layers import Bias, Context, Linear, Reshape
from resolvent.networks.stacked.net import Net, consumers
from resolvent.networks.stacked.pointwise import ReLU
from resolvent.networks.stacked.workspace import Tape

NOT_LAST = "only narrow layers at the end of a net share a kernel"


class Affine(NamedTuple):
    """A linear layer and its bias, as numbers of stages."""

    linear: int
    bias: int | None


class LossBuffers(NamedTuple):
    """Labels (users, n), the share of each image in its user's mean, users' losses, and the gradient at the output."""

    labels: Tensor
    shares: Tensor
    loss: Tensor
    G: Tensor


@dataclass(frozen=True)
class Head:
    """One or two linear layers at the end of a net, with ReLU between them."""

    layers: tuple[Affine, ...]
    geometry: HeadGeometry

    @property
    def first(self) -> int:
        """The number of its first stage. All later ones belong to it."""
        return self.layers[0].linear

    def code(self, n: int) -> Code:
        return source.head(self.geometry, n)

    def write(self, tape: Tape, contexts: list[Context], x: Tensor, buffers: LossBuffers, add: bool) -> Tensor | None:
        """Record loss and gradients, from the head's input x (users, inputs, n); gives the gradient at x."""
        geometry, (users, _, n), first = self.geometry, x.shape, contexts[self.first]
        losses = first.empty("losses", n)
        hidden = contexts[self.layers[-1].linear].saved if geometry.deep else losses
        g_hidden = first.empty("g_hidden", geometry.width, n) if geometry.deep else buffers.G
        dx = first.empty("dx", geometry.inputs, n) if geometry.to_input else None
        weights = [self._weights(contexts, layer) for layer in self.layers]
        given = [x, *weights[0], *weights[-1], buffers.labels, buffers.shares]
        results = [hidden, g_hidden, buffers.G, losses, losses if dx is None else dx]
        images = geometry.images(n)
        grid = (images.groups(n), users, 1)
        launch(tape, self.code(n), grid, geometry.warps(images.per_lane), (*given, *results, n))
        tape.record(torch.sum, losses, 1, out=buffers.loss)
        slopes = (g_hidden, buffers.G) if geometry.deep else (buffers.G,)
        for layer, G in zip(self.layers, slopes, strict=True):
            _write_gradient(tape, contexts, layer, G, add)
        return dx

    def _weights(self, contexts: list[Context], layer: Affine) -> tuple[Tensor, Tensor]:
        weight = contexts[layer.linear].A
        return weight, weight if layer.bias is None else contexts[layer.bias].A


def _write_gradient(tape: Tape, contexts: list[Context], layer: Affine, G: Tensor, add: bool) -> None:
    """Record the gradients of a layer's weights and biases, from the gradient G at its result."""
    linear = replace(contexts[layer.linear], tape=tape, add=add, needs_input_grad=False)
    bias = None if layer.bias is None else replace(contexts[layer.bias], tape=tape, add=add)
    slots = [GradientSlot(None if ctx is None else ctx.weight_grad, add) for ctx in (linear, bias)]
    if all(slot.out is None for slot in slots) or thin_gradient(tape, G, linear.saved, *slots):
        return
    if bias is not None:
        Bias().write_backward(bias, G)
    Linear(linear.saved.shape[1], G.shape[1]).write_backward(linear, G)


def find_head(net: Net, contexts: list[Context]) -> Head | None:
    """The longest end of a net that fits one kernel."""
    layers = _fitting(net)
    if isinstance(layers, str):
        return None
    return Head(layers, _geometry(net, layers, contexts[layers[0].linear].needs_input_grad))


def linear_choices(net: Net, obstacle: str) -> tuple[str, ...]:
    """How each linear layer is computed, a sentence for each; `obstacle`: why there is no kernel for the net's end."""
    layers = obstacle or _fitting(net)
    inside = {} if isinstance(layers, str) else {layer.linear for layer in layers}
    linear = [k for k, stage in enumerate(net.stages) if isinstance(stage.layer, Linear)]
    said = []
    for k in linear:
        reason = layers if isinstance(layers, str) and (obstacle or k == linear[-1]) else NOT_LAST
        way = "in the kernel that ends with the loss" if k in inside else f"matrix products, since {reason}"
        said.append(f"{net.stages[k].parameter or 'a linear layer'}: {way}")
    return tuple(said)


def _fitting(net: Net) -> tuple[Affine, ...] | str:
    """The linear layers at the end of a net that fit one kernel, as many as do; or why not even the last one does."""
    last = _affine(net, len(net.stages) - 1)
    if last is None:
        return "other layers follow"
    before = _affine(net, last.linear - 2) if _follows(net, last.linear - 1, ReLU) else None
    if before is not None and _alone(net, last.linear) and not _misfit(net, (before, last)):
        return before, last
    return _misfit(net, (last,)) or (last,)


def _misfit(net: Net, layers: tuple[Affine, ...]) -> str:
    names = Counter(name for stage in net.stages for name in stage.parameters)
    stages = [net.stages[k] for layer in layers for k in layer if k is not None]
    if any(names[name] > 1 for stage in stages for name in stage.parameters):
        return "other layers share its parameters"
    if _reads_data(net, layers[0].linear):
        return "it reads the data, which do not lie as the kernel needs them"
    return _geometry(net, layers).misfit


def _reads_data(net: Net, k: int) -> bool:
    """Whether stage k reads the data as they come."""
    (value,) = net.stages[k].inputs
    return value == 0 or (isinstance(net.stages[value - 1].layer, Reshape) and _reads_data(net, value - 1))


def _geometry(net: Net, layers: tuple[Affine, ...], to_input: bool = True) -> HeadGeometry:
    first, last = (net.stages[layer.linear].layer for layer in (layers[0], layers[-1]))
    assert isinstance(first, Linear)
    assert isinstance(last, Linear)
    return HeadGeometry(
        first.inputs,
        first.outputs,
        last.outputs,
        deep=len(layers) == 2,
        bias=layers[0].bias is not None,
        last_bias=layers[-1].bias is not None,
        to_input=to_input,
    )


def _affine(net: Net, k: int) -> Affine | None:
    """The linear layer that ends with stage k."""
    bias = k if _follows(net, k, Bias) else None
    linear = k if bias is None else k - 1
    there = linear >= 0 and isinstance(net.stages[linear].layer, Linear)
    return Affine(linear, bias) if there else None


def _follows(net: Net, k: int, kind: type) -> bool:
    """Whether stage k is of a kind and the only consumer of the stage before it."""
    return k > 0 and isinstance(net.stages[k].layer, kind) and _alone(net, k)


def _alone(net: Net, k: int) -> bool:
    return net.stages[k].inputs == (k,) and consumers(list(net.stages))[k] == 1
