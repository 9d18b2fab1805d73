"""Acceleration: where u, or the meeting point, moves after T was seen at a point.

`Accelerate` is the protocol, `Unaccelerated` the null object; `anderson.py` and `momentum.py` have the others.
What an acceleration remembers is a frozen dataclass decorated with `remembered`, so that a State can be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.packing import remembered
from resolvent.iteration.registry import part

Gram = Callable[[Tensor], Tensor]


@runtime_checkable
class Accelerate(Protocol):
    """Turns T u into the next u, or mean(z) into the next meeting point, and hands the other of the two through.

    What it remembers has an attribute `accepted`: whether the point at which T was last seen was accepted. Only then
    does the model of that round become the run's.
    """

    @property
    def title(self) -> str:
        """What it is called in a sentence; empty where it does nothing."""
        ...

    def begin(self) -> Any:
        """What it remembers before the first round."""
        ...

    def restart(self, past: Any) -> Any:
        """What it still remembers after T itself has changed (a new eta)."""
        ...

    def fits(self, past: Any, users: int) -> bool:
        """Whether it can go on from what another run remembers, with so many rows of u."""
        ...

    def on_u(self, past: Any, u: Tensor, Tu: Tensor, gram: Gram) -> tuple[Tensor, Any]:
        """The next u, and what to remember."""
        ...

    def on_mean(self, past: Any, at: Tensor, w: Tensor, gram: Gram) -> tuple[Tensor, Any]:
        """The next meeting point, and what to remember; w = mean(z) came out of the meeting point `at`."""
        ...


@remembered
@dataclass(frozen=True, eq=False)
class NoPast:
    """Nothing is remembered."""

    accepted: bool = True


@part("accelerate", "none")
@dataclass(frozen=True)
class Unaccelerated:
    """The plain iteration."""

    title = ""

    def begin(self) -> NoPast:
        return NoPast()

    def restart(self, past: Any) -> Any:
        return past

    def fits(self, past: Any, users: int) -> bool:
        return isinstance(past, NoPast)

    def on_u(self, past: Any, u: Tensor, Tu: Tensor, gram: Gram) -> tuple[Tensor, Any]:
        return Tu, past

    def on_mean(self, past: Any, at: Tensor, w: Tensor, gram: Gram) -> tuple[Tensor, Any]:
        return w, past

    def __str__(self) -> str:
        return "no acceleration"


def check(given: object) -> None:
    """Refuse what is no acceleration."""
    if not isinstance(given, Accelerate):
        needed = "None, a memory such as 2, rs.Anderson(memory), rs.Momentum(theta) or an acceleration of your own"
        refuse("anderson", repr(given), f"{needed} is needed")
