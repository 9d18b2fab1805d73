"""f(w) - f* of a linear model to many digits, in float64 whatever the data are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.problems.linear.loss import Loss
from resolvent.problems.newton.objective import Objective
from resolvent.problems.problem import weighted
from resolvent.problems.rows import Bucket, Rows
from resolvent.problems.sparse_rows import SparseBucket

NEAR_BY, FAR_OFF = 1e-6, 1e-3
"""Gaps relative to |f*|. Up to the first a gap is a divergence; beyond the second no divergence is computed."""


class DoubleBucket(NamedTuple):
    """The rows, weights and losses of a bucket's users in float64."""

    rows: Bucket | SparseBucket
    lam: Tensor
    loss: Loss

    @property
    def mask(self) -> Tensor | None:
        return self.rows.mask

    def predictors(self, w: Tensor) -> Tensor:
        return self.rows.margins(torch.atleast_2d(w))


def in_double(rows: Rows, weights: Tensor, loss: Callable[[Tensor], Loss]) -> list[DoubleBucket]:
    """Every bucket in float64: the data themselves, without a copy, where they are in float64."""
    lam = weights.double()
    return [
        DoubleBucket(bucket.double(), lam if bucket.who is None else lam[bucket.who], loss(bucket.b.double()))
        for bucket in rows.buckets
    ]


@dataclass(frozen=True, eq=False)
class Minimiser:
    """A minimiser w* (d,) in float64, f*, half the weighted mean of reg (a number, or one per parameter), and the
    losses' divergences from w*, one function per bucket.

    `sharp` is f up to a constant, and its value at w*, where plain values of f round too much for differences of them.
    """

    w: Tensor
    value: float
    half_reg: Tensor
    divergences: Sequence[Callable[[Tensor], Tensor]]
    sharp: tuple[Objective, float] | None = None

    @staticmethod
    def at(
        w: Tensor, value: float, reg: Tensor, buckets: Sequence[DoubleBucket], sharp: Objective | None = None
    ) -> Minimiser:
        divergences = [bucket.loss.divergence(bucket.predictors(w.unsqueeze(0))) for bucket in buckets]
        lowest = None if sharp is None else (sharp, sharp.sharp_value(w.cpu().numpy()))
        return Minimiser(w, value, 0.5 * reg, divergences, lowest)

    def gaps(self, W: Tensor, buckets: Sequence[DoubleBucket]) -> Tensor:
        """f(w) - f* for each row of W: near the minimiser a sum of Bregman divergences from it, each >= 0, so that a
        gap of 1e-20 has correct digits.

        Far away the round-off that is left of the gradient at the minimiser would be multiplied by a large distance,
        and f(w) - f* itself hardly cancels. Models of consecutive rounds are mostly on the same side, so the formula
        that served the last model is tried first. Which formula a model gets does not depend on the models beside it.
        """
        gaps, near, size = [], False, abs(self.value)
        for w in W.double():
            gap = None if near else self._difference(w, buckets)
            if gap is None or gap <= FAR_OFF * size:
                divergence = self.divergence_to(w, buckets)
                near = bool(divergence <= NEAR_BY * size)
                if near:
                    gap = divergence
                elif gap is None:
                    gap = self._difference(w, buckets)
            gaps.append(gap)
        return torch.stack(gaps)

    def _difference(self, w: Tensor, buckets: Sequence[DoubleBucket]) -> Tensor:
        if self.sharp is None:
            return self.value_at(w, buckets) - self.value
        f, lowest = self.sharp
        return w.new_tensor(f.sharp_value(w.cpu().numpy()) - lowest)

    def _ridge(self, w: Tensor) -> Tensor:
        return self.half_reg * (w @ w) if self.half_reg.ndim == 0 else (self.half_reg * w) @ w

    def value_at(self, w: Tensor, buckets: Sequence[DoubleBucket]) -> Tensor:
        """f at one model w (d,)."""
        total = self._ridge(w)
        for bucket in buckets:
            loss = bucket.loss.value(bucket.predictors(w))
            total = total + weighted(bucket.lam, (loss if bucket.mask is None else loss * bucket.mask).sum(1))
        return total

    def divergence_to(self, w: Tensor, buckets: Sequence[DoubleBucket]) -> Tensor:
        """The Bregman divergence of f from the minimiser to w (d,): f(w) - f* where the gradient there vanishes."""
        e = w - self.w
        total = self._ridge(e)
        for bucket, divergence in zip(buckets, self.divergences, strict=True):
            total = total + weighted(bucket.lam, divergence(bucket.predictors(e)).sum(1))
        return total
