"""The simplex {x >= 0, sum x = total} and the projection onto it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.errors import real
from resolvent.problems.constraint import TOL, Constraint

LEAST = sys.float_info.min
"""The smallest number with all of its digits: parts of a smaller one would be 0."""


@dataclass(frozen=True)
class Simplex(Constraint):
    """{x : x >= 0, sum x = total}: models that are mixtures; of any dimension."""

    total: float = 1.0
    dim = None

    def __post_init__(self) -> None:
        total = real(self.total, "total", lambda x: LEAST <= x < math.inf, "a finite number > 0 is needed")
        object.__setattr__(self, "total", total)

    def project(self, x: Tensor) -> Tensor:
        """(x - nu)_+ with the nu for which the sum is right."""
        return (x - _level(x, torch.zeros_like(x, dtype=torch.bool), self.total)).clamp_min(0)

    def contains(self, x: Tensor, tol: float = TOL) -> Tensor:
        summed: Tensor = (x.sum(-1) - self.total).abs() <= tol * x.shape[-1] ** 0.5
        return summed & (x >= -tol).all(-1)

    def held(self, x: Tensor) -> Tensor:
        return x <= 0

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The nearest direction that sums to zero and does not fall where x is 0."""
        inside = x > 0
        moved = v - _level(v, inside, 0.0)
        return torch.where(inside, moved, moved.clamp_min(0))

    def __str__(self) -> str:
        return f"Simplex({self.total:g})"


def _level(x: Tensor, always: Tensor, total: float) -> Tensor:
    """nu with sum over `always` of (x - nu) plus sum over the others of (x - nu)_+ equal to total, (..., 1).

    The others that count are the largest ones: nu is where the k largest, and those that always count, sum to total,
    for the largest k whose smallest entry is still above nu.
    """
    least = torch.full_like(x, -torch.inf)
    ranked = torch.where(always, least, x).sort(dim=-1, descending=True).values
    counted = torch.where(torch.isinf(ranked), 0, ranked).cumsum(-1)
    base, members = torch.where(always, x, 0).sum(-1, keepdim=True), always.sum(-1, keepdim=True)
    k = torch.arange(1, x.shape[-1] + 1, device=x.device)
    levels = (base + counted - total) / (members + k)
    valid = (ranked > levels) & ~torch.isinf(ranked)
    last = valid.sum(-1, keepdim=True)  # a prefix
    alone = (base - total) / members.clamp_min(1)
    return torch.where(last > 0, levels.gather(-1, (last - 1).clamp_min(0)), alone)
