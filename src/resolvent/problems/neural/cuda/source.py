"""CUDA C of each kernel: the layer's shapes and its cut as constants, then the files beside this one."""

from __future__ import annotations

from functools import cache
from math import ceil
from pathlib import Path

from resolvent.problems.neural.cuda.geometry import Geometry, Images
from resolvent.problems.neural.cuda.tiling import Stripe, Tile, forward_tile, input_tile, stripe

AHEAD = 1
FOLDER = Path(__file__).parent


def forward(geometry: Geometry, images: Images, tile: Tile | None = None) -> str:
    tile = tile or forward_tile(geometry, images)
    return _source("forward.cu", geometry, images, tile.constants())


def input_gradient(geometry: Geometry, images: Images, tile: Tile | None = None) -> str:
    tile = tile or input_tile(geometry, images)
    text = _source("input_gradient.cu", geometry, images, tile.constants())
    return text.replace("TILE_BY_COLUMN", by_column(geometry, tile))


def weight_gradient(geometry: Geometry, images: Images, cut: Stripe | None = None) -> str:
    return _source("weight_gradient.cu", geometry, images, (cut or stripe(geometry)).constants())


def add_shares(geometry: Geometry) -> str:
    return _source("add_shares.cu", geometry, Images(1, False, False), {})


def innermost() -> str:
    return _read("innermost.cu")


def by_column(geometry: Geometry, tile: Tile) -> str:
    """The calls for the first tile of a row, the last one and those between: each knows which cells are there."""
    kernel, pad, pool = geometry.kernel[1], geometry.padding[1], geometry.pool[1]
    width = tile.cells[1] * pool
    tiles = ceil(geometry.size[1] / width)
    shift = pad - kernel + 1
    before = shift // pool
    patch = ceil((shift - before * pool + width + kernel - 1) / pool)

    def cells(x: int) -> tuple[int, int]:
        """Which columns of the patch of tile x are inside."""
        first = x * tile.cells[1] + before
        left = min(max(0, -first), patch)
        return left, max(left, min(patch, geometry.cells[1] - first))

    def call(left: int, right: int, edge: bool) -> str:
        where = f"{left}, {right}, {'true' if edge else 'false'}"
        return f"tile<{where}>(dx, g, codes, w, block, tile_y, tile_x, n, live);"

    between = [cells(x) for x in range(1, tiles - 1)]
    calls = [f"if (tile_x == 0) {call(*cells(0), False)}"]
    if tiles > 1:
        calls.append(f"else if (tile_x == TILES_W - 1) {call(*cells(tiles - 1), False)}")
    if between:
        left, right = min(a for a, _ in between), max(b for _, b in between)
        calls.append(f"else {call(left, right, len(set(between)) > 1)}")
    return "\n      ".join(calls)


def _source(file: str, geometry: Geometry, images: Images, cut: dict[str, int]) -> str:
    constants = geometry.constants() | images.constants() | {"AHEAD": AHEAD} | cut
    lines = [f"constexpr int {name} = {value};" for name, value in constants.items()]
    return "\n".join([*lines, "", _read("common.cuh"), _read(file)])


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text()
