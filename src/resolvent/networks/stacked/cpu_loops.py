# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Loops for CPUs where torch would take several passes: convolutions without columns, maxima, cross-entropy, a step.

Values are (users, channels, height, width, n) with the images innermost, each user's part contiguous. A row of a
convolution's outputs is then a sum of rows of inputs, each shifted and times a number: nothing is copied before it is
multiplied. The innermost loops take two rows on one side and five on the other, ten products for seven numbers read.

This module needs Numba: whoever imports it has checked that it is installed. Numba caches compiled code on disk until
this file changes, so functions that call each other must stay together in it. Functions for a tape are `BoundLoop`s,
bound to their buffers once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor

MAX_RUN = 768
"""How many numbers an innermost loop takes, at most: its rows stay in the first-level cache."""

BoundLoop = Callable[[], None]
Places = npt.NDArray[np.int64]
Sizes = tuple[int, ...]


def compiled(*flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile with these fast-math flags; the code is cached on disk if there is a place for it."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(flags), "error_model": "numpy"}
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            return njit(**options)(function)  # type: ignore[no-any-return]

    return decorate


exact = compiled("contract")
"""Exact order, except that a product and a sum may be fused: a result does not depend on a number's neighbours."""
summing = compiled("contract", "reassoc", "nsz")
"""Sums may be reordered into vectors."""


class Geometry(NamedTuple):
    """Where windows read and write in a user's memory.

    Entry k of the window in run r begins at `taps[k] + reads[r]`, and what it gives belongs to `writes[r]`, in output o
    to `o * plane + writes[r]`. A run has `length` numbers: a row of places if windows move by one, else one place.
    """

    taps: Places
    columns: int
    reads: Places
    writes: Places
    length: int
    plane: int

    @classmethod
    def of(cls, shape: Sizes, kernel: Sizes, counts: Sizes, stride: Sizes, dilation: Sizes, rows: bool) -> Geometry:
        """For inputs of `shape` (channels, height, width, n), padding included; without `rows` place by place."""
        c, height, width, n = shape
        (kh, kw), (h, w), (sh, sw), (dh, dw) = kernel, counts, stride, dilation
        rows = rows and sw == 1
        channel, i, j = np.indices((c, kh, kw)).reshape(3, -1)
        taps = ((channel * height + i * dh) * width + j * dw) * n
        row, place = np.indices((h, 1 if rows else w)).reshape(2, -1)
        reads, writes = (row * sh * width + place * sw) * n, (row * w + place) * n
        return cls(taps, kw, reads, writes, w * n if rows else n, h * w * n)

    @property
    def runs(self) -> tuple[Places, Places, int, int, int]:
        """Reads, writes, length, how much of it an innermost loop takes, and plane."""
        parts = math.ceil(self.length / MAX_RUN)
        return self.reads, self.writes, self.length, math.ceil(self.length / parts), self.plane


@exact
def _shift(taps, by, at):
    for k in range(len(taps)):
        at[k] = taps[k] + by


@exact
def _add(y, z, a, b, stride, x, at, length):
    """y += sum_k a[k stride] x_k and z += sum_k b[k stride] x_k, where x_k begins at at[k]."""
    fives = len(at) - len(at) % 5
    for k in range(0, fives, 5):
        i0, i1, i2, i3, i4 = k * stride, (k + 1) * stride, (k + 2) * stride, (k + 3) * stride, (k + 4) * stride
        a0, a1, a2, a3, a4 = a[i0], a[i1], a[i2], a[i3], a[i4]
        b0, b1, b2, b3, b4 = b[i0], b[i1], b[i2], b[i3], b[i4]
        x0, x1, x2, x3, x4 = x[at[k] :], x[at[k + 1] :], x[at[k + 2] :], x[at[k + 3] :], x[at[k + 4] :]
        for m in range(length):
            v0, v1, v2, v3, v4 = x0[m], x1[m], x2[m], x3[m], x4[m]
            y[m] = y[m] + a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3 + a4 * v4
            z[m] = z[m] + b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3 + b4 * v4
    for k in range(fives, len(at)):
        ak, bk, xk = a[k * stride], b[k * stride], x[at[k] :]
        for m in range(length):
            y[m] += ak * xk[m]
            z[m] += bk * xk[m]


@summing
def _dot(y, z, a, b, x, at, length):
    """a[k] += <y, x_k> and b[k] += <z, x_k>, where x_k begins at at[k]."""
    zero = x.dtype.type(0)
    fives = len(at) - len(at) % 5
    for k in range(0, fives, 5):
        a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = zero
        x0, x1, x2, x3, x4 = x[at[k] :], x[at[k + 1] :], x[at[k + 2] :], x[at[k + 3] :], x[at[k + 4] :]
        for m in range(length):
            v0, v1, v2, v3, v4, u, v = x0[m], x1[m], x2[m], x3[m], x4[m], y[m], z[m]
            a0, a1, a2, a3, a4 = a0 + u * v0, a1 + u * v1, a2 + u * v2, a3 + u * v3, a4 + u * v4
            b0, b1, b2, b3, b4 = b0 + v * v0, b1 + v * v1, b2 + v * v2, b3 + v * v3, b4 + v * v4
        for j, aj, bj in ((0, a0, b0), (1, a1, b1), (2, a2, b2), (3, a3, b3), (4, a4, b4)):
            a[k + j] += aj
            b[k + j] += bj
    for k in range(fives, len(at)):
        xk, ak, bk = x[at[k] :], zero, zero
        for m in range(length):
            ak += y[m] * xk[m]
            bk += z[m] * xk[m]
        a[k] += ak
        b[k] += bk


@exact
def _forward(A, sa, x, sx, y, sy, users, outputs, taps, reads, writes, length, run, plane):
    K = len(taps)
    at = np.empty_like(taps)
    rows = np.empty((2, run + 16), x.dtype)
    for user in range(users):
        a = A[user * sa :]
        for r in range(len(reads)):
            for start in range(0, length, run):
                part = min(run, length - start)
                _shift(taps, user * sx + reads[r] + start, at)
                to = y[user * sy + writes[r] + start :]
                for o in range(0, outputs, 2):
                    p = min(o + 1, outputs - 1)  # the last of an odd number is computed twice
                    rows[:, :part] = 0
                    _add(rows[0], rows[1], a[o * K :], a[p * K :], 1, x, at, part)
                    to[o * plane : o * plane + part] = rows[0, :part]
                    to[p * plane : p * plane + part] = rows[1, :part]


@summing
def _weight_gradient(D, sd, x, sx, G, sg, users, outputs, taps, reads, writes, length, run, plane):
    K = len(taps)
    at = np.empty_like(taps)
    spare = np.zeros(K, D.dtype)
    for user in range(users):
        for r in range(len(reads)):
            for start in range(0, length, run):
                part = min(run, length - start)
                _shift(taps, user * sx + reads[r] + start, at)
                g = G[user * sg + writes[r] + start :]
                for o in range(0, outputs, 2):
                    p = min(o + 1, outputs - 1)
                    d = D[user * sd + o * K :]
                    _dot(g[o * plane :], g[p * plane :], d, d[K:] if p > o else spare, x, at, part)


@exact
def _input_gradient(A, sa, dx, sx, G, sg, users, outputs, taps, columns, reads, writes, length, run, plane):
    K = len(taps)
    planes = np.arange(outputs) * plane
    at = np.empty_like(planes)
    spare = np.zeros(run, dx.dtype)
    for user in range(users):
        a = A[user * sa :]
        for r in range(len(reads)):
            for start in range(0, length, run):
                part = min(run, length - start)
                _shift(planes, user * sg + writes[r] + start, at)
                d = dx[user * sx + reads[r] + start :]
                for j in range(columns):  # what two columns of a kernel reach overlaps: one at a time
                    for k in range(j, K - columns, 2 * columns):
                        _add(d[taps[k] :], d[taps[k + columns] :], a[k:], a[k + columns :], K, G, at, part)
                    if K // columns % 2:
                        k = K - columns + j
                        _add(d[taps[k] :], spare, a[k:], a[k:], K, G, at, part)


@exact
def _best(x, at, y, first, n):
    """y = the maximum of rows x_k, which begin at at[k], and in `first` the first k that has it; NaN is the largest."""
    x0 = x[at[0] :]
    for m in range(n):
        y[m], first[m] = x0[m], 0
    last = len(at) - 1
    for k in range(1, len(at), 3):
        p, q = min(k + 1, last), min(k + 2, last)  # a row that comes again changes nothing
        x1, x2, x3 = x[at[k] :], x[at[p] :], x[at[q] :]
        for m in range(n):
            best, which, v1, v2, v3 = y[m], first[m], x1[m], x2[m], x3[m]
            more = v1 > best or v1 != v1
            best, which = v1 if more else best, k if more else which
            more = v2 > best or v2 != v2
            best, which = v2 if more else best, p if more else which
            more = v3 > best or v3 != v3
            y[m], first[m] = v3 if more else best, q if more else which


@exact
def _pool(x, sx, y, sy, first, users, channels, area, taps, reads, writes, n):
    at = np.empty_like(taps)
    for user in range(users):
        for c in range(channels):
            for r in range(len(reads)):
                _shift(taps, user * sx + c * area + reads[r], at)
                to = user * sy + c * len(reads) * n + writes[r]
                _best(x, at, y[to:], first[to:], n)


@exact
def _unpool(G, sg, first, dx, sx, users, channels, area, taps, reads, writes, n, tiles):
    for user in range(users):
        for c in range(channels):
            for r in range(len(reads)):
                origin = user * sg + c * len(reads) * n + writes[r]
                g, which = G[origin:], first[origin:]
                for k in range(len(taps)):
                    d = dx[user * sx + c * area + reads[r] + taps[k] :]
                    for m in range(n):
                        mine = g[m] if which[m] == k else 0
                        d[m] = mine if tiles else d[m] + mine


@exact
def _cross_entropy(o, so, y, sy, weight, sw, G, sg, loss, users, classes, n):
    for user in range(users):
        total = 0.0
        for m in range(n):
            z, g = o[user * so + m :], G[user * sg + m :]
            target, w = max(y[user * sy + m], 0), weight[user * sw + m]
            if target >= classes:
                raise IndexError("a target is not among the classes")
            top = z[0]
            for k in range(1, classes):
                top = max(top, z[k * n])
            mass = 0.0
            for k in range(classes):
                g[k * n] = math.exp(z[k * n] - top)
                mass += g[k * n]
            for k in range(classes):
                g[k * n] *= w / mass
            g[target * n] -= w
            if w > 0:  # otherwise the loss may be infinite, and must not count
                total += w * (top - z[target * n] + math.log(mass))
        loss[user] = total


@compiled()  # no product is fused with a sum: the same bits as by torch's operations
def step(x, g, v, u, lr, momentum, eta, moves, first, last):
    """x <- x - lr v with v <- momentum v + g + (x - u) / eta, in place, for users first to last that move.

    v, u and moves may be None; u has a row for each user, or one for all of them, and is added to g if eta is None.
    """
    for i in range(first, last):
        if moves is not None and not moves[i]:
            continue
        for j in range(x.shape[1]):
            s = g[i, j]
            if u is not None:
                pull = u[i if len(u) > 1 else 0, j]
                s = s + (pull if eta is None else (x[i, j] - pull) / eta)
            if v is not None:
                s = momentum * v[i, j] + s
                v[i, j] = s
            x[i, j] = x[i, j] - lr * s


def _flat(x: Tensor) -> tuple[npt.NDArray[Any], int]:
    """The memory from x's first number to its last, and how far it is from one user to the next."""
    size = 1 + sum((count - 1) * step for count, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((size,), (1,)).numpy(), x.stride(0)


def forward(A: Tensor, x: Tensor, y: Tensor, geometry: Geometry) -> BoundLoop:
    """y = the convolution of x with kernels A (users, outputs, channels x kernel)."""
    return partial(_forward, *_flat(A), *_flat(x), *_flat(y), *A.shape[:2], geometry.taps, *geometry.runs)


def weight_gradient(D: Tensor, x: Tensor, G: Tensor, geometry: Geometry) -> BoundLoop:
    """D += the gradient at the kernels, G being that at the output."""
    return partial(_weight_gradient, *_flat(D), *_flat(x), *_flat(G), *D.shape[:2], geometry.taps, *geometry.runs)


def input_gradient(A: Tensor, dx: Tensor, G: Tensor, geometry: Geometry) -> BoundLoop:
    """dx += the gradient at the input."""
    where = (geometry.taps, geometry.columns, *geometry.runs)
    return partial(_input_gradient, *_flat(A), *_flat(dx), *_flat(G), *A.shape[:2], *where)


def pool(x: Tensor, y: Tensor, first: Tensor, geometry: Geometry) -> BoundLoop:
    """y = the maxima over windows of x, and in `first` which entry of its window each one was."""
    return partial(_pool, *_flat(x), *_flat(y), _flat(first)[0], *_windows(x, geometry))


def unpool(G: Tensor, first: Tensor, dx: Tensor, geometry: Geometry, tiles: bool) -> BoundLoop:
    """dx += G where the maxima were; if the windows are `tiles` of x, dx is written instead."""
    return partial(_unpool, *_flat(G), _flat(first)[0], *_flat(dx), *_windows(dx, geometry), tiles)


def _windows(x: Tensor, geometry: Geometry) -> tuple[Any, ...]:
    users, channels, height, width, n = x.shape
    return users, channels, height * width * n, geometry.taps, geometry.reads, geometry.writes, n


def cross_entropy(o: Tensor, y: Tensor, weight: Tensor, G: Tensor) -> Tensor:
    """Each user's weighted sum of -log softmax(o)[y] over images; in G its gradient. o is (users, classes, n)."""
    loss = torch.empty(len(o), dtype=o.dtype)
    _cross_entropy(*_flat(o), *_flat(y), *_flat(weight), *_flat(G), loss.numpy(), *o.shape)
    return loss
