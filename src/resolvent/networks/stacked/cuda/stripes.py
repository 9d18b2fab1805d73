"""How the weight gradient is cut: which channels a warp takes, how many warps. By rule, from shapes: see tiling.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil, inf

from resolvent.networks.stacked.cuda.geometry import ConvGeometry, ImageGroups, as_constants
from resolvent.networks.stacked.cuda.tiling import MAX_UNROLLED, MAX_WARPS, crowded

MAX_REGISTERS = 220
"""Registers that a cut may need: a thread has 255, some of them for addresses."""
MAX_CHOSEN_OUTPUTS = 4
"""Output channels of a stripe, at most, where rows are chosen; it has one input channel then."""
ROLLED_COST = 1.15
"""What a weight gradient costs more where a row of cells is not one unrolled body."""
BUSY_WARPS = 40
"""Warps per user with which a weight gradient keeps the chip busy, for some twenty users."""


@dataclass(frozen=True)
class Stripe:
    """A warp's share in the weight gradient: `channels` of input times `block` of output, all taps.

    A block of threads has `channel_warps` such shares along the input channels times `warps / channel_warps` along the
    outputs, so that its warps read the same numbers at the same time. `rows_chosen`: inputs are chosen by the row of
    their cell's maximum before they are multiplied.
    """

    images: ImageGroups
    block: int
    channels: int
    warps: int
    channel_warps: int
    channel_parts: int
    parts: int
    unroll: int
    resident: int
    rows_chosen: bool

    def constants(self) -> dict[str, int]:
        return self.images.constants() | as_constants(self)


@cache
def stripe(geometry: ConvGeometry, n: int) -> Stripe:
    """How the weight gradient is cut."""
    blocks, channels = (MAX_CHOSEN_OUTPUTS, 1) if rows_chosen(geometry) else (8, 8)
    stripes = product(range(1, min(blocks, geometry.outputs) + 1), range(1, min(channels, geometry.inputs) + 1))
    block, channels = min(stripes, key=lambda each: _stripe_cost(geometry, n, *each))
    return cut_stripe(geometry, n, block, channels)


def cut_stripe(geometry: ConvGeometry, n: int, block: int, channels: int) -> Stripe:
    """Warps of a block of threads so that none is idle."""
    blocks, channel_blocks = ceil(geometry.outputs / block), ceil(geometry.inputs / channels)
    shapes = [(a, b) for a, b in product((1, 2, 4), repeat=2) if a * b <= MAX_WARPS]
    channel_warps, across = min(
        shapes,
        key=lambda s: (ceil(channel_blocks / s[0]) * s[0] * ceil(blocks / s[1]) * s[1], -s[0] * s[1], abs(s[0] - s[1])),
    )
    parts = ceil(channel_blocks / channel_warps)
    warps = channel_warps * across
    return Stripe(
        ImageGroups.of(n),
        block,
        channels,
        warps,
        channel_warps,
        parts,
        parts * ceil(blocks / across),
        unroll=max(1, MAX_UNROLLED // (_cell_work(geometry) * block * channels)),
        resident=_resident_warps(geometry, n, block, channels) // warps,
        rows_chosen=rows_chosen(geometry),
    )


def rows_chosen(geometry: ConvGeometry) -> bool:
    """Whether a row of inputs is chosen for each maximum: one choice then serves as many products as a cell is wide."""
    return geometry.pooling == "max" and geometry.pool[0] == 2 and geometry.pool[1] > 1 and geometry.kernel[1] > 1


def _cell_work(geometry: ConvGeometry) -> int:
    """Multiplications and choices for one cell, input channel and output channel."""
    (kh, kw), (p, q) = geometry.kernel, geometry.pool
    return q * geometry.taps + kh * (kw + q - 1) if rows_chosen(geometry) else p * q * geometry.taps


def _resident_warps(geometry: ConvGeometry, n: int, block: int, channels: int) -> int:
    """Warps of a multiprocessor at a time: 65,536 registers are divided among them."""
    registers = _stripe_registers(geometry, block, channels)
    if not rows_chosen(geometry):
        return 16 if registers <= 120 else 12 if registers <= 150 else 8
    if not ImageGroups.of(n).count:  # every row of inputs has an address of its own then
        return 8
    body = _cell_work(geometry) * block * channels * geometry.cells[1]
    longer = body / 40 if body <= MAX_UNROLLED else 0.0  # the compiler loads further ahead in a long body
    return 16 if registers + longer <= 124 and registers <= 105 else 12 if registers <= 150 else 8


def _stripe_registers(geometry: ConvGeometry, block: int, channels: int) -> int:
    """For sums, for inputs under this cell and the next and where the next row begins, and for gradients."""
    (kh, kw), (p, q) = geometry.kernel, geometry.pool
    first = kw + q - 1
    window = channels * (kh + p - 1) * (ceil((first + q) / q) * q + first)
    return block * channels * geometry.taps + window + 2 * block


def _stripe_cost(geometry: ConvGeometry, n: int, block: int, channels: int) -> tuple[float, int]:
    """Instructions per cell, for all channels. Where rows are chosen there are fewer, and loads count for more."""
    p, q = geometry.pool
    chosen, work = rows_chosen(geometry), _cell_work(geometry) * block * channels
    unpooling = 2 + (2 * p * q if geometry.pooling == "max" else 2)
    loads = channels * (geometry.kernel[0] + p - 1) * q
    times = ceil(geometry.outputs / block) * ceil(geometry.inputs / channels)
    registers = _stripe_registers(geometry, block, channels)
    if registers > MAX_REGISTERS and block * channels > 1:
        return inf, registers
    cost = (work + (3 if chosen else 1) * loads + block * unpooling + 8) * times
    if not chosen:
        return cost * crowded(registers, 120, 0.2), registers
    rolled = 1 if work * geometry.cells[1] <= MAX_UNROLLED else ROLLED_COST
    idle = max(1.0, BUSY_WARPS / (ceil(n / 32) * times)) ** 0.5
    return cost * crowded(registers, 120, 0.3) * rolled * idle, registers
