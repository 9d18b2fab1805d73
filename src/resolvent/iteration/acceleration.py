"""Acceleration: where u, or the meeting point, moves after T was seen at a point.

`Acceleration` is what an acceleration inherits from, `Unaccelerated` the null object, `Momentum` the simplest one;
`anderson.py` and `server.py` have the others. What one remembers is a frozen dataclass decorated with `remembered`, so
that a State can be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.errors import ResolventWarning, one_of, real
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import Effect, Finding, Part
from resolvent.iteration.registry import part

Gram = Callable[[Tensor], Tensor]


class Acceleration(Part):
    """Turns T u into the next u, or the meeting point into the next one, and hands the other of the two through.

    What it remembers has an attribute `accepted`: whether the point at which T was last seen was accepted. Only then
    does the model of that round become the run's.
    """

    title = ""
    """What it is called in a sentence; empty where it does nothing."""

    def restart(self, past: Any) -> Any:
        """What it still remembers after T itself has changed (a new eta)."""
        return past

    def on_u(self, past: Any, u: Tensor, Tu: Tensor, gram: Gram) -> tuple[Tensor, Any]:
        """The next u, and what to remember."""
        return Tu, past

    def on_mean(self, past: Any, at: Tensor, w: Tensor, gram: Gram) -> tuple[Tensor, Any]:
        """The next meeting point, and what to remember; w = mean(z) came out of the meeting point `at`."""
        return w, past

    def law(self, setting: Any) -> Effect:
        """It moves no fixed point, but no theorem covers it."""
        if not self.title:
            return Effect()
        findings, scheme = [], setting.scheme
        if scheme.changes == "always" and not setting.eta.steady:
            what = f"eta = {scheme.eta} changes every round, which makes {self.title} start anew: it does nothing"
            findings.append(Finding(ResolventWarning, what, "take a constant eta or rs.schedules.halving"))
        if setting.partial:
            what = f"{self.title} assumes one map, and with sampling each round has another: it can hurt"
            findings.append(Finding(ResolventWarning, what, "leave it out, or compare both"))
        return Effect(uncovered=f"no theorem covers {self.title}", findings=tuple(findings))


@part("accelerate", "none")
@dataclass(frozen=True)
class Unaccelerated(Acceleration):
    """The plain iteration."""

    def __str__(self) -> str:
        return "no acceleration"


@remembered
@dataclass(frozen=True, eq=False)
class LastPoint:
    """What momentum remembers: the point of the last round."""

    point: Tensor | None = None
    accepted: bool = True


@part("accelerate", "momentum")
@dataclass(frozen=True)
class Momentum(Acceleration):
    """Heavy ball with factor theta in [0, 1), on u or on the mean of z.

    The next point goes on along the last step, u_{t+1} = T u_t + theta (u_t - u_{t-1}). With v_t = u_t - u_{t-1} this
    is Polyak's heavy ball, v_{t+1} = theta v_t + (T u_t - u_t), as FedAvgM has it. It moves no fixed point, since
    u_t = u_{t-1} there. Convergence is known for affine T, not for every nonexpansive one.
    """

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
