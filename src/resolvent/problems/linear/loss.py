"""What a linear model needs to know of its loss: phi(t) per row, a function of the predictor t = a . w and a target b.

A loss is an object made from the targets b, so that it can precompute from them. All of its methods work
element by element, on tensors of the shape of b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError
from resolvent.problems.newton.objective import Floats, WeightedLoss


class Loss(Protocol):
    """phi of each row, for its target. Convex, with a slope that is continuous.

    Where phi'' jumps, `least_curvature(t, reach)`, which is optional, is a lower bound of phi'' within `reach` of t: it
    lets minima be certified without a regulariser.
    """

    @property
    def largest_slope(self) -> float:
        """A bound on |phi'|; infinite where there is none."""
        ...

    @property
    def largest_curvature(self) -> float:
        """A bound on phi''; infinite where there is none."""
        ...

    @property
    def curvature_rate(self) -> float | None:
        """M with |phi'''| <= M phi'', so that phi'' changes at most by the factor e^(M |h|) over a distance h; None
        where there is none, as where phi'' jumps."""
        ...

    # `least`, a lower bound on phi, is read where a loss has it: it helps to certify a minimum with a penalty.

    def check(self) -> None:
        """Refuse targets that this loss cannot have."""
        ...

    def value(self, t: Tensor) -> Tensor:
        """phi(t)."""
        ...

    def slope(self, t: Tensor) -> Tensor:
        """phi'(t). It may overwrite t."""
        ...

    def slope_size(self, t: Tensor) -> Tensor:
        """What the rounding error of phi'(t) is relative to: |phi'(t)|, or more where terms of it cancel."""
        ...

    def curvature(self, t: Tensor) -> Tensor:
        """phi''(t), or a generalised second derivative where phi'' jumps."""
        ...

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """The function h -> phi(t + h) - phi(t) - phi'(t) h, never negative, without cancellation for small h."""
        ...

    def weighted(self, weight: Floats) -> WeightedLoss:
        """The same loss in NumPy, with a weight per row: `InNumpy(self, weight)`, or something more precise."""
        ...


@dataclass(frozen=True, eq=False)
class InNumpy:
    """A loss with a weight omega_j per row, for certified minimisation."""

    loss: Loss
    weight: Floats

    @property
    def curvature_rate(self) -> float | None:
        return self.loss.curvature_rate

    @property
    def largest_curvature(self) -> Floats:
        return self.weight * self.loss.largest_curvature

    def total(self, t: Floats) -> float:
        return float(self.weight @ self.loss.value(torch.tensor(t)).numpy())

    def slope(self, t: Floats) -> Floats:
        return np.asarray(self.weight * self.loss.slope(torch.tensor(t)).numpy(), np.float64)

    def derivatives(self, t: Floats) -> tuple[Floats, Floats]:
        return self.slope(t), np.asarray(self.weight * self.loss.curvature(torch.tensor(t)).numpy(), np.float64)

    def slope_size(self, t: Floats) -> Floats:
        return np.asarray(self.weight * self.loss.slope_size(torch.tensor(t)).numpy(), np.float64)

    def least_curvature(self, t: Floats, reach: Floats) -> Floats:
        bound = getattr(self.loss, "least_curvature", None)
        if bound is None:
            return np.zeros_like(t)
        return np.asarray(self.weight * bound(torch.tensor(t), torch.tensor(reach)).numpy(), np.float64)

    def shows_no_minimum(self, t: Floats) -> bool:
        return False

    def why_no_minimum(self, C: Floats) -> str | None:
        return None


def check_labels(b: Tensor) -> None:
    """Refuse labels other than -1 and +1."""
    if not bool((b.abs() == 1).all()):
        raise InputError("b holds other values than -1 and +1, but those are the two labels (0/1: use 2*b - 1)")
