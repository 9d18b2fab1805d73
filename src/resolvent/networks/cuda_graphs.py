"""A function as one CUDA graph: many steps in one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]
_capture: object | None = None


def captured_now() -> object | None:
    """What stands for the capture that is under way; None: there is none."""
    return _capture


class Captured:
    """`function`, k gradient steps for example, as a CUDA graph that is captured once; elsewhere the function itself.

    All else that it reads must keep its address and shape, as users' data on the device do. The next call overwrites
    the result.
    """

    def __init__(self, function: Map) -> None:
        self.function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._argument: Tensor | None = None
        self._result: Tensor | None = None

    def __call__(self, W: Tensor) -> Tensor:
        if not W.is_cuda:
            return self.function(W)
        if self._graph is None or self._argument is None or self._argument.shape != W.shape:
            self._capture(W)
        assert self._graph is not None
        assert self._argument is not None
        assert self._result is not None
        self._argument.copy_(W)
        self._graph.replay()
        return self._result

    def _capture(self, W: Tensor) -> None:
        self._argument = W.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what libraries do at their first use cannot be captured
            for _ in range(2):
                self.function(self._argument)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with uncollected(), torch.cuda.graph(self._graph), _capturing():
            self._result = self.function(self._argument)


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
