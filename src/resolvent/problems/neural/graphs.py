"""Many steps in one launch: what a function does to its argument on CUDA, captured once and replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]
_capture: object | None = None


def captured_now() -> object | None:
    """What stands for the capture that is going on; None: there is none."""
    return _capture


class Captured:
    """`step` as a CUDA graph, k gradient steps say; elsewhere `step` itself.

    All that it reads besides its argument must stay where it is, with its shape: users' data, resident on the device.
    The result is overwritten by the next call.
    """

    def __init__(self, step: Map) -> None:
        self.step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: Tensor | None = None
        self._result: Tensor | None = None

    def __call__(self, W: Tensor) -> Tensor:
        if not W.is_cuda:
            return self.step(W)
        if self._graph is None or self._given is None or self._given.shape != W.shape:
            self._capture(W)
        assert self._graph is not None
        assert self._given is not None
        assert self._result is not None
        self._given.copy_(W)
        self._graph.replay()
        return self._result

    def _capture(self, W: Tensor) -> None:
        self._given = W.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what libraries do at their first use cannot be captured
            for _ in range(2):
                self.step(self._given)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with uncollected(), torch.cuda.graph(self._graph), _capturing():
            self._result = self.step(self._given)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without automatic garbage collection: a graph that is freed while another is captured spoils the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _capturing() -> Iterator[None]:
    global _capture
    before, _capture = _capture, object()
    try:
        yield
    finally:
        _capture = before
