"""What every part of a round declares beside what it does: its memory, its law and its cost.

A part is a frozen dataclass with one place in the loop (`rounds.py`): who takes part, what crosses, where users meet,
how the meeting point or u is accelerated, which step size is taken, which average is reported. What users compute, the
local operator, has a law of its own (`resolvent.local.law`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from resolvent.errors import ResolventWarning
from resolvent.iteration.packing import remembered


@dataclass(frozen=True)
class Finding:
    """Something that speaks against a configuration, and what to do about it."""

    about: type[ResolventWarning]
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}."


class Effect(NamedTuple):
    """The law of a part: what it does to what a scheme solves without it, and to the theorems about that."""

    solves: str | None = None
    """"neither" or "unknown", where the fixed points are others; None where they stay where they are."""
    why: str = ""
    """Why they are others."""
    advice: str = ""
    """What to do for the original problem, where they are others."""
    uncovered: str = ""
    """Why the theorems that hold without it do not hold with it; empty where they do."""
    findings: tuple[Finding, ...] = ()


class Cost(NamedTuple):
    """Numbers that cross: of each user and round where a part states it, else in all."""

    up: int = 0
    """From users to the meeting."""
    down: int = 0
    """From the meeting to users."""
    bytes_up: int = 0
    """Bytes that go up beside the numbers: indices, or numbers of fewer bits."""
    bytes_down: int = 0
    """The same on the way down."""

    @property
    def downwards(self) -> Cost:
        """What it costs to send down what would go up."""
        return Cost(down=self.up, bytes_down=self.bytes_up)

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


@remembered
@dataclass(frozen=True, eq=False)
class NoMemory:
    """Nothing is remembered."""

    accepted: bool = True
    """As accelerations say it: no point is ever given up."""


NO_MEMORY = NoMemory()


class Part:
    """The defaults: a part that remembers nothing, moves no fixed point and costs nothing."""

    def begin(self, u: Tensor) -> Any:
        """What it remembers before the first round, from the rows of u that are held here, (users, d) or (1, d)."""
        return NO_MEMORY

    def fits(self, past: Any, rows: int) -> bool:
        """Whether it can go on from what another run remembers, with so many rows of u; else it begins anew."""
        return isinstance(past, NoMemory)

    def law(self, setting: Any) -> Effect:
        """What it does to the fixed points and theorems; `setting` has the whole configuration (theory/setting.py)."""
        return Effect()

    def cost(self, dim: int) -> Cost:
        """Numbers per user and round."""
        return Cost()
