"""The memory of a stacked network: buffers that are reused, and tapes of operations on them.

On a CPU the bits of a matrix product depend on how its operands are aligned, and those of an exponential on whether an
element falls into the last, incomplete vector of a loop. So that a user's result depends on that user alone, each
user's part of a buffer starts at a multiple of ALIGN numbers and never touches the next user's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from functools import partial
from importlib.util import find_spec
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from resolvent.networks.cuda_graphs import captured_now, uncollected
from resolvent.networks.precision import Precision
from resolvent.networks.stacked.cuda.compiler import obstacle_for
from resolvent.networks.stacked.cuda.launch import thin_product

ALIGN = 64
"""In numbers: two unrolled vectors of the widest kind, and more than a cache line."""


MIN_LONG_RATIO, MAX_PARTS = 64, 128
"""On an accelerator, a sum this many times longer than its result is wide is divided into up to MAX_PARTS parts."""


def _kernels() -> ModuleType | None:
    """The module `triton_kernels`, or None where Triton is not installed."""
    if find_spec("triton") is None:
        return None
    from resolvent.networks.stacked import triton_kernels as kernels

    return kernels


def loops_for(device: torch.device, dtype: torch.dtype, precision: Precision = "float32") -> ModuleType | None:
    """The module `cpu_loops`, or None where it does not apply or Numba is not installed."""
    real = dtype in (torch.float32, torch.float64)
    if device.type != "cpu" or not real or precision == "bfloat16" or find_spec("numba") is None:
        return None
    try:
        from resolvent.networks.stacked import cpu_loops as loops
    except ImportError:  # a Numba that refuses the installed NumPy
        return None
    return loops


class Workspace:
    """Buffers by name, each as large as the largest request under that name, and a cache of programs.

    `aligned`: whether each user's part of a buffer is aligned, as on CPUs. `generated`: whether generated CUDA kernels
    serve here.
    """

    def __init__(self, like: Tensor, precision: Precision = "float32") -> None:
        self.like = like.new_empty(0)
        self.precision = precision
        self.aligned = like.device.type == "cpu"
        self.kernels = _kernels() if like.is_cuda else None
        self.loops = loops_for(like.device, like.dtype, precision)
        self.generated = not obstacle_for(like.device, like.dtype, precision)
        self.programs: dict[Hashable, Any] = {}
        self._buffers: dict[Hashable, Tensor] = {}
        self._contents: dict[int, tuple[tuple[object, ...], Tensor]] = {}

    def holds(self, buffer: Tensor, x: Tensor) -> bool:
        """Whether the buffer has x already, within one capture; if not, it is about to.

        The steps of a captured function follow each other with nothing in between, so that only the first of several
        on the same data must copy it. Elsewhere a replay may have left other data there.
        """
        capture = captured_now()
        if capture is None:
            return False
        content = (capture, x.data_ptr(), x._version, x.shape, x.stride(), x.dtype)
        same = self._contents.get(buffer.data_ptr(), (None, x))[0] == content
        self._contents[buffer.data_ptr()] = content, x  # as long as x is there, nothing else gets its address
        return same

    def clear(self) -> None:
        """Drop all programs and buffers. Programs refer to themselves: a GPU's memory is not left to chance."""
        self.programs.clear()
        self._buffers.clear()
        self._contents.clear()
        if self.like.is_cuda and captured_now() is None:
            gc.collect()

    def empty(self, name: Hashable, users: int, shape: tuple[int, ...]) -> Tensor:
        """A buffer (users, *shape), not initialised; the same memory for the same name."""
        size = prod(shape)
        step = (size // ALIGN + 1) * ALIGN if self.aligned else size
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < users * step:
            buffer = self.like.new_empty(users * step + (ALIGN if self.aligned else 0))
            if self.aligned:  # an allocator may align to less than ALIGN numbers
                buffer = buffer[-(buffer.data_ptr() // buffer.element_size()) % ALIGN :]
            self._buffers[name] = buffer
        return buffer[: users * step].view(users, step)[:, :size].view(users, *shape)


class Tape:
    """Operations on buffers, recorded once and replayed many times: views are made once, and nothing is allocated.

    On CUDA the second replay is captured as a graph, and later ones are one launch each.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.calls: list[Callable[[], Any]] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran_before = False

    def record(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.calls.append(partial(call, *args, **options))

    @property
    def names(self) -> list[str]:
        """The names of the recorded operations, in order."""
        return [getattr(getattr(call, "func", call), "__name__", "?") for call in self.calls]

    def replay(self) -> None:
        if self.workspace.like.is_cuda and not torch.cuda.is_current_stream_capturing():
            self._run_graph()
        else:
            self._run_calls()

    def _run_calls(self) -> None:
        for call in self.calls:
            call()

    def _run_graph(self) -> None:
        if not self.calls:
            return
        if not self._ran_before:  # what libraries do at their first use cannot be captured
            self._ran_before = True
            self._run_calls()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with uncollected(), torch.cuda.graph(self._graph):
                self._run_calls()
        self._graph.replay()

    def product(self, a: Tensor, b: Tensor, out: Tensor, add: bool = False) -> None:
        """out_i = a_i b_i, or out_i += a_i b_i, for stacked matrices.

        On a CPU torch multiplies user by user, since `out` is not contiguous: one user's product is that of many.
        """
        if self.workspace.precision == "bfloat16":
            self.record(_reduced, a, b, out, add)
            return
        if self.workspace.generated and thin_product(self, a, b.mT, out, add):
            return
        if not self.workspace.aligned and a.shape[2] >= MIN_LONG_RATIO * max(a.shape[1], b.shape[2]):
            self._long_product(a, b, out, add)
        elif add:
            self.record(out.baddbmm_, a, b)
        else:
            self.record(torch.bmm, a, b, out=out)

    def _long_product(self, a: Tensor, b: Tensor, out: Tensor, add: bool) -> None:
        """A small result of long sums, in parts: on an accelerator a batched product would give each user few cores."""
        parts = next(k for k in range(MAX_PARTS, 0, -1) if a.shape[2] % k == 0)
        for ai, bi, oi in zip(a, b, out, strict=True):
            some = self.workspace.empty("parts", parts, tuple(oi.shape))
            left = ai.view(len(ai), parts, -1).transpose(0, 1)
            right = bi.mT.view(bi.shape[1], parts, -1).transpose(0, 1).mT
            self.record(torch.bmm, left, right, out=some)
            if add:
                self.record(lambda some=some, oi=oi: oi.add_(some.sum(0)))
            else:
                self.record(torch.sum, some, 0, out=oi)


def _reduced(a: Tensor, b: Tensor, out: Tensor, add: bool) -> None:
    part = torch.bmm(a.bfloat16(), b.bfloat16())
    if add:
        out.add_(part)
    else:
        out.copy_(part)
