"""Stacked maxima and means over windows, along one axis after the other."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from resolvent.networks.stacked.layers import (
    Context,
    Shape,
    Unstackable,
    along,
    relu_backward,
    windows,
    write_padded,
    write_scatter,
)


def _distance(views: list[Tensor]) -> int:
    """How many numbers lie between one view and the next."""
    return int(views[1].storage_offset() - views[0].storage_offset()) if len(views) > 1 else 0


def write_maxima(ctx: Context, name: str, views: list[Tensor]) -> list[Tensor]:
    """Record the maxima over the first 1, 2, ... of the views."""
    if ctx.kernels is not None:
        y, step = ctx.empty(name, *views[0].shape[1:]), _distance(views)
        ctx.record(ctx.kernels.maxima, views[0], step, len(views), y)
        return [views[0], y]
    if len(views) == 1:
        best = [ctx.empty(name, *views[0].shape[1:])]
        ctx.record(best[0].copy_, views[0])
        return best
    best = [views[0]]
    for j, view in enumerate(views[1:], 1):
        best.append(ctx.empty((name, j), *view.shape[1:]))
        ctx.record(torch.maximum, best[-2], view, out=best[-1])
    return best


def write_unmax(
    ctx: Context, name: str, G: Tensor, views: list[Tensor], best: list[Tensor], places: list[Tensor], add: bool = False
) -> None:
    """Record the gradient of `write_maxima`: G goes to the first view that has the maximum. Overwrites G.

    View j gets what is left of G where it exceeds all views before it. Gradients are written to `places`, or added to
    them; the places may be the views themselves.
    """
    if ctx.kernels is not None and not add:
        ctx.record(ctx.kernels.unmax, G, views[0], _distance(views), len(views), places[0], _distance(places))
        return
    difference = ctx.empty(name, *G.shape[1:])
    if ctx.kernels is not None:
        best = [views[0]]
        for view in views[1:]:
            best.append(ctx.empty((name, len(best)), *view.shape[1:]))
            ctx.record(torch.maximum, best[-2], view, out=best[-1])
    for j in reversed(range(1, len(views))):
        ctx.record(torch.sub, views[j], best[j - 1], out=difference)
        # Contiguous: on short, strided runs this operation takes torch ten times as long.
        ctx.record(relu_backward, G, difference, 0, grad_input=difference)
        ctx.record(places[j].add_ if add else places[j].copy_, difference)
        ctx.record(torch.sub, G, difference, out=places[0] if j == 1 and not add else G)
    if add:
        ctx.record(places[0].add_, G)
    elif len(views) == 1:
        ctx.record(places[0].copy_, G)


@dataclass(frozen=True)
class MaxPool:
    """Maxima over windows, along the width, then the height. Of equal entries the first gets the gradient, as in torch:
    the first row that has the maximum, and the first entry in that row.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    needs_output = False

    def shape(self, *shapes: Shape) -> Shape:
        if len(shapes[0]) != 3:
            raise Unstackable(f"a pooling over features of shape {shapes[0]}")
        c, *sizes = shapes[0]
        parts = zip(sizes, self.padding, self.kernel, self.stride, self.dilation, strict=True)
        return (c, *(windows(size + 2 * p, k, s, d) for size, p, k, s, d in parts))

    def _views(self, x: Tensor, k: int) -> list[Tensor]:
        axis, kernel, stride, dilation = k + 2, self.kernel[k], self.stride[k], self.dilation[k]
        count = windows(x.shape[axis], kernel, stride, dilation)
        return [along(x, axis, j * dilation, count, stride) for j in range(kernel)]

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        x = write_padded(ctx, xs[0], self.padding, -torch.inf)
        if ctx.loops is not None:
            return self._write_forward_loops(ctx, ctx.contiguous(x, "x"), xs[0].shape)
        across = write_maxima(ctx, "across", self._views(x, 1))
        down = write_maxima(ctx, "down", self._views(across[-1], 0))
        ctx.saved = (x, across, down, xs[0].shape)
        return down[-1]

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad:
            return (None,)
        if ctx.loops is not None:
            return (self._write_backward_loops(ctx, G),)
        x, across, down, (_, _, height, width, _) = ctx.saved
        G = self._write_spread(ctx, G, across[-1], down, 0, mine=True)
        G = self._write_spread(ctx, G, x, across, 1, mine=ctx.owns_input or self.padding != (0, 0))
        ph, pw = self.padding
        return (G[:, :, ph : ph + height, pw : pw + width],)

    def _write_forward_loops(self, ctx: Context, x: Tensor, inner: Shape) -> Tensor:
        c, *counts = self.shape(tuple(inner[1:-1]))
        one = (1, *x.shape[2:])
        geometry = ctx.loops.Geometry.of(one, self.kernel, counts, self.stride, self.dilation, rows=False)
        y, first = (ctx.empty(name, c, *counts, x.shape[-1]) for name in ("y", "first"))
        ctx.record(ctx.loops.pool(x, y, first, geometry))
        ctx.saved = x, first, geometry, inner
        return y

    def _write_backward_loops(self, ctx: Context, G: Tensor) -> Tensor:
        x, first, geometry, (_, _, height, width, _) = ctx.saved
        tiles = self._tile(x, 0) and self._tile(x, 1)
        mine = tiles and (ctx.owns_input or self.padding != (0, 0))
        dx = x if mine else ctx.empty("dx", *x.shape[1:])
        if not tiles:
            ctx.record(dx.zero_)
        ctx.record(ctx.loops.unpool(ctx.contiguous(G), first, dx, geometry, tiles))
        ph, pw = self.padding
        return dx[:, :, ph : ph + height, pw : pw + width]

    def _tile(self, x: Tensor, k: int) -> bool:
        """Whether the windows cover x along axis k without overlap."""
        return self.stride[k] == self.kernel[k] and self.dilation[k] == 1 and x.shape[k + 2] % self.kernel[k] == 0

    def _write_spread(self, ctx: Context, G: Tensor, x: Tensor, best: list[Tensor], k: int, mine: bool) -> Tensor:
        """Record the gradient at x from that at the maxima along axis k; it overwrites x if that is `mine`."""
        tiles = self._tile(x, k)
        out = x if tiles and mine else ctx.empty(("dx", k), *x.shape[1:])
        if not tiles:
            ctx.record(out.zero_)
        write_unmax(ctx, f"difference{k}", G, self._views(x, k), best, self._views(out, k), add=not tiles)
        return out


@dataclass(frozen=True)
class AvgPool:
    """Means over windows, padding included; kernel None: `output` windows that tile each axis (adaptive pooling)."""

    kernel: tuple[int, int] | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    output: tuple[int | None, int | None] = (None, None)
    needs_output = False

    def windows_for(self, sizes: Shape) -> tuple[Shape, Shape]:
        if self.kernel is not None:
            return self.kernel, self.stride
        outputs = tuple(size if o is None else o for size, o in zip(sizes, self.output, strict=True))
        if any(size % o for size, o in zip(sizes, outputs, strict=True)):
            raise Unstackable(f"an adaptive pooling of {sizes} to {outputs}")
        kernel = tuple(size // o for size, o in zip(sizes, outputs, strict=True))
        return kernel, kernel

    def shape(self, *shapes: Shape) -> Shape:
        if len(shapes[0]) != 3:
            raise Unstackable(f"a pooling over features of shape {shapes[0]}")
        c, *sizes = shapes[0]
        kernel, stride = self.windows_for(tuple(sizes))
        return (c, *(windows(n + 2 * p, k, s) for n, p, k, s in zip(sizes, self.padding, kernel, stride, strict=True)))

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        kernel, stride = self.windows_for(tuple(x.shape[2:4]))
        ctx.saved = (x.shape, kernel, stride)
        y = write_padded(ctx, x, self.padding, 0.0)
        for k in (1, 0):
            count = windows(y.shape[k + 2], kernel[k], stride[k])
            views = [along(y, k + 2, j, count, stride[k]) for j in range(kernel[k])]
            y = ctx.empty(("mean", k), *views[0].shape[1:])
            ctx.record(y.copy_, views[0])
            for view in views[1:]:
                ctx.record(y.add_, view)
        ctx.record(y.div_, prod(kernel))
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad:
            return (None,)
        (_, c, height, width, n), kernel, stride = ctx.saved
        ph, pw = self.padding
        ctx.record(G.div_, prod(kernel))
        rows = ctx.empty("rows", c, height + 2 * ph, G.shape[3], n)
        write_scatter(ctx, rows, 2, [G] * kernel[0], stride[0])
        full = ctx.empty("dx", c, height + 2 * ph, width + 2 * pw, n)
        write_scatter(ctx, full, 3, [rows] * kernel[1], stride[1])
        return (full[:, :, ph : ph + height, pw : pw + width],)
