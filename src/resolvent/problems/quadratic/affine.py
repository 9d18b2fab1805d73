"""Operators on quadratics. With f_i(w) = 1/2 sum_r s_r (v_r . w - y_r)^2 + const, a prox, k gradient steps or k
gradient steps on a prox are all functions of the eigenvalues: they send u to

    p = u - V^T diag(c(s)) (V u - y),        V (r, d) the eigenvectors as rows, c(0) = 0.

c is the share of the way to the minimiser. So k steps cost no more than one, and where users share one u their mean
answer is one affine map. The minimiser x of f_i is stored as y = V x: along a direction of small s it may be far away,
and V (u - x) would round all others at its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resolvent.problems.products import rows_times, times_rows

CHUNK = 1 << 15
"""Users whose products are held in memory at a time while they are summed."""
CANCELLED = 1e-9
"""A difference below this much of its terms has lost half of its digits, and is computed in another way."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvectors V (users, r, d) and eigenvalues s (users, r) of each Hessian, y = V x (users, r) of a minimiser x,
    and the minimum, floor (users,). In float64, whatever the data are in."""

    V: Tensor
    s: Tensor
    y: Tensor
    floor: Tensor

    def spans(self, most: float) -> bool:
        """Whether some user's eigenvalues span more than `most`, as where columns nearly depend on each other."""
        return not bool((self.s > most * self.s.amax(1, keepdim=True)).all())

    def take(self, who: Tensor) -> Spectrum:
        return Spectrum(self.V[who], self.s[who], self.y[who], self.floor[who])

    def coordinates(self, W: Tensor) -> Tensor:
        """V w - y, (users, r), of rows W (users, d) or of one row which all share."""
        return times_rows(self.V, W.to(self.V.dtype).expand(len(self.V), -1)) - self.y

    def back(self, T: Tensor) -> Tensor:
        """V^T t, (users, d)."""
        return rows_times(T, self.V)

    def hessian(self, c: Tensor) -> Tensor:
        """V^T diag(c) V for each user, (users, d, d)."""
        return torch.bmm((self.V * c.unsqueeze(-1)).mT, self.V)

    def weighted(self, c: Tensor, lam: Tensor) -> Tensor:
        """sum_i lambda_i V_i^T diag(c_i) V_i, (d, d), without one matrix per user."""
        d = self.V.shape[-1]
        total = self.V.new_zeros((d, d))
        for V, cl in zip(self.V.split(CHUNK), (c * lam.unsqueeze(1)).split(CHUNK), strict=True):
            total += (V * cl.unsqueeze(-1)).reshape(-1, d).T @ V.reshape(-1, d)
        return total


@dataclass(frozen=True, eq=False)
class Affine:
    """The map above for all users. `steady` maps are used often enough to multiply out.

    Maps are computed in float64; answers are of the type of u.
    """

    spectrum: Spectrum
    c: Tensor
    lam: Tensor
    steady: bool
    dtype: torch.dtype = torch.float64

    @cached_property
    def _multiplied(self) -> bool:
        """Whether a map is one product: worth its making, and no longer than the two that it is made of."""
        r, d = self.spectrum.V.shape[1:]
        return self.steady and 2 * r > d

    @cached_property
    def _fused(self) -> tuple[Tensor, Tensor]:
        """p_i = u_i M_i + m_i: one batched product per round instead of two."""
        K = self.spectrum.hessian(self.c)
        eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        return (eye - K).to(self.dtype), self.spectrum.back(self.c * self.spectrum.y).to(self.dtype)

    def __call__(self, u: Tensor, who: Tensor | None) -> Tensor:
        """The answers of the users `who` (None: all) to their rows of u, or to one row that they share."""
        if self._multiplied:
            M, m = self._fused
            if who is not None:
                M, m = M[who], m[who]
            return rows_times(u if u.shape == m.shape else u.expand_as(m), M) + m
        part, c = (self.spectrum, self.c) if who is None else (self.spectrum.take(who), self.c[who])
        return (u - part.back(c * part.coordinates(u))).to(u.dtype)

    @cached_property
    def _pull(self) -> Tensor:
        """sum_i lambda_i V_i^T diag(c_i) V_i."""
        return self.spectrum.weighted(self.c, self.lam)

    @cached_property
    def _mean(self) -> tuple[Tensor, Tensor]:
        """mean(p) = u M + m for users who share u."""
        K = self._pull
        shift = self.lam @ self.spectrum.back(self.c * self.spectrum.y)
        return torch.eye(K.shape[-1], dtype=K.dtype, device=K.device) - K, shift.unsqueeze(0)

    @cached_property
    def _centre(self) -> Tensor:
        """The mean of the users' minimisers."""
        return self.lam @ self.spectrum.back(self.spectrum.y)

    @cached_property
    def _spread(self) -> tuple[Tensor, ...]:
        """sum_i lambda_i |p_i - mean(p)|^2 = e S e + 2 g e + h with e = u - centre: the spread of p_i - u.

        Each of S, g and h is a difference. Then come the sizes of what is subtracted: root, with
        |e| (P + K K) |e| <= (root . |e|)^2 for S = P - K K, and those for g and h.
        """
        cc, o = self.c * self.c, -self.spectrum.coordinates(self._centre.unsqueeze(0))
        K, k = self._pull, self.lam @ self.spectrum.back(self.c * o)
        P, g = self.spectrum.weighted(cc, self.lam), self.lam @ self.spectrum.back(cc * o)
        KK, kK, h, kk = K @ K, k @ K, self.lam @ (cc * o * o).sum(1), k @ k
        root = (P.diagonal() + KK.diagonal()).clamp_min(0).sqrt()
        return P - KK, kK - g, h - kk, root, kK.abs() + g.abs(), h + kk

    def mean(self, u: Tensor) -> Tensor:
        """sum_i lambda_i p_i, (1, d), for users who share u (1, d): one small product, however many users."""
        M, m = self._mean
        return torch.addmm(m, u.to(M.dtype), M).to(u.dtype)

    def spread(self, u: Tensor) -> Tensor:
        """sum_i lambda_i |p_i - mean(p)|^2 for each row of u (k, d) that users might share, (k,)."""
        S, g, h, root, linear, constant = self._spread
        e = u - self._centre
        spread = ((each_row(S, e) + 2 * g) * e).sum(1) + h
        away = e.abs()
        size = (away * root).sum(1).square() + 2 * (away * linear).sum(1) + constant
        cancelled = ~(spread > CANCELLED * size)
        for k in cancelled.nonzero().flatten().tolist():
            spread[k] = self._spread_by_user(u[k : k + 1])
        return spread

    def _spread_by_user(self, u: Tensor) -> Tensor:
        """The spread at u (1, d) as a sum of squares, in which nothing cancels."""
        moves = self.spectrum.back(self.c * self.spectrum.coordinates(u))
        return self.lam @ (moves - self.lam @ moves).square().sum(1)


def prox_share(x: Tensor) -> Tensor:
    """x / (1 + x), the share of a prox at x = eta s. Not 1 - 1 / (1 + x): a small share of a long distance matters."""
    return 1 / (1 + 1 / x)


def steps_share(x: Tensor, k: int) -> Tensor:
    """1 - (1 - x)^k, the share of k gradient steps at x = eta s, without cancellation for small x."""
    return torch.where(x < 0.5, -torch.expm1(k * torch.log1p(-x.clamp_max(0.5))), 1 - (1 - x) ** k)


def each_row(M: Tensor, rows: Tensor) -> Tensor:
    """M x for each row x: one product per row, so that its bits do not depend on the rows beside it."""
    return torch.stack([torch.mv(M, x) for x in rows])
