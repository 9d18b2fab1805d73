"""Where a stacked network works: buffers that are used again, and tapes of operations on them.

On a CPU the bits of a matrix product depend on how its operands are aligned, and those of an exponential on whether an
element falls into the last, incomplete vector of a loop. So that a user's result depends on nothing but that user, each
user's part of a buffer starts at a multiple of 64 numbers and is never one run with the next user's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

ALIGN = 64
"""Numbers: two unrolled vectors of the widest kind, and more than a cache line."""


class Desk:
    """Buffers by name, each as large as the largest that was asked for under that name, and whatever else is kept."""

    def __init__(self, like: Tensor, compute: torch.dtype | None = None) -> None:
        self.like = like.new_empty(0)
        self.compute = compute
        self.apart = like.device.type == "cpu"
        self.kept: dict[Hashable, Any] = {}
        self._buffers: dict[Hashable, Tensor] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.kept.clear()
        self._buffers.clear()

    def empty(self, name: Hashable, users: int, shape: tuple[int, ...]) -> Tensor:
        """(users, *shape), with what was left in it."""
        size = prod(shape)
        step = (size // ALIGN + 1) * ALIGN if self.apart else size
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < users * step:
            buffer = self.like.new_empty(users * step + (ALIGN if self.apart else 0))
            if self.apart:  # an allocator may align to less than ALIGN numbers
                buffer = buffer[-(buffer.data_ptr() // buffer.element_size()) % ALIGN :]
            self._buffers[name] = buffer
        return buffer[: users * step].view(users, step)[:, :size].view(users, *shape)


class Tape:
    """Operations on buffers, written down once and played many times: views are made once, and nothing is allocated."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._calls: list[Callable[[], Any]] = []

    def do(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        self._calls.append(partial(call, *args, **options))

    def play(self) -> None:
        for call in self._calls:
            call()

    def product(self, a: Tensor, b: Tensor, out: Tensor, add: bool = False) -> None:
        """out_i = a_i b_i, or out_i += a_i b_i, for stacked matrices.

        On a CPU each user's is one call of the same matrix product, for one user as for many: where `out` is not
        contiguous torch takes them one by one. Very small products it does in a way of its own, for any number.
        """
        if self.desk.compute is not None:
            self.do(_reduced, a, b, out, add, self.desk.compute)
            return
        tiny = a.shape[1] * a.shape[2] * b.shape[2] < 400
        if len(out) == 1 and self.desk.apart and not tiny:
            a, b, out = a[0], b[0], out[0]
            if add:
                self.do(out.addmm_, a, b)
            else:
                self.do(torch.mm, a, b, out=out)
        elif add:
            self.do(out.baddbmm_, a, b)
        else:
            self.do(torch.bmm, a, b, out=out)


def _reduced(a: Tensor, b: Tensor, out: Tensor, add: bool, dtype: torch.dtype) -> None:
    part = torch.bmm(a.to(dtype), b.to(dtype))
    if add:
        out.add_(part)
    else:
        out.copy_(part)
