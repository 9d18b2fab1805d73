"""Stacked convolutions: by compiled loops, by columns (im2col), by torch for many outputs, or joined with a pool."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from resolvent.networks.stacked.layers import Context, Layer, Shape, Unstackable, windows, write_padded, write_scatter
from resolvent.networks.stacked.pools import MaxPool, write_maxima, write_unmax

GROWTH = 1.5
"""A convolution is not joined with its pool where that takes this many times the arithmetic."""
WIDE = 32
"""Outputs from which on torch's own convolution is faster, on a CPU in single precision."""


@dataclass(frozen=True)
class Conv:
    """A convolution over two axes; without compiled loops, one product with the windows of x in columns (im2col)."""

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
        """How many numbers the columns of one image have."""
        return self.inputs * prod(self.kernel) * prod(self.counts(shape[1:]))

    @property
    def _is_product(self) -> bool:
        """Whether it is a product with x itself: a 1 x 1 kernel."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def _uses_loops(self, ctx: Context) -> bool:
        return ctx.loops is not None and not self._is_product

    def _uses_torch(self, ctx: Context) -> bool:
        """Whether torch's own convolution is faster: on a CPU, in single precision, for many outputs."""
        workspace = ctx.tape.workspace
        return (
            workspace.aligned
            and workspace.precision != "bfloat16"
            and workspace.like.dtype == torch.float32
            and self.outputs >= WIDE
        )

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        h, w = self.counts(tuple(x.shape[2:4]))
        if self._uses_torch(ctx):
            return self._write_forward_torch(ctx, x, h, w)
        if self._uses_loops(ctx):
            return self._write_forward_loops(ctx, x, h, w)
        cols = self.write_columns(ctx, x, h, w)
        ctx.saved = cols, x.shape
        y = ctx.empty("y", self.outputs, h, w, x.shape[-1])
        ctx.tape.product(ctx.A, cols, y.view(ctx.users, self.outputs, -1))
        return y

    def write_columns(self, ctx: Context, x: Tensor, h: int, w: int) -> Tensor:
        """Record the windows in columns, (users, channels x kernel, h x w x n)."""
        g, c, _, _, n = x.shape
        if self._is_product:
            return x.view(g, c, h * w * n)
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        cols = ctx.empty("cols", c * kh * kw, h * w * n)
        if ctx.kernels is not None:
            ctx.record(ctx.kernels.lower, x, cols, self.kernel, (h, w), self.stride, self.padding, self.dilation)
            return cols
        x = write_padded(ctx, x, self.padding, 0.0)
        u, v, i, j, one = x.stride()
        view = x.as_strided((g, c, kh, kw, h, w, n), (u, v, i * dh, j * dw, i * sh, j * sw, one))
        ctx.record(cols.view(view.shape).copy_, view)
        return cols

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        if self._uses_torch(ctx):
            return (self._write_backward_torch(ctx, G),)
        if self._uses_loops(ctx):
            return (self._write_backward_loops(ctx, G),)
        cols, (g, c, height, width, n) = ctx.saved
        h, w = G.shape[2:4]
        G = ctx.contiguous(G).view(g, self.outputs, h * w * n)
        if ctx.weight_grad is not None:
            ctx.tape.product(G, cols.mT, ctx.weight_grad, ctx.add)
        if not ctx.needs_input_grad:
            return (None,)
        if self._is_product:
            dx = ctx.empty("dx", c, h * w * n)
            ctx.tape.product(ctx.A.mT, G, dx)
            return (dx.view(g, c, height, width, n),)
        ctx.tape.product(ctx.A.mT, G, cols)  # the columns are no longer needed: their gradient overwrites them
        return (self._write_fold(ctx, cols.view(g, c, *self.kernel, h, w, n), height, width),)

    def _write_forward_loops(self, ctx: Context, x: Tensor, h: int, w: int) -> Tensor:
        wide = write_padded(ctx, ctx.contiguous(x, "x"), self.padding, 0.0)
        shape = tuple(wide.shape[1:])
        geometry = ctx.loops.Geometry.of(shape, self.kernel, (h, w), self.stride, self.dilation, rows=True)
        y = ctx.empty("y", self.outputs, h, w, x.shape[-1])
        ctx.record(ctx.loops.forward(ctx.A, wide, y, geometry))
        ctx.saved = wide, x.shape, geometry
        return y

    def _write_backward_loops(self, ctx: Context, G: Tensor) -> Tensor | None:
        wide, (_, _, height, width, _), geometry = ctx.saved
        G = ctx.contiguous(G)
        if ctx.weight_grad is not None:
            if not ctx.add:
                ctx.record(ctx.weight_grad.zero_)
            ctx.record(ctx.loops.weight_gradient(ctx.weight_grad, wide, G, geometry))
        if not ctx.needs_input_grad:
            return None
        dx = ctx.empty("dx", *wide.shape[1:])
        ctx.record(dx.zero_)
        ctx.record(ctx.loops.input_gradient(ctx.A, dx, G, geometry))
        ph, pw = self.padding
        return dx[:, :, ph : ph + height, pw : pw + width]

    def _write_forward_torch(self, ctx: Context, x: Tensor, h: int, w: int) -> Tensor:
        g, n = ctx.users, x.shape[-1]
        first = ctx.empty("images first", n, *x.shape[1:-1])
        y = ctx.empty("y", self.outputs, h, w, n)
        kernels = ctx.A.view(g, self.outputs, self.inputs, *self.kernel)

        def convolve() -> None:
            for xi, fi, ki, yi in zip(x, first, kernels, y, strict=True):
                fi.view(n, -1).copy_(xi.view(-1, n).T)
                out = torch.conv2d(fi, ki, None, self.stride, self.padding, self.dilation)
                yi.view(-1, n).copy_(out.view(n, -1).T)

        ctx.record(convolve)
        ctx.saved = first, kernels
        return y

    def _write_backward_torch(self, ctx: Context, G: Tensor) -> Tensor | None:
        first, kernels = ctx.saved
        g, n = first.shape[:2]
        G = ctx.contiguous(G)
        weight_grad, add = None if ctx.weight_grad is None else ctx.weight_grad.view_as(kernels), ctx.add
        dx = ctx.empty("dx", *first.shape[2:], n) if ctx.needs_input_grad else None
        GT = ctx.empty("G", n, *G.shape[1:-1])
        how = (
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0, 0),
            1,
            (ctx.needs_input_grad, weight_grad is not None, False),
        )

        def back() -> None:
            for u in range(g):
                GT[u].view(n, -1).copy_(G[u].view(-1, n).T)
                di, dk, _ = torch.ops.aten.convolution_backward(GT[u], first[u], kernels[u], *how)
                if dx is not None:
                    dx[u].view(-1, n).copy_(di.reshape(n, -1).T)
                if weight_grad is not None:
                    (weight_grad[u].add_ if add else weight_grad[u].copy_)(dk)

        ctx.record(back)
        return dx

    def _write_fold(self, ctx: Context, D: Tensor, height: int, width: int) -> Tensor:
        """Record the sum of the windows' gradients at each place, along the height first, where runs are long."""
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = self.kernel, self.stride, self.padding, self.dilation
        c, h, w, n = D.shape[1], *D.shape[4:]
        if ctx.kernels is not None:
            dx = ctx.empty("dx", c, height, width, n)
            ctx.record(ctx.kernels.fold, D, dx, self.kernel, (h, w), self.stride, self.padding, self.dilation)
            return dx
        rows = ctx.empty("rows", c, kw, height + 2 * ph, w, n)
        write_scatter(ctx, rows, 3, [D[:, :, i] for i in range(kh)], sh, dh)
        full = ctx.empty("dx", c, height + 2 * ph, width + 2 * pw, n)
        write_scatter(ctx, full, 3, [rows[:, :, j] for j in range(kw)], sw, dw)
        return full[:, :, ph : ph + height, pw : pw + width]


@dataclass(frozen=True)
class ConvPool:
    """A convolution and the maximum over tiles of its output, in one stage, for few channels.

    Each of the p x p entries of a tile is an output of its own of one convolution with stride p and a kernel larger by
    p - 1. That takes more arithmetic, but in products that are not thin, with a third of the columns, and the maxima
    are of whole planes. Only for a first layer: it has no gradient at its input.
    """

    conv: Conv
    tile: tuple[int, int]
    needs_output = False

    @staticmethod
    def fits(conv: Layer, pool: Layer) -> bool:
        """Whether the two can be joined, and are faster joined: few outputs, and not much more arithmetic."""
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
        """The convolution whose outputs are the entries of the tiles."""
        kernel = (self.conv.kernel[0] + self.tile[0] - 1, self.conv.kernel[1] + self.tile[1] - 1)
        outputs = self.conv.outputs * prod(self.tile)
        return Conv(self.conv.inputs, outputs, kernel, self.tile, self.conv.padding, (1, 1))

    def _entries(self, M: Tensor, g: int) -> list[Tensor]:
        """Views of M (users, outputs x entries, channels x wide kernel): the kernel of each entry of a tile."""
        (p, q), (kh, kw) = self.tile, self.conv.kernel
        M = M.view(g, self.conv.outputs, p * q, self.conv.inputs, *self.wide.kernel)
        return [M[:, :, i * q + j, :, i : i + kh, j : j + kw] for i in range(p) for j in range(q)]

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        g, n, wide = ctx.users, x.shape[-1], self.wide
        A = ctx.empty("A", wide.outputs, wide.inputs * prod(wide.kernel))
        ctx.prologue.record(A.zero_)
        kernel = ctx.A.view(g, self.conv.outputs, self.conv.inputs, *self.conv.kernel)
        for entry in self._entries(A, g):
            ctx.prologue.record(entry.copy_, kernel)
        h, w = wide.counts(tuple(x.shape[2:4]))
        cols = wide.write_columns(ctx, x, h, w)
        y = ctx.empty("y", self.conv.outputs, prod(self.tile), h, w, n)
        ctx.tape.product(A, cols, y.view(g, wide.outputs, -1))
        planes = [y[:, :, k] for k in range(y.shape[2])]
        best = write_maxima(ctx, "best", planes)
        ctx.saved = cols, y, planes, best
        return best[-1]

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        cols, y, planes, best = ctx.saved
        if ctx.weight_grad is not None:
            write_unmax(ctx, "difference", G, planes, best, planes)
            wide, g = self.wide, ctx.users
            D = ctx.empty("wide weight_grad", wide.outputs, wide.inputs * prod(wide.kernel))
            ctx.tape.product(y.view(g, wide.outputs, -1), cols.mT, D, ctx.add)
            weight_grad = ctx.weight_grad.view(g, self.conv.outputs, self.conv.inputs, *self.conv.kernel)
            for k, entry in enumerate(self._entries(D, g)):
                ctx.epilogue.record(weight_grad.add_ if k else weight_grad.copy_, entry)
        return (None,)
