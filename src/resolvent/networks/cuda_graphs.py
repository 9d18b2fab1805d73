"""A function as one CUDA graph: many steps in one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Capture:
    """A capture that is under way. `kept`: what holds the memory that its graph reads and writes."""

    def __init__(self) -> None:
        self.kept: list[object] = []


_capture: Capture | None = None


def captured_now() -> Capture | None:
    """The capture that is under way; None: there is none."""
    return _capture


class Captured:
    """`function`, k gradient steps for example, as a CUDA graph that is captured once; elsewhere the function itself.

    All else that it reads must keep its address and shape, as users' data on the device do. The next call overwrites
    the result, a tensor or several.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._arguments: tuple[Tensor, ...] = ()
        self._result: Any = None
        self._kept: list[object] = []

    def __call__(self, *arguments: Tensor) -> Any:
        if not arguments[0].is_cuda:
            return self.function(*arguments)
        if self._graph is None or [t.shape for t in self._arguments] != [t.shape for t in arguments]:
            self._capture(arguments)
        assert self._graph is not None
        for own, t in zip(self._arguments, arguments, strict=True):
            own.copy_(t)
        self._graph.replay()
        return self._result

    def _capture(self, arguments: tuple[Tensor, ...]) -> None:
        self._graph, self._result = None, None
        self._arguments = tuple(t.clone() for t in arguments)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what libraries do at their first use cannot be captured
            for _ in range(2):
                self.function(*self._arguments)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with uncollected(), torch.cuda.graph(graph), capturing() as capture:
            self._result = self.function(*self._arguments)
        self._graph, self._kept = graph, capture.kept


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
def capturing() -> Iterator[Capture]:
    global _capture
    before, _capture = _capture, Capture()
    try:
        yield _capture
    finally:
        _capture = before
