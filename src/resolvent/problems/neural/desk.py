"""Where a stacked network works: buffers that are used again, and tapes of operations on them.

On a CPU the bits of a matrix product depend on how its operands are aligned, and those of an exponential on whether an
element falls into the last, incomplete vector of a loop. So that a user's result depends on nothing but that user, each
user's part of a buffer starts at a multiple of 64 numbers and is never one run with the next user's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from importlib.util import find_spec
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from resolvent.problems.neural.cuda.obstacle import obstacle
from resolvent.problems.neural.graphs import captured_now, uncollected

ALIGN = 64
"""Numbers: two unrolled vectors of the widest kind, and more than a cache line."""


LONG, PARTS = 64, 128
"""On an accelerator sums at least so many times longer than the result is wide go in up to so many parts."""


def _kernels() -> ModuleType | None:
    """Kernels of our own for CUDA, where Triton is there to build them."""
    if find_spec("triton") is None:
        return None
    from resolvent.problems.neural import kernels

    return kernels


def loops_for(device: torch.device, dtype: torch.dtype, compute: torch.dtype | None) -> ModuleType | None:
    """Loops of our own for CPUs, where Numba is there to compile them."""
    real = dtype in (torch.float32, torch.float64)
    if device.type != "cpu" or not real or compute is not None or find_spec("numba") is None:
        return None
    try:
        from resolvent.problems.neural import loops
    except ImportError:  # a Numba that does not take the NumPy that is there
        return None
    return loops


class Desk:
    """Buffers by name, each as large as the largest that was asked for under that name, and whatever else is kept."""

    def __init__(self, like: Tensor, compute: torch.dtype | None = None) -> None:
        self.like = like.new_empty(0)
        self.compute = compute
        self.apart = like.device.type == "cpu"
        self.kernels = _kernels() if like.is_cuda else None
        self.loops = loops_for(like.device, like.dtype, compute)
        self.generated = not obstacle(like.device, like.dtype, compute)
        self.kept: dict[Hashable, Any] = {}
        self._buffers: dict[Hashable, Tensor] = {}
        self._held: dict[int, tuple[tuple[object, ...], Tensor]] = {}

    def holds(self, buffer: Tensor, x: Tensor) -> bool:
        """Whether the buffer has x already, within one capture; if not, it is about to.

        The steps of a captured function follow each other with nothing in between, so that only the first of several
        on the same data must copy it. Elsewhere a replay may have left other data there.
        """
        capture = captured_now()
        if capture is None:
            return False
        content = (capture, x.data_ptr(), x._version, x.shape, x.stride(), x.dtype)
        held = self._held.get(buffer.data_ptr(), (None, x))[0] == content
        self._held[buffer.data_ptr()] = content, x  # as long as x is there, nothing else gets its address
        return held

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
    """Operations on buffers, written down once and played many times: views are made once, and nothing is allocated.

    On CUDA the second playing is captured as a graph, and later ones are one launch each.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.calls: list[Callable[[], Any]] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._played = False

    def do(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.calls.append(partial(call, *args, **options))

    def play(self) -> None:
        if self.desk.like.is_cuda and not torch.cuda.is_current_stream_capturing():
            self._play_graph()
        else:
            self._play_calls()

    def _play_calls(self) -> None:
        for call in self.calls:
            call()

    def _play_graph(self) -> None:
        if not self.calls:
            return
        if not self._played:  # what is done at the first use of a library cannot be captured
            self._played = True
            self._play_calls()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with uncollected(), torch.cuda.graph(self._graph):
                self._play_calls()
        self._graph.replay()

    def product(self, a: Tensor, b: Tensor, out: Tensor, add: bool = False) -> None:
        """out_i = a_i b_i, or out_i += a_i b_i, for stacked matrices.

        On a CPU torch takes users one by one, since `out` is not contiguous: the same product for one as for many.
        """
        if self.desk.compute is not None:
            self.do(_reduced, a, b, out, add, self.desk.compute)
            return
        if self.desk.generated and self._thin_product(a, b, out, add):
            return
        if not self.desk.apart and a.shape[2] >= LONG * max(a.shape[1], b.shape[2]):
            self._long_product(a, b, out, add)
        elif add:
            self.do(out.baddbmm_, a, b)
        else:
            self.do(torch.bmm, a, b, out=out)

    def _thin_product(self, a: Tensor, b: Tensor, out: Tensor, add: bool) -> bool:
        """Few rows or columns of sums over many images, by generated kernels, where they take it."""
        from resolvent.problems.neural.cuda.layer import thin_product

        return thin_product(self, a, b.mT, out, add)

    def _long_product(self, a: Tensor, b: Tensor, out: Tensor, add: bool) -> None:
        """Small results of long sums, on an accelerator: in parts, since a batched product gives each to few cores."""
        parts = next(k for k in range(PARTS, 0, -1) if a.shape[2] % k == 0)
        for ai, bi, oi in zip(a, b, out, strict=True):
            some = self.desk.empty("parts", parts, tuple(oi.shape))
            left = ai.view(len(ai), parts, -1).transpose(0, 1)
            right = bi.mT.view(bi.shape[1], parts, -1).transpose(0, 1).mT
            self.do(torch.bmm, left, right, out=some)
            if add:
                self.do(lambda some=some, oi=oi: oi.add_(some.sum(0)))
            else:
                self.do(torch.sum, some, 0, out=oi)


def _reduced(a: Tensor, b: Tensor, out: Tensor, add: bool, dtype: torch.dtype) -> None:
    part = torch.bmm(a.to(dtype), b.to(dtype))
    if add:
        out.add_(part)
    else:
        out.copy_(part)
