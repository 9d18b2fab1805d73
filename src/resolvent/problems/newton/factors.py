"""B = (I + eta H)^-1 of each user, made at some point and retained over many rounds.

A user with many features and fewer rows than features is factorised in the space of its rows. With
M = sqrt(eta phi'') A, c = 1 + eta reg and L L^T = c I + M M^T,

    B e = (e - V^T V e) / c,    V = L^-1 M,

so that what is retained is never larger than the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.problems.products import rows_times
from resolvent.problems.room import fits

WIDE = 64
"""Features up to which d x d matrices are small, whatever the rows."""


class Factors(Protocol):
    """B of each user at its anchor: the point and, in a last column, eta. Rows of NaN have none yet."""

    anchor: Tensor

    def take(self, who: Tensor) -> Factors: ...
    def put(self, who: Tensor, part: Any) -> None:
        """What some users have now, but for their anchors."""
        ...

    def renew(self, problem: Any, which: Tensor, anchor: Tensor) -> None:
        """Factorise at new anchors for the users marked in `which`."""
        ...

    def apply(self, e: Tensor) -> Tensor:
        """B e."""
        ...


def thin(rows: int, dim: int) -> bool:
    """Whether a user of so many rows is factorised in their space."""
    return dim > WIDE and rows < dim


def factors(problem: Any, like: Tensor) -> Factors:
    """None made yet, of the kind that suits the problem."""
    users, dim = problem.users, problem.dim
    if by_rows(problem):
        return Mixed(like.new_full((users, dim + 1), torch.nan), [None] * users, like.new_ones(users))
    check_room(problem)
    return Kept.empty(users, dim, like)


def by_rows(problem: Any) -> bool:
    """Whether some user is factorised in the space of its rows."""
    return hasattr(problem, "thin_inverse") and any(thin(n, problem.dim) for n in problem.sizes.tolist())


def check_room(problem: Any) -> None:
    """Refuse matrices (users, d, d) that would not fit."""
    users, dim = problem.users, problem.dim
    count = users * dim * dim * torch.finfo(problem.weights.dtype).bits // 8
    came = f"one that needs a {dim} x {dim} matrix for each of {users} users"
    fits("the problem", came, count, "take rs.GradientProx or rs.GradientSteps as local, or fewer features")


@dataclass(eq=False)
class Kept:
    """B itself, (users, d, d)."""

    anchor: Tensor
    inverse: Tensor

    @staticmethod
    def empty(users: int, dim: int, like: Tensor) -> Kept:
        return Kept(like.new_full((users, dim + 1), torch.nan), like.new_zeros((users, dim, dim)))

    def take(self, who: Tensor) -> Kept:
        return Kept(self.anchor[who], self.inverse[who])

    def put(self, who: Tensor, part: Kept) -> None:
        self.inverse[who] = part.inverse

    def renew(self, problem: Any, which: Tensor, anchor: Tensor) -> None:
        who = which.nonzero().flatten()
        part = problem if len(who) == len(which) else problem.take(who)
        at, eta = anchor[who, :-1], anchor[who, -1]
        H = part.hessian(at) * eta[:, None, None]
        H.diagonal(dim1=1, dim2=2).add_(1)
        # One at a time, and each from a tensor of its own: kernels round by where in memory a matrix lies.
        self.inverse[who] = torch.stack([inverted(h.clone()) for h in H])
        self.anchor = torch.where(which.unsqueeze(1), anchor, self.anchor)

    def apply(self, e: Tensor) -> Tensor:
        return rows_times(e, self.inverse)


def inverted(Q: Tensor) -> Tensor:
    """Q^-1 for a positive definite Q, else the identity: the step is then a gradient's, and judged as any other."""
    L, info = torch.linalg.cholesky_ex(Q)
    inverse = torch.cholesky_inverse(L) if int(info) == 0 else torch.eye(len(Q), dtype=Q.dtype, device=Q.device)
    return inverse


@dataclass(eq=False)
class Mixed:
    """B of some users as a matrix (d, d), of others as V (rows, d) with c."""

    anchor: Tensor
    parts: list[Tensor | None]
    c: Tensor

    def take(self, who: Tensor) -> Mixed:
        return Mixed(self.anchor[who], [self.parts[i] for i in who.tolist()], self.c[who])

    def put(self, who: Tensor, part: Mixed) -> None:
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
        return (e - (part @ e) @ part) / self.c[i] if thinner else part @ e
