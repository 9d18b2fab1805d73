"""The meeting point of a round (gFL-2): the mean of the users' z, then, where the objective has a term g of its own,
the prox of g.

With P(z) = prox_{s g}(mean(z)) in place of the mean, the scheme solves sum_i lambda_i f_i + g: FedPi is then
Douglas-Rachford splitting for the sum of f and of g restricted to consensus. The step is s = alpha eta / beta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Meet(Protocol):
    """From the mean of z, (1, d), to the meeting point, (1, d); `step` is that of the prox."""

    def __call__(self, mean: Tensor, step: float) -> Tensor: ...


@dataclass(frozen=True)
class TheMean:
    """The mean itself."""

    def __call__(self, mean: Tensor, step: float) -> Tensor:
        return mean


@dataclass(frozen=True)
class MeanThenProx:
    """The mean, then prox_{step g}, given as a function of (point, step)."""

    prox: Callable[[Tensor, float], Tensor]

    def __call__(self, mean: Tensor, step: float) -> Tensor:
        return self.prox(mean, step)
