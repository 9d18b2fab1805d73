"""A convolution fused with its bias, pooling and ReLU as a stacked layer, computed by generated kernels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.problems.neural.cuda import source
from resolvent.problems.neural.cuda.compiler import Code, kernel
from resolvent.problems.neural.cuda.geometry import Geometry
from resolvent.problems.neural.cuda.tiling import Tile, forward_tile, input_tile, stripe
from resolvent.problems.neural.desk import Tape
from resolvent.problems.neural.layers import Here, Shape, Unstackable

LONG, FEW, MANY = 1024, 32, 1024
"""A product is thin with rows at least so long, at most so many on one side, and at most so many on the other."""
WAVES = 4
"""Blocks that a multiprocessor gets in turn, if there are so many: with fewer, some of them wait for the last."""


@dataclass(frozen=True)
class FusedConv:
    """See geometry.py. Forward keeps its input and a code per pooled value; see common.cuh."""

    geometry: Geometry
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

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        x, geometry = _whole(here, xs[0], "x"), self.geometry
        n = x.shape[-1]
        y = here.empty("y", geometry.outputs, *geometry.cells, n)
        code = here.empty("code", ceil(y[0].numel() / 4) if geometry.coded else 1)
        tile = forward_tile(geometry, n)
        args = (x, here.A, y if here.bias is None else here.bias, y, code, n, code.shape[1])
        _launch(here.tape, source.forward(geometry, tile), tile_grid(here, tile, n), tile.warps, args)
        here.kept = x, code
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        G = _whole(here, G, "G")
        if here.slope is not None or here.bias_slope is not None:
            x, code = here.kept
            targets = Target(here.slope, here.add), Target(here.bias_slope, here.add_bias)
            weight_gradient(here.tape, (here.step, here.users), self.geometry, (x, G, code), targets)
        return (self._inputs(here, G) if here.wanted else None,)

    def _inputs(self, here: Here, G: Tensor) -> Tensor:
        x, code = here.kept
        geometry, n = self.geometry, x.shape[-1]
        tile = input_tile(geometry, n)
        dx = here.empty("dx", *x.shape[1:])
        args = (G, code, here.A, dx, n, code.shape[1])
        _launch(here.tape, source.input_gradient(geometry, tile), tile_grid(here, tile, n), tile.warps, args)
        return dx


class Target(NamedTuple):
    """Where a gradient belongs, if anybody wants it, and whether it is added to what is there."""

    out: Tensor | None
    add: bool


def weight_gradient(
    tape: Tape,
    name: Hashable,
    geometry: Geometry,
    given: tuple[Tensor, Tensor, Tensor],
    targets: tuple[Target, Target],
) -> None:
    """The gradients of kernels and biases, from inputs, gradients at the result and codes."""
    x, G, code = given
    users, n = len(x), x.shape[-1]
    cut = stripe(geometry, n)
    count = shares(ceil(n / 32), users * cut.parts, multiprocessors(G.device) * cut.resident)
    parts = tape.desk.empty((name, "shares"), count * users, (geometry.parameters,))
    grid = (count, cut.parts, users)
    _launch(tape, source.weight_gradient(geometry, cut), grid, cut.warps, (x, G, code, parts, n, code.shape[1]))
    where = [parts if target.out is None else target.out for target in targets]
    how = [0 if target.out is None else 1 + target.add for target in targets]
    grid = (ceil(geometry.parameters / 128), users, 1)
    _launch(tape, source.add_shares(geometry), grid, 4, (parts, *where, count, *how))


def thin_product(tape: Tape, a: Tensor, b: Tensor, out: Tensor, add: bool) -> bool:
    """out_i = a_i b_i^T for long rows of which a or b has few: the weight gradient of a 1 x 1 convolution of one pixel.

    False where a matrix product is better, or rows do not lie one after the other.
    """
    rows, columns, n = a.shape[1], b.shape[1], a.shape[2]
    whole = a.is_contiguous() and b.is_contiguous() and out.is_contiguous()
    if not whole or n < LONG or min(rows, columns) > FEW or max(rows, columns) > MANY:
        return False
    geometry = Geometry(columns, rows, (1, 1), (1, 1), bias=False)
    weight_gradient(tape, ("thin", a.shape, b.shape), geometry, (b, a, b), (Target(out, add), Target(None, False)))
    return True


def _whole(here: Here, x: Tensor, name: str) -> Tensor:
    """x in one run, users after each other."""
    if x.is_contiguous():
        return x
    copy = here.empty(name, *x.shape[1:])
    here.do(copy.copy_, x)
    return copy


def _launch(tape: Tape, code: Code, grid: tuple[int, int, int], warps: int, args: tuple[Any, ...]) -> None:
    device = tape.desk.like.device
    launched = kernel(code, device.index)

    def launch() -> None:
        with torch.cuda.device(device):
            launched(grid=grid, block=(32 * warps, 1, 1), args=args)

    tape.do(launch)


def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def tile_grid(here: Here, tile: Tile, n: int) -> tuple[int, int, int]:
    """Groups of images, shares of the tiles, and users times parts of the channels."""
    blocks = tile.images.groups(n) * here.users * tile.parts
    most = ceil(tile.items / tile.warps)
    wanted = WAVES * tile.resident * multiprocessors(here.tape.desk.like.device)
    return tile.images.groups(n), divided(most, ceil(wanted / blocks)), here.users * tile.parts


def divided(most: int, wanted: int) -> int:
    """The number of shares of `most` turns, at least `wanted` where there are so many, that leaves the least idle."""
    return min(range(min(wanted, most), most + 1), key=lambda count: (ceil(most / count) * count, count))


def shares(groups: int, blocks: int, slots: int) -> int:
    """In how many shares images go, where each share has so many blocks and the chip so many slots for them.

    The time is that of the blocks which follow each other in a slot; every share also leaves sums to be added up.
    """
    return min(
        range(1, groups + 1),
        key=lambda count: ceil(blocks * count / slots) * (ceil(groups / count) + 0.3) + 0.005 * count,
    )
