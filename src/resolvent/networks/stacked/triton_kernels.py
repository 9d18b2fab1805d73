# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for CUDA where torch would take several passes: windows into columns and back, maxima and back.

Values are (users, channels, height, width, n) with the images innermost, so that every access is a run of images. A
program takes a tile of some columns and images: one column of many images, or many columns of few.

This module needs Triton: whoever imports it has checked that it is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from resolvent.networks.stacked.triton_channels import cross_entropy, normalise, unnormalise

__all__ = ["cross_entropy", "fold", "lower", "maxima", "normalise", "unmax", "unnormalise"]

TILE = 512
"""How many numbers a program takes, at most."""
TILES = 4
"""Of windows: so many one after the other, at least."""


@triton.jit
def _lower(
    x,
    cols,
    C,
    KH,
    KW,
    OH,
    OW,
    H,
    W,
    n,
    su,
    sc,
    sh,
    sw,
    bu,
    SH,
    SW,
    PH,
    PW,
    DH,
    DW,
    SPAN,
    COLUMNS: tl.constexpr,
    RUN: tl.constexpr,
):
    row = tl.program_id(0)
    j = row % KW
    i = (row // KW) % KH
    c = (row // (KW * KH)) % C
    u = row // (KW * KH * C)
    images = (tl.program_id(1) * RUN + tl.arange(0, RUN))[None, :]
    source = x + u.to(tl.int64) * su + c.to(tl.int64) * sc + images
    target = cols + u.to(tl.int64) * bu + ((c * KH + i) * KW + j).to(tl.int64) * OH * OW * n + images
    for first in range(0, SPAN, COLUMNS):
        place = (tl.program_id(2) * SPAN + first + tl.arange(0, COLUMNS))[:, None]
        h = (place // OW) * SH + i * DH - PH
        w = (place % OW) * SW + j * DW - PW
        real = (place < OH * OW) & (images < n)
        ok = real & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        tl.store(target + place * n, tl.load(source + h * sh + w * sw, mask=ok, other=0.0), mask=real)


@triton.jit
def _place(C, H, W, n, COLUMNS: tl.constexpr, RUN: tl.constexpr):
    """A program's row of values with its user, channel and height; its columns and images; which of them are there."""
    blocks = tl.cdiv(W, COLUMNS)
    row = tl.program_id(0) // blocks
    w = ((tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    h = row % H
    c = (row // H) % C
    u = row // (H * C)
    images = (tl.program_id(1) * RUN + tl.arange(0, RUN))[None, :]
    real = (w < W) & (images < n)
    return row, u, c, h, w, images, real


@triton.jit
def _fold(cols, x, C, KH, KW, OH, OW, H, W, n, bu, SH, SW, PH, PW, DH, DW, COLUMNS: tl.constexpr, RUN: tl.constexpr):
    row, u, c, h, w, images, real = _place(C, H, W, n, COLUMNS, RUN)
    total = tl.zeros([COLUMNS, RUN], dtype=x.dtype.element_ty)
    base = cols + u.to(tl.int64) * bu + images
    for i in range(KH):
        a = h + PH - i * DH
        oh = a // SH
        if (a >= 0) & (a % SH == 0) & (oh < OH):
            for j in range(KW):
                b = w + PW - j * DW
                ow = b // SW
                met = real & (b >= 0) & (b % SW == 0) & (ow < OW)
                place = (((c * KH + i) * KW + j) * OH + oh).to(tl.int64) * OW + ow
                total += tl.load(base + place * n, mask=met, other=0.0)
    tl.store(x + (row.to(tl.int64) * W + w) * n + images, total, mask=real)


@triton.jit
def _maxima(x, y, C, H, W, n, su, sc, sh, sw, step, K: tl.constexpr, COLUMNS: tl.constexpr, RUN: tl.constexpr):
    row, u, c, h, w, images, real = _place(C, H, W, n, COLUMNS, RUN)
    source = x + u.to(tl.int64) * su + c.to(tl.int64) * sc + h * sh + w * sw + images
    best = tl.load(source, mask=real, other=0.0)
    for k in tl.static_range(1, K):
        best = tl.maximum(best, tl.load(source + k * step, mask=real, other=0.0), propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + (row.to(tl.int64) * W + w) * n + images, best, mask=real)


@triton.jit
def _unmax(
    G,
    x,
    out,
    C,
    H,
    W,
    n,
    gu,
    gc,
    gh,
    gw,
    su,
    sc,
    sh,
    sw,
    step,
    tu,
    tc,
    th,
    tw,
    jump,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    RUN: tl.constexpr,
):
    _row, u, c, h, w, images, real = _place(C, H, W, n, COLUMNS, RUN)
    source = x + u.to(tl.int64) * su + c.to(tl.int64) * sc + h * sh + w * sw + images
    target = out + u.to(tl.int64) * tu + c.to(tl.int64) * tc + h * th + w * tw + images
    g = tl.load(G + u.to(tl.int64) * gu + c.to(tl.int64) * gc + h * gh + w * gw + images, mask=real, other=0.0)
    best = tl.load(source, mask=real, other=0.0)
    first = tl.zeros([COLUMNS, RUN], dtype=tl.int32)
    for k in tl.static_range(1, K):
        value = tl.load(source + k * step, mask=real, other=0.0)
        first = tl.where(value > best, k, first)
        best = tl.maximum(best, value)
    for k in tl.static_range(0, K):
        tl.store(target + k * jump, tl.where(first == k, g, 0.0), mask=real)


def _launch(rows: int, width: int, n: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid for rows of so many columns, and the columns, images and warps of a program."""
    run = min(TILE, max(32, triton.next_power_of_2(n)))
    columns = min(triton.next_power_of_2(width), TILE // run)
    how = {"COLUMNS": columns, "RUN": run, "num_warps": max(1, columns * run // 128)}
    return (rows * triton.cdiv(width, columns), triton.cdiv(n, run)), how


def lower(x: Tensor, cols: Tensor, kernel, counts, stride, padding, dilation) -> None:
    """The windows of x in columns (users, channels x kernel, h x w x n)."""
    g, c, height, width, n = x.shape
    sizes = (c, *kernel, *counts, height, width, n)
    (_, runs), how = _launch(1, counts[1], n)
    columns = how["COLUMNS"]
    span = triton.cdiv(max(counts[1], TILES * columns), columns) * columns
    grid = (g * c * kernel[0] * kernel[1], runs, triton.cdiv(counts[0] * counts[1], span))
    where = (*x.stride()[:4], cols.stride(0), *stride, *padding, *dilation, span)
    _lower[grid](x, cols, *sizes, *where, **how)


def fold(cols: Tensor, x: Tensor, kernel, counts, stride, padding, dilation) -> None:
    """The sum of the windows' gradients at each place, written into x, which must be contiguous."""
    g, c, height, width, n = x.shape
    sizes = (c, *kernel, *counts, height, width, n)
    grid, how = _launch(g * c * height, width, n)
    _fold[grid](cols, x, *sizes, cols.stride(0), *stride, *padding, *dilation, **how)


def maxima(x: Tensor, step: int, count: int, y: Tensor) -> None:
    """y = the maximum of x and of what lies `step`, 2 `step`, ... numbers after it; y must be contiguous."""
    g, c, h, w, n = x.shape
    grid, how = _launch(g * c * h, w, n)
    _maxima[grid](x, y, c, h, w, n, *x.stride()[:4], step, K=count, **how)


def unmax(G: Tensor, x: Tensor, step: int, count: int, out: Tensor, jump: int) -> None:
    """G to the first of the `count` that is the maximum, 0 to the others; `out` may be x itself."""
    g, c, h, w, n = x.shape
    grid, how = _launch(g * c * h, w, n)
    strides = (*G.stride()[:4], *x.stride()[:4], step, *out.stride()[:4], jump)
    _unmax[grid](G, x, out, c, h, w, n, *strides, K=count, **how)
