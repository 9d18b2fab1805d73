"""All users in one compiled program: what `vectorised.py` computes, by torch.compile, and on CUDA as one graph.

A program is compiled for one number of users and one shape of rows, when the first gradient of that shape is asked for.
Its first answer is compared with the loop's, for one user whose gradient is finite. Where compiling fails, or the two
differ, rows of that shape go by vmap. torch caches what it compiles on disk: the next process only loads it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from resolvent.networks.cuda_graphs import Captured
from resolvent.networks.layout import let_go
from resolvent.networks.plain import Examples, Loop
from resolvent.networks.precision import Precision
from resolvent.networks.vectorised import AllUsers, Vmap

MAX_PROGRAMS = 8
"""Shapes that are compiled; further ones go by vmap."""
MAX_PADDING = 2
"""Fewer users take a program that is there for at most this many times as many, and some of them count twice."""
TOLERANCES: dict[Precision, float] = {"float32": 0.02, "tf32": 0.1, "bfloat16": 0.5}
"""Relative, of a user's gradient: compiled code adds in another order, and a maximum may be another entry. What is
compiled was compared with plain autograd more closely before."""

Program = Callable[..., tuple[Tensor, Tensor]]


@dataclass(eq=False)
class Compiled(Vmap):
    """vmap, compiled. `seconds`: how long compiling has taken. `obstacles`: why shapes go by vmap."""

    name = "compiled"
    seconds: float = 0.0
    obstacles: list[str] = field(default_factory=list)
    _programs: dict[Any, Program | None] = field(default_factory=dict)

    def eager(self, precision: Precision | None = None) -> Vmap:
        """The same without compiling."""
        return Vmap(self.model, self.layout, self.loss, precision or self.precision, self.drops, self.masks)

    def exact(self) -> Vmap:  # type: ignore[override]
        """What is compared with plain autograd. What is compiled is then compared with this."""
        return self.eager("float32")

    def _of_chunk(self, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        users, rows = len(x), (_kind(x), _kind(y), mask is None, W.dtype)
        given = [W, x, y] if mask is None else [W, x, y, mask]
        fitting = [key for key in self._programs if key[1] == rows and users <= key[0] <= MAX_PADDING * users]
        if not fitting:
            if len(self._programs) >= MAX_PROGRAMS:
                return self._uncompiled(W, x, y, mask)
            return self._first(users, rows, given)
        key = min(fitting, key=lambda key: key[0])
        program = self._programs[key]
        if program is None:
            return self._uncompiled(W, x, y, mask)
        if key[0] > users:
            again = torch.arange(key[0], device=W.device) % users
            given = [t[again] for t in given]
        loss, grad = program(*given)
        return loss[:users], grad[:users]

    def _uncompiled(self, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """By vmap, or by the loop where that fails."""
        try:
            return self.all_users(W, x, y, mask)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            let_go(error)
            return self._by_loop(W, x, y, mask)

    def _by_loop(self, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        loss, grad, _ = Loop.value_and_grad(self, W, Examples(x, y, mask))
        return loss, grad

    def _first(self, users: int, rows: Any, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Compile for rows of this shape, and compare the first answer."""
        began = time.perf_counter()
        program, answer, reason = compiled(self.all_users, given)
        self.seconds += time.perf_counter() - began
        if answer is not None and not reason:
            reason = self._compared(answer, given)
        self._programs[users, rows] = None if reason else program
        if reason:
            self.obstacles.append(reason)
            return self._uncompiled(*_four(given))
        assert answer is not None
        return answer

    def _compared(self, answer: tuple[Tensor, Tensor], given: list[Tensor]) -> str:
        """How the answer differs from the loop's for the first user that can be compared."""
        for i in range(len(given[0])):
            one = self._by_loop(*_four([t[i : i + 1] for t in given]))
            if all(bool(t.isfinite().all()) for t in one):
                return _difference((answer[0][i : i + 1], answer[1][i : i + 1]), one, TOLERANCES[self.precision])
        return "all of the first gradients were infinite or NaN"


def compiled(function: AllUsers, given: list[Tensor]) -> tuple[Program, tuple[Tensor, Tensor] | None, str]:
    """The function compiled for arguments like these, what it gives for them, and why it cannot be compiled.

    torch bounds how often one piece of code is compiled, so each program has a copy of its own.
    """
    own = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    fast = torch.compile(own, fullgraph=True, dynamic=False)

    def program(*given: Tensor) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = fast(*_four(list(given)))
        return result

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = program(*given)
            answer = answer[0].clone(), answer[1].clone()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler raises
        let_go(error)
        return program, None, f"torch.compile gave {type(error).__name__}: {_line(error)}"
    return (_in_a_graph(program, given) if given[0].is_cuda else program), answer, ""


def _in_a_graph(program: Program, given: list[Tensor]) -> Program:
    """The program as one CUDA graph, or as it is where it cannot be captured."""
    graph = Captured(program)
    torch.cuda.empty_cache()  # what the first call took cannot serve the graph
    try:
        graph(*given)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        let_go(error)
        return program
    return lambda *given: tuple(t.clone() for t in graph(*given))


def _four(given: list[Tensor]) -> list[Any]:
    return [*given, None] if len(given) == 3 else given


def _kind(t: Tensor) -> Any:
    return tuple(t.shape[1:]), t.dtype


def _difference(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], tolerance: float) -> str:
    for name, a, b in zip(("loss", "gradient"), got, want, strict=True):
        if not bool((a - b).norm() <= tolerance * b.norm() + torch.finfo(b.dtype).tiny):
            return f"the compiled {name} was not that of the loop"
    return ""


def _line(error: Exception) -> str:
    """The first line that says what happened."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line and not line.endswith("raised:")), "")
