"""Generated kernels compiled as C++ and run on the CPU, one block after the other (kernel_emulation.h)."""

from __future__ import annotations

import ctypes
import subprocess
from math import ceil
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from torch import Tensor

from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.compiler import Code
from resolvent.networks.stacked.cuda.geometry import ConvGeometry
from resolvent.networks.stacked.cuda.stripes import stripe
from resolvent.networks.stacked.cuda.tiling import forward_tile, input_tile

HEADER = Path(__file__).with_name("kernel_emulation.h")
ARGUMENTS = {
    "forward": "const float* a, const float* b, const float* c, float* d, byte* e, int f, int g",
    "input_gradient": "const float* a, const byte* b, const float* c, float* d, int e, int f",
    "weight_gradient": "const float* a, const float* b, const byte* c, float* d, int e, int f",
    "add_shares": "const float* a, float* b, float* c, int d, int e, int f",
    "head": "const float* a, const float* b, const float* c, const float* d, const float* e, const long long* f, "
    "const float* g, float* h, float* i, float* j, float* k, float* l, int m",
    "update": "float* a, const float* b, float* c, const float* d, const bool* e, int f, int g, int h, int i, int j",
    "split": "const float* a, float* b, const int* c, int d, int e, int f, int g",
    "join": "float* a, const float* b, const int* c, int d, int e, int f, int g",
}


def launch(folder: Path, code: Code, grid: tuple[int, int, int], threads: int, *args: Tensor | int) -> None:
    names = ", ".join(ascii_lowercase[: len(args)])
    call = f"launch({{(unsigned)X, (unsigned)Y, (unsigned)Z}}, T, [=] {{ {code.name}({names}); }});"
    entry = f'extern "C" void run(int X, int Y, int Z, int T, {ARGUMENTS[code.name]}) {{ {call} }}'
    text, library = folder / f"{code.name}.cpp", folder / f"{code.name}.so"
    text.write_text(f'#include "{HEADER}"\n{code.source}\n{entry}\n')
    build = ["g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread", "-o", str(library), str(text)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    pointers: list[Any] = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in args]
    ctypes.CDLL(str(library)).run(*grid, threads, *pointers)


def convolve(
    folder: Path, geometry: ConvGeometry, x: Tensor, w: Tensor, b: Tensor, g: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The result, the codes, and the gradients at x, w and b, for gradients g at the result. All begin as NaN."""
    users, n = len(x), x.shape[-1]
    y, dx, dw, db = (torch.full_like(t, torch.nan) for t in (g, x, w, b))
    stride = ceil(g[0].numel() / 4)
    code = torch.full((users, 4 * stride), 99, dtype=torch.uint8)
    tile = forward_tile(geometry, n)
    grid = (tile.images.groups(n), max(1, ceil(tile.items / tile.warps) // 2), users * tile.parts)
    launch(folder, source.forward(geometry, tile), grid, 32 * tile.warps, x, w, b, y, code, n, stride)
    tile = input_tile(geometry, n)
    grid = (tile.images.groups(n), max(1, ceil(tile.items / tile.warps) // 2), users * tile.parts)
    launch(folder, source.input_gradient(geometry, tile), grid, 32 * tile.warps, g, code, w, dx, n, stride)
    cut, count = stripe(geometry, n), min(2, ceil(n / 32))
    shares = torch.full((count, users, geometry.parameters), torch.nan)
    grid = (count, cut.parts, users)
    launch(folder, source.weight_gradient(geometry, cut), grid, 32 * cut.warps, x, g, code, shares, n, stride)
    grid = (ceil(geometry.parameters / 128), users, 1)
    launch(folder, source.add_shares(geometry), grid, 128, shares, dw, db, count, 1, 1)
    return y, code, dx, dw, db
