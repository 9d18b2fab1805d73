"""f_i(w) = sum_j phi(scores of row j; b_ij) + reg_i/2 |w|^2, a sum over user i's rows, for smooth convex losses phi.

What models of one score per row (`LinearModel`) and of one per class (`Softmax`) have in common: values, derivatives,
the prox by Newton's method, and gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.inputs import as_rows
from resolvent.problems.linear.loss import Loss
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.newton.equation import length
from resolvent.problems.newton.inverses import check_room
from resolvent.problems.newton.matrix_free import MAX_DENSE_DIM, grouped_prox
from resolvent.problems.newton.prox import newton_prox
from resolvent.problems.over_rows import Ridged
from resolvent.problems.problem import weighted
from resolvent.problems.reference import Minimum
from resolvent.problems.reference.gaps import Gaps
from resolvent.problems.rows import Bucket


class Curved(Ridged):
    """Scores of rows and a loss of them with a Hessian."""

    offers = frozenset({"value", "grad", "prox", "hessian", "batches"})
    closed_form = False
    kind = ""
    """The name of the loss, for predictions; empty where there is none."""
    labels: tuple[Any, ...] | None = None
    """The classes; None for a regression."""

    @property
    def predictor(self) -> Predictor:
        if not self.kind:
            refuse("predictor", f"asked of {type(self).__name__}", "a loss that the package has is needed to predict")
        return Predictor(self.kind, self.rows.dim - self.intercept, self.intercept, self.labels, self._numbers())

    def _numbers(self) -> dict[str, float]:
        """Those of the loss."""
        return {}

    # --- scores of rows, and back ------------------------------------------------------------------------------------

    def _scores(self, bucket: Any, W: Tensor) -> Tensor:
        """Of each row of a bucket's users, (users, rows), or (users, scores, rows)."""
        scores: Tensor = bucket.margins(W)
        return scores

    def _combine(self, bucket: Any, S: Tensor) -> Tensor:
        """The transposed map, (users, d)."""
        rows: Tensor = bucket.combine(S)
        return rows

    def _combine_squares(self, bucket: Any, S: Tensor) -> Tensor:
        """The same with the squares of A's entries."""
        rows: Tensor = bucket.combine_squares(S.unsqueeze(1)).squeeze(1)
        return rows

    def _loss(self, b: Tensor, weight: Tensor | None) -> Loss:
        """That of rows with these targets and weights."""
        raise NotImplementedError

    @cached_property
    def _losses(self) -> list[Loss]:
        """One per bucket. A padded row has a = 0 and b = 0."""
        return [self._loss(bucket.b, bucket.weight) for bucket in self.rows.buckets]

    # --- values and derivatives --------------------------------------------------------------------------------------

    def value(self, W: Tensor) -> Tensor:
        W, parts = as_rows(W, self), []
        for bucket, loss in zip(self.rows.buckets, self._losses, strict=True):
            values = loss.value(self._scores(bucket, W))
            parts.append((values if bucket.mask is None else values * bucket.mask).sum(1))
        if self.intercept or self.scores > 1:
            return self.rows.gather(parts) + 0.5 * (self.ridge * W * W).sum(1)
        return self.rows.gather(parts) + 0.5 * self.reg * (W * W).sum(1)

    def grad(self, W: Tensor) -> Tensor:
        W, parts = as_rows(W, self), []
        for bucket, loss in zip(self.rows.buckets, self._losses, strict=True):
            parts.append(self._combine(bucket, loss.slope(self._scores(bucket, W))))
        return torch.addcmul(self.rows.gather(parts), self.ridge, W)

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """n_i / |batch| times the gradient over the chosen rows (users, k), and the regulariser's: unbiased."""
        A, b, weight = self.rows.pick(rows)
        batch, scale = Bucket(None, A, b, None), self.sizes.to(A) / mask.sum(1).clamp_min(1)
        slope = self._loss(b, weight).slope(self._scores(batch, W))
        times = mask * scale.unsqueeze(1)
        slope = slope * (times if slope.ndim == 2 else times.unsqueeze(1))
        return self.ridge * W + self._combine(batch, slope)

    def hessian(self, W: Tensor) -> Tensor:
        """One user at a time, so that a cached inverse has the same bits whichever users are asked together."""
        check_room(self)
        rows = [w.clone() for w in as_rows(W, self).expand(self.users, -1)]
        H = torch.stack([self._bend(i, w) for i, w in enumerate(rows)])
        H.diagonal(dim1=1, dim2=2).add_(self.ridge)
        return H

    def _bend(self, i: int, w: Tensor) -> Tensor:
        """The Hessian of user i's losses at w, (d, d)."""
        raise NotImplementedError

    def hessian_times(self, W: Tensor) -> Callable[[Tensor], Tensor]:
        """The product with the Hessians at W, as a function of rows (users, d), without the matrices."""
        W, buckets = as_rows(W, self), self.rows.buckets
        bends = [loss.hessian(self._scores(b, W)) for b, loss in zip(buckets, self._losses, strict=True)]

        def times(V: Tensor) -> Tensor:
            parts = [self._combine(b, bend(self._scores(b, V))) for b, bend in zip(buckets, bends, strict=True)]
            return torch.addcmul(self.rows.gather(parts), self.ridge, V)

        return times

    def hessian_diagonal(self, W: Tensor) -> Tensor:
        """(users, d)."""
        W, parts = as_rows(W, self), []
        for bucket, loss in zip(self.rows.buckets, self._losses, strict=True):
            parts.append(self._combine_squares(bucket, loss.curvature(self._scores(bucket, W))))
        return self.rows.gather(parts) + self.ridge

    def divergence(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """From w (1, d): the function e -> f_i(w + e) - f_i(w) - <grad f_i(w), e>, (users,), without cancellation."""
        buckets = self.rows.buckets
        each = [loss.divergence(self._scores(b, w)) for b, loss in zip(buckets, self._losses, strict=True)]

        def to(e: Tensor) -> Tensor:
            parts = [beyond(self._scores(b, e)).sum(1) for b, beyond in zip(buckets, each, strict=True)]
            return self.rows.gather(parts) + 0.5 * (self.ridge * e * e).sum(1)

        return to

    # --- constants ---------------------------------------------------------------------------------------------------

    @cached_property
    def lipschitz(self) -> Tensor | None:
        """The global constants |A_i|^2 max phi'' + reg_i, with |A_i| the largest singular value; near a solution the
        curvature may be far smaller."""
        curvature = self._loss(self.rows.buckets[0].b[:1, :1], None).largest_curvature
        if not math.isfinite(curvature):
            return None
        return self.rows.gather([bucket.largest() for bucket in self.rows.absorbed(0.5).buckets]) * curvature + self.reg

    @cached_property
    def frobenius(self) -> Tensor:
        """|A_i|^2, the sum of all squares, rows weighted."""
        return self.rows.gather([bucket.squares() for bucket in self.rows.absorbed(0.5).buckets])

    def value_rounding(self, W: Tensor) -> Tensor:
        """A bound on the rounding error of value at W, about: sum_j |phi'| |a_j| |w|, and units in the last place of
        the value itself."""
        parts = []
        for bucket, loss in zip(self.rows.buckets, self._losses, strict=True):
            parts.append((loss.steepness(self._scores(bucket, W)) * bucket.norms()).sum(1))
        return 4 * torch.finfo(W.dtype).eps * (self.rows.gather(parts) * length(W) + self.value(W).abs())

    # --- the prox ----------------------------------------------------------------------------------------------------

    @property
    def matrix_free(self) -> bool:
        return self.dim > MAX_DENSE_DIM

    @cached_property
    def groups(self) -> list[tuple[Tensor | None, Self]]:
        """Users who are solved for together, by index (None: everyone), without a copy of their rows."""
        if self.users == 1 or not self.rows.large:
            return [(None, self)]
        one = self.weights.new_ones(1)
        return [
            (torch.tensor([i], device=one.device), self.over(self.rows.alone(i), one, self.reg[i : i + 1]))
            for i in range(self.users)
        ]

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """By Newton's method from u, to round-off; NewtonProx does the same warm-started."""
        U = as_rows(U, self).expand(self.users, -1)
        if self.matrix_free:
            return grouped_prox(self, U, eta)
        solved = newton_prox(self, U, eta)
        solved.demand(eta)
        return solved.x

    def take(self, who: Tensor) -> Self:
        part = super().take(who)
        if "frobenius" in self.__dict__:  # it takes a pass over the data, as much as a gradient
            part.__dict__["frobenius"] = self.frobenius[who]
        return part

    # --- the minimum -------------------------------------------------------------------------------------------------

    def double(self) -> Self:
        """The same in float64."""
        return self.over(self.rows.double(), self.weights.double(), self.reg.double())

    @property
    def without_minimum(self) -> str | None:
        """The same; with a regulariser of all parameters there is a minimiser."""
        sure = self.penalty is None and not self.intercept and float(self.weights @ self.reg) > 0
        return None if sure else super().without_minimum

    def gaps(self, least: Minimum) -> Callable[[Tensor], Tensor]:
        same = self.double()
        star = torch.from_numpy(least.w).to(same.weights)
        beside = same.divergence(star.unsqueeze(0))
        return Gaps.around(
            least,
            penalty_of(self),
            star,
            value=same._sharp_value() if least.sharp else lambda w: weighted(same.weights, same.value(w)),
            divergence=lambda w: weighted(same.weights, beside((w - star).unsqueeze(0))),
        )

    def _sharp_value(self) -> Callable[[Tensor], Tensor]:
        """f at one model, with predictors as if in twice the precision."""
        raise NotImplementedError
