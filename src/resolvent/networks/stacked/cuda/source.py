"""CUDA C of each kernel: the layer's shapes and its cut as constants, then the files beside this one."""

from __future__ import annotations

from functools import cache
from math import ceil
from pathlib import Path

from resolvent.networks.stacked.cuda.compiler import Code
from resolvent.networks.stacked.cuda.geometry import ConvGeometry, HeadGeometry, ImageGroups
from resolvent.networks.stacked.cuda.stripes import Stripe
from resolvent.networks.stacked.cuda.tiling import Tile, cells_met

FOLDER = Path(__file__).parent


def forward(geometry: ConvGeometry, tile: Tile) -> Code:
    return _code("forward", geometry, tile.constants())


def input_gradient(geometry: ConvGeometry, tile: Tile) -> Code:
    code = _code("input_gradient", geometry, tile.constants())
    return code._replace(source=code.source.replace("TILE_BY_COLUMN", by_column(geometry, tile)))


def weight_gradient(geometry: ConvGeometry, stripe: Stripe) -> Code:
    return _code("weight_gradient", geometry, stripe.constants())


def add_shares(geometry: ConvGeometry) -> Code:
    return _code("add_shares", geometry, ImageGroups(1, False, False).constants())


def head(geometry: HeadGeometry, n: int) -> Code:
    return Code(_with_constants(geometry.constants(n), "images.cuh", "head.cu"), "head")


def rows(name: str) -> Code:
    return Code(_read("rows.cu"), name)


def innermost() -> Code:
    return Code(_read("innermost.cu"), "innermost")


def update(momentum: bool, pull: bool, tilt: bool, moves: bool) -> Code:
    """Which of these there are: momentum, a pull, a constant beside the gradient, users that rest."""
    flags = {"MOMENTUM": int(momentum), "PULL": int(pull), "TILT": int(tilt), "MOVES": int(moves)}
    return Code(_with_constants(flags, "update.cu"), "update")


def by_column(geometry: ConvGeometry, tile: Tile) -> str:
    """The calls for the first tile of a row, the last one and those between: each knows which cells are there."""
    tiles = ceil(geometry.size[1] / (tile.cells[1] * geometry.pool[1]))
    met = [cells_met(geometry, tile.cells[1], x) for x in range(tiles)]

    def call(left: int, right: int, edge: bool) -> str:
        where = f"{left}, {right}, {'true' if edge else 'false'}"
        return f"tile<{where}>(dx, g, codes, w, block, tile_y, tile_x, n, live);"

    calls = [f"if (tile_x == 0) {call(*met[0], False)}"]
    if tiles > 1:
        calls.append(f"else if (tile_x == TILES_W - 1) {call(*met[-1], False)}")
    if tiles > 2:
        between = met[1:-1]
        left, right = min(a for a, _ in between), max(b for _, b in between)
        calls.append(f"else {call(left, right, len(set(between)) > 1)}")
    return "\n      ".join(calls)


def _code(name: str, geometry: ConvGeometry, cut: dict[str, int]) -> Code:
    return Code(_with_constants(geometry.constants() | cut, "images.cuh", "common.cuh", f"{name}.cu"), name)


def _with_constants(values: dict[str, int], *files: str) -> str:
    lines = [f"constexpr int {key} = {value};" for key, value in values.items()]
    return "\n".join([*lines, "", *map(_read, files)])


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text()
