"""A convolution fused with its bias, pooling and ReLU as a stacked layer, computed by generated CUDA kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch import Tensor

from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.compiler import Code
from resolvent.networks.stacked.cuda.geometry import ConvGeometry
from resolvent.networks.stacked.cuda.launch import GradientSlot, divided, launch, multiprocessors, weight_gradient
from resolvent.networks.stacked.cuda.stripes import stripe
from resolvent.networks.stacked.cuda.tiling import Tile, forward_tile, input_tile
from resolvent.networks.stacked.layers import Context, Shape, Unstackable

WAVES = 4
"""Blocks that a multiprocessor gets in turn, if there are so many: with fewer, some of them wait for the last."""


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
