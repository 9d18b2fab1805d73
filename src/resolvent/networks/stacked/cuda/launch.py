"""Launches of generated kernels: weight gradients, thin products as a special case of them, images put innermost."""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.compiler import Code, kernel
from resolvent.networks.stacked.cuda.geometry import ConvGeometry
from resolvent.networks.stacked.cuda.stripes import stripe

MIN_THIN_LENGTH, MAX_THIN_ROWS, MAX_THIN_COLUMNS = 1024, 32, 1024
"""A product is thin with rows at least so long, at most so many on one side, and at most so many on the other."""


MIN_INNERMOST_NUMBERS = 1 << 20
"""Numbers from which on `put_innermost` is faster than torch's copy: it takes longer to start."""


class GradientSlot(NamedTuple):
    """Where a gradient belongs, if anybody wants it, and whether it is added to what is there."""

    out: Tensor | None
    add: bool


def weight_gradient(
    tape: Any,
    name: Hashable,
    geometry: ConvGeometry,
    given: tuple[Tensor, Tensor, Tensor],
    targets: tuple[GradientSlot, GradientSlot],
) -> None:
    """The gradients of kernels and biases, from inputs, gradients at the result and codes."""
    x, G, code = given
    users, n = len(x), x.shape[-1]
    cut = stripe(geometry, n)
    count = shares(ceil(n / 32), users * cut.parts, multiprocessors(G.device) * cut.resident)
    parts = tape.workspace.empty((name, "shares"), count * users, (geometry.parameters,))
    grid = (count, cut.parts, users)
    launch(tape, source.weight_gradient(geometry, cut), grid, cut.warps, (x, G, code, parts, n, code.shape[1]))
    where = [parts if target.out is None else target.out for target in targets]
    how = [0 if target.out is None else 1 + target.add for target in targets]
    grid = (ceil(geometry.parameters / 128), users, 1)
    launch(tape, source.add_shares(geometry), grid, 4, (parts, *where, count, *how))


def thin_product(tape: Any, a: Tensor, b: Tensor, out: Tensor, add: bool) -> bool:
    """out_i = a_i b_i^T for long rows of which a or b has few; False where a matrix product is better."""
    return thin_gradient(tape, a, b, GradientSlot(out, add), GradientSlot(None, False))


def thin_gradient(tape: Any, G: Tensor, x: Tensor, weight: GradientSlot, bias: GradientSlot) -> bool:
    """G_i x_i^T and the sums of G_i's rows: the weight gradient of a 1 x 1 convolution of one pixel.

    False where a matrix product is better, or rows do not lie one after the other.
    """
    rows, columns, n = G.shape[1], x.shape[1], G.shape[2]
    whole = all(each is None or each.is_contiguous() for each in (G, x, weight.out, bias.out))
    if not whole or n < MIN_THIN_LENGTH or min(rows, columns) > MAX_THIN_ROWS or max(rows, columns) > MAX_THIN_COLUMNS:
        return False
    geometry = ConvGeometry(columns, rows, (1, 1), (1, 1), bias=False)
    weight_gradient(tape, ("thin", G.shape, x.shape), geometry, (x, G, x), (weight, bias))
    return True


def launch(tape: Any, code: Code, grid: tuple[int, int, int], warps: int, args: tuple[Any, ...]) -> None:
    """Record a launch."""
    device = tape.workspace.like.device
    kernel(code, device.index)  # compiled now
    tape.record(run, device, code, grid, warps, args)


def run(device: torch.device, code: Code, grid: tuple[int, int, int], warps: int, args: tuple[Any, ...]) -> None:
    with torch.cuda.device(device):
        kernel(code, device.index)(grid=grid, block=(32 * warps, 1, 1), args=args)


def takes_innermost(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and x.numel() >= MIN_INNERMOST_NUMBERS


def put_innermost(x: Tensor, y: Tensor) -> None:
    """y = x (users, n, size) with the images innermost, (users, size, n); y is contiguous."""
    users, n, size = x.shape
    run(y.device, source.innermost(), (ceil(n / 32), ceil(size / 32), users), 8, (x.contiguous(), y, n, size))


def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


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
