"""Convolutions by generated CUDA kernels, with bias, pooling and ReLU: the layer, and which of a net become one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from torch import Tensor

from resolvent.networks.stacked.convolution import Conv, ConvPool
from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.compiler import Code
from resolvent.networks.stacked.cuda.geometry import ConvGeometry
from resolvent.networks.stacked.cuda.launch import GradientSlot, divided, launch, multiprocessors, weight_gradient
from resolvent.networks.stacked.cuda.stripes import stripe
from resolvent.networks.stacked.cuda.tiling import Tile, forward_tile, input_tile
from resolvent.networks.stacked.layers import Bias, Context, Shape, Unstackable
from resolvent.networks.stacked.net import Net, Stage, consumers, mark_owners
from resolvent.networks.stacked.pointwise import ReLU
from resolvent.networks.stacked.pools import AvgPool, MaxPool

WAVES = 4
"""Blocks that a multiprocessor gets in turn, if there are so many: with fewer, some of them wait for the last."""
MAX_KERNEL = 7
"""Height and width of a kernel, at most."""
MAX_CHANNELS = 32
"""Channels of input or output, at most: with more, matrix products are as fast."""
MAX_POOL_ENTRIES = 16
"""Entries of a pooling tile, at most; with ReLU before a mean, one bit each."""
MAX_RELU_ENTRIES = 8


@dataclass(frozen=True)
class FusedConv:
    """See geometry.py. Forward saves its input and a code per pooled value; see common.cuh."""

    geometry: ConvGeometry
    needs_output = False

    def shape(self, *shapes: Shape) -> Shape:
        if shapes[0] != (self.geometry.inputs, *self.geometry.size):
            raise Unstackable(f"a convolution over features of shape {shapes[0]}")
        return (self.geometry.outputs, *self.geometry.cells)

    def codes(self, n: int, backward: bool) -> list[Code]:
        """The kernels that n images may need."""
        some = [source.forward(self.geometry, forward_tile(self.geometry, n))]
        if backward:
            some.append(source.weight_gradient(self.geometry, stripe(self.geometry, n)))
            some.append(source.input_gradient(self.geometry, input_tile(self.geometry, n)))
        return some

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        x, geometry = _whole(ctx, xs[0], "x"), self.geometry
        n = x.shape[-1]
        y = ctx.empty("y", geometry.outputs, *geometry.cells, n)
        code = ctx.empty("code", ceil(y[0].numel() / 4) if geometry.coded else 1)
        tile = forward_tile(geometry, n)
        args = (x, ctx.A, y if ctx.bias is None else ctx.bias, y, code, n, code.shape[1])
        launch(ctx.tape, source.forward(geometry, tile), tile_grid(ctx, tile, n), tile.warps, args)
        ctx.saved = x, code
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        G = _whole(ctx, G, "G")
        if ctx.weight_grad is not None or ctx.bias_grad is not None:
            x, code = ctx.saved
            targets = GradientSlot(ctx.weight_grad, ctx.add), GradientSlot(ctx.bias_grad, ctx.add_bias)
            weight_gradient(ctx.tape, (ctx.stage, ctx.users), self.geometry, (x, G, code), targets)
        return (self._inputs(ctx, G) if ctx.needs_input_grad else None,)

    def _inputs(self, ctx: Context, G: Tensor) -> Tensor:
        x, code = ctx.saved
        geometry, n = self.geometry, x.shape[-1]
        tile = input_tile(geometry, n)
        dx = ctx.empty("dx", *x.shape[1:])
        args = (G, code, ctx.A, dx, n, code.shape[1])
        launch(ctx.tape, source.input_gradient(geometry, tile), tile_grid(ctx, tile, n), tile.warps, args)
        return dx


def _whole(ctx: Context, x: Tensor, name: str) -> Tensor:
    """x in one run, users after each other."""
    if x.is_contiguous():
        return x
    copy = ctx.empty(name, *x.shape[1:])
    ctx.record(copy.copy_, x)
    return copy


def tile_grid(ctx: Context, tile: Tile, n: int) -> tuple[int, int, int]:
    """Groups of images, shares of the tiles, and users times parts of the channels."""
    blocks = tile.images.groups(n) * ctx.users * tile.parts
    most = ceil(tile.items / tile.warps)
    wanted = WAVES * tile.resident * multiprocessors(ctx.tape.workspace.like.device)
    return tile.images.groups(n), divided(most, ceil(wanted / blocks)), ctx.users * tile.parts


# --- which convolutions of a net they are -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Arranged:
    """A net, and in `choices` a sentence for each of its layers with weights, as far as they are known."""

    net: Net
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Run:
    """A convolution and the stages that are fused with it."""

    geometry: ConvGeometry
    length: int
    bias: str | None


def arrange(net: Net, features: Shape, obstacle: str) -> Arranged:
    """The net for images of this shape, with convolutions fused; `obstacle`: why none can be."""
    shapes, count = net.shapes(features), consumers(list(net.stages))
    number, stages, choices = {0: 0}, list[Stage](), list[str]()
    k = 0
    while k < len(net.stages):
        stage, length = net.stages[k], 1
        if isinstance(stage.layer, Conv | ConvPool):
            conv = stage.layer.conv if isinstance(stage.layer, ConvPool) else stage.layer
            reason = obstacle or why_not(conv)
            name = stage.parameter or "a convolution"
            if reason:
                choices.append(f"{name}: matrix products, since {reason}")
            else:
                run = _run(net, k, shapes, count)
                choices.append(f"{name}: a CUDA kernel ({run.geometry})")
                stage, length = replace(stage, layer=FusedConv(run.geometry), bias=run.bias), run.length
        stages.append(replace(stage, inputs=tuple(number[i] for i in stage.inputs)))
        k += length
        number[k] = len(stages)
    return Arranged(Net(mark_owners(stages)), tuple(choices))


def why_not(conv: Conv) -> str:
    """What keeps a convolution from going by a generated kernel; empty: nothing."""
    if conv.stride != (1, 1):
        return f"its stride is {conv.stride[0]} x {conv.stride[1]}"
    if conv.dilation != (1, 1):
        return "it is dilated"
    if max(conv.kernel) > MAX_KERNEL:
        return f"its kernel is larger than {MAX_KERNEL} x {MAX_KERNEL}"
    if max(conv.inputs, conv.outputs) > MAX_CHANNELS:
        return f"it has more than {MAX_CHANNELS} channels"
    return ""


def _run(net: Net, k: int, shapes: list[Shape], count: list[int]) -> _Run:
    """The convolution at stage k, and as many of the stages after it as one kernel does."""
    layer = net.stages[k].layer
    conv = layer.conv if isinstance(layer, ConvPool) else layer
    assert isinstance(conv, Conv)
    (height, width) = shapes[net.stages[k].inputs[0]][1:]
    geometry = ConvGeometry(conv.inputs, conv.outputs, (height, width), conv.kernel, conv.padding, bias=False)
    if isinstance(layer, ConvPool):
        geometry = replace(geometry, pooling="max", pool=layer.tile)
    bias, at = None, k
    while at + 1 < len(net.stages) and count[at + 1] == 1 and net.stages[at + 1].inputs == (at + 1,):
        stage = net.stages[at + 1]
        longer = _with(geometry, stage, shapes[at + 1])
        if longer is None:
            break
        geometry, at = longer, at + 1
        bias = stage.parameter if isinstance(stage.layer, Bias) else bias
    return _Run(geometry, at + 1 - k, bias)


def _with(geometry: ConvGeometry, stage: Stage, shape: Shape) -> ConvGeometry | None:
    """The geometry with one more stage, on features of this shape; None where one kernel does not do it."""
    layer = stage.layer
    if isinstance(layer, Bias) and not geometry.bias and geometry.relu == "none":
        return replace(geometry, bias=True)
    if isinstance(layer, ReLU) and geometry.relu == "none":
        return replace(geometry, relu="last")
    if isinstance(layer, MaxPool | AvgPool) and geometry.pooling == "none":
        return _pooled(geometry, layer, shape)
    return None


def _pooled(geometry: ConvGeometry, layer: MaxPool | AvgPool, shape: Shape) -> ConvGeometry | None:
    kind: Literal["max", "mean"] = "max" if isinstance(layer, MaxPool) else "mean"
    try:
        kernel, stride = layer.windows_for(shape[1:]) if isinstance(layer, AvgPool) else (layer.kernel, layer.stride)
    except Unstackable:
        return None
    tile = (kernel[0], kernel[1])
    dilated = isinstance(layer, MaxPool) and layer.dilation != (1, 1)
    first = kind == "mean" and geometry.relu == "last"
    if (
        tile != tuple(stride)
        or layer.padding != (0, 0)
        or dilated
        or prod(tile) > (MAX_RELU_ENTRIES if first else MAX_POOL_ENTRIES)
    ):
        return None
    return replace(geometry, pooling=kind, pool=tile, relu="first" if first else geometry.relu)
