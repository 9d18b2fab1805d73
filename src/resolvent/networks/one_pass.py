"""Gradient descent of all users at once, each step one pass over (users, d): gradient, pull, momentum and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.networks.stacked.cuda.compiler import obstacle_for
from resolvent.networks.stacked.cuda.update import Update
from resolvent.networks.stacked.jobs import parallel_map
from resolvent.networks.stacked.workspace import loops_for

MIN_SHARE = 1 << 19
"""Numbers that a thread takes at least: a smaller share is done before the thread has begun."""

Pull = tuple[Tensor, float | None]


class OnePass:
    """x <- x - lr v with v <- momentum v + g + (x - u) / eta: the bits of torch's operations, each number read once.

    pull: (u, eta), or None for no pull; where eta is None, u itself is added to g. Every step overwrites x. `room` is
    what to call a gradient with: on a CPU all gradients take the same memory, since pages that are fresh from the
    system cost as much as a pass over them.
    """

    def __init__(self, x: Tensor, lr: float, momentum: float, pull: Pull | None, reuse: bool) -> None:
        self.x = x.clone(memory_format=torch.contiguous_format)
        with torch.inference_mode(False):  # gradients are written outside of it, where its tensors are not writable
            self.room = {"out": torch.empty_like(self.x)} if reuse and not x.is_cuda else {}
        self.lr, self.momentum = lr, momentum
        self.v = torch.zeros_like(self.x) if momentum else None
        self.u = None if pull is None else _rows(pull[0])
        self.eta = None if pull is None else pull[1]

    def step(self, g: Tensor, moves: Tensor | None) -> None:
        """One step by the gradients g; moves: (users, 1), or None for all."""
        if self.x.is_cuda and len(self.x):  # CUDA refuses to launch nothing
            Update(self.x, g.contiguous(), self.v, self.u, moves, self.lr, self.momentum, self.eta).run()
        elif not self.x.is_cuda:
            self._loop(g, moves)

    def _loop(self, g: Tensor, moves: Tensor | None) -> None:
        from resolvent.networks.stacked.cpu_loops import step

        kind = self.x.numpy().dtype.type
        arrays = [None if each is None else each.numpy() for each in (self.x, g.contiguous(), self.v, self.u)]
        moved = None if moves is None else moves.flatten().numpy()
        with np.errstate(over="ignore"):  # 1e60 is infinite in single precision, as for torch
            constants = kind(self.lr), kind(self.momentum), None if self.eta is None else kind(self.eta)
        users = len(self.x)
        parts = min(users, max(1, self.x.numel() // MIN_SHARE))
        cuts = np.linspace(0, users, parts + 1).astype(int)

        def work(share: tuple[int, int]) -> None:
            step(*arrays, *constants, moved, *share)

        parallel_map(work, list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)), self.x.device)


def one_pass(x: Tensor, lr: Any, momentum: float, pull: Pull | None, reuse: bool = False) -> OnePass | None:
    """Descent from rows x; None where there is nothing to compute it with, or lr is not one number.

    reuse: whether gradients may take memory that is given to them.
    """
    if isinstance(lr, Tensor) or not _compiles(x):
        return None
    return OnePass(x, lr, momentum, pull, reuse)


def _compiles(x: Tensor) -> bool:
    if x.device.type == "cpu":
        return loops_for(x.device, x.dtype) is not None
    return not obstacle_for(x.device, x.dtype)


def _rows(u: Tensor) -> Tensor:
    """One row where all are the same one, else all of them, without gaps."""
    return (u[:1] if len(u) > 1 and u.stride(0) == 0 else u).contiguous()
