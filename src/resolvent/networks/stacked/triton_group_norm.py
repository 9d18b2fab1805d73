# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for CUDA: group normalisation forward and backward, each in one pass for sums and one for results.

Values are (users, channels, ..., n), a group's or a channel's `length` rows of n images after each other. A program
takes a tile of rows and images, or runs along a chunk of rows, whose sums a second, small kernel adds up. Statistics
are (users, groups, 1, n), the sums of chunks (users, groups or channels, chunks, n).

This module needs Triton: whoever imports it has checked that it is installed.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

TILE = 2048
"""How many numbers a program takes at a time."""
IMAGES = 128
"""Of how many images, at most."""
PROGRAMS = 2048
"""Rows are cut into chunks until there are so many programs,"""
TILES = 4
"""as long as a chunk has so many tiles, and"""
MAX_CHUNKS = 64
"""there are not more chunks."""
SUMS, SUM_IMAGES = 32, 32
"""Rows and images of a tile where chunks are added up."""


class _Cut(NamedTuple):
    """`parts` of a user, groups or channels, of `length` rows each, in `chunks` of `chunk` rows; tiles; programs."""

    parts: int
    length: int
    chunk: int
    chunks: int
    rows: int
    run: int
    programs: int
    runs: int

    @property
    def tile(self) -> dict[str, int]:
        return {"ROWS": self.rows, "RUN": self.run, "num_warps": max(1, min(8, self.rows * self.run // 512))}


def _cut(x: Tensor, parts: int) -> _Cut:
    users, n = len(x), x.shape[-1]
    length = x[0].numel() // n // parts
    run = min(IMAGES, triton.next_power_of_2(n))
    rows = min(TILE // run, triton.next_power_of_2(length))
    programs, runs = users * parts, triton.cdiv(n, run)
    wanted = min(MAX_CHUNKS, triton.cdiv(PROGRAMS, programs * runs), triton.cdiv(length, TILES * rows))
    chunk = triton.cdiv(triton.cdiv(length, wanted), rows) * rows
    return _Cut(parts, length, chunk, triton.cdiv(length, chunk), rows, run, programs, runs)


def chunks(x: Tensor, parts: int) -> int:
    """How many sums there are for each of a user's parts: of its groups for `moments`, its channels for `slopes`."""
    return _cut(x, parts).chunks


# --- forward ----------------------------------------------------------------------------------------------------------


@triton.jit
def _moments(
    x, means, squares, groups, length, chunk, chunks, n, user, ROWS: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """Welford's updates, each number of a tile on its own; then the numbers of the tile are combined."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    images = (tl.program_id(2) * RUN + tl.arange(0, RUN))[None, :]
    base = x + (row // groups).to(tl.int64) * user + (row % groups).to(tl.int64) * length * n + images
    first = part * chunk
    last = tl.minimum(first + chunk, length)
    count = tl.zeros([ROWS, 1], dtype=x.dtype.element_ty)
    mean = tl.zeros([ROWS, RUN], dtype=x.dtype.element_ty)
    square = tl.zeros([ROWS, RUN], dtype=x.dtype.element_ty)
    for at in range(first, last, ROWS):
        place = (at + tl.arange(0, ROWS))[:, None]
        real = place < last
        value = tl.load(base + place.to(tl.int64) * n, mask=real & (images < n), other=0.0)
        count += tl.where(real, 1.0, 0.0)
        delta = tl.where(real, value - mean, 0.0)
        mean += delta * (1.0 / tl.maximum(count, 1.0))
        square += delta * (value - mean)
    whole = (tl.sum(mean * count, 0) / (last - first))[None, :]
    off = mean - whole
    total = tl.sum(square + count * off * off, 0)[None, :]
    here = (row * chunks + part).to(tl.int64) * n + images
    tl.store(means + here, whole, mask=images < n)
    tl.store(squares + here, total, mask=images < n)


@triton.jit
def _combine(
    means, squares, mean, scale, length, chunk, chunks, n, EPS: tl.constexpr, SUMS: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    images = (tl.program_id(1) * RUN + tl.arange(0, RUN))[None, :]
    part = tl.arange(0, SUMS)[:, None]
    real = (part < chunks) & (images < n)
    here = (row * chunks + part).to(tl.int64) * n + images
    each = tl.load(means + here, mask=real, other=0.0)
    count = tl.where(part < chunks, tl.minimum(length - part * chunk, chunk), 0).to(mean.dtype.element_ty)
    whole = (tl.sum(each * count, 0) / length)[None, :]
    off = each - whole
    total = tl.sum(tl.load(squares + here, mask=real, other=0.0) + count * off * off, 0)[None, :]
    stat = row.to(tl.int64) * n + images
    tl.store(mean + stat, whole, mask=images < n)
    tl.store(scale + stat, tl.rsqrt(total / length + EPS), mask=images < n)


@triton.jit
def _place(groups, length, n, ROWS: tl.constexpr, RUN: tl.constexpr):
    """A program's user and group; its rows in the group and its images; where their statistics are."""
    tiles = tl.cdiv(length, ROWS)
    row = tl.program_id(0) // tiles
    place = ((tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS))[:, None]
    images = (tl.program_id(1) * RUN + tl.arange(0, RUN))[None, :]
    return row // groups, row % groups, place, images, row.to(tl.int64) * n + images


@triton.jit
def _standardise(
    x, mean, scale, w, b, y, groups, length, places, n, x_user,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    u, group, place, images, stat = _place(groups, length, n, ROWS, RUN)
    real = (place < length) & (images < n)
    here = (group.to(tl.int64) * length + place) * n + images
    m = tl.load(mean + stat, mask=images < n, other=0.0)
    s = tl.load(scale + stat, mask=images < n, other=0.0)
    z = (tl.load(x + u.to(tl.int64) * x_user + here, mask=real, other=0.0) - m) * s
    channel = (u * groups + group) * (length // places) + place // places
    if WEIGHT:
        z = z * tl.load(w + channel, mask=place < length, other=0.0)
    if BIAS:
        z = z + tl.load(b + channel, mask=place < length, other=0.0)
    if RELU:
        z = tl.where(z <= 0, 0.0, z)
    tl.store(y + u.to(tl.int64) * groups * length * n + here, z, mask=real)


# --- backward ---------------------------------------------------------------------------------------------------------


@triton.jit
def _slopes(
    G, x, mean, scale, w, b, sums, products, channels, groups, length, chunk, chunks, n, G_user, x_user,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.program_id(1)
    images = (tl.program_id(2) * RUN + tl.arange(0, RUN))[None, :]
    u = row // channels
    c = row % channels
    stat = (u * groups + c // (channels // groups)).to(tl.int64) * n + images
    m = tl.load(mean + stat, mask=images < n, other=0.0)
    s = tl.load(scale + stat, mask=images < n, other=0.0)
    inside = c.to(tl.int64) * length * n + images
    last = tl.minimum((part + 1) * chunk, length)
    total = tl.zeros([ROWS, RUN], dtype=x.dtype.element_ty)
    product = tl.zeros([ROWS, RUN], dtype=x.dtype.element_ty)
    for at in range(part * chunk, last, ROWS):
        place = (at + tl.arange(0, ROWS))[:, None]
        real = (place < last) & (images < n)
        here = inside + place.to(tl.int64) * n
        g = tl.load(G + u.to(tl.int64) * G_user + here, mask=real, other=0.0)
        h = (tl.load(x + u.to(tl.int64) * x_user + here, mask=real, other=0.0) - m) * s
        if RELU:
            z = h
            if WEIGHT:
                z = z * tl.load(w + row)
            if BIAS:
                z = z + tl.load(b + row)
            g = tl.where(z <= 0, 0.0, g)
        total += g
        product += g * h
    out = (row * chunks + part).to(tl.int64) * n + images
    tl.store(sums + out, tl.sum(total, 0)[None, :], mask=images < n)
    tl.store(products + out, tl.sum(product, 0)[None, :], mask=images < n)


@triton.jit
def _group_means(
    sums, products, w, mean, slope, each, chunks, length, n,
    WEIGHT: tl.constexpr, SUMS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """`each`: how many channels a group has."""
    row = tl.program_id(0)
    images = (tl.program_id(1) * RUN + tl.arange(0, RUN))[None, :]
    total = tl.zeros([SUMS, RUN], dtype=sums.dtype.element_ty)
    product = tl.zeros([SUMS, RUN], dtype=sums.dtype.element_ty)
    for at in range(0, each * chunks, SUMS):
        part = (at + tl.arange(0, SUMS))[:, None]
        real = (part < each * chunks) & (images < n)
        here = (row.to(tl.int64) * each * chunks + part) * n + images
        a = tl.load(sums + here, mask=real, other=0.0)
        p = tl.load(products + here, mask=real, other=0.0)
        if WEIGHT:
            weight = tl.load(w + row * each + part // chunks, mask=part < each * chunks, other=0.0)
            a = a * weight
            p = p * weight
        total += a
        product += p
    stat = row.to(tl.int64) * n + images
    tl.store(mean + stat, (tl.sum(total, 0) / length)[None, :], mask=images < n)
    tl.store(slope + stat, (tl.sum(product, 0) / length)[None, :], mask=images < n)


@triton.jit
def _unstandardise(
    G, x, mean, scale, w, b, g_mean, slope, groups, length, places, n, G_user, x_user,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    u, group, place, images, stat = _place(groups, length, n, ROWS, RUN)
    real = (place < length) & (images < n)
    here = (group.to(tl.int64) * length + place) * n + images
    s = tl.load(scale + stat, mask=images < n, other=0.0)
    m = tl.load(mean + stat, mask=images < n, other=0.0)
    h = (tl.load(x + u.to(tl.int64) * x_user + here, mask=real, other=0.0) - m) * s
    at = G + u.to(tl.int64) * G_user + here
    g = tl.load(at, mask=real, other=0.0)
    channel = (u * groups + group) * (length // places) + place // places
    z = h
    if WEIGHT:
        weight = tl.load(w + channel, mask=place < length, other=0.0)
        z = z * weight
        g = g * weight
    if BIAS:
        z = z + tl.load(b + channel, mask=place < length, other=0.0)
    if RELU:
        g = tl.where(z <= 0, 0.0, g)
    g = g - tl.load(g_mean + stat, mask=images < n, other=0.0)
    g = g - h * tl.load(slope + stat, mask=images < n, other=0.0)
    tl.store(at, g * s, mask=real)


# --- launches ---------------------------------------------------------------------------------------------------------
# x and G may have gaps between users, but nowhere else; all other tensors have none.


def moments(x: Tensor, means: Tensor, squares: Tensor, mean: Tensor, scale: Tensor, eps: float) -> None:
    """The mean and 1 / sqrt(var + eps) of each image's groups; `means` and `squares` are room for those of chunks."""
    n, cut = x.shape[-1], _cut(x, mean.shape[1])
    sizes = (cut.length, cut.chunk, cut.chunks, n)
    _moments[(cut.programs, cut.chunks, cut.runs)](x, means, squares, cut.parts, *sizes, x.stride(0), **cut.tile)
    grid = (cut.programs, triton.cdiv(n, SUM_IMAGES))
    how = {"SUMS": triton.next_power_of_2(cut.chunks), "RUN": SUM_IMAGES}
    _combine[grid](means, squares, mean, scale, *sizes, EPS=eps, **how)


def standardise(
    x: Tensor, mean: Tensor, scale: Tensor, w: Tensor | None, b: Tensor | None, y: Tensor, relu: bool
) -> None:
    """y = w (x - mean) scale + b; its positive part, if `relu`."""
    cut, how = _cut(x, mean.shape[1]), _affine(x, w, b, relu)
    sizes = (cut.parts, cut.length, _places(x), x.shape[-1])
    grid = (cut.programs * triton.cdiv(cut.length, cut.rows), cut.runs)
    _standardise[grid](x, mean, scale, *how[0], y, *sizes, x.stride(0), **how[1], **cut.tile)


def slopes(
    G: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    sums: Tensor,
    products: Tensor,
    relu: bool,
) -> None:
    """The sums of G and of G h over each chunk of a channel, of each image; G counts where y > 0, if `relu`."""
    cut, how = _cut(x, x.shape[1]), _affine(x, w, b, relu)
    sizes = (cut.parts, mean.shape[1], cut.length, cut.chunk, cut.chunks, x.shape[-1], G.stride(0), x.stride(0))
    grid = (cut.programs, cut.chunks, cut.runs)
    _slopes[grid](G, x, mean, scale, *how[0], sums, products, *sizes, **how[1], **cut.tile)


def group_means(sums: Tensor, products: Tensor, w: Tensor | None, mean: Tensor, slope: Tensor, length: int) -> None:
    """The means of G w and of G w h over groups of `length` numbers, from what `slopes` gave."""
    users, channels, parts, n = sums.shape
    groups = mean.shape[1]
    how = {"WEIGHT": w is not None, "SUMS": SUMS, "RUN": SUM_IMAGES}
    grid = (users * groups, triton.cdiv(n, SUM_IMAGES))
    sizes = (channels // groups, parts, length, n)
    _group_means[grid](sums, products, sums if w is None else w, mean, slope, *sizes, **how)


def unstandardise(
    G: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    g_mean: Tensor,
    slope: Tensor,
    relu: bool,
) -> None:
    """The gradient at x in place of G, that at y."""
    cut, how = _cut(x, mean.shape[1]), _affine(x, w, b, relu)
    sizes = (cut.parts, cut.length, _places(x), x.shape[-1], G.stride(0), x.stride(0))
    grid = (cut.programs * triton.cdiv(cut.length, cut.rows), cut.runs)
    _unstandardise[grid](G, x, mean, scale, *how[0], g_mean, slope, *sizes, **how[1], **cut.tile)


def _places(x: Tensor) -> int:
    return x[0, 0].numel() // x.shape[-1]


def _affine(x: Tensor, w: Tensor | None, b: Tensor | None, relu: bool) -> tuple[tuple[Tensor, Tensor], dict[str, bool]]:
    """Weight and bias, or anything in their place, and whether they are there."""
    there = {"WEIGHT": w is not None, "BIAS": b is not None, "RELU": relu}
    return (x if w is None else w, x if b is None else b), there
