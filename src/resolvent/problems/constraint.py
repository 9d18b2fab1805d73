"""A convex set as a constraint at the meeting point: g is 0 inside and infinite outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.penalties import Penalty, free, length

TOL = 1e-9
"""How far outside a set, as a length, a point may lie and still be called inside."""
TOL_SINGLE = 1e-4
"""The same in float32."""


class Constraint:
    """The verbs of a penalty, from a set's `dim`, `project`, `contains` and `tangent`."""

    def value(self, w: Tensor) -> Tensor:
        """0 inside and infinite outside, to within rounding."""
        tol = TOL if w.dtype == torch.float64 else TOL_SINGLE
        size = 1 + length(w)
        scaled: Any = self
        inside = torch.stack([scaled.contains(x, tol * float(s)) for x, s in _rows(w, size)]).reshape(w.shape[:-1])
        return torch.zeros_like(size).masked_fill(~inside, torch.inf)

    def prox(self, w: Tensor, step: float) -> Tensor:
        """The projection, whatever the step."""
        moved: Tensor = self.project(w)  # type: ignore[attr-defined]
        return moved

    def distance(self, w: Tensor, v: Tensor) -> Tensor:
        """The distance of v to the normal cone at w: the length of its projection onto the tangent cone."""
        along: Tensor = self.tangent(w, v)  # type: ignore[attr-defined]
        outside = torch.isinf(self.value(w))
        return length(along).masked_fill(outside, torch.inf)

    def free(self, indices: Any) -> Penalty:
        """The same constraint on the other coordinates."""
        return free(self, indices)

    def check(self, dim: int) -> None:
        """A set given by numbers fits any length; others their own."""
        own: int | None = self.dim  # type: ignore[attr-defined]
        if own not in (None, 1, dim):
            refuse("the penalty", f"a set of dimension {own}", f"one of {dim} coordinates is needed")


def _rows(w: Tensor, size: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(w.reshape(-1, w.shape[-1]), size.reshape(-1), strict=True))


def outward(v: Tensor, normal: Tensor) -> Tensor:
    """v without its part along the outward normals of length one: its projection onto a half-space through 0."""
    return v - (v * normal).sum(-1, keepdim=True).clamp_min(0) * normal
