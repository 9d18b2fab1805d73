"""Operators on quadratics. With f_i(w) = 1/2 sum_r s_r (v_r . (w - x_i))^2 + const, a prox, k gradient steps or k
gradient steps on a prox all filter the eigenvalues: they send u to

    p = u - V^T diag(1 - psi(s)) V (u - x_i),        V (r, d) the eigenvectors as rows, psi(0) = 1.

So k steps cost no more than one, and where users share one u their mean answer is one affine map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resolvent.problems.products import rows_times, times_rows

CHUNK = 1 << 15
"""Users whose products are held in memory at a time while they are summed."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvectors V (users, r, d) and eigenvalues s (users, r) of each Hessian, a minimiser x and the minimum."""

    V: Tensor
    s: Tensor
    x: Tensor
    floor: Tensor

    def take(self, who: Tensor) -> Spectrum:
        return Spectrum(self.V[who], self.s[who], self.x[who], self.floor[who])

    def coordinates(self, W: Tensor) -> Tensor:
        """V (w - x), (users, r)."""
        return times_rows(self.V, W - self.x)

    def back(self, T: Tensor) -> Tensor:
        """V^T t, (users, d)."""
        return rows_times(T, self.V)

    def hessian(self, c: Tensor) -> Tensor:
        """V^T diag(c) V for each user, (users, d, d)."""
        return torch.bmm((self.V * c.unsqueeze(-1)).mT, self.V)

    def weighted(self, c: Tensor, lam: Tensor) -> Tensor:
        """sum_i lambda_i V_i^T diag(c_i) V_i, (d, d), without a matrix a user."""
        d = self.V.shape[-1]
        total = self.V.new_zeros((d, d))
        for V, cl in zip(self.V.split(CHUNK), (c * lam.unsqueeze(1)).split(CHUNK), strict=True):
            total += (V * cl.unsqueeze(-1)).reshape(-1, d).T @ V.reshape(-1, d)
        return total


@dataclass(frozen=True, eq=False)
class Affine:
    """The map above for all users, with c = 1 - psi(s). `steady` maps are used often enough to multiply out."""

    spectrum: Spectrum
    c: Tensor
    lam: Tensor
    steady: bool

    @cached_property
    def _fused(self) -> tuple[Tensor, Tensor]:
        """p_i = u_i M_i + m_i: one batched product a round instead of two."""
        K = self.spectrum.hessian(self.c)
        eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        return eye - K, rows_times(self.spectrum.x, K)

    def __call__(self, u: Tensor, who: Tensor | None) -> Tensor:
        """The answers of the users `who` (None: all) to their rows of u, or to one row that they share."""
        r, d = self.spectrum.V.shape[1:]
        if self.steady and 2 * r > d:
            M, m = self._fused
            if who is not None:
                M, m = M[who], m[who]
            return rows_times(u.expand(len(M), d), M) + m
        part, c = (self.spectrum, self.c) if who is None else (self.spectrum.take(who), self.c[who])
        return u - part.back(c * part.coordinates(u))

    @cached_property
    def _pull(self) -> Tensor:
        """sum_i lambda_i V_i^T diag(c_i) V_i."""
        return self.spectrum.weighted(self.c, self.lam)

    @cached_property
    def _mean(self) -> tuple[Tensor, Tensor]:
        """mean(p) = u M + m for users who share u."""
        K = self._pull
        shift = self.lam @ self.spectrum.back(self.c * self._offsets) + self._centre @ K
        return torch.eye(K.shape[-1], dtype=K.dtype, device=K.device) - K, shift.unsqueeze(0)

    @cached_property
    def _centre(self) -> Tensor:
        return self.lam @ self.spectrum.x

    @cached_property
    def _offsets(self) -> Tensor:
        """V (x - centre): small where users are alike, so that nothing cancels below."""
        return -self.spectrum.coordinates(self._centre.unsqueeze(0))

    @cached_property
    def _spread(self) -> tuple[Tensor, Tensor, Tensor]:
        """sum_i lambda_i |p_i - mean(p)|^2 = e S e + 2 g e + h with e = u - centre: the spread of p_i - u."""
        cc, o = self.c * self.c, self._offsets
        K, k = self._pull, self.lam @ self.spectrum.back(self.c * o)
        S = self.spectrum.weighted(cc, self.lam) - K @ K
        g = k @ K - self.lam @ self.spectrum.back(cc * o)
        return S, g, self.lam @ (cc * o * o).sum(1) - k @ k

    def mean(self, u: Tensor) -> Tensor:
        """sum_i lambda_i p_i, (1, d), for users who share u (1, d): one small product, however many users."""
        M, m = self._mean
        return torch.addmm(m, u, M)

    def spread(self, u: Tensor) -> Tensor:
        """sum_i lambda_i |p_i - mean(p)|^2 for each row of u (k, d) that users might share, (k,)."""
        S, g, h = self._spread
        e = u - self._centre
        return (((each_row(S, e) + 2 * g) * e).sum(1) + h).clamp_min(0)


def each_row(M: Tensor, rows: Tensor) -> Tensor:
    """M x for each row x: one product a row, so that its bits do not depend on the rows beside it."""
    return torch.stack([torch.mv(M, x) for x in rows])
