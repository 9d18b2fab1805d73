"""Conjugate gradients for all users at once: M_i h_i = r_i with M_i positive definite, given by products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.problems.newton.equation import length

Product = Callable[[Tensor], Tensor]


def conjugate(
    times: Product,
    right: Tensor,
    enough: Tensor,
    most: int,
    start: Tensor | None = None,
    precondition: Product | None = None,
) -> Tensor:
    """h (users, d) with |M h - right| <= enough (users,), or after `most` products.

    `precondition` is a positive definite map close to M^-1. A user's answer does not depend on who else is solved for:
    it stays as it is once it is good enough.
    """
    h = torch.zeros_like(right) if start is None else start
    r = right if start is None else right - times(start)
    z = r if precondition is None else precondition(r)
    p, rz = z, (r * z).sum(1)
    for _ in range(most):
        todo = length(r) > enough
        if not bool(todo.any()):
            break
        Mp = times(p)
        bends = (p * Mp).sum(1)
        go = todo & (bends > 0)  # else round-off, or a function that is not convex: what there is is checked later
        if not bool(go.any()):
            break
        alpha = torch.where(go, rz / bends, 0).unsqueeze(1)
        h, r = h + alpha * p, r - alpha * Mp
        z = r if precondition is None else precondition(r)
        new = (r * z).sum(1)
        p = torch.where(go.unsqueeze(1), z + (new / rz).unsqueeze(1) * p, p)
        rz = torch.where(go, new, rz)
    return h
