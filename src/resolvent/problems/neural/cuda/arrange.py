"""Which convolutions of a net go by generated kernels, with what follows them, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from resolvent.problems.neural.convolution import Conv, ConvPool
from resolvent.problems.neural.cuda.geometry import Geometry
from resolvent.problems.neural.cuda.layer import FusedConv
from resolvent.problems.neural.layers import Bias, Shape, Unstackable
from resolvent.problems.neural.net import Net, Step, consumers, owned
from resolvent.problems.neural.pointwise import ReLU
from resolvent.problems.neural.pools import AvgPool, MaxPool

KERNEL = 7
"""Height and width of a kernel, at most."""
CHANNELS = 32
"""Channels of input or output, at most: with more, matrix products are as fast."""
ENTRIES = 16
"""Entries of a pooling tile, at most; with ReLU before a mean, one bit each."""
BITS = 8


@dataclass(frozen=True)
class Arranged:
    """A net, and in `choices` a sentence for each of its convolutions."""

    net: Net
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Run:
    """A convolution and the steps that are fused with it."""

    geometry: Geometry
    length: int
    bias: str | None


def arrange(net: Net, features: Shape, obstacle: str) -> Arranged:
    """The net for images of this shape, with convolutions fused; `obstacle`: why none can be."""
    shapes, count = net.shapes(features), consumers(list(net.steps))
    number, steps, choices = {0: 0}, list[Step](), list[str]()
    k = 0
    while k < len(net.steps):
        step, length = net.steps[k], 1
        if isinstance(step.layer, Conv | ConvPool):
            conv = step.layer.conv if isinstance(step.layer, ConvPool) else step.layer
            reason = obstacle or why_not(conv)
            name = step.parameter or "a convolution"
            if reason:
                choices.append(f"{name}: matrix products, since {reason}")
            else:
                run = _run(net, k, shapes, count)
                choices.append(f"{name}: a CUDA kernel ({run.geometry})")
                step, length = replace(step, layer=FusedConv(run.geometry), bias=run.bias), run.length
        steps.append(replace(step, inputs=tuple(number[i] for i in step.inputs)))
        k += length
        number[k] = len(steps)
    return Arranged(Net(owned(steps)), tuple(choices))


def why_not(conv: Conv) -> str:
    """What keeps a convolution from going by a generated kernel; empty: nothing."""
    if conv.stride != (1, 1):
        return f"its stride is {conv.stride[0]} x {conv.stride[1]}"
    if conv.dilation != (1, 1):
        return "it is dilated"
    if max(conv.kernel) > KERNEL:
        return f"its kernel is larger than {KERNEL} x {KERNEL}"
    if max(conv.inputs, conv.outputs) > CHANNELS:
        return f"it has more than {CHANNELS} channels"
    return ""


def _run(net: Net, k: int, shapes: list[Shape], count: list[int]) -> _Run:
    """The convolution at step k, and as many of the steps after it as one kernel does."""
    layer = net.steps[k].layer
    conv = layer.conv if isinstance(layer, ConvPool) else layer
    assert isinstance(conv, Conv)
    (height, width) = shapes[net.steps[k].inputs[0]][1:]
    geometry = Geometry(conv.inputs, conv.outputs, (height, width), conv.kernel, conv.padding, bias=False)
    if isinstance(layer, ConvPool):
        geometry = replace(geometry, pooling="max", pool=layer.tile)
    bias, at = None, k
    while at + 1 < len(net.steps) and count[at + 1] == 1 and net.steps[at + 1].inputs == (at + 1,):
        step = net.steps[at + 1]
        longer = _with(geometry, step, shapes[at + 1])
        if longer is None:
            break
        geometry, at = longer, at + 1
        bias = step.parameter if isinstance(step.layer, Bias) else bias
    return _Run(geometry, at + 1 - k, bias)


def _with(geometry: Geometry, step: Step, shape: Shape) -> Geometry | None:
    """The geometry with one more step, on features of this shape; None where one kernel does not do it."""
    layer = step.layer
    if isinstance(layer, Bias) and not geometry.bias and geometry.relu == "none":
        return replace(geometry, bias=True)
    if isinstance(layer, ReLU) and geometry.relu == "none":
        return replace(geometry, relu="last")
    if isinstance(layer, MaxPool | AvgPool) and geometry.pooling == "none":
        return _pooled(geometry, layer, shape)
    return None


def _pooled(geometry: Geometry, layer: MaxPool | AvgPool, shape: Shape) -> Geometry | None:
    kind: Literal["max", "mean"] = "max" if isinstance(layer, MaxPool) else "mean"
    try:
        kernel, stride = layer.windows(shape[1:]) if isinstance(layer, AvgPool) else (layer.kernel, layer.stride)
    except Unstackable:
        return None
    tile = (kernel[0], kernel[1])
    dilated = isinstance(layer, MaxPool) and layer.dilation != (1, 1)
    first = kind == "mean" and geometry.relu == "last"
    if tile != tuple(stride) or layer.padding != (0, 0) or dilated or prod(tile) > (BITS if first else ENTRIES):
        return None
    return replace(geometry, pooling=kind, pool=tile, relu="first" if first else geometry.relu)
