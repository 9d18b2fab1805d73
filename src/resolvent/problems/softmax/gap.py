"""f(w) - f* of softmax regression to many digits: near the minimiser a sum of divergences from it, each >= 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.problems.problem import weighted
from resolvent.problems.rows import Bucket, Rows
from resolvent.problems.softmax.loss import Divergence
from resolvent.problems.sparse_rows import SparseBucket

NEAR_BY, FAR_OFF = 1e-6, 1e-3
"""Gaps relative to |f*|. Up to the first a gap is a divergence; beyond the second no divergence is computed."""


@dataclass(frozen=True, eq=False)
class Minimiser:
    """A minimiser w* (d,) in float64, f*, half the mean reg of each parameter (d,), and the divergences from w*."""

    w: Tensor
    value: float
    half_ridge: Tensor
    rows: Rows
    lam: Tensor
    matrices: Callable[[Tensor], Tensor]
    divergences: Sequence[Divergence]

    @staticmethod
    def at(
        w: Tensor, value: float, ridge: Tensor, rows: Rows, lam: Tensor, matrices: Callable[[Tensor], Tensor]
    ) -> Minimiser:
        M = matrices(w.unsqueeze(0))
        found = [Divergence(torch.softmax(bucket.scores(M), 1)) for bucket in rows.buckets]
        return Minimiser(w, value, ridge / 2, rows, lam, matrices, found)

    def gap(self, w: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Of one model w (d,): `value` gives f itself, for models that are far away."""
        far, size = value(w) - self.value, abs(self.value)
        if far > FAR_OFF * size:
            return far
        near = self.divergence_to(w)
        return near if near <= NEAR_BY * size else far

    def divergence_to(self, w: Tensor) -> Tensor:
        e = w - self.w
        H, total = self.matrices(e.unsqueeze(0)), (self.half_ridge * e) @ e
        for bucket, divergence in zip(self.rows.buckets, self.divergences, strict=True):
            total = total + weighted(_weights(bucket, self.lam), divergence(bucket.scores(H)).sum(1))
        return total


def _weights(bucket: Bucket | SparseBucket, lam: Tensor) -> Tensor:
    return lam if bucket.who is None else lam[bucket.who]
