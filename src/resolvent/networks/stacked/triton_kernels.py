# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for CUDA where torch would take several passes: windows into columns and back, maxima and back, channels
normalised, cross entropy.

Values are (users, channels, height, width, n) with the images innermost, so that every access is a run of images. A
program takes a tile of some columns and images: one column of many images, or many columns of few.

This module needs Triton: whoever imports it has checked that it is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 512
"""How many numbers a program takes, at most."""
TILES = 4
"""Of windows: so many one after the other, at least."""
CHANNEL_RUN = 512
"""How many numbers of a channel a program takes."""
IMAGES = 128
"""The same of the outputs, of which there are fewer."""


@triton.jit
def _lower(
    x, cols, C, KH, KW, OH, OW, H, W, n, su, sc, sh, sw, bu, SH, SW, PH, PW, DH, DW, SPAN,
    COLUMNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
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
    G, x, out, C, H, W, n, gu, gc, gh, gw, su, sc, sh, sw, step, tu, tc, th, tw, jump, K: tl.constexpr,
    COLUMNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
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


# --- over channels ----------------------------------------------------------------------------------------------------


@triton.jit
def _normalise(x, y, s, C, rest, SIZE: tl.constexpr, SCALE: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr):
    row = tl.program_id(0)
    c = row % C
    numbers = tl.program_id(1) * RUN + tl.arange(0, RUN)
    real = numbers < rest
    here = row.to(tl.int64) * rest + numbers
    total = tl.zeros([RUN], dtype=x.dtype.element_ty)
    for k in tl.static_range(0, SIZE):
        off = k - SIZE // 2
        near = tl.load(x + here + off * rest, mask=real & (c + off >= 0) & (c + off < C), other=0.0)
        total += near * near
    scale = total * SCALE + K
    tl.store(s + here, scale, mask=real)
    value = tl.load(x + here, mask=real, other=0.0)
    tl.store(y + here, value * tl.rsqrt(tl.sqrt(scale) * scale), mask=real)


@triton.jit
def _unnormalise(G, x, s, dx, C, rest, SIZE: tl.constexpr, FACTOR: tl.constexpr, RUN: tl.constexpr):
    row = tl.program_id(0)
    c = row % C
    numbers = tl.program_id(1) * RUN + tl.arange(0, RUN)
    real = numbers < rest
    here = row.to(tl.int64) * rest + numbers
    around = tl.zeros([RUN], dtype=x.dtype.element_ty)
    for k in tl.static_range(0, SIZE):
        off = k - (SIZE - 1) // 2
        there = real & (c + off >= 0) & (c + off < C)
        g = tl.load(G + here + off * rest, mask=there, other=0.0)
        value = tl.load(x + here + off * rest, mask=there, other=0.0)
        scale = tl.load(s + here + off * rest, mask=there, other=1.0)
        around += g * tl.rsqrt(tl.sqrt(scale) * scale) * value / scale
    g = tl.load(G + here, mask=real, other=0.0)
    value = tl.load(x + here, mask=real, other=0.0)
    scale = tl.load(s + here, mask=real, other=1.0)
    tl.store(dx + here, g * tl.rsqrt(tl.sqrt(scale) * scale) + value * around * FACTOR, mask=real)


@triton.jit
def _cross_entropy(o, y, weight, G, loss, C, n, RUN: tl.constexpr):
    u = tl.program_id(0)
    images = tl.program_id(1) * RUN + tl.arange(0, RUN)
    real = images < n
    mine = o + u.to(tl.int64) * C * n + images
    most = tl.load(mine, mask=real, other=0.0)
    for c in range(1, C):
        most = tl.maximum(most, tl.load(mine + c * n, mask=real, other=0.0), propagate_nan=tl.PropagateNan.ALL)
    total = tl.zeros([RUN], dtype=o.dtype.element_ty)
    for c in range(0, C):
        total += tl.exp(tl.load(mine + c * n, mask=real, other=0.0) - most)
    log_sum = tl.log(total)
    label = tl.maximum(tl.load(y + u * n + images, mask=real, other=0), 0)
    w = tl.load(weight + u * n + images, mask=real, other=0.0)
    for c in range(0, C):
        p = tl.exp(tl.load(mine + c * n, mask=real, other=0.0) - most - log_sum)
        tl.store(G + u.to(tl.int64) * C * n + c * n + images, p * w - tl.where(label == c, w, 0.0), mask=real)
    right = tl.load(mine + label * n, mask=real, other=0.0) - most - log_sum
    tl.store(loss + u * n + images, tl.where(w > 0, -right * w, 0.0), mask=real)


def _over_channels(x: Tensor) -> tuple[tuple[int, int], int, int]:
    """The grid for contiguous x (users, channels, ...), the channels, and how many numbers each has."""
    users, channels = x.shape[:2]
    rest = x[0, 0].numel()
    return (users * channels, triton.cdiv(rest, CHANNEL_RUN)), channels, rest


def normalise(x: Tensor, y: Tensor, s: Tensor, size: int, alpha: float, k: float) -> None:
    """y = x s^-0.75 with s = k + alpha / size * (the sum of x^2 over `size` channels around); all are contiguous."""
    grid, channels, rest = _over_channels(x)
    _normalise[grid](x, y, s, channels, rest, SIZE=size, SCALE=alpha / size, K=k, RUN=CHANNEL_RUN)


def unnormalise(G: Tensor, x: Tensor, s: Tensor, dx: Tensor, size: int, alpha: float) -> None:
    """The gradient at x, from that at y; all are contiguous, and dx is none of the others."""
    grid, channels, rest = _over_channels(x)
    _unnormalise[grid](G, x, s, dx, channels, rest, SIZE=size, FACTOR=-1.5 * alpha / size, RUN=CHANNEL_RUN)


def cross_entropy(o: Tensor, y: Tensor, weight: Tensor, G: Tensor) -> Tensor:
    """Each user's weighted sum of -log softmax(o)[y], and in G its gradient at o (users, classes, n)."""
    users, classes, n = o.shape
    loss = torch.empty_like(weight)
    _cross_entropy[(users, triton.cdiv(n, IMAGES))](o, y, weight, G, loss, classes, n, RUN=IMAGES)
    return loss.sum(1)
