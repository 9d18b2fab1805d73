# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for CUDA where torch would take several passes: windows into columns and back, maxima and back.

Values are (users, channels, height, width, n) with the images innermost, so that every access is a run of images. This
module needs Triton: whoever imports it has checked that it is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

RUN = 512
"""How many images one program takes, at most."""


@triton.jit
def _lower(x, cols, C, KH, KW, OH, OW, H, W, n, su, sc, sh, sw, bu, SH, SW, PH, PW, DH, DW, RUN: tl.constexpr):
    row = tl.program_id(0)
    oh = row % OH
    rest = row // OH
    j = rest % KW
    i = (rest // KW) % KH
    c = (rest // (KW * KH)) % C
    u = rest // (KW * KH * C)
    h = oh * SH + i * DH - PH
    images = tl.program_id(1) * RUN + tl.arange(0, RUN)
    real = images < n
    source = x + u.to(tl.int64) * su + c.to(tl.int64) * sc + h * sh + images
    target = cols + u.to(tl.int64) * bu + (((c * KH + i) * KW + j) * OH + oh).to(tl.int64) * OW * n + images
    inside = (h >= 0) & (h < H)
    for ow in range(OW):
        w = ow * SW + j * DW - PW
        ok = real & inside & (w >= 0) & (w < W)
        tl.store(target + ow * n, tl.load(source + w * sw, mask=ok, other=0.0), mask=real)


@triton.jit
def _fold(cols, x, C, KH, KW, OH, OW, H, W, n, bu, SH, SW, PH, PW, DH, DW, RUN: tl.constexpr):
    place = tl.program_id(0)
    w = place % W
    h = (place // W) % H
    c = (place // (W * H)) % C
    u = place // (W * H * C)
    images = tl.program_id(1) * RUN + tl.arange(0, RUN)
    real = images < n
    total = tl.zeros([RUN], dtype=x.dtype.element_ty)
    base = cols + u.to(tl.int64) * bu + images
    for i in range(KH):
        a = h + PH - i * DH
        oh = a // SH
        if (a >= 0) & (a % SH == 0) & (oh < OH):
            for j in range(KW):
                b = w + PW - j * DW
                ow = b // SW
                if (b >= 0) & (b % SW == 0) & (ow < OW):
                    row = (((c * KH + i) * KW + j) * OH + oh).to(tl.int64) * OW + ow
                    total += tl.load(base + row * n, mask=real, other=0.0)
    tl.store(x + place.to(tl.int64) * n + images, total, mask=real)


@triton.jit
def _maxima(x, y, C, H, W, n, su, sc, sh, sw, step, K: tl.constexpr, RUN: tl.constexpr):
    place = tl.program_id(0)
    w = place % W
    h = (place // W) % H
    c = (place // (W * H)) % C
    u = place // (W * H * C)
    images = tl.program_id(1) * RUN + tl.arange(0, RUN)
    real = images < n
    source = x + u.to(tl.int64) * su + c.to(tl.int64) * sc + h * sh + w * sw + images
    best = tl.load(source, mask=real, other=0.0)
    for k in tl.static_range(1, K):
        best = tl.maximum(best, tl.load(source + k * step, mask=real, other=0.0), propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + place.to(tl.int64) * n + images, best, mask=real)


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
    RUN: tl.constexpr,
):
    place = tl.program_id(0)
    w = place % W
    h = (place // W) % H
    c = (place // (W * H)) % C
    u = place // (W * H * C)
    images = tl.program_id(1) * RUN + tl.arange(0, RUN)
    real = images < n
    source = x + u.to(tl.int64) * su + c.to(tl.int64) * sc + h * sh + w * sw + images
    target = out + u.to(tl.int64) * tu + c.to(tl.int64) * tc + h * th + w * tw + images
    g = tl.load(G + u.to(tl.int64) * gu + c.to(tl.int64) * gc + h * gh + w * gw + images, mask=real, other=0.0)
    best = tl.load(source, mask=real, other=0.0)
    first = tl.zeros([RUN], dtype=tl.int32)
    for k in tl.static_range(1, K):
        value = tl.load(source + k * step, mask=real, other=0.0)
        first = tl.where(value > best, k, first)
        best = tl.maximum(best, value)
    for k in tl.static_range(0, K):
        tl.store(target + k * jump, tl.where(first == k, g, 0.0), mask=real)


def _launch(places: int, n: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, and how many images and warps a program has."""
    run = min(RUN, max(32, triton.next_power_of_2(n)))
    return (places, triton.cdiv(n, run)), {"RUN": run, "num_warps": max(1, run // 128)}


def lower(x: Tensor, cols: Tensor, kernel, counts, stride, padding, dilation) -> None:
    """The windows of x in columns (users, channels x kernel, h x w x n)."""
    g, c, height, width, n = x.shape
    sizes = (c, *kernel, *counts, height, width, n)
    grid, how = _launch(g * c * kernel[0] * kernel[1] * counts[0], n)
    _lower[grid](x, cols, *sizes, *x.stride()[:4], cols.stride(0), *stride, *padding, *dilation, **how)


def fold(cols: Tensor, x: Tensor, kernel, counts, stride, padding, dilation) -> None:
    """The sum of the windows' gradients at each place, written into x, which must be contiguous."""
    g, c, height, width, n = x.shape
    sizes = (c, *kernel, *counts, height, width, n)
    grid, how = _launch(g * c * height * width, n)
    _fold[grid](cols, x, *sizes, cols.stride(0), *stride, *padding, *dilation, **how)


def maxima(x: Tensor, step: int, count: int, y: Tensor) -> None:
    """y = the maximum of x and of what lies `step`, 2 `step`, ... numbers after it; y must be contiguous."""
    g, c, h, w, n = x.shape
    grid, how = _launch(g * c * h * w, n)
    _maxima[grid](x, y, c, h, w, n, *x.stride()[:4], step, K=count, **how)


def unmax(G: Tensor, x: Tensor, step: int, count: int, out: Tensor, jump: int) -> None:
    """G to the first of the `count` that is the maximum, 0 to the others; `out` may be x itself."""
    g, c, h, w, n = x.shape
    grid, how = _launch(g * c * h * w, n)
    strides = (*G.stride()[:4], *x.stride()[:4], step, *out.stride()[:4], jump)
    _unmax[grid](G, x, out, c, h, w, n, *strides, K=count, **how)
