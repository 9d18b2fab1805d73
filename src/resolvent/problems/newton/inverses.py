"""B = (I + eta H)^-1 of each user, computed at some point and cached over many rounds.

A user with many features and fewer rows than features is factorised in the space of its rows. With
M = sqrt(eta phi'') A, c = 1 + eta reg and L L^T = c I + M M^T,

    B e = (e - V^T V e) / c,    V = L^-1 M,

so that the cache is never larger than the data. Where an intercept has no reg, its own entry of e is divided by 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.problems.products import rows_times
from resolvent.problems.room import fits

MANY_FEATURES = 64
"""Up to so many features a d x d matrix is small, whatever the rows."""


@dataclass(eq=False)
class DenseInverses:
    """B itself, (users, d, d), of each user at its anchor: the point and, in a last column, eta. NaN: no B yet."""

    anchor: Tensor
    inverse: Tensor

    @staticmethod
    def empty(users: int, dim: int, like: Tensor) -> DenseInverses:
        return DenseInverses(like.new_full((users, dim + 1), torch.nan), like.new_zeros((users, dim, dim)))

    def take(self, who: Tensor) -> DenseInverses:
        return DenseInverses(self.anchor[who], self.inverse[who])

    def put(self, who: Tensor, part: Any) -> None:
        """Take over what some users have now, except for their anchors."""
        self.inverse[who] = part.inverse

    def renew(self, problem: Any, which: Tensor, anchor: Tensor) -> None:
        """Compute B at new anchors for the users marked in `which`."""
        who = which.nonzero().flatten()
        part = problem if len(who) == len(which) else problem.take(who)
        at, eta = anchor[who, :-1], anchor[who, -1]
        H = part.hessian(at) * eta[:, None, None]
        H.diagonal(dim1=1, dim2=2).add_(1)
        # One at a time, and each from a tensor of its own: how kernels round depends on a matrix's alignment.
        self.inverse[who] = torch.stack([inverted(h.clone()) for h in H])
        self.anchor = torch.where(which.unsqueeze(1), anchor, self.anchor)

    def apply(self, e: Tensor) -> Tensor:
        """B e."""
        return rows_times(e, self.inverse)


def inverted(Q: Tensor) -> Tensor:
    """Q^-1 for a positive definite Q, else the identity: a gradient step, which is checked like any other."""
    L, info = torch.linalg.cholesky_ex(Q)
    inverse = torch.cholesky_inverse(L) if int(info) == 0 else torch.eye(len(Q), dtype=Q.dtype, device=Q.device)
    return inverse


@dataclass(eq=False)
class MixedInverses:
    """The same, B of some users as a matrix (d, d), of others as V (rows, d) with c."""

    anchor: Tensor
    parts: list[Tensor | None]
    c: Tensor
    free: Tensor | None = None

    def take(self, who: Tensor) -> MixedInverses:
        return MixedInverses(self.anchor[who], [self.parts[i] for i in who.tolist()], self.c[who], self.free)

    def put(self, who: Tensor, part: Any) -> None:
        for i, each in zip(who.tolist(), part.parts, strict=True):
            self.parts[i] = each
        self.c[who] = part.c

    def renew(self, problem: Any, which: Tensor, anchor: Tensor) -> None:
        for i in which.nonzero().flatten().tolist():
            at, eta = anchor[i, :-1], anchor[i, -1]
            if thin(int(problem.sizes[i]), problem.dim):
                self.parts[i], self.c[i] = problem.thin_inverse(i, at, eta)
            else:
                H = problem.take(torch.tensor([i], device=at.device)).hessian(at.unsqueeze(0))[0] * eta
                H.diagonal().add_(1)
                self.parts[i] = inverted(H)
        self.anchor = torch.where(which.unsqueeze(1), anchor, self.anchor)

    def apply(self, e: Tensor) -> Tensor:
        return torch.stack([self._apply(i, row) for i, row in enumerate(e)])

    def _apply(self, i: int, e: Tensor) -> Tensor:
        part = self.parts[i]
        if part is None:
            return torch.zeros_like(e)
        thinner = part.shape[0] < part.shape[1]
        if not thinner:
            return part @ e
        away = (part @ e) @ part
        if self.free is not None and len(self.free):
            e = e.clone()
            e[self.free] *= self.c[i]
        return (e - away) / self.c[i]


Inverses = DenseInverses | MixedInverses


def thin(rows: int, dim: int) -> bool:
    """Whether a user of so many rows is factorised in their space."""
    return dim > MANY_FEATURES and rows < dim


def empty_inverses(problem: Any, like: Tensor) -> Inverses:
    """No inverse yet, of the kind that suits the problem."""
    users, dim = problem.users, problem.dim
    if by_rows(problem):
        free = getattr(problem, "intercepts", None)
        return MixedInverses(like.new_full((users, dim + 1), torch.nan), [None] * users, like.new_ones(users), free)
    check_room(problem)
    return DenseInverses.empty(users, dim, like)


def by_rows(problem: Any) -> bool:
    """Whether some user is factorised in the space of its rows."""
    return hasattr(problem, "thin_inverse") and any(thin(n, problem.dim) for n in problem.sizes.tolist())


def check_room(problem: Any) -> None:
    """Refuse matrices (users, d, d) that do not fit into memory."""
    users, dim = problem.users, problem.dim
    count = users * dim * dim * torch.finfo(problem.weights.dtype).bits // 8
    received = f"one that needs a {dim} x {dim} matrix for each of {users} users"
    fits("the problem", received, count, "take rs.GradientProx or rs.GradientSteps as local, or fewer features")
