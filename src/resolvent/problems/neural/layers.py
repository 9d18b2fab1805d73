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
    weights are added to what is there. `bias` and `bias_slope` are those of a layer that has kernels and biases.
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
    bias: Tensor | None = None
    bias_slope: Tensor | None = None
    add_bias: bool = False

    def empty(self, name: Any, *shape: int) -> Tensor:
        return self.tape.desk.empty((self.step, self.users, name), self.users, shape)

    def do(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.tape.do(call, *args, **options)

    @property
    def kernels(self) -> Any:
        """The module `kernels` where it serves, else None."""
        return self.tape.desk.kernels

    @property
    def loops(self) -> Any:
        """The module `loops` where it serves, else None."""
        return self.tape.desk.loops

    @property
    def A(self) -> Tensor:
        assert self.weight is not None
        return self.weight

    def whole(self, G: Tensor, name: str = "whole") -> Tensor:
        """G itself, or a copy if a user's part of it is not one run that lies as buffers do."""
        astray = self.tape.desk.apart and (G.stride(0) % ALIGN or G.data_ptr() // G.element_size() % ALIGN)
        if G[0].is_contiguous() and not astray:
            return G
        copy = self.empty(name, *G.shape[1:])
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
class Reshape:
    """Features in another shape; None: one axis, from `start` on."""

    to: Shape | None
    start: int = 0
    needs_output = True  # what it hands on is its input

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
