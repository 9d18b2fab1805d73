"""Layers over stacked users, forward and backward written by hand. Values are (users, ...features, n), images last.

With the images innermost, every shift, stride and window is a copy of long runs, and a convolution's positions and
images are the columns of one wide product per user. A layer computes nothing itself: `write_forward` and
`write_backward` record its operations on a tape, which is replayed for each block of images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.networks.stacked.workspace import ALIGN, Tape

Shape = tuple[int, ...]
relu_backward = torch.ops.aten.threshold_backward.grad_input
"""G where the second argument is > 0, else 0, in one pass."""


class Unstackable(Exception):
    """Why a module or layer has no stacked form, in a few words."""


@dataclass(eq=False)
class Context:
    """What a layer needs in order to write: its tape, buffers and parameters, and what its forward pass saved.

    `owns_input`: no other layer reads the input, so it may be overwritten. `needs_input_grad`: whether the gradient at
    the input is needed. `prologue` and `epilogue` are replayed once, before the first block and after the last one.
    `add`: the weights' gradient is added to what is there. `bias`, `bias_grad` and `add_bias` are those of the
    biases of a layer that has kernels and biases.
    """

    tape: Tape
    stage: int
    users: int
    owns_input: bool
    needs_input_grad: bool
    weight: Tensor | None
    weight_grad: Tensor | None
    prologue: Tape
    epilogue: Tape
    add: bool = False
    saved: Any = None
    bias: Tensor | None = None
    bias_grad: Tensor | None = None
    add_bias: bool = False

    def empty(self, name: Any, *shape: int) -> Tensor:
        return self.tape.workspace.empty((self.stage, self.users, name), self.users, shape)

    def record(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.tape.record(call, *args, **options)

    @property
    def kernels(self) -> Any:
        """The module `triton_kernels`, or None where it does not apply."""
        return self.tape.workspace.kernels

    @property
    def loops(self) -> Any:
        """The module `cpu_loops`, or None where it does not apply."""
        return self.tape.workspace.loops

    @property
    def A(self) -> Tensor:
        assert self.weight is not None
        return self.weight

    def contiguous(self, G: Tensor, name: str = "contiguous") -> Tensor:
        """G itself, or a recorded copy where a user's part of it is not contiguous and aligned."""
        misaligned = self.tape.workspace.aligned and (G.stride(0) % ALIGN or G.data_ptr() // G.element_size() % ALIGN)
        if G[0].is_contiguous() and not misaligned:
            return G
        copy = self.empty(name, *G.shape[1:])
        self.record(copy.copy_, G)
        return copy


class Layer(Protocol):
    """`shape` gives the features' shape after the layer, or raises Unstackable.

    `write_forward` gives the buffer of the output. `write_backward` gets the gradient G at the output, which it may
    overwrite, and gives those at the inputs. `needs_output`: whether the backward pass reads the output.
    """

    @property
    def needs_output(self) -> bool: ...
    def shape(self, *shapes: Shape) -> Shape: ...
    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor: ...
    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]: ...


class SameShape:
    """A layer whose result has the shape of its input."""

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]


def along(x: Tensor, axis: int, start: int, count: int, stride: int) -> Tensor:
    """`count` slices of x along an axis, a stride apart."""
    return x[(slice(None),) * axis + (slice(start, start + stride * (count - 1) + 1, stride),)]


def windows(size: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """How many windows fit."""
    count = (size - dilation * (kernel - 1) - 1) // stride + 1
    if count < 1:
        raise Unstackable(f"a window of {kernel} over {size}")
    return count


def write_padded(ctx: Context, x: Tensor, padding: tuple[int, int], value: float) -> Tensor:
    """Record a copy of x (users, channels, height, width, n) with a margin."""
    ph, pw = padding
    if not ph and not pw:
        return x
    _, c, height, width, n = x.shape
    wide = ctx.empty("padded", c, height + 2 * ph, width + 2 * pw, n)
    ctx.record(wide.fill_, value)
    ctx.record(wide[:, :, ph : ph + height, pw : pw + width].copy_, x)
    return wide


def write_scatter(ctx: Context, out: Tensor, axis: int, parts: list[Tensor], stride: int, dilation: int = 1) -> None:
    """Record out = the sum of the parts, part k added along the axis from k * dilation on, a stride apart."""
    count, first = parts[0].shape[axis], 0
    if stride == 1:  # the first part is written, and only what it leaves out is zeroed
        ctx.record(out.narrow(axis, 0, count).copy_, parts[0])
        if count < out.shape[axis]:
            ctx.record(out.narrow(axis, count, out.shape[axis] - count).zero_)
        first = 1
    else:
        ctx.record(out.zero_)
    for k in range(first, len(parts)):
        ctx.record(along(out, axis, k * dilation, count, stride).add_, parts[k])


def write_row_sums(ctx: Context, name: str, x: Tensor, out: Tensor, add: bool) -> None:
    """Record out (users, channels, 1) = the sums of x over all that a channel has; `add`: added to what is there."""
    total = ctx.empty(name, x.shape[1], 1) if add else out
    ctx.record(torch.sum, x.view(len(x), x.shape[1], -1), -1, keepdim=True, out=total)
    if add:
        ctx.record(out.add_, total)


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

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        ctx.saved = x
        y = ctx.empty("y", self.outputs, x.shape[-1])
        ctx.tape.product(ctx.A, x, y)
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        x, G = ctx.saved, ctx.contiguous(G)
        if ctx.weight_grad is not None:
            ctx.tape.product(G, x.mT, ctx.weight_grad, ctx.add)
        if not ctx.needs_input_grad:
            return (None,)
        dx = ctx.empty("dx", *x.shape[1:])
        ctx.tape.product(ctx.A.mT, G, dx)
        return (dx,)


@dataclass(frozen=True)
class Bias(SameShape):
    """y = x + b, one number per channel. It comes after pooling rather than before: there are fewer entries there."""

    needs_output = False

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        y = x if ctx.owns_input else ctx.empty("y", *x.shape[1:])
        ctx.record(torch.add, x, ctx.A.view(ctx.users, -1, *(1,) * (x.ndim - 2)), out=y)
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.weight_grad is not None:
            write_row_sums(ctx, "sum", ctx.contiguous(G), ctx.weight_grad, ctx.add)
        return (G,)


@dataclass(frozen=True)
class Reshape:
    """Features in another shape; None: all axes from `start` on become one."""

    to: Shape | None
    start: int = 0
    needs_output = True  # its output is a view of its input

    def shape(self, *shapes: Shape) -> Shape:
        (old,) = shapes
        if self.to is None:
            if len(old) <= self.start:
                raise Unstackable(f"a flattening of {old} from axis {self.start + 1} on")
            return (*old[: self.start], prod(old[self.start :]))
        rest = prod(size for size in self.to if size != -1)
        new = tuple(prod(old) // max(rest, 1) if size == -1 else size for size in self.to)
        if prod(new) != prod(old):
            raise Unstackable(f"a reshape of {old} to {new}")
        return new

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        ctx.saved = x.shape
        if x.shape[1:-1] == self.shape(tuple(x.shape[1:-1])):
            return x
        return x.view(x.shape[0], *self.shape(tuple(x.shape[1:-1])), x.shape[-1])

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        return (ctx.contiguous(G).view(ctx.saved),)


@dataclass(frozen=True)
class Lift:
    """A height of one added before the width, or removed: layers over one axis are computed as layers over two."""

    put: bool
    needs_output = True  # its output is a view of its input

    def shape(self, *shapes: Shape) -> Shape:
        (old,) = shapes
        if len(old) != (2 if self.put else 3):
            raise Unstackable(f"a layer over one axis, over features of shape {old}")
        return (old[0], 1, old[1]) if self.put else (old[0], old[2])

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        return xs[0].unsqueeze(2) if self.put else xs[0].squeeze(2)

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        return (G.squeeze(2) if self.put else G.unsqueeze(2),)


@dataclass(frozen=True)
class Add:
    """The sum of two: a residual connection."""

    needs_output = False

    def shape(self, *shapes: Shape) -> Shape:
        if shapes[0] != shapes[1]:
            raise Unstackable(f"a sum of shapes {shapes[0]} and {shapes[1]}")
        return shapes[0]

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        y = ctx.empty("y", *xs[0].shape[1:])
        ctx.record(torch.add, *xs, out=y)
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        second = ctx.empty("second", *G.shape[1:])
        ctx.record(second.copy_, G)
        return (G, second)
