"""Averages of the models of past rounds, updated incrementally.

"ergodic": sum_s eta_s w_s / sum_s eta_s over all rounds, the paper's (Theorem thm:fp). From a far start it carries the
first iterates for very long. "suffix": the same, started anew in rounds 1, 2, 4, 8, ...
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.errors import one_of
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import Part

KINDS = ("ergodic", "suffix")


@remembered
@dataclass(frozen=True, eq=False)
class Average:
    """A mean of models and the sum of step sizes behind it."""

    model: Tensor
    mass: float


@dataclass(frozen=True)
class Averaging(Part):
    """Which average of past models a run reports: "ergodic", "suffix", or None."""

    kind: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None:
            one_of(self.kind, "average", KINDS, f"None or one of {', '.join(KINDS)} is needed")

    def begin(self, u: Tensor) -> Average | None:
        return None

    def fits(self, past: object, rows: int) -> bool:
        return past is None or isinstance(past, Average)

    def include(self, average: Average | None, t: int, eta: float, w: Tensor) -> Average | None:
        """The average after the model w of round t = 0, 1, ... came in."""
        if self.kind is None:
            return None
        if average is None or self._restarts(t):
            return Average(w, eta)
        mass = average.mass + eta
        return Average(torch.lerp(average.model, w, eta / mass), mass)

    def skip(self, average: Average | None, t: int) -> Average | None:
        """The average after round t, in which nobody came: where it would have started anew, the next model does."""
        return average if average is None or not self._restarts(t) else Average(average.model, 0.0)

    def _restarts(self, t: int) -> bool:
        return self.kind == "suffix" and (t + 1) & t == 0
