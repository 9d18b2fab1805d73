"""Server momentum: the next point goes on along the last step, u_{t+1} = T u_t + theta (u_t - u_{t-1}).

With v_t = u_t - u_{t-1} this is Polyak's heavy ball, v_{t+1} = theta v_t + (T u_t - u_t), as FedAvgM has it. Momentum
moves no fixed point, since u_t = u_{t-1} there. Convergence is known for affine T, not for every nonexpansive one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from resolvent.errors import one_of, real
from resolvent.iteration.acceleration import Acceleration, Gram
from resolvent.iteration.packing import remembered
from resolvent.iteration.registry import part


@remembered
@dataclass(frozen=True, eq=False)
class LastPoint:
    """What momentum remembers: the point of the last round."""

    point: Tensor | None = None
    accepted: bool = True


@part("accelerate", "momentum")
@dataclass(frozen=True)
class Momentum(Acceleration):
    """Heavy ball with factor theta in [0, 1), on u or on the mean of z."""

    theta: float
    """The share of the last step that is added, in [0, 1)."""
    on: Literal["u", "mean"] = "u"
    """Which sequence is accelerated."""
    title = "momentum"

    def __post_init__(self) -> None:
        theta = real(self.theta, "theta", lambda x: 0 <= x < 1, "a number in [0, 1) is needed")
        object.__setattr__(self, "theta", theta)
        one_of(self.on, "on", ("u", "mean"), 'either "u" or "mean" is needed')

    def begin(self, u: Tensor) -> LastPoint:
        return LastPoint()

    def restart(self, past: LastPoint) -> LastPoint:
        return LastPoint()

    def fits(self, past: object, rows: int) -> bool:
        rows = 1 if self.on == "mean" else rows
        return isinstance(past, LastPoint) and (past.point is None or len(past.point) == rows)

    def on_u(self, past: LastPoint, u: Tensor, Tu: Tensor, gram: Gram) -> tuple[Tensor, LastPoint]:
        return self._advance(past, u, Tu) if self.on == "u" else (Tu, past)

    def on_mean(self, past: LastPoint, at: Tensor, w: Tensor, gram: Gram) -> tuple[Tensor, LastPoint]:
        return self._advance(past, at, w) if self.on == "mean" else (w, past)

    def _advance(self, past: LastPoint, point: Tensor, image: Tensor) -> tuple[Tensor, LastPoint]:
        ahead = image if past.point is None else torch.add(image, point - past.point, alpha=self.theta)
        return ahead, LastPoint(point)
