"""Absolute values: quantile regression, f_i(w) = sum_j rho_q(b_ij - a_ij . w) + reg_i/2 |w|^2, and least absolute
deviations with one row per user. Convex; neither smooth nor, without reg, strongly convex."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import BadAnswer, quoted, refuse
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.inputs import as_rows, as_tensor, as_weights, finite, refuse_shape
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.over_rows import Ridged, WithMinimum
from resolvent.problems.pinball.minimum import PinballPool
from resolvent.problems.pinball.prox import Pinball, orthogonal, prox
from resolvent.problems.problem import select
from resolvent.problems.reference import Minimum, Pool, Unknown
from resolvent.problems.reference.objective import Floats
from resolvent.problems.reference.terms import terms
from resolvent.problems.row_weights import weigh
from resolvent.problems.rows import as_data

COARSE = 1e-6
"""Relative to 1 + |u| + |x|: a prox that is not known to be more precise is refused."""


class Quantile(Ridged):
    """rho_q(r) = q r for r >= 0 and (q - 1) r below: a . w is the q-quantile of b. q = 1/2 is half of |r|: medians.

    `reg` is a number, or one per user. The prox is exact: a formula where a user's rows are orthogonal, as one row is,
    else by the method of multipliers, certified. The minimum comes from a linear program without `reg`, and from a prox
    with it; it is not known with `reg` and an intercept, nor with a constraint. A penalty's l2 counts as reg does.
    """

    offers = frozenset({"value", "grad", "prox"})
    lipschitz = None
    same = ("q", "intercept", "penalty")

    def __init__(
        self,
        A: Any,
        b: Any,
        q: float = 0.5,
        reg: Any = 0.0,
        weights: Any = None,
        *,
        intercept: bool = False,
        penalty: Any = None,
        sample_weight: Any = None,
    ) -> None:
        if not (isinstance(q, (int, float)) and 0 < q < 1):
            refuse("q", quoted(q), "a number between 0 and 1 is needed")
        self.q = float(q)
        super().__init__(weigh(as_data(A, b), sample_weight), reg, weights, intercept, penalty)
        self.rows = self.rows.absorbed(1)  # the loss is proportional to the residual

    @property
    def predictor(self) -> Predictor:
        return Predictor("quantile", self.dim - self.intercept, self.intercept, numbers={"q": self.q})

    @cached_property
    def closed_form(self) -> bool:
        return all(orthogonal(self._one(i)[0]) for i in range(self.users))

    def value(self, W: Tensor) -> Tensor:
        W, parts = as_rows(W, self), []
        for bucket in self.rows.buckets:
            r = bucket.b - bucket.margins(W)  # 0 for padded rows
            parts.append(torch.maximum(self.q * r, (self.q - 1) * r).sum(1))
        return self.rows.gather(parts) + 0.5 * (self.ridge * W * W).sum(1)

    def grad(self, W: Tensor) -> Tensor:
        """A subgradient: the slope of a row at its kink is taken to be 0."""
        W, parts = as_rows(W, self), []
        for bucket in self.rows.buckets:
            r = bucket.margins(W) - bucket.b
            parts.append(bucket.combine((1 - self.q) * (r > 0).to(r) - self.q * (r < 0).to(r)))
        return self.rows.gather(parts) + self.ridge * W

    def _one(self, i: int) -> tuple[Floats, Floats]:
        A, b = self.rows.dense(i), self.rows.one(i)[1]
        return A.cpu().numpy().astype(np.float64), b.cpu().numpy().astype(np.float64)

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """x minimises eta sum_j rho_q(b_j - a_j . x) + |sqrt(c) x - u / sqrt(c)|^2 / 2, with c = 1 + eta reg."""
        U = as_rows(U, self).expand(self.users, -1)
        return torch.stack([self._prox(i, u, eta) for i, u in enumerate(U)])

    def _prox(self, i: int, u: Tensor, eta: float) -> Tensor:
        if not bool(torch.isfinite(u).all()):
            return torch.full_like(u, torch.nan)
        A, b = self._one(i)
        root = np.sqrt(1 + eta * self.ridge[i].cpu().numpy().astype(np.float64))
        rows = Pinball(A / root, b, np.full(len(b), eta * (self.q - 1)), np.full(len(b), eta * self.q))
        solution = prox(rows, u.cpu().numpy().astype(np.float64) / root)
        x = solution.x / root
        if not solution.error <= COARSE * (1 + float(u.norm()) + float(np.linalg.norm(x))):
            raise BadAnswer(
                f"the prox of user {i} at eta = {eta:g} was not found: an error of {solution.error:.1g} is left; "
                "scale the features, or take a smaller eta"
            )
        return torch.from_numpy(x).to(u)

    @cached_property
    def typical_eta(self) -> float:
        """How far the origin is from a user's kinks, over the length of its gradients: where to start."""
        far = []
        for i in range(self.users):
            size, b = self.rows.lengths(i).double(), self.rows.one(i)[1].double()
            some = (size > 0) & (b != 0)
            if float(self.weights[i]) > 0 and bool(some.any()):
                far.append(float((b[some].abs() / size[some] ** 2).median()) / int(self.sizes[i]))
        return float(np.median(far)) if far else 1.0

    # --- the minimum -------------------------------------------------------------------------------------------------

    @cached_property
    def _norms(self) -> tuple[Floats, Floats] | None:
        """l1 of the penalty, and the mean of reg with l2 of the penalty, of each parameter; None with a constraint."""
        ridge = (self.weights.double() @ self.ridge.double()).expand(self.dim).cpu().numpy()
        g = penalty_of(self)
        if g is None:
            return np.zeros(self.dim), ridge
        own = terms(g, self.dim)
        return None if own is None or not own.norms else (own.l1, ridge + own.l2)

    def pool(self) -> Pool | Unknown:
        """l1_j |w_j| is the loss of one more row, l1_j e_j, whose target is 0."""
        if self._norms is None:
            return Unknown("the minimum of quantile regression is sought without constraints only")
        lam = self.weights.double()
        counted = [i for i in range(self.users) if float(lam[i]) > 0]
        A, b = (np.concatenate(parts) for parts in zip(*(self._one(i) for i in counted), strict=True))
        cost = np.repeat([float(lam[i]) for i in counted], [int(self.sizes[i]) for i in counted])
        l1, kappa = self._norms
        some, more = np.flatnonzero(l1), l1[l1 > 0]
        A, b = np.concatenate([A, np.eye(self.dim)[some]]), np.concatenate([b, np.zeros(len(some))])
        low, high = np.concatenate([cost * (self.q - 1), -more]), np.concatenate([cost * self.q, more])
        return PinballPool(Pinball(A, b, low, high), kappa)

    @property
    def without_minimum(self) -> None:
        """Nothing is said: values are right, and a minimiser may exist where none is known."""
        return None

    def gaps(self, least: Minimum) -> Callable[[Tensor], Tensor]:
        """Row by row in float64, so that little cancels; never below 0."""
        star = torch.from_numpy(least.w).to(self.weights.device)
        return lambda W: torch.stack([self._beyond(w, star) for w in W.double()]).clamp(min=0)

    def _beyond(self, w: Tensor, v: Tensor) -> Tensor:
        """f(w) - f(v)."""
        assert self._norms is not None
        parts = []
        for bucket in self.rows.buckets:
            data = bucket.double()
            here, there = (data.b - data.margins(x.unsqueeze(0)) for x in (w, v))
            slope = [torch.maximum(self.q * r, (self.q - 1) * r) for r in (here, there)]
            parts.append((slope[0] - slope[1]).sum(1))
        l1, ridge = (torch.from_numpy(each).to(w) for each in self._norms)
        norms = 0.5 * (ridge * (w - v)) @ (w + v) + l1 @ (w.abs() - v.abs())
        return self.weights.double() @ self.rows.gather(parts) + norms


class AbsoluteDeviations(WithMinimum):
    """f_i(w) = |a_i.w - b_i|, one row per user: A (users, d) and b (users,); a zero row is a constant.

    The minimiser and f* come from a linear program, solved when first asked for, and are certified by its duality gap.
    None without scipy or if HiGHS fails.
    """

    users: int
    dim: int
    weights: Tensor
    A: Tensor
    b: Tensor

    offers = frozenset({"value", "grad", "prox"})
    convex = True
    closed_form = True

    def __init__(self, A: Any, b: Any, weights: Any = None, *, penalty: Any = None) -> None:
        self.penalty = penalty
        A = finite(as_tensor(A, "A"), "A")
        if A.ndim != 2:
            refuse_shape("A", A, "(users, d), one row per user, is needed")
        b = finite(as_tensor(b, "b").to(A), "b")
        if b.shape != A.shape[:1]:
            refuse_shape("b", b, f"one number for each of the {len(A)} rows of A is needed")
        self.users, self.dim = A.shape
        self.A, self.b = A, b
        self.weights = as_weights(weights, self.users, A, torch.ones(self.users))
        size = A.square().sum(1)
        self._size = torch.where(size > 0, size, 1.0)  # |a_i|^2; any number will do where a_i = 0

    @property
    def predictor(self) -> Predictor:
        """What says how a model of this problem predicts: the median."""
        return Predictor("quantile", self.dim, numbers={"q": 0.5})

    def _residual(self, W: Tensor) -> Tensor:
        return (as_rows(W, self) * self.A).sum(1) - self.b

    def value(self, W: Tensor) -> Tensor:
        return self._residual(W).abs()

    def grad(self, W: Tensor) -> Tensor:
        """A subgradient: a_i sign(a_i.w - b_i), and 0 at the kink."""
        return self._residual(W).sign()[:, None] * self.A

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """u - a_i t, with t = (a_i.u - b_i)/|a_i|^2 taking u onto the kink unless |t| > eta, the longest step."""
        step = (self._residual(U) / self._size).clamp(-eta, eta)
        return as_rows(U, self) - step[:, None] * self.A

    def take(self, who: Tensor) -> AbsoluteDeviations:
        return AbsoluteDeviations(self.A[who], self.b[who], select(self.weights, who), penalty=self.penalty)

    @cached_property
    def typical_eta(self) -> float:
        """How far users are from their kinks at the origin, over the length of their gradients: where to start."""
        far = (self.b.abs() / self._size)[(self.b != 0) & (self.weights > 0)]
        return float(far.median()) if len(far) else 1.0

    def pool(self) -> Pool | Unknown:
        if self.penalty is not None:
            return Unknown("the minimum of absolute deviations is sought without a penalty only")
        A, b, lam = (x.detach().cpu().double().numpy() for x in (self.A, self.b, self.weights))
        return PinballPool(Pinball(A, b, -lam, lam), np.zeros(self.dim))

    without_minimum = None

    def gaps(self, least: Minimum) -> Callable[[Tensor], Tensor]:
        """sum_i lambda_i (|r_i(w)| - |r_i(w*)|), term by term in float64 so that little cancels; never below 0."""
        A, b, lam = self.A.double(), self.b.double(), self.weights.double()
        lowest = (A @ torch.from_numpy(least.w).to(A) - b).abs()
        return lambda W: torch.stack([((A @ w - b).abs() - lowest) @ lam for w in W.double()]).clamp(min=0)
