"""How forward and the gradient at the input are cut: a warp's tile, its channels, the warps. By rule, from shapes.

A multiprocessor starts four instructions per cycle, and its load unit serves one number per lane and cycle. So a cut is
judged by its instructions, by what it loads, and by its registers where they are many, over all of the work: positions
and channels that are not there count as well. The numbers in these sums were fitted to times on an H200, so that the
rules come within a twentieth of the best cut for most layers of bench/neural.py. They are never measured again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil

from resolvent.networks.stacked.cuda.geometry import ConvGeometry, ImageGroups, as_constants

MAX_FORWARD_SUMS, MAX_INPUT_SUMS = 96, 112
"""Sums that a thread keeps in registers, at most."""
MAX_SUMS_OF_THREE = 64
"""With so few sums three blocks of threads share a multiprocessor in the gradient at the input, rather than two."""
MAX_UNROLLED = 2000
"""Multiplications in an unrolled loop body, at most: longer ones wait for instructions."""
MAX_WEIGHT_BYTES = 46 << 10
"""Bytes of shared memory for weights: a block may have 48 KB without asking for more."""
MAX_WARPS = 4
"""Warps of a block of threads, at most."""


@dataclass(frozen=True)
class Tile:
    """A warp's share in forward and in the gradient at the input: `cells` of pooling and `block` channels.

    `rows` kernel rows are unrolled at a time (forward). A block of threads has the weights of `weight_blocks` blocks of
    channels in shared memory; `parts` such blocks of threads cover all channels. A warp takes `items` in turn.
    """

    images: ImageGroups
    cells: tuple[int, int]
    block: int
    rows: int
    weight_blocks: int
    parts: int
    warps: int
    items: int
    resident: int

    def constants(self) -> dict[str, int]:
        return self.images.constants() | as_constants(self) | {"CELLS_Y": self.cells[0], "CELLS_X": self.cells[1]}


@cache
def forward_tile(geometry: ConvGeometry, n: int) -> Tile:
    """The tile over the result's cells, and blocks of output channels."""
    cells, channels = geometry.cells, geometry.outputs
    return min(
        _tiles(geometry, n, cells, channels, geometry.inputs, False), key=lambda tile: _forward_cost(geometry, tile)
    )


@cache
def input_tile(geometry: ConvGeometry, n: int) -> Tile:
    """The tile over input positions, in units of the pooling tile, and blocks of input channels."""
    (h, w), (p, q) = geometry.size, geometry.pool
    tiles = _tiles(geometry, n, (ceil(h / p), ceil(w / q)), geometry.inputs, geometry.outputs, True)
    return min(tiles, key=lambda tile: _input_cost(geometry, tile))


def _tiles(
    geometry: ConvGeometry, n: int, cells: tuple[int, int], channels: int, depth: int, by_row: bool
) -> list[Tile]:
    """All tiles whose sums fit; `by_row`: a warp goes along a row of tiles."""
    tiles = []
    sizes = product(range(1, min(4, cells[0]) + 1), range(1, min(8, cells[1]) + 1), range(1, min(8, channels) + 1))
    for images, (a, b, block) in product(ImageGroups.choices(n), sizes):
        sums = a * geometry.pool[0] * b * geometry.pool[1] * images.per_lane * block
        if sums > (MAX_INPUT_SUMS if by_row else MAX_FORWARD_SUMS) and (a, b, block) != (1, 1, 1):
            continue
        rows = max(1, min(geometry.kernel[0], MAX_UNROLLED // (sums * geometry.kernel[1])))
        rows = ceil(geometry.kernel[0] / ceil(geometry.kernel[0] / rows))
        blocks, row = ceil(channels / block), ceil(geometry.kernel[1] * block / 4) * 4
        together = min(blocks, 8, MAX_WEIGHT_BYTES // (4 * depth * geometry.kernel[0] * row))
        if not together:
            continue
        parts = ceil(blocks / together)
        together = ceil(blocks / parts)
        items = together * ceil(cells[0] / a) * (1 if by_row else ceil(cells[1] / b))
        resident = 3 if sums <= (MAX_SUMS_OF_THREE if by_row else MAX_FORWARD_SUMS) else 2
        tiles.append(Tile(images, (a, b), block, rows, together, parts, min(MAX_WARPS, items), items, resident))
    return tiles


def _registers(geometry: ConvGeometry, tile: Tile) -> int:
    (p, q), kw, v = geometry.pool, geometry.kernel[1], tile.images.per_lane
    height, width = tile.cells[0] * p, tile.cells[1] * q
    return height * width * v * tile.block + height * (width + kw - 1) * v + ceil(kw * tile.block / 4) * 4


def crowded(registers: int, free: int, price: float) -> float:
    """What registers beyond those that are free cost, as a factor."""
    return 1 + price * max(0, registers - free) / 100


def _forward_cost(geometry: ConvGeometry, tile: Tile) -> tuple[float, int]:
    """Per image, for all channels and cells."""
    (kh, kw), (p, q), v = geometry.kernel, geometry.pool, tile.images.per_lane
    (a, b), block = tile.cells, tile.block
    patch = (a * p + kh - 1) * (b * q + kw - 1)
    weights = kh * ceil(kw * block / 4)  # four at a time
    work = a * p * b * q * v * block * geometry.taps
    instructions = geometry.inputs * (work + patch + weights + 15) + a * b * v * block * (3 * p * q + 4) + 200
    loads = geometry.inputs * (patch * v + 4 * weights)
    times = ceil(geometry.cells[0] / a) * ceil(geometry.cells[1] / b) * ceil(geometry.outputs / block) / v
    registers = _registers(geometry, tile)
    return (instructions + 0.1 * loads) * times * crowded(registers, 150, 0.8), registers


def _input_cost(geometry: ConvGeometry, tile: Tile) -> tuple[float, int]:
    """The same for the gradient at the input, where tiles at the edges have less to do."""
    kw, (p, q), v = geometry.kernel[1], geometry.pool, tile.images.per_lane
    (a, b), block = tile.cells, tile.block
    height, width = a * p, b * q
    unpooling = 2 + v * (2 * p * q if geometry.pooling == "max" else 2)
    rows = Counter(_strips(geometry, a, y) for y in range(ceil(geometry.size[0] / height)))
    columns = Counter(_columns(geometry, b, x) for x in range(ceil(geometry.size[1] / width)))
    total = 0.0
    for (strips, many), ((cells, pairs), times) in product(rows.items(), columns.items()):
        for met, kernel_rows in strips:
            weights = kernel_rows * ceil(kw * block / 4)
            instructions = met * pairs * block * v + cells * unpooling + weights + 12
            total += many * times * geometry.outputs * (instructions + 1.5 * cells * v + 4 * weights)
        total += many * times * (block * height * width * (1.5 + v) + 100)
    registers = _registers(geometry, tile)
    return total * ceil(geometry.inputs / block) / v * crowded(registers, 120, 0.4), registers


@cache
def _strips(geometry: ConvGeometry, a: int, y: int) -> tuple[tuple[int, int], ...]:
    """For each row of cells that tile y meets: pairs of its rows with kernel rows, and how many kernel rows."""
    kernel, pool = geometry.kernel[0], geometry.pool[0]
    shift = geometry.padding[0] - kernel + 1
    before = shift // pool
    off, height = shift - before * pool, a * pool
    strips = []
    for s in range(ceil((off + height + kernel - 1) / pool)):
        if 0 <= y * a + before + s < geometry.cells[0]:
            first = s * pool - off - (kernel - 1)
            met = [sum(0 <= first + k + e < height for e in range(pool)) for k in range(kernel)]
            strips.append((sum(met), sum(m > 0 for m in met)))
    return tuple(strips)


@cache
def _columns(geometry: ConvGeometry, b: int, x: int) -> tuple[int, int]:
    """For tile x of a row: how many columns of cells it meets, and pairs of their columns with kernel columns."""
    left, right = cells_met(geometry, b, x)
    kernel, pool = geometry.kernel[1], geometry.pool[1]
    off = (geometry.padding[1] - kernel + 1) % pool
    places = (off + kernel - 1 - k + j for k in range(kernel) for j in range(b * pool))
    return right - left, sum(left * pool <= place < right * pool for place in places)


def cells_met(geometry: ConvGeometry, b: int, x: int) -> tuple[int, int]:
    """Which columns of the patch of cells that tile x of a row looks at are inside, from and to; b cells per tile."""
    kernel, pool = geometry.kernel[1], geometry.pool[1]
    shift = geometry.padding[1] - kernel + 1
    before = shift // pool
    patch = ceil((shift - before * pool + b * pool + kernel - 1) / pool)
    first = x * b + before
    left = min(max(0, -first), patch)
    return left, max(left, min(patch, geometry.cells[1] - first))
