"""Stacked convolutions: loops of our own, windows in columns, torch's own for many outputs, one pooled at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from resolvent.networks.stacked.layers import Here, Layer, Shape, Unstackable, padded, scatter, windows
from resolvent.networks.stacked.pools import MaxPool, maxima, unmax

GROWTH = 1.5
"""How many times the arithmetic is too much for a convolution that is pooled at once."""


@dataclass(frozen=True)
class Conv:
    """A convolution over two axes: where no `loops` serve, one product with the windows of x in columns (im2col)."""

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    needs_output = False

    def shape(self, *shapes: Shape) -> Shape:
        if len(shapes[0]) != 3 or shapes[0][0] != self.inputs:
            raise Unstackable(f"a convolution over features of shape {shapes[0]}")
        return (self.outputs, *self.counts(shapes[0][1:]))

    def counts(self, sizes: Shape) -> tuple[int, int]:
        h, w = (
            windows(size + 2 * p, k, s, d)
            for size, p, k, s, d in zip(sizes, self.padding, self.kernel, self.stride, self.dilation, strict=True)
        )
        return h, w

    def columns(self, shape: Shape) -> int:
        """Numbers in the columns of one image."""
        return self.inputs * prod(self.kernel) * prod(self.counts(shape[1:]))

    @property
    def _plain(self) -> bool:
        """Whether the columns are x itself."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def _looped(self, here: Here) -> bool:
        return here.loops is not None and not self._plain

    def _direct(self, here: Here) -> bool:
        """Whether torch's own convolution is the faster one: on a CPU, in single precision, for many outputs."""
        desk = here.tape.desk
        return desk.apart and desk.compute is None and desk.like.dtype == torch.float32 and self.outputs >= 32

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        h, w = self.counts(tuple(x.shape[2:4]))
        if self._direct(here):
            return self._direct_forward(here, x, h, w)
        if self._looped(here):
            return self._looped_forward(here, x, h, w)
        cols = self.lower(here, x, h, w)
        here.kept = cols, x.shape
        y = here.empty("y", self.outputs, h, w, x.shape[-1])
        here.tape.product(here.A, cols, y.view(here.users, self.outputs, -1))
        return y

    def lower(self, here: Here, x: Tensor, h: int, w: int) -> Tensor:
        """The windows in columns, (users, channels x kernel, h x w x n)."""
        g, c, _, _, n = x.shape
        if self._plain:
            return x.view(g, c, h * w * n)
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        cols = here.empty("cols", c * kh * kw, h * w * n)
        if here.kernels is not None:
            here.do(here.kernels.lower, x, cols, self.kernel, (h, w), self.stride, self.padding, self.dilation)
            return cols
        x = padded(here, x, self.padding, 0.0)
        u, v, i, j, one = x.stride()
        view = x.as_strided((g, c, kh, kw, h, w, n), (u, v, i * dh, j * dw, i * sh, j * sw, one))
        here.do(cols.view(view.shape).copy_, view)
        return cols

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        if self._direct(here):
            return (self._direct_backward(here, G),)
        if self._looped(here):
            return (self._looped_backward(here, G),)
        cols, (g, c, height, width, n) = here.kept
        h, w = G.shape[2:4]
        G = here.whole(G).view(g, self.outputs, h * w * n)
        if here.slope is not None:
            here.tape.product(G, cols.mT, here.slope, here.add)
        if not here.wanted:
            return (None,)
        if self._plain:
            dx = here.empty("dx", c, h * w * n)
            here.tape.product(here.A.mT, G, dx)
            return (dx.view(g, c, height, width, n),)
        here.tape.product(here.A.mT, G, cols)  # the columns have done their work: their gradient takes their place
        return (self._fold(here, cols.view(g, c, *self.kernel, h, w, n), height, width),)

    def _looped_forward(self, here: Here, x: Tensor, h: int, w: int) -> Tensor:
        wide = padded(here, here.whole(x, "x"), self.padding, 0.0)
        shape = tuple(wide.shape[1:])
        geometry = here.loops.Geometry.of(shape, self.kernel, (h, w), self.stride, self.dilation, rows=True)
        y = here.empty("y", self.outputs, h, w, x.shape[-1])
        here.do(here.loops.forward(here.A, wide, y, geometry))
        here.kept = wide, x.shape, geometry
        return y

    def _looped_backward(self, here: Here, G: Tensor) -> Tensor | None:
        wide, (_, _, height, width, _), geometry = here.kept
        G = here.whole(G)
        if here.slope is not None:
            if not here.add:
                here.do(here.slope.zero_)
            here.do(here.loops.slope(here.slope, wide, G, geometry))
        if not here.wanted:
            return None
        dx = here.empty("dx", *wide.shape[1:])
        here.do(dx.zero_)
        here.do(here.loops.back(here.A, dx, G, geometry))
        ph, pw = self.padding
        return dx[:, :, ph : ph + height, pw : pw + width]

    def _direct_forward(self, here: Here, x: Tensor, h: int, w: int) -> Tensor:
        g, n = here.users, x.shape[-1]
        first = here.empty("images first", n, *x.shape[1:-1])
        y = here.empty("y", self.outputs, h, w, n)
        kernels = here.A.view(g, self.outputs, self.inputs, *self.kernel)

        def convolve() -> None:
            for xi, fi, ki, yi in zip(x, first, kernels, y, strict=True):
                fi.view(n, -1).copy_(xi.view(-1, n).T)
                out = torch.conv2d(fi, ki, None, self.stride, self.padding, self.dilation)
                yi.view(-1, n).copy_(out.view(n, -1).T)

        here.do(convolve)
        here.kept = first, kernels
        return y

    def _direct_backward(self, here: Here, G: Tensor) -> Tensor | None:
        first, kernels = here.kept
        g, n = first.shape[:2]
        G = here.whole(G)
        slope, add = None if here.slope is None else here.slope.view_as(kernels), here.add
        dx = here.empty("dx", *first.shape[2:], n) if here.wanted else None
        GT = here.empty("G", n, *G.shape[1:-1])
        how = (
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0, 0),
            1,
            (here.wanted, slope is not None, False),
        )

        def back() -> None:
            for u in range(g):
                GT[u].view(n, -1).copy_(G[u].view(-1, n).T)
                di, dk, _ = torch.ops.aten.convolution_backward(GT[u], first[u], kernels[u], *how)
                if dx is not None:
                    dx[u].view(-1, n).copy_(di.reshape(n, -1).T)
                if slope is not None:
                    (slope[u].add_ if add else slope[u].copy_)(dk)

        here.do(back)
        return dx

    def _fold(self, here: Here, D: Tensor, height: int, width: int) -> Tensor:
        """Each window's gradient added where the window lay, along the height first: its runs are long."""
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = self.kernel, self.stride, self.padding, self.dilation
        c, h, w, n = D.shape[1], *D.shape[4:]
        if here.kernels is not None:
            dx = here.empty("dx", c, height, width, n)
            here.do(here.kernels.fold, D, dx, self.kernel, (h, w), self.stride, self.padding, self.dilation)
            return dx
        rows = here.empty("rows", c, kw, height + 2 * ph, w, n)
        scatter(here, rows, 3, [D[:, :, i] for i in range(kh)], sh, dh)
        full = here.empty("dx", c, height + 2 * ph, width + 2 * pw, n)
        scatter(here, full, 3, [rows[:, :, j] for j in range(kw)], sw, dw)
        return full[:, :, ph : ph + height, pw : pw + width]


@dataclass(frozen=True)
class ConvPool:
    """A convolution and the maximum over the tiles of its output, for few channels.

    The p x p entries of a tile are outputs of their own of one convolution with a kernel larger by p - 1 and stride p:
    more arithmetic, but in products that are not thin, with a third of the columns, and maxima of whole planes. For a
    first layer: the gradient at its input is not to be had.
    """

    conv: Conv
    tile: tuple[int, int]
    needs_output = False

    @staticmethod
    def fits(conv: Layer, pool: Layer) -> bool:
        """Whether the two are such a pair, and better as one: few outputs, and not much more arithmetic."""
        if not isinstance(conv, Conv) or not isinstance(pool, MaxPool) or conv.outputs > 16:
            return False
        simple = conv.stride == conv.dilation == pool.dilation == (1, 1) and pool.padding == (0, 0)
        growth = prod((k + p - 1) / k for k, p in zip(conv.kernel, pool.kernel, strict=True))
        return simple and pool.stride == pool.kernel and growth < GROWTH

    def shape(self, *shapes: Shape) -> Shape:
        c, *sizes = self.conv.shape(*shapes)
        return (c, *(size // p for size, p in zip(sizes, self.tile, strict=True)))

    @property
    def wide(self) -> Conv:
        """The convolution that gives the tiles."""
        kernel = (self.conv.kernel[0] + self.tile[0] - 1, self.conv.kernel[1] + self.tile[1] - 1)
        outputs = self.conv.outputs * prod(self.tile)
        return Conv(self.conv.inputs, outputs, kernel, self.tile, self.conv.padding, (1, 1))

    def _entries(self, M: Tensor, g: int) -> list[Tensor]:
        """Where the kernel of each entry of a tile lies in M (users, outputs x entries, channels x wide kernel)."""
        (p, q), (kh, kw) = self.tile, self.conv.kernel
        M = M.view(g, self.conv.outputs, p * q, self.conv.inputs, *self.wide.kernel)
        return [M[:, :, i * q + j, :, i : i + kh, j : j + kw] for i in range(p) for j in range(q)]

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        g, n, wide = here.users, x.shape[-1], self.wide
        A = here.empty("A", wide.outputs, wide.inputs * prod(wide.kernel))
        here.before.do(A.zero_)
        kernel = here.A.view(g, self.conv.outputs, self.conv.inputs, *self.conv.kernel)
        for entry in self._entries(A, g):
            here.before.do(entry.copy_, kernel)
        h, w = wide.counts(tuple(x.shape[2:4]))
        cols = wide.lower(here, x, h, w)
        y = here.empty("y", self.conv.outputs, prod(self.tile), h, w, n)
        here.tape.product(A, cols, y.view(g, wide.outputs, -1))
        planes = [y[:, :, k] for k in range(y.shape[2])]
        best = maxima(here, "best", planes)
        here.kept = cols, y, planes, best
        return best[-1]

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        cols, y, planes, best = here.kept
        if here.slope is not None:
            unmax(here, "difference", G, planes, best, planes)
            wide, g = self.wide, here.users
            D = here.empty("slope", wide.outputs, wide.inputs * prod(wide.kernel))
            here.tape.product(y.view(g, wide.outputs, -1), cols.mT, D, here.add)
            slope = here.slope.view(g, self.conv.outputs, self.conv.inputs, *self.conv.kernel)
            for k, entry in enumerate(self._entries(D, g)):
                here.after.do(slope.add_ if k else slope.copy_, entry)
        return (None,)
