"""Layers over stacked users, forward and backward by hand: features first, images last, x (users, ...features, n).

With the images innermost every shift, stride and window is a copy of long runs, and a convolution's positions and
images are the columns of one wide product a user. Layers write their operations on a tape, which is played for each
block of images. `backward` gets the gradient G at the output, and may overwrite it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.problems.neural.desk import ALIGN, Tape

Shape = tuple[int, ...]
relu_backward = torch.ops.aten.threshold_backward.grad_input
"""G where the second argument is > 0, else 0, in one pass."""


class Unstackable(Exception):
    """A layer that has no stacked form, in a few words."""


@dataclass(eq=False)
class Here:
    """What a layer finds when it writes: its tape, buffers and parameters, and what its forward pass kept.

    `owns`: nobody else needs the layer's input any more, so it may be overwritten. `wanted`: whether the gradient at
    the input is asked for. `before` and `after` are played once for all blocks, around them. `add`: gradients of
    weights are added to what is there.
    """

    tape: Tape
    step: int
    users: int
    owns: bool
    wanted: bool
    weight: Tensor | None
    slope: Tensor | None
    before: Tape
    after: Tape
    add: bool = False
    kept: Any = None

    def empty(self, name: Any, *shape: int) -> Tensor:
        return self.tape.desk.empty((self.step, self.users, name), self.users, shape)

    def do(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.tape.do(call, *args, **options)

    @property
    def kernels(self) -> Any:
        """The module `kernels` where it serves, else None."""
        return self.tape.desk.kernels

    @property
    def A(self) -> Tensor:
        assert self.weight is not None
        return self.weight

    def whole(self, G: Tensor) -> Tensor:
        """G itself, or a copy if a user's part of it is not one run that lies as buffers do."""
        astray = self.tape.desk.apart and (G.stride(0) % ALIGN or G.data_ptr() // G.element_size() % ALIGN)
        if G[0].is_contiguous() and not astray:
            return G
        copy = self.empty("whole", *G.shape[1:])
        self.do(copy.copy_, G)
        return copy


class Layer(Protocol):
    """`shape` gives the features' shape after the layer, or raises Unstackable. `needs_output`: for its backward."""

    @property
    def needs_output(self) -> bool: ...
    def shape(self, *shapes: Shape) -> Shape: ...
    def forward(self, here: Here, *xs: Tensor) -> Tensor: ...
    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]: ...


def along(x: Tensor, axis: int, start: int, count: int, stride: int) -> Tensor:
    """`count` slices of x along an axis, a stride apart."""
    return x[(slice(None),) * axis + (slice(start, start + stride * (count - 1) + 1, stride),)]


def windows(size: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """How many windows fit."""
    count = (size - dilation * (kernel - 1) - 1) // stride + 1
    if count < 1:
        raise Unstackable(f"a window of {kernel} over {size}")
    return count


def padded(here: Here, x: Tensor, padding: tuple[int, int], value: float) -> Tensor:
    """x (users, channels, height, width, n) with a margin."""
    ph, pw = padding
    if not ph and not pw:
        return x
    _, c, height, width, n = x.shape
    wide = here.empty("padded", c, height + 2 * ph, width + 2 * pw, n)
    here.do(wide.fill_, value)
    here.do(wide[:, :, ph : ph + height, pw : pw + width].copy_, x)
    return wide


def scatter(here: Here, out: Tensor, axis: int, parts: list[Tensor], stride: int, dilation: int = 1) -> None:
    """out = the sum of the parts, part k laid along the axis from k * dilation, a stride apart."""
    count, first = parts[0].shape[axis], 0
    if stride == 1:  # the first part is written, and only what it leaves out is zeroed
        here.do(out.narrow(axis, 0, count).copy_, parts[0])
        if count < out.shape[axis]:
            here.do(out.narrow(axis, count, out.shape[axis] - count).zero_)
        first = 1
    else:
        here.do(out.zero_)
    for k in range(first, len(parts)):
        here.do(along(out, axis, k * dilation, count, stride).add_, parts[k])


@dataclass(frozen=True)
class Linear:
    """y = A x on features of one axis."""

    inputs: int
    outputs: int
    needs_output = False

    def shape(self, *shapes: Shape) -> Shape:
        if shapes[0] != (self.inputs,):
            raise Unstackable(f"a linear layer over features of shape {shapes[0]}")
        return (self.outputs,)

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        here.kept = x
        y = here.empty("y", self.outputs, x.shape[-1])
        here.tape.product(here.A, x, y)
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        x, G = here.kept, here.whole(G)
        if here.slope is not None:
            here.tape.product(G, x.mT, here.slope, here.add)
        if not here.wanted:
            return (None,)
        dx = here.empty("dx", *x.shape[1:])
        here.tape.product(here.A.mT, G, dx)
        return (dx,)


@dataclass(frozen=True)
class Bias:
    """y = x + b, one number a channel: after pooling rather than before, where it is fewer."""

    needs_output = False

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        y = x if here.owns else here.empty("y", *x.shape[1:])
        here.do(torch.add, x, here.A.view(here.users, -1, *(1,) * (x.ndim - 2)), out=y)
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        if here.slope is not None:
            rows = here.whole(G).view(here.users, G.shape[1], -1)
            total = here.empty("sum", G.shape[1], 1) if here.add else here.slope
            here.do(torch.sum, rows, -1, keepdim=True, out=total)
            if here.add:
                here.do(here.slope.add_, total)
        return (G,)


@dataclass(frozen=True)
class Conv:
    """A convolution over two axes, as one product with the windows of x in columns (im2col)."""

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

    def _direct(self, here: Here) -> bool:
        """Whether torch's own convolution is the faster one: on a CPU, in single precision, for many outputs."""
        desk = here.tape.desk
        return desk.apart and desk.compute is None and desk.like.dtype == torch.float32 and self.outputs >= 32

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        h, w = self.counts(tuple(x.shape[2:4]))
        if self._direct(here):
            return self._direct_forward(here, x, h, w)
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
        """Whether the two are such a pair, and better as one: few outputs, and less than half again the arithmetic."""
        if not isinstance(conv, Conv) or not isinstance(pool, MaxPool) or conv.outputs > 16:
            return False
        simple = conv.stride == conv.dilation == pool.dilation == (1, 1) and pool.padding == (0, 0)
        growth = prod((k + p - 1) / k for k, p in zip(conv.kernel, pool.kernel, strict=True))
        return simple and pool.stride == pool.kernel and growth < 1.5

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
        across = maxima(here, "across", self._views(x, 1))
        down = maxima(here, "down", self._views(across[-1], 0))
        here.kept = (x, across, down, xs[0].shape)
        return down[-1]

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        if not here.wanted:
            return (None,)
        x, across, down, (_, _, height, width, _) = here.kept
        G = self._spread(here, G, across[-1], down, 0, mine=True)
        G = self._spread(here, G, x, across, 1, mine=here.owns or self.padding != (0, 0))
        ph, pw = self.padding
        return (G[:, :, ph : ph + height, pw : pw + width],)

    def _spread(self, here: Here, G: Tensor, x: Tensor, best: list[Tensor], k: int, mine: bool) -> Tensor:
        """The gradient at x, from that at the maxima along axis k; it takes the place of x if that is `mine`."""
        kernel = self.kernel[k]
        tiles = self.stride[k] == kernel and self.dilation[k] == 1 and x.shape[k + 2] % kernel == 0
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

    def _windows(self, sizes: Shape) -> tuple[Shape, Shape]:
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
        kernel, stride = self._windows(tuple(sizes))
        return (c, *(windows(n + 2 * p, k, s) for n, p, k, s in zip(sizes, self.padding, kernel, stride, strict=True)))

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        kernel, stride = self._windows(tuple(x.shape[2:4]))
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


@dataclass(frozen=True)
class Reshape:
    """Features in another shape; None: one axis, from `start` on."""

    to: Shape | None
    start: int = 0
    needs_output = True  # what it hands on is its input

    def shape(self, *shapes: Shape) -> Shape:
        (old,) = shapes
        if self.to is None:
            return (*old[: self.start], prod(old[self.start :])) if len(old) > self.start else old
        rest = prod(size for size in self.to if size != -1)
        new = tuple(prod(old) // max(rest, 1) if size == -1 else size for size in self.to)
        if prod(new) != prod(old):
            raise Unstackable(f"a reshape of {old} to {new}")
        return new

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        here.kept = x.shape
        if x.shape[1:-1] == self.shape(tuple(x.shape[1:-1])):
            return x
        return x.view(x.shape[0], *self.shape(tuple(x.shape[1:-1])), x.shape[-1])

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        return (here.whole(G).view(here.kept),)


@dataclass(frozen=True)
class Lift:
    """A height of one put in before the width, or taken out: layers over one axis are layers over two."""

    put: bool
    needs_output = True  # what it hands on is its input

    def shape(self, *shapes: Shape) -> Shape:
        (old,) = shapes
        if len(old) != (2 if self.put else 3):
            raise Unstackable(f"a layer over one axis, over features of shape {old}")
        return (old[0], 1, old[1]) if self.put else (old[0], old[2])

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        return xs[0].unsqueeze(2) if self.put else xs[0].squeeze(2)

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        return (G.squeeze(2) if self.put else G.unsqueeze(2),)


@dataclass(frozen=True)
class Add:
    """The sum of two: a residual connection."""

    needs_output = False

    def shape(self, *shapes: Shape) -> Shape:
        if shapes[0] != shapes[1]:
            raise Unstackable(f"a sum of shapes {shapes[0]} and {shapes[1]}")
        return shapes[0]

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        y = here.empty("y", *xs[0].shape[1:])
        here.do(torch.add, *xs, out=y)
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        second = here.empty("second", *G.shape[1:])
        here.do(second.copy_, G)
        return (G, second)
