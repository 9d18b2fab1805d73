"""Acceleration: where u, or the meeting point, moves after T was seen at a point.

`Acceleration` is what an acceleration inherits from, `Unaccelerated` the null object; `anderson.py` and `momentum.py`
have the others. What one remembers is a frozen dataclass decorated with `remembered`, so that a State can be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resolvent.errors import ResolventWarning
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
