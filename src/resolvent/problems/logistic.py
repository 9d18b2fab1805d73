"""f_i(w) = sum_j log(1 + exp(-b_ij a_ij . w)) + reg_i/2 |w|^2, a sum over user i's rows, as in the paper's appendix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.problems.inputs import as_rows, as_tensor, as_weights, finite
from resolvent.problems.newton.certified import Losses, minimise
from resolvent.problems.newton.factors import check_room
from resolvent.problems.newton.minimum import Minimum, minimum
from resolvent.problems.newton.prox import length, newton_prox
from resolvent.problems.newton.safeguard import WORST, Careful
from resolvent.problems.problem import select, weighted
from resolvent.problems.products import rows_times, times_rows
from resolvent.problems.rows import as_data

NEAR_BY, FAR_OFF = 1e-6, 1e-3
"""Gaps relative to f*. Up to the first a gap is a divergence; beyond the second nobody looks whether it is one."""
FAR = 30.0
"""A margin that falls by more than this is far away."""


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
        check_room(self)
        users = (self.rows.one(i)[0].clone() for i in range(self.users))
        rows = (w.clone() for w in as_rows(W, self).expand(self.users, -1))
        H = torch.stack([(a * curvature(a @ w).unsqueeze(1)).T @ a for a, w in zip(users, rows, strict=True)])
        H.diagonal(dim1=1, dim2=2).add_(self.reg.unsqueeze(1))
        return H

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """By Newton's method from u, to round-off; NewtonProx does the same warm-started."""
        solved = newton_prox(self, as_rows(U, self).expand(self.users, -1), eta)
        solved.demand(eta)
        return solved.x

    def careful_prox(self, u: Tensor, eta: float, x: Tensor, tol: float) -> Careful:
        """The prox of the first user, certified: with c = 1 + eta reg and z = x - u / c it minimises
        eta sum_j log(1 + exp(-b_j a_j . (u / c + z))) + c/2 |z|^2."""
        A, b = self.rows.one(0)
        kind = np.float64
        C = (b.unsqueeze(1) * A).cpu().numpy().astype(kind)
        c = 1 + eta * float(self.reg[0])
        centre = u.cpu().numpy().astype(kind) / c
        basis = None
        if C.shape[0] < C.shape[1]:  # z lies in the span of the rows
            basis, R = np.linalg.qr(C.T)
        rows = C if basis is None else np.ascontiguousarray(R.T)
        start = x.cpu().numpy().astype(kind) - centre
        losses = Losses(rows, C @ centre, np.full(len(C), float(eta)), c, turned=basis is not None)
        found = minimise(losses, start if basis is None else basis.T @ start)
        z = found.z if basis is None else basis @ found.z
        p = torch.from_numpy(centre + z).to(u)
        size, reach = 1 + float(u.norm()), 1 + float(u.norm()) + float(p.norm())
        error = found.error + 4 * torch.finfo(u.dtype).eps * reach
        if error <= max(tol * size, max(WORST, 16 * torch.finfo(u.dtype).eps) * reach):
            return Careful(p, error)
        left = f"an error of {error:.1g}" if np.isfinite(error) else "nothing certain"
        return Careful(p, error, f"since its margins a . w are too large for {u.dtype}: round-off leaves {left}")

    def thin_inverse(self, i: int, at: Tensor, eta: Tensor) -> tuple[Tensor, Tensor]:
        """V and c with (I + eta H)^-1 = (I - V^T V) / c for a user with fewer rows than features."""
        A = self.rows.one(i)[0].clone()
        M = A * (eta * curvature(A @ at.clone())).sqrt().unsqueeze(1)
        c = 1 + eta * self.reg[i]
        S = M @ M.T
        S.diagonal().add_(c)
        L, info = torch.linalg.cholesky_ex(S)
        return (torch.linalg.solve_triangular(L, M, upper=False) if int(info) == 0 else torch.zeros_like(M)), c

    @cached_property
    def _frobenius(self) -> Tensor:
        """|A_i|^2, the sum of all squares."""
        return self.rows.gather([bucket.A.square().sum((1, 2)) for bucket in self.rows.buckets])

    def rounding(self, W: Tensor) -> Tensor:
        """A bound on the rounding error of grad at W, about: units in the last place of every margin and slope."""
        bend, spread = self._frobenius / 4 + self.reg, self._frobenius.sqrt()
        return (4 * torch.finfo(W.dtype).eps) * (bend * length(W) + spread)

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """n_i / |batch| times the gradient over the chosen rows (users, k), and the regulariser's: unbiased."""
        A, b = self.rows.pick(rows)
        scale = self.sizes.to(A) / mask.sum(1).clamp_min(1)
        pull = torch.sigmoid(-b * times_rows(A, W)) * b * mask * scale.unsqueeze(1)
        return self.reg.unsqueeze(1) * W - rows_times(pull, A)

    def take(self, who: Tensor) -> Logistic:
        part = object.__new__(Logistic)
        part.rows, part.weights, part.reg = self.rows.take(who), select(self.weights, who), self.reg[who]
        if "_frobenius" in self.__dict__:  # it takes a pass over the data, as much as a gradient
            part.__dict__["_frobenius"] = self._frobenius[who]
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
    def minimum(self) -> Minimum:
        """The minimiser of f in float64, whatever the data are in, certified; or why there is none."""
        lam = self.weights.double()
        say = [i for i in range(self.users) if float(lam[i]) > 0]
        rows = [self.rows.one(i) for i in say]
        return minimum(
            [(b.unsqueeze(1) * A).cpu().numpy() for A, b in rows],
            [float(lam[i]) for i in say],
            float(lam @ self.reg.double()),
        )

    @property
    def minimiser(self) -> Tensor | None:
        """Certified. None where there is none (separable data, no regulariser) or none was established; `minimum.why`
        says which."""
        return None if self._star is None else self._star.to(self.weights)

    @cached_property
    def _star(self) -> Tensor | None:
        w = self.minimum.w
        return None if w is None else torch.from_numpy(w).to(self.weights.device)

    @property
    def without_minimum(self) -> str | None:
        """Why there is no minimiser, or why none is known; None where there is one. With a regulariser there is."""
        return self.minimum.why if float(self.weights @ self.reg) == 0 else None

    @property
    def fstar(self) -> float | None:
        return self.minimum.value

    @cached_property
    def _at_minimiser(self) -> list[Divergence]:
        """Of the losses, from the margins b a . w*, a bucket each."""
        assert self._star is not None
        w = self._star.unsqueeze(0)
        return [
            Divergence.at(b.b.double() * times_rows(b.A.double(), w.expand(len(b.A), -1))) for b in self.rows.buckets
        ]

    def gap(self, W: Tensor) -> Tensor | None:
        """f(w) - f*: near the minimiser a sum of Bregman divergences from it, each >= 0, so that 1e-20 means something.

        Far away the round-off that is left of the gradient at the minimiser would be multiplied by much, and f(w) - f*
        itself has next to nothing to cancel. Models of consecutive rounds are mostly on the same side: the way that
        served the last one is tried first. Which of the two a model gets does not depend on those beside it.
        """
        if self._star is None:
            return None
        assert self.fstar is not None
        rows, gaps, near = self._double_rows(), [], False
        for w in W.double():
            gap = None if near else self._value_at(w, rows) - self.fstar
            if gap is None or gap <= FAR_OFF * self.fstar:
                divergence = self._divergence_at(w, rows)
                near = bool(divergence <= NEAR_BY * self.fstar)
                if near:
                    gap = divergence
                elif gap is None:
                    gap = self._value_at(w, rows) - self.fstar
            gaps.append(gap)
        return torch.stack(gaps).to(self.weights)

    def _double_rows(self) -> list[Rows64]:
        lam = self.weights.double()
        return [
            Rows64(
                b.A.double(),
                b.b.double(),
                None if b.mask is None else b.mask.double(),
                lam if b.who is None else lam[b.who],
            )
            for b in self.rows.buckets
        ]

    def _value_at(self, w: Tensor, rows: list[Rows64]) -> Tensor:
        """f at one model w (d,)."""
        total = 0.5 * (self.weights.double() @ self.reg.double()) * (w @ w)
        for A, b, mask, lam in rows:
            loss = softplus(-b * times_rows(A, w.expand(len(A), -1)))
            total = total + weighted(lam, (loss if mask is None else loss * mask).sum(1))
        return total

    def _divergence_at(self, w: Tensor, rows: list[Rows64]) -> Tensor:
        """The Bregman divergence of f from the minimiser to w (d,): f(w) - f* where the gradient there vanishes."""
        assert self._star is not None
        e = w - self._star
        total = 0.5 * (self.weights.double() @ self.reg.double()) * (e @ e)
        for (A, b, _, lam), divergence in zip(rows, self._at_minimiser, strict=True):
            total = total + weighted(lam, divergence(times_rows(A, e.expand(len(A), -1)) * b).sum(1))
        return total


class Rows64(NamedTuple):
    """The rows, labels, mask and weights of a bucket's users in float64."""

    A: Tensor
    b: Tensor
    mask: Tensor | None
    lam: Tensor


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
    subtracting q h would be rounding, and Taylor's formula to fifth order is good to 1e-12 relative. Where expm1 would
    overflow the two terms are far apart.
    """

    a: Tensor
    q: Tensor
    taylor: tuple[Tensor, Tensor, Tensor, Tensor]

    @staticmethod
    def at(a: Tensor) -> Divergence:
        q = torch.sigmoid(-a)
        v = q * (1 - q)
        odd = (2 * q - 1) * v
        return Divergence(a, q, (v / 2, odd / 6, (1 - 6 * v) * v / 24, (1 - 12 * v) * odd / 120))

    def __call__(self, h: Tensor) -> Tensor:
        c2, c3, c4, c5 = self.taylor
        near = h * h * (c2 + h * (c3 + h * (c4 + h * c5)))
        small = h.abs() < 1e-3
        if bool(small.all()):
            return near
        far = torch.where(h < -FAR, softplus(-self.a - h) - softplus(-self.a), torch.log1p(self.q * torch.expm1(-h)))
        return torch.where(small, near, far + self.q * h)
