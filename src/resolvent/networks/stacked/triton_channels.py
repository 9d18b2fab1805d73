# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for CUDA over channels, where torch would take many passes: local response normalisation, cross entropy.

This module needs Triton: whoever imports it has checked that it is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

RUN = 512
"""How many numbers of a channel a program takes."""
IMAGES = 128
"""The same of the outputs, of which there are fewer."""


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
    return (users * channels, triton.cdiv(rest, RUN)), channels, rest


def normalise(x: Tensor, y: Tensor, s: Tensor, size: int, alpha: float, k: float) -> None:
    """y = x s^-0.75 with s = k + alpha / size * (the sum of x^2 over `size` channels around); all are contiguous."""
    grid, channels, rest = _over_channels(x)
    _normalise[grid](x, y, s, channels, rest, SIZE=size, SCALE=alpha / size, K=k, RUN=RUN)


def unnormalise(G: Tensor, x: Tensor, s: Tensor, dx: Tensor, size: int, alpha: float) -> None:
    """The gradient at x, from that at y; all are contiguous, and dx is none of the others."""
    grid, channels, rest = _over_channels(x)
    _unnormalise[grid](G, x, s, dx, channels, rest, SIZE=size, FACTOR=-1.5 * alpha / size, RUN=RUN)


def cross_entropy(o: Tensor, y: Tensor, weight: Tensor, G: Tensor) -> Tensor:
    """Each user's weighted sum of -log softmax(o)[y], and in G its gradient at o (users, classes, n)."""
    users, classes, n = o.shape
    loss = torch.empty_like(weight)
    _cross_entropy[(users, triton.cdiv(n, IMAGES))](o, y, weight, G, loss, classes, n, RUN=IMAGES)
    return loss.sum(1)
