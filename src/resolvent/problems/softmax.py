"""f_i(w) = sum_j log sum_k exp(a_ij . w_k) - a_ij . w_(y_ij) + reg_i/2 |w|^2, a sum over user i's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.labels import encoded, one_hot
from resolvent.problems.linear.curved import Curved
from resolvent.problems.linear.loss import Loss, exp_remainder
from resolvent.problems.newton.equation import length
from resolvent.problems.reference import Pool, Unknown
from resolvent.problems.reference.terms import terms
from resolvent.problems.reference.wide import WidePool
from resolvent.problems.row_weights import weigh
from resolvent.problems.rows import as_data

MAX_PRECONDITIONER_ROWS = 10_000
"""So many rows of all users make the preconditioner."""
MAX_BLOCK_FEATURES = 2000
"""Up to so many features a class has a matrix; beyond, a diagonal."""
FAR = 30.0
"""Beyond this h exponentials of the divergence would overflow."""


@dataclass(frozen=True, eq=False)
class SoftmaxLoss(Loss):
    """log sum_k exp(t_k) less the score of the truth, for scores t (users, classes, rows), times a weight per row."""

    truth: Tensor
    """One-hot, (users, classes, rows)."""
    weight: Tensor | None = None
    """(users, rows)."""
    largest_curvature = 0.5

    def _weigh(self, each: Tensor) -> Tensor:
        """Numbers of each row, (users, rows) or (users, classes, rows), times its weight, if it has one."""
        if self.weight is None:
            return each
        return each * (self.weight if each.ndim == self.weight.ndim else self.weight.unsqueeze(1))

    def value(self, t: Tensor) -> Tensor:
        """With digits also where the loss is nearly 0."""
        t = t - (t * self.truth).sum(1, keepdim=True)
        most, first = t.max(1, keepdim=True)
        rest = (t - most).exp().scatter(1, first, 0.0).sum(1)
        return self._weigh(most.squeeze(1) + torch.log1p(rest))

    def slope(self, t: Tensor) -> Tensor:
        """The probabilities less the truth."""
        return self._weigh(torch.softmax(t, 1).sub_(self.truth))

    def steepness(self, t: Tensor) -> Tensor:
        return length(self.slope(t))

    def curvature(self, t: Tensor) -> Tensor:
        """The diagonal of the Hessian in t."""
        p = torch.softmax(t, 1)
        return self._weigh(p * (1 - p))

    def hessian(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """(diag(p) - p p^T) h of each row, for the probabilities p."""
        p = torch.softmax(t, 1)
        return lambda h: self._weigh(p * (h - (p * h).sum(1, keepdim=True)))

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """log sum_k p_k exp(h_k) - p . h as a function of h, for the probabilities p: never negative, and nothing
        cancels. With c = h - p . h it is log(1 + sum_k p_k (exp(c_k) - 1 - c_k)).
        """
        p = torch.softmax(t, 1)

        def of(h: Tensor) -> Tensor:
            c = h - (p * h).sum(1, keepdim=True)
            near = torch.log1p((p * exp_remainder(c)).sum(1))
            if bool((c > FAR).any()):
                near = torch.where((c > FAR).any(1), torch.logsumexp(p.log() + c, 1), near)
            return self._weigh(near)

        return of


class Softmax(Curved):
    """Multiclass logistic regression over users of any sizes and weights; labels of any kind.

    `classes` are all labels, in the order of the scores; without it, those that some user holds, sorted. A model has d
    coefficients per class, class by class, and then, with `intercept`, one intercept per class: for K classes
    `model[: K * d].reshape(K, d)` has one row per class. `reg` is a number, or one per user, and leaves intercepts
    alone; without it 1 / (users * rows_i), as for logistic regression. `sample_weight` and `class_weight` are as
    there.
    """

    lipschitz: Tensor
    kind = "softmax"
    same = ("labels", "intercept", "penalty")

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
        codes, self.labels = encoded(y, classes)
        rows = as_data(A, codes if isinstance(A, (list, tuple)) else _stacked(codes))
        rows = weigh(rows, sample_weight, class_weight, self.labels)
        super().__init__(rows, reg, weights, intercept, penalty)

    @property
    def classes(self) -> tuple[Any, ...]:
        """The labels, in the order of the scores."""
        assert self.labels is not None
        return self.labels

    @property
    def scores(self) -> int:
        """One per class."""
        return len(self.classes)

    # --- from vectors to matrices with one row per class, and back ---------------------------------------------------

    def _matrices(self, W: Tensor) -> Tensor:
        """(rows, classes, features), with the intercepts as coefficients of the last feature, which is 1."""
        many = len(self.classes)
        if not self.intercept:
            return W.reshape(len(W), many, -1)
        return torch.cat([W[:, :-many].reshape(len(W), many, -1), W[:, -many:].unsqueeze(2)], 2)

    def _vectors(self, M: Tensor) -> Tensor:
        return torch.cat([M[:, :, :-1].flatten(1), M[:, :, -1]], 1) if self.intercept else M.flatten(1)

    def _scores(self, bucket: Any, W: Tensor) -> Tensor:
        scores: Tensor = bucket.scores(self._matrices(W))
        return scores

    def _combine(self, bucket: Any, S: Tensor) -> Tensor:
        return self._vectors(bucket.combine_scores(S))

    def _combine_squares(self, bucket: Any, S: Tensor) -> Tensor:
        return self._vectors(bucket.combine_squares(S))

    def _loss(self, b: Tensor, weight: Tensor | None) -> SoftmaxLoss:
        return SoftmaxLoss(one_hot(b, self.scores), weight)

    # --- derivatives, and what rounding makes of them ----------------------------------------------------------------

    def _bend(self, i: int, w: Tensor) -> Tensor:
        A, many, weight = self.rows.dense(i), self.scores, self.rows.weight(i)
        p = torch.softmax(self._matrices(w.unsqueeze(0))[0] @ A.T, 0)
        H = A.new_empty((many, A.shape[1], many, A.shape[1]))
        for k in range(many):
            for j in range(k + 1):
                bend = p[k] * (float(k == j) - p[j])
                block = (A * (bend if weight is None else bend * weight).unsqueeze(1)).T @ A
                H[k, :, j], H[j, :, k] = block, block.T
        order = self._vectors(torch.arange(self.dim, device=w.device).reshape(1, many, -1))[0]
        return H.reshape(self.dim, self.dim)[order][:, order].contiguous()

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

    # --- the minimum -------------------------------------------------------------------------------------------------

    def preconditioner(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """Of the Hessian of f at w (1, d): the inverse of a block per class if features are few, else of the diagonal.

        A change that all classes share leaves the softmax as it is, so that only reg pulls at it.
        """
        if self.rows.dim > MAX_BLOCK_FEATURES:
            least = 1e-10 * float(self.weights @ self.lipschitz) + 1e-300
            diagonal = self.weights @ self.hessian_diagonal(w) + least
            return lambda r: r / diagonal
        many, M = self.scores, self._matrices(w)[0]
        blocks = M.new_zeros((many, M.shape[1], M.shape[1]))
        every = max(1, int(self.sizes.sum()) // MAX_PRECONDITIONER_ROWS)
        for i, lam in enumerate(self.weights.tolist()):
            if not lam > 0:
                continue
            A = self.rows.some(i, every)
            p = torch.softmax(M @ A.T, 0)
            share: Any = lam * int(self.sizes[i]) / len(A)
            if (weight := self.rows.weight(i)) is not None:
                share = share * weight[::every]
            for k in range(many):
                rows = A * (share * p[k] * (1 - p[k])).sqrt().unsqueeze(1)
                blocks[k].addmm_(rows.T, rows)
        ridge = float(self.weights @ self.reg)
        tiny = 1e-10 * float(blocks.diagonal(dim1=1, dim2=2).amax()) + 1e-300
        blocks.diagonal(dim1=1, dim2=2).add_(ridge + tiny)
        L = torch.linalg.cholesky(blocks)

        def apply(r: Tensor) -> Tensor:
            R = self._matrices(r)[0]
            shared = R.mean(0, keepdim=True)
            H = torch.cholesky_solve((R - shared).unsqueeze(2), L).squeeze(2)
            H = H - H.mean(0, keepdim=True) + shared / (ridge + tiny)
            return self._vectors(H.unsqueeze(0))

        return apply

    def excess(self, w: Tensor, size: float) -> float:
        """By strong convexity; with intercepts, which reg leaves alone, by a ball in which a minimiser lies."""
        mu = float(self.weights @ self.reg)
        if mu == 0:
            return math.inf
        return size * self._reach(w, mu, size) if self.intercept else size**2 / (2 * mu)

    def _reach(self, w: Tensor, mu: float, size: float) -> float:
        """How far a minimiser can be from w (d,), where reg pulls at coefficients with mu and leaves intercepts alone.

        f(w*) <= f(w), so mu/2 |c*|^2 <= f(w) for its coefficients c*. A row a of class k has the loss >= (its score for
        another class) - (that for k); the mean over the rows of class k, with weights that sum to m_k, gives b_l - b_k
        <= f(w) / m_k + sqrt(2) |c*| mean |a|. Users must hold all classes. The intercepts of a minimiser may be shifted
        together: to the mean of those of w. So it lies within some r, and as the slope at w is at most `size`,
        mu/2 |c* - c|^2 <= size r: that bounds c*, and with it b, once more.
        """
        value, many = float(self.weights @ self.value(w.unsqueeze(0))), self.scores
        rows, lengths = w.new_zeros((2, many))
        for i, lam in enumerate(self.weights.tolist()):
            codes, weight, a = self.rows.one(i)[1].long(), self.rows.weight(i), self.rows.lengths(i)
            own = lam * (torch.ones_like(a) if weight is None else weight)
            rows.index_add_(0, codes, own)
            lengths.index_add_(0, codes, own * a)
        c, b = float(w[: self.dim - many].norm()), w[self.intercepts]
        if not bool((rows > 0).all()):
            return math.inf

        def shifted(far: float) -> float:
            apart = (value + math.sqrt(2) * far * lengths) / rows
            return float((b - b.mean()).norm()) + math.sqrt(many) * float(apart.max())

        far = math.sqrt(2 * value / mu)
        reach = c + far + shifted(far)
        near = math.sqrt(2 * size * reach / mu)
        return min(reach, near + shifted(c + near))

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


def _stacked(codes: Sequence[Any]) -> Any:
    if len({len(each) for each in codes}) > 1:
        refuse("y", "of unequal lengths", "A is one array, so that as many labels per user are needed")
    return np.stack(codes)
