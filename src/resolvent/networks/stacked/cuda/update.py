"""A local step of all users in one pass (update.cu)."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.compiler import Code
from resolvent.networks.stacked.cuda.launch import run

THREADS, MOST_BLOCKS = 256, 1024
"""Threads of a block, and blocks that a user's numbers are divided among at most."""


class Update(NamedTuple):
    """x <- x - lr v with v <- momentum v + g + (x - u) / eta, in place; eta None: v <- momentum v + g + u.

    All tensors are contiguous.
    """

    x: Tensor
    g: Tensor
    v: Tensor | None
    u: Tensor | None
    moves: Tensor | None
    lr: float
    momentum: float
    eta: float | None

    def code(self) -> Code:
        tilt = self.u is not None and self.eta is None
        pull = self.u is not None and not tilt
        return source.update(self.v is not None, pull, tilt, self.moves is not None)

    def grid(self) -> tuple[int, int, int]:
        users, d = self.x.shape
        return users, min(MOST_BLOCKS, ceil(d / THREADS)), 1

    def arguments(self) -> tuple[Tensor | int, ...]:
        """What is not there stands as x, which the kernel then never reads as that."""
        given = (self.x if each is None else each for each in (self.v, self.u, self.moves))
        inverse = np.float32(1) / np.float32(1 if self.eta is None else self.eta)  # by which torch multiplies, too
        bits = (_bits(number) for number in (self.lr, self.momentum, inverse))
        d = self.x.shape[1]
        return (self.x, self.g, *given, *bits, d, d if self.u is not None and len(self.u) > 1 else 0)

    def run(self) -> None:
        run(self.x.device, self.code(), self.grid(), THREADS // 32, self.arguments())


def _bits(number: Any) -> int:
    """The integer with the bits of a float: versions of torch differ in which type of C a float becomes."""
    return int(np.float32(number).view(np.int32))
