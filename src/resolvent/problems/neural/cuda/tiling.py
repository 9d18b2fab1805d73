"""How the work of each kernel is cut: which tile a warp takes, how many channels, how many warps. By rule, from shapes.

A streaming multiprocessor starts four instructions per cycle, and its load unit serves one warp-wide number per cycle.
So a cut is judged by what a useful multiplication costs: the instructions beside it, numbers that must be loaded, and
multiplications wasted on positions and channels that are not there. Sums stay in registers, so their number is limited.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil

from resolvent.problems.neural.cuda.geometry import Geometry, Images

SUMS = 100
"""Sums that a thread keeps in registers, at most."""
BODY = 1300
"""Multiplications in an unrolled loop body, at most: longer ones wait for instructions."""
SHARED = 48 << 10
"""Bytes of shared memory that a block may have without asking for more."""
WARPS = 8
"""Warps of a block, at most."""
REGISTERS = 65536
"""Registers of a multiprocessor."""


@dataclass(frozen=True)
class Tile:
    """A warp's share in forward and in the gradient at the input: `cells` of pooling and `block` channels.

    `rows` kernel rows are unrolled at a time (forward). A block of threads has the weights of `weight_blocks` blocks of
    channels in shared memory; `parts` such blocks of threads cover all channels.
    """

    cells: tuple[int, int]
    block: int
    rows: int
    weight_blocks: int
    parts: int
    warps: int
    items: int
    resident: int

    def constants(self) -> dict[str, int]:
        return {
            "CELLS_Y": self.cells[0],
            "CELLS_X": self.cells[1],
            "BLOCK": self.block,
            "ROWS": self.rows,
            "WEIGHT_BLOCKS": self.weight_blocks,
            "PARTS": self.parts,
            "WARPS": self.warps,
            "RESIDENT": self.resident,
        }


@dataclass(frozen=True)
class Stripe:
    """A warp's share in the weight gradient: one input channel, `block` output channels, all taps.

    A block of threads has `channel_warps` input channels times `warps / channel_warps` blocks of outputs, so that its
    warps read the same numbers at the same time.
    """

    block: int
    warps: int
    channel_warps: int
    channel_parts: int
    parts: int
    unroll: int
    resident: int

    def constants(self) -> dict[str, int]:
        return {
            "BLOCK": self.block,
            "WARPS": self.warps,
            "CHANNEL_WARPS": self.channel_warps,
            "CHANNEL_PARTS": self.channel_parts,
            "UNROLL": self.unroll,
            "RESIDENT": self.resident,
        }


def forward_tile(geometry: Geometry, images: Images) -> Tile:
    """The tile over the result's cells, and blocks of output channels."""
    return _tile(geometry, images, geometry.cells, geometry.outputs, geometry.inputs, by_row=False)


def input_tile(geometry: Geometry, images: Images) -> Tile:
    """The tile over input positions, in units of the pooling tile, and blocks of input channels."""
    (h, w), (p, q) = geometry.size, geometry.pool
    return _tile(geometry, images, (ceil(h / p), ceil(w / q)), geometry.inputs, geometry.outputs, by_row=True)


def _tile(geometry: Geometry, images: Images, cells: tuple[int, int], channels: int, depth: int, by_row: bool) -> Tile:
    """Of all tiles and blocks of channels, those with the least cost; `by_row`: a warp goes along a row of tiles."""
    sizes = product(range(1, min(4, cells[0]) + 1), range(1, min(16, cells[1]) + 1), range(1, min(8, channels) + 1))
    fitting = [(a, b, o) for a, b, o in sizes if _sums(geometry, images, a, b) * o <= SUMS]
    a, b, block = min(fitting or [(1, 1, 1)], key=lambda each: _cost(geometry, images, cells, channels, *each))
    sums = _sums(geometry, images, a, b) * block
    rows = max(1, min(geometry.kernel[0], BODY // (sums * geometry.kernel[1])))
    rows = ceil(geometry.kernel[0] / ceil(geometry.kernel[0] / rows))
    blocks = ceil(channels / block)
    row = ceil(geometry.kernel[1] * block / 4) * 4
    together = max(1, min(blocks, WARPS, (SHARED - 1024) // (4 * depth * geometry.kernel[0] * row)))
    parts = ceil(blocks / together)
    together = ceil(blocks / parts)
    items = together * ceil(cells[0] / a) * (1 if by_row else ceil(cells[1] / b))
    warps = _even(items)
    return Tile((a, b), block, rows, together, parts, warps, items, _resident(sums + 70, warps))


def _sums(geometry: Geometry, images: Images, a: int, b: int) -> int:
    return a * geometry.pool[0] * b * geometry.pool[1] * images.per_lane


def _cost(
    geometry: Geometry, images: Images, cells: tuple[int, int], channels: int, a: int, b: int, block: int
) -> tuple[float, int]:
    """Of a useful multiplication, in cycles; of equal ones the smaller number of sums."""
    (kh, kw), (p, q) = geometry.kernel, geometry.pool
    height, width = a * p, b * q
    work = height * width * images.per_lane * block * geometry.taps
    patch = (height + kh - 1) * (width + kw - 1)
    weights = kh * ceil(kw * block / 4)
    instructions = work + 2 * patch + weights
    loads = patch * images.per_lane + 4 * weights
    waste = (ceil(cells[0] / a) * a / cells[0]) * (ceil(cells[1] / b) * b / cells[1])
    waste *= ceil(channels / block) * block / channels
    return (instructions / 4 + loads / 4) / work * waste, height * width * images.per_lane * block


def _even(items: int) -> int:
    """Warps of a block, so that all have as many items."""
    return min(range(min(4, items), min(WARPS, items) + 1), key=lambda warps: (ceil(items / warps) * warps, -warps))


def _resident(registers: int, warps: int) -> int:
    """Blocks that a multiprocessor has at once, where a thread needs so many registers."""
    return max(1, REGISTERS // (min(255, registers) * 32 * warps))


def stripe(geometry: Geometry) -> Stripe:
    """How the weight gradient is cut."""
    taps, (p, q) = geometry.taps, geometry.pool
    most = max(1, min(8, geometry.outputs, SUMS // taps))
    block = min(range(1, most + 1), key=lambda o: (ceil(geometry.outputs / o) * o * (1 + 0.4 / o), -o))
    blocks = ceil(geometry.outputs / block)
    channel_warps = max(1, min(geometry.inputs, 4, WARPS // min(blocks, 2)))
    channel_warps = ceil(geometry.inputs / ceil(geometry.inputs / channel_warps))
    across = max(1, min(blocks, WARPS // channel_warps))
    across = ceil(blocks / ceil(blocks / across))
    channel_parts = ceil(geometry.inputs / channel_warps)
    warps = channel_warps * across
    unroll = max(1, 1600 // (taps * p * q * block))
    window = (geometry.kernel[0] + p - 1) * ceil((geometry.kernel[1] + q - 1) / q) * q
    return Stripe(
        block,
        warps,
        channel_warps,
        channel_parts,
        channel_parts * ceil(blocks / across),
        unroll,
        _resident(block * taps + window + 40, warps),
    )
