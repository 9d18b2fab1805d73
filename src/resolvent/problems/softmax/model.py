"""f_i(w) = sum_j log sum_k exp(a_ij . w_k) - a_ij . w_(y_ij) + reg_i/2 |w|^2, a sum over user i's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.inputs import as_rows
from resolvent.problems.labels import encoded, one_hot
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.newton.equation import length
from resolvent.problems.newton.inverses import check_room
from resolvent.problems.over_rows import Curved
from resolvent.problems.reference import Pool, Unknown
from resolvent.problems.reference.terms import terms
from resolvent.problems.reference.wide import WidePool
from resolvent.problems.row_weights import weigh
from resolvent.problems.rows import Bucket, as_data
from resolvent.problems.softmax.pooled import preconditioner, reach

NEAR = 1e-3
"""Up to this |h| the divergence is a series."""
FAR = 30.0
"""Beyond this h exponentials of the divergence would overflow."""


def values(t: Tensor, truth: Tensor) -> Tensor:
    """(users, rows), with digits also where the loss is nearly 0; `truth` (users, classes, rows) is one-hot."""
    t = t - (t * truth).sum(1, keepdim=True)
    most, first = t.max(1, keepdim=True)
    rest = (t - most).exp().scatter(1, first, 0.0).sum(1)
    return most.squeeze(1) + torch.log1p(rest)


def slopes(t: Tensor, truth: Tensor) -> Tensor:
    """The gradient in t: the probabilities less the truth."""
    return torch.softmax(t, 1).sub_(truth)


def bend(p: Tensor, h: Tensor) -> Tensor:
    """(diag(p) - p p^T) h of each row, for probabilities p."""
    return p * (h - (p * h).sum(1, keepdim=True))


def divergence(p: Tensor) -> Callable[[Tensor], Tensor]:
    """log sum_k p_k exp(h_k) - p . h as a function of h, for probabilities p: never negative, and nothing cancels.

    With c = h - p . h it is log(1 + sum_k p_k (exp(c_k) - 1 - c_k)).
    """

    def of(h: Tensor) -> Tensor:
        c = h - (p * h).sum(1, keepdim=True)
        series = c * c * (1 / 2 + c * (1 / 6 + c * (1 / 24 + c / 120)))
        near = torch.log1p((p * torch.where(c.abs() < NEAR, series, torch.expm1(c) - c)).sum(1))
        if not bool((c > FAR).any()):
            return near
        return torch.where((c > FAR).any(1), torch.logsumexp(p.log() + c, 1), near)

    return of


class Softmax(Curved):
    """Multiclass logistic regression over users of any sizes and weights; labels of any kind.

    `classes` are all labels, in the order of the scores; without it, those that some user holds, sorted. A model has d
    coefficients per class, class by class, and then, with `intercept`, one intercept per class: for K classes
    `model[: K * d].reshape(K, d)` has one row per class. `reg` is a number, or one per user, and leaves intercepts
    alone; without it 1 / (users * rows_i), as for logistic regression. `sample_weight` and `class_weight` are as
    there.
    """

    same = ("classes", "intercept", "penalty")

    def __init__(
        self,
        A: Any,
        y: Any,
        classes: Sequence[Any] | None = None,
        reg: Any = None,
        weights: Any = None,
        *,
        intercept: bool = False,
        penalty: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
    ) -> None:
        codes, self.classes = encoded(y, classes)
        rows = as_data(A, codes if isinstance(A, (list, tuple)) else _stacked(codes))
        rows = weigh(rows, sample_weight, class_weight, self.classes)
        super().__init__(rows, reg, weights, intercept, penalty)

    @property
    def scores(self) -> int:
        """One per class."""
        return len(self.classes)

    @property
    def predictor(self) -> Predictor:
        return Predictor("softmax", self.rows.dim - self.intercept, self.intercept, self.classes)

    # --- from vectors to matrices with one row per class, and back ---------------------------------------------------

    def _matrices(self, W: Tensor) -> Tensor:
        """(rows, classes, features), with the intercepts as coefficients of the last feature, which is 1."""
        many = len(self.classes)
        if not self.intercept:
            return W.reshape(len(W), many, -1)
        return torch.cat([W[:, :-many].reshape(len(W), many, -1), W[:, -many:].unsqueeze(2)], 2)

    def _vectors(self, M: Tensor) -> Tensor:
        return torch.cat([M[:, :, :-1].flatten(1), M[:, :, -1]], 1) if self.intercept else M.flatten(1)

    @cached_property
    def _truth(self) -> list[Tensor]:
        """One-hot labels of each bucket, (users, classes, rows)."""
        return [one_hot(bucket.b, len(self.classes)) for bucket in self.rows.buckets]

    # --- values and derivatives --------------------------------------------------------------------------------------

    def value(self, W: Tensor) -> Tensor:
        W = as_rows(W, self)
        M, parts = self._matrices(W), []
        for bucket, truth in zip(self.rows.buckets, self._truth, strict=True):
            each = _weigh(values(bucket.scores(M), truth), bucket.weight)
            parts.append((each if bucket.mask is None else each * bucket.mask).sum(1))
        return self.rows.gather(parts) + 0.5 * (self.ridge * W * W).sum(1)

    def grad(self, W: Tensor) -> Tensor:
        W = as_rows(W, self)
        M, parts = self._matrices(W), []
        for bucket, truth in zip(self.rows.buckets, self._truth, strict=True):
            parts.append(bucket.combine_scores(_weigh(slopes(bucket.scores(M), truth), bucket.weight)))
        return torch.addcmul(self._vectors(self.rows.gather(parts)), self.ridge, W)

    def hessian_times(self, W: Tensor) -> Callable[[Tensor], Tensor]:
        """The product with the Hessians at W, as a function of rows (users, d)."""
        M = self._matrices(as_rows(W, self))
        p = [torch.softmax(bucket.scores(M), 1) for bucket in self.rows.buckets]

        def times(V: Tensor) -> Tensor:
            H = self._matrices(V)
            each = [_weigh(bend(q, b.scores(H)), b.weight) for b, q in zip(self.rows.buckets, p, strict=True)]
            parts = [b.combine_scores(h) for b, h in zip(self.rows.buckets, each, strict=True)]
            return torch.addcmul(self._vectors(self.rows.gather(parts)), self.ridge, V)

        return times

    def hessian_diagonal(self, W: Tensor) -> Tensor:
        M, parts = self._matrices(as_rows(W, self)), []
        for bucket in self.rows.buckets:
            p = torch.softmax(bucket.scores(M), 1)
            parts.append(bucket.combine_squares(_weigh(p * (1 - p), bucket.weight)))
        return self._vectors(self.rows.gather(parts)) + self.ridge

    def hessian(self, W: Tensor) -> Tensor:
        """One user at a time, so that a cached inverse has the same bits whichever users are asked together."""
        check_room(self)
        rows = as_rows(W, self).expand(self.users, -1)
        return torch.stack([self._hessian(i, w.clone()) for i, w in enumerate(rows)])

    def _hessian(self, i: int, w: Tensor) -> Tensor:
        A, many = self.rows.dense(i), len(self.classes)
        p = torch.softmax(self._matrices(w.unsqueeze(0))[0] @ A.T, 0)
        weight = self.rows.weight(i)
        H = A.new_empty((many, A.shape[1], many, A.shape[1]))
        for k in range(many):
            for j in range(k + 1):
                block = (A * _weigh(p[k] * (float(k == j) - p[j]), weight).unsqueeze(1)).T @ A
                H[k, :, j], H[j, :, k] = block, block.T
        order = self._vectors(torch.arange(self.dim, device=w.device).reshape(1, many, -1))[0]
        H = H.reshape(self.dim, self.dim)[order][:, order].contiguous()
        H.diagonal().add_(self.ridge[i])
        return H

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """n_i / |batch| times the gradient over the chosen rows (users, k), and the regulariser's: unbiased."""
        A, codes, weight = self.rows.pick(rows)
        batch = Bucket(None, A, codes, None)
        scale = self.sizes.to(A) / mask.sum(1).clamp_min(1)
        slope = slopes(batch.scores(self._matrices(W)), one_hot(codes, len(self.classes)))
        weighted = _weigh(slope, weight) * (mask * scale.unsqueeze(1)).unsqueeze(1)
        return self.ridge * W + self._vectors(batch.combine_scores(weighted))

    def rounding(self, W: Tensor) -> Tensor:
        """A bound on the rounding error of grad at W, about: units in the last place of every score and slope."""
        bends, spread = 0.5 * self.frobenius + self.reg, 1.5 * self.frobenius.sqrt() * self._heaviest
        return 4 * torch.finfo(W.dtype).eps * (bends * length(W) + spread)

    @property
    def _heaviest(self) -> Tensor | float:
        """The root of each user's largest weight of a row: their squares are at most that many times the weights."""
        if self.rows.buckets[0].weight is None:
            return 1.0
        return self.rows.gather([b.weight.amax(1).sqrt() for b in self.rows.buckets if b.weight is not None])

    def value_rounding(self, W: Tensor) -> Tensor:
        """The same of value at W: sum_j |slopes_j| |a_j| |w|, and units in the last place of the value itself."""
        M, parts = self._matrices(W), []
        for bucket, truth in zip(self.rows.buckets, self._truth, strict=True):
            parts.append(_weigh(slopes(bucket.scores(M), truth).norm(dim=1) * bucket.norms(), bucket.weight).sum(1))
        return 4 * torch.finfo(W.dtype).eps * (self.rows.gather(parts) * length(W) + self.value(W))

    # --- constants and the minimum -----------------------------------------------------------------------------------

    @cached_property
    def lipschitz(self) -> Tensor:
        """|A_i|^2 / 2 + reg_i, with |A_i| the largest singular value."""
        return self.rows.gather([bucket.largest() for bucket in self.rows.absorbed(0.5).buckets]) / 2 + self.reg

    preconditioner = preconditioner

    def excess(self, w: Tensor, size: float) -> float:
        """By strong convexity; with intercepts, which reg leaves alone, by a ball in which a minimiser lies."""
        mu = float(self.weights @ self.reg)
        if mu == 0:
            return math.inf
        return size * reach(self, w, mu) if self.intercept else size**2 / (2 * mu)

    def _with_ridge(self) -> Softmax | None:
        """f + g as a problem without a penalty, where g is an l2 that pulls at all coefficients alike; else None."""
        g = penalty_of(self)
        if g is None:
            return self
        own = terms(g, self.dim)
        if own is None or not own.norms or own.l1.any():
            return None
        l2 = own.l2[: self.dim - self.scores * self.intercept]
        if (l2 != l2[0]).any():
            return None
        whole = self.over(self.rows, self.weights, self.reg + float(l2[0]))
        whole.penalty = None
        return whole

    def pool(self) -> Pool | Unknown:
        whole = self.double()._with_ridge()
        if whole is None:
            return Unknown("the minimum of softmax regression is sought with an l2 penalty at most")
        if float(whole.weights @ whole.reg) == 0:
            return Unknown("no minimiser is looked for without reg: separable data have none")
        return WidePool(whole)

    @property
    def without_minimum(self) -> str | None:
        """The same; nothing is said with a penalty."""
        return None if self.penalty is not None else super().without_minimum

    def divergence(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        M, buckets = self._matrices(w), self.rows.buckets
        each = [divergence(torch.softmax(bucket.scores(M), 1)) for bucket in buckets]

        def to(e: Tensor) -> Tensor:
            H = self._matrices(e)
            parts = [_weigh(beyond(b.scores(H)), b.weight).sum(1) for b, beyond in zip(buckets, each, strict=True)]
            return self.rows.gather(parts) + 0.5 * (self.ridge * e * e).sum(1)

        return to


def _weigh(each: Tensor, weight: Tensor | None) -> Tensor:
    """Numbers of each row, (users, rows) or (users, classes, rows), times its weight, if it has one."""
    return each if weight is None else each * (weight if each.ndim == weight.ndim else weight.unsqueeze(1))


def _stacked(codes: Sequence[Any]) -> Any:
    if len({len(each) for each in codes}) > 1:
        refuse("y", "of unequal lengths", "A is one array, so that as many labels per user are needed")
    return np.stack(codes)
