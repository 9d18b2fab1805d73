"""f_i(w) = sum_j log(1 + exp(-b_ij a_ij . w)) + reg_i/2 |w|^2, a sum over user i's rows, as in the paper's appendix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.problems.inputs import as_rows, as_tensor, as_weights, finite
from resolvent.problems.newton import newton_prox
from resolvent.problems.problem import select
from resolvent.problems.products import rows_times, times_rows
from resolvent.problems.rows import as_data


class Logistic:
    """Binary logistic regression over users of any sizes and weights, labels -1 and +1.

    `reg` is a number, or one a user; without it 1 / (users * rows_i), the paper's.
    """

    offers = frozenset({"value", "grad", "prox", "hessian", "batches"})
    convex = True
    closed_form = False

    def __init__(self, A: Any, b: Any, reg: Any = None, weights: Any = None) -> None:
        self.rows = as_data(A, b)
        like = self.rows.buckets[0].A
        finite(self.rows.gather([bucket.A.sum((1, 2)) for bucket in self.rows.buckets]), "A")
        for bucket in self.rows.buckets:
            real = bucket.b if bucket.mask is None else bucket.b[bucket.mask > 0]
            if not bool((real.abs() == 1).all()):
                raise InputError("b holds other values than -1 and +1, but those are the two labels (0/1: use 2*b - 1)")
        self.weights = as_weights(weights, self.users, like)
        self.reg = 1 / (self.users * self.sizes.to(like)) if reg is None else as_tensor(reg, "reg").to(like)
        if self.reg.shape not in ((), (self.users,)) or not bool((torch.isfinite(self.reg) & (self.reg >= 0)).all()):
            refuse("reg", reg, f"a number >= 0, or one for each of the {self.users} users, is needed")
        self.reg = self.reg.expand(self.users)

    @property
    def users(self) -> int:
        return self.rows.users

    @property
    def dim(self) -> int:
        return self.rows.dim

    @property
    def sizes(self) -> Tensor:
        """The number of rows of each user."""
        return self.rows.sizes

    def value(self, W: Tensor) -> Tensor:
        W = as_rows(W, self)
        parts = []
        for bucket in self.rows.buckets:
            loss = softplus(-bucket.b * bucket.margins(W))
            parts.append((loss if bucket.mask is None else loss * bucket.mask).sum(1))
        return self.rows.gather(parts) + 0.5 * self.reg * (W * W).sum(1)

    def grad(self, W: Tensor) -> Tensor:
        W = as_rows(W, self)
        parts = []
        for bucket, other in zip(self.rows.buckets, self._other_labels, strict=True):  # padded rows: a = 0 and b = 0
            slope = bucket.margins(W).mul_(other).sigmoid_().mul_(other)
            parts.append(bucket.combine(slope))
        return torch.addcmul(self.rows.gather(parts), self.reg.unsqueeze(1), W)

    @cached_property
    def _other_labels(self) -> list[Tensor]:
        """-b, a bucket each: a loss has the slope -b sigmoid(-b a . w) along a."""
        return [-bucket.b for bucket in self.rows.buckets]

    def hessian(self, W: Tensor) -> Tensor:
        """One user at a time, so that a kept factorisation has the same bits whoever was asked beside this user."""
        users = (self.rows.one(i)[0].clone() for i in range(self.users))
        rows = (w.clone() for w in as_rows(W, self).expand(self.users, -1))
        H = torch.stack([(a * curvature(a @ w).unsqueeze(1)).T @ a for a, w in zip(users, rows, strict=True)])
        H.diagonal(dim1=1, dim2=2).add_(self.reg.unsqueeze(1))
        return H

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """By Newton's method from u, to round-off; NewtonProx does the same warm-started."""
        return newton_prox(self, as_rows(U, self).expand(self.users, -1), eta).x

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """n_i / |batch| times the gradient over the chosen rows (users, k), and the regulariser's: unbiased."""
        A, b = self.rows.pick(rows)
        scale = self.sizes.to(A) / mask.sum(1).clamp_min(1)
        pull = torch.sigmoid(-b * times_rows(A, W)) * b * mask * scale.unsqueeze(1)
        return self.reg.unsqueeze(1) * W - rows_times(pull, A)

    def take(self, who: Tensor) -> Logistic:
        part = object.__new__(Logistic)
        part.rows, part.weights, part.reg = self.rows.take(who), select(self.weights, who), self.reg[who]
        return part

    @cached_property
    def lipschitz(self) -> Tensor:
        """The global constants |A_i|^2 / 4 + reg_i; near a solution the curvature is far smaller."""
        grams = [b.A.mT @ b.A if b.A.shape[1] >= self.dim else b.A @ b.A.mT for b in self.rows.buckets]
        return self.rows.gather([torch.linalg.eigvalsh(g)[:, -1] for g in grams]) / 4 + self.reg

    @property
    def convexity(self) -> Tensor:
        return self.reg

    @cached_property
    def minimiser(self) -> Tensor | None:
        """By Newton's method on f itself; None where there is none (separable data, no regulariser)."""
        w = self.weights.new_zeros(self.dim)
        f, best = self._f(w), float("inf")
        for _ in range(100):
            g = self.weights @ self.grad(w.unsqueeze(0))
            size = float(g.norm())
            if size == 0 or (size >= 0.5 * best and size < 1e-9 * (1 + self._slope)):
                return w
            best = min(best, size)
            H = torch.tensordot(self.weights, self.hessian(w.unsqueeze(0)), 1)
            step = torch.linalg.pinv(H, hermitian=True) @ g
            length = 1.0
            while length > 1e-6 and not float(self._f(w - length * step)) <= float(f) + 1e-12 * abs(float(f)):
                length /= 2
            w = w - length * step
            f = self._f(w)
            if not bool(torch.isfinite(w).all()) or float(w.norm()) > 1e8:
                return None
        return None

    @cached_property
    def _slope(self) -> float:
        return float((self.weights @ self.grad(self.weights.new_zeros((1, self.dim)))).norm())

    def _f(self, w: Tensor) -> Tensor:
        return self.weights @ self.value(w.unsqueeze(0))

    @cached_property
    def fstar(self) -> float | None:
        return None if self.minimiser is None else float(self._f(self.minimiser))

    @cached_property
    def _at_minimiser(self) -> list[Divergence]:
        """Of the losses, from the margins b a . w*, a bucket each."""
        assert self.minimiser is not None
        return [Divergence.at(b.b * b.margins(self.minimiser.unsqueeze(0))) for b in self.rows.buckets]

    def gap(self, W: Tensor) -> Tensor | None:
        """f(w) - f* as a sum of Bregman divergences from the minimiser, each term >= 0: 1e-20 means something."""
        if self.minimiser is None:
            return None
        return torch.stack([self._gap(w.unsqueeze(0) - self.minimiser) for w in W])

    def _gap(self, e: Tensor) -> Tensor:
        total = 0.5 * (self.weights @ self.reg) * (e * e).sum()
        for bucket, divergence in zip(self.rows.buckets, self._at_minimiser, strict=True):
            lam = self.weights if bucket.who is None else self.weights[bucket.who]
            total = total + lam @ divergence(bucket.margins(e) * bucket.b).sum(1)
        return total


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact in both tails."""
    return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))


def curvature(margins: Tensor) -> Tensor:
    """phi'' for phi(x) = log(1 + e^-x)."""
    q = torch.sigmoid(margins)
    return q * (1 - q)


@dataclass(frozen=True, eq=False)
class Divergence:
    """phi(a + h) - phi(a) - phi'(a) h as a function of h, for phi(x) = log(1 + e^-x): never negative, nothing cancels.

    The difference of the first two is log1p(q expm1(-h)) with q = sigmoid(-a); below |h| = 1e-3 what is left after
    subtracting q h would be rounding, and Taylor's formula to fifth order is good to 1e-12 relative.
    """

    q: Tensor
    taylor: tuple[Tensor, Tensor, Tensor, Tensor]

    @staticmethod
    def at(a: Tensor) -> Divergence:
        q = torch.sigmoid(-a)
        v = q * (1 - q)
        odd = (2 * q - 1) * v
        return Divergence(q, (v / 2, odd / 6, (1 - 6 * v) * v / 24, (1 - 12 * v) * odd / 120))

    def __call__(self, h: Tensor) -> Tensor:
        c2, c3, c4, c5 = self.taylor
        near = h * h * (c2 + h * (c3 + h * (c4 + h * c5)))
        small = h.abs() < 1e-3
        if bool(small.all()):
            return near
        return torch.where(small, near, torch.log1p(self.q * torch.expm1(-h)) + self.q * h)
