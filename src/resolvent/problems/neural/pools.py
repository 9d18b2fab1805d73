"""Stacked maxima and means over windows: forward and backward along one axis after the other."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from resolvent.problems.neural.layers import Here, Shape, Unstackable, along, padded, relu_backward, scatter, windows


def _apart(views: list[Tensor]) -> int:
    """How many numbers lie between one view and the next."""
    return int(views[1].storage_offset() - views[0].storage_offset()) if len(views) > 1 else 0


def maxima(here: Here, name: str, views: list[Tensor]) -> list[Tensor]:
    """The maxima over the first 1, 2, ... of the views."""
    if here.kernels is not None:
        y, step = here.empty(name, *views[0].shape[1:]), _apart(views)
        here.do(here.kernels.maxima, views[0], step, len(views), y)
        return [views[0], y]
    if len(views) == 1:
        best = [here.empty(name, *views[0].shape[1:])]
        here.do(best[0].copy_, views[0])
        return best
    best = [views[0]]
    for j, view in enumerate(views[1:], 1):
        best.append(here.empty((name, j), *view.shape[1:]))
        here.do(torch.maximum, best[-2], view, out=best[-1])
    return best


def unmax(
    here: Here, name: str, G: Tensor, views: list[Tensor], best: list[Tensor], places: list[Tensor], add: bool = False
) -> None:
    """G handed to the first of the views that is the maximum: written to its place, or added. Overwrites G.

    View j gets what is left of G where it exceeds all before it. The places may be the views themselves.
    """
    if here.kernels is not None and not add:
        here.do(here.kernels.unmax, G, views[0], _apart(views), len(views), places[0], _apart(places))
        return
    difference = here.empty(name, *G.shape[1:])
    if here.kernels is not None:
        best = [views[0]]
        for view in views[1:]:
            best.append(here.empty((name, len(best)), *view.shape[1:]))
            here.do(torch.maximum, best[-2], view, out=best[-1])
    for j in reversed(range(1, len(views))):
        here.do(torch.sub, views[j], best[j - 1], out=difference)
        # In one run: on short, strided runs torch decides number by number, at ten times the price.
        here.do(relu_backward, G, difference, 0, grad_input=difference)
        here.do(places[j].add_ if add else places[j].copy_, difference)
        here.do(torch.sub, G, difference, out=places[0] if j == 1 and not add else G)
    if add:
        here.do(places[0].add_, G)
    elif len(views) == 1:
        here.do(places[0].copy_, G)


@dataclass(frozen=True)
class MaxPool:
    """Maxima over windows, one axis after the other. Of equal entries the first in reading order gets the gradient.

    The width goes first: the first row that holds the maximum, and the first entry in that row.
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

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        x = padded(here, xs[0], self.padding, -torch.inf)
        if here.loops is not None:
            return self._looped_forward(here, here.whole(x, "x"), xs[0].shape)
        across = maxima(here, "across", self._views(x, 1))
        down = maxima(here, "down", self._views(across[-1], 0))
        here.kept = (x, across, down, xs[0].shape)
        return down[-1]

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        if not here.wanted:
            return (None,)
        if here.loops is not None:
            return (self._looped_backward(here, G),)
        x, across, down, (_, _, height, width, _) = here.kept
        G = self._spread(here, G, across[-1], down, 0, mine=True)
        G = self._spread(here, G, x, across, 1, mine=here.owns or self.padding != (0, 0))
        ph, pw = self.padding
        return (G[:, :, ph : ph + height, pw : pw + width],)

    def _looped_forward(self, here: Here, x: Tensor, inner: Shape) -> Tensor:
        c, *counts = self.shape(tuple(inner[1:-1]))
        one = (1, *x.shape[2:])
        geometry = here.loops.Geometry.of(one, self.kernel, counts, self.stride, self.dilation, rows=False)
        y, first = (here.empty(name, c, *counts, x.shape[-1]) for name in ("y", "first"))
        here.do(here.loops.pool(x, y, first, geometry))
        here.kept = x, first, geometry, inner
        return y

    def _looped_backward(self, here: Here, G: Tensor) -> Tensor:
        x, first, geometry, (_, _, height, width, _) = here.kept
        tiles = self._tile(x, 0) and self._tile(x, 1)
        mine = tiles and (here.owns or self.padding != (0, 0))
        dx = x if mine else here.empty("dx", *x.shape[1:])
        if not tiles:
            here.do(dx.zero_)
        here.do(here.loops.unpool(here.whole(G), first, dx, geometry, tiles))
        ph, pw = self.padding
        return dx[:, :, ph : ph + height, pw : pw + width]

    def _tile(self, x: Tensor, k: int) -> bool:
        """Whether the windows cover x along axis k, and do not overlap."""
        return self.stride[k] == self.kernel[k] and self.dilation[k] == 1 and x.shape[k + 2] % self.kernel[k] == 0

    def _spread(self, here: Here, G: Tensor, x: Tensor, best: list[Tensor], k: int, mine: bool) -> Tensor:
        """The gradient at x, from that at the maxima along axis k; it takes the place of x if that is `mine`."""
        tiles = self._tile(x, k)
        out = x if tiles and mine else here.empty(("dx", k), *x.shape[1:])
        if not tiles:
            here.do(out.zero_)
        unmax(here, f"difference{k}", G, self._views(x, k), best, self._views(out, k), add=not tiles)
        return out


@dataclass(frozen=True)
class AvgPool:
    """Means over windows, padding counted; kernel None: `output` windows that tile each axis."""

    kernel: tuple[int, int] | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    output: tuple[int | None, int | None] = (None, None)
    needs_output = False

    def windows(self, sizes: Shape) -> tuple[Shape, Shape]:
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
        kernel, stride = self.windows(tuple(sizes))
        return (c, *(windows(n + 2 * p, k, s) for n, p, k, s in zip(sizes, self.padding, kernel, stride, strict=True)))

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        kernel, stride = self.windows(tuple(x.shape[2:4]))
        here.kept = (x.shape, kernel, stride)
        y = padded(here, x, self.padding, 0.0)
        for k in (1, 0):
            count = windows(y.shape[k + 2], kernel[k], stride[k])
            views = [along(y, k + 2, j, count, stride[k]) for j in range(kernel[k])]
            y = here.empty(("mean", k), *views[0].shape[1:])
            here.do(y.copy_, views[0])
            for view in views[1:]:
                here.do(y.add_, view)
        here.do(y.div_, prod(kernel))
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        if not here.wanted:
            return (None,)
        (_, c, height, width, n), kernel, stride = here.kept
        ph, pw = self.padding
        here.do(G.div_, prod(kernel))
        rows = here.empty("rows", c, height + 2 * ph, G.shape[3], n)
        scatter(here, rows, 2, [G] * kernel[0], stride[0])
        full = here.empty("dx", c, height + 2 * ph, width + 2 * pw, n)
        scatter(here, full, 3, [rows] * kernel[1], stride[1])
        return (full[:, :, ph : ph + height, pw : pw + width],)
