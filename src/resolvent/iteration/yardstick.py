"""What a run is judged against: where it began, and how long its steps were in its opening rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from resolvent.iteration.packing import remembered

FAR = 1e4
"""Times the length of all steps that the opening rounds foretell: whoever is farther out has been thrown there."""
VISITS, PATIENCE = 2, 20
"""The opening ends with the round after which users have come VISITS times on average and everybody once, or PATIENCE
times on average. Somebody's first visit may be the first that moves anything at all."""


@remembered
@dataclass(frozen=True, eq=False)
class Yardstick:
    """It travels in the State, so that a run which goes on is judged as if it had never stopped.

    A nonexpansive T never moves u farther than t |T u_0 - u_0| in t rounds. So the opening bounds the whole run
    wherever the theory holds, and a u far beyond that bound is not on its way to anywhere.
    """

    origin: Tensor
    """The model before the first round, (1, d)."""
    size: float = math.nan
    """|u| in the lambda norm, in the first round."""
    step: float = 0.0
    """The largest |T u - u| of the opening."""
    pull: float = 0.0
    """The largest |T u - u| / eta of the opening: a gradient in disguise, which a new eta leaves alone."""
    eta: float = 0.0
    """The largest eta so far."""
    came: int = 0
    """Visits of users in the opening."""
    judged: float = 0.0
    """The size of u when f was last looked at because of it."""
    open: bool = True
    """Whether the opening lasts."""

    def reached(self, eta: float) -> Yardstick:
        """With the eta of a round, which may be the largest so far."""
        return replace(self, eta=eta) if eta > self.eta else self

    def after(self, residual: float, size: float, eta: float, came: int, lasts: int) -> Yardstick:
        """With what a round of the opening showed to which `came` users came; it lasts until that many visits."""
        if not self.open:
            return self
        return replace(
            self,
            size=size if math.isnan(self.size) else self.size,
            step=max(self.step, residual),
            pull=max(self.pull, residual / eta),
            came=self.came + came,
            open=self.came + came < lasts,
        )

    def reach(self, rounds: int) -> tuple[float, float, float]:
        """How far out u may be: without a step, with so many as long as in the opening, and as eta has grown since."""
        steps = 0.0, rounds * self.step, rounds * self.pull * self.eta
        out, near, far = (FAR * (1 + self.size + length) for length in steps)
        return out, near, far
