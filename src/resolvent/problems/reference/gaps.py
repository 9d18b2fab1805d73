"""F(w) - F* to many digits, in float64 whatever the data are in, for F = f + g with a known minimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resolvent.iteration.penalties import Penalty
from resolvent.problems.reference.door import Minimum
from resolvent.problems.reference.objective import Floats
from resolvent.problems.reference.terms import Terms, no_penalty, terms

NEAR, FAR = 1e-6, 1e-3
"""Gaps relative to |F*|. Up to the first a gap is a sum of divergences; beyond the second none is computed."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """`value` gives f(w) and `divergence` f(w) - f(w*) - <grad f(w*), w - w*>, without cancellation, for one model w
    (d,) in float64."""

    minimum: Minimum
    penalty: Penalty | None
    value: Callable[[Tensor], Tensor]
    divergence: Callable[[Tensor], Tensor]
    least: float
    """f(w*) + g(w*), from `value`."""

    @staticmethod
    def around(
        minimum: Minimum,
        penalty: Penalty | None,
        star: Tensor,
        value: Callable[[Tensor], Tensor],
        divergence: Callable[[Tensor], Tensor],
    ) -> Gaps:
        """Around the minimiser `star` (d,), in float64 and where the data are."""
        g = 0.0 if penalty is None else float(penalty.value(star))
        return Gaps(minimum, penalty, value, divergence, float(value(star)) + g if np.isfinite(g) else minimum.value)

    def __call__(self, W: Tensor) -> Tensor:
        """For each row of W: near the minimiser a sum of Bregman divergences from it, each >= 0, so that a gap of 1e-20
        has correct digits.

        Far away the round-off that is left of the gradient at the minimiser would be multiplied by a large distance,
        and F(w) - F* itself hardly cancels. Models of consecutive rounds are mostly on the same side, so the formula
        that served the last model is tried first. Which formula a model gets does not depend on the models beside it.
        """
        gaps, near, size = [], False, abs(self.minimum.value)
        for given in W:
            w = given.double()
            g = self._penalty(given)
            if not bool(torch.isfinite(g)):
                gaps.append(g)
                continue
            gap = None if near else self.value(w) + g - self.least
            if gap is None or gap <= FAR * size:
                divergence = self.divergence(w) + self._beside(w)
                near = bool(divergence <= NEAR * size) or size == 0
                if near:
                    gap = divergence
                elif gap is None:
                    gap = self.value(w) + g - self.least
            gaps.append(gap)
        return torch.stack(gaps)

    def _penalty(self, given: Tensor) -> Tensor:
        """g at a model. A point in float32 lies in a set as nearly as float32 can tell."""
        if self.penalty is None:
            return torch.zeros((), dtype=torch.float64, device=given.device)
        g = self.penalty.value(given.double())
        return g if bool(torch.isfinite(g)) else self.penalty.value(given).double()

    def _beside(self, w: Tensor) -> float:
        """g(w) - g(w*) - <s, w - w*>, term by term."""
        if self.penalty is None:
            return 0.0
        g, x, best = self._terms, w.detach().cpu().numpy(), self.minimum.w
        e = x - best
        total = float(g.l2 @ (e * e) / 2)
        if g.centre is not None:
            own, away = e[g.members], (x - g.centre)[g.members]
            total += self.minimum.mu / 2 * (float(own @ own) + max(0.0, g.radius**2 - float(away @ away)))
        elif self.minimum.s is not None:
            s = self.minimum.s
            kinks: Floats = np.where(g.l1 > 0, g.l1 * np.abs(x) - s * x, -s * e)
            total += float(np.maximum(kinks, 0).sum())
        return total

    @property
    def _terms(self) -> Terms:
        g = None if self.penalty is None else terms(self.penalty, len(self.minimum.w))
        return no_penalty(len(self.minimum.w)) if g is None else g
