"""From products with Hessians: linear systems by conjugate gradients, and the curvature of f by Lanczos' method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.problems.newton.equation import length

FEWEST, MOST = 16, 64
"""Products with the Hessian that its curvature takes."""
RESOLVED = 3e-2
"""Part of the gradient that Newton's step may leave, where the space has all of the curvature that matters."""


def krylov(problem: Any, w: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """The gradient g (k,) and the Hessian H (k, k) of f at w (1, d), seen from g, H g, H^2 g, ... (Lanczos' method); an
    orthonormal basis (k, d) of that space, and how far the last product led out of it.

    In those coordinates H is tridiagonal and g is along the first. Its eigenvalues are those of H that matter for g.
    The space grows until Newton's step in it leaves next to nothing of g: a smaller one has not seen the least
    curvatures along which f still falls.
    """
    g, product = (problem.weights @ problem.grad(w)).unsqueeze(0), problem.hessian_times(w)
    size = torch.linalg.vector_norm(g)
    if not bool(torch.isfinite(size)) or float(size) == 0:
        return size.reshape(1), size.new_zeros((1, 1)), torch.zeros_like(g), 0.0
    basis, T = [g / size], size.new_zeros((MOST, MOST))
    for k in range(MOST):
        v = (problem.weights @ product(basis[-1])).unsqueeze(0)
        T[k, k] = (v * basis[-1]).sum()
        Q = torch.cat(basis)
        for _ in range(2):  # against round-off
            v = v - (v @ Q.T) @ Q
        beta = torch.linalg.vector_norm(v)
        many = k + 1
        if many == MOST or not float(beta) > 1e-10 * float(T[k, k]):
            break
        if many >= FEWEST and _left(T[:many, :many], beta) <= RESOLVED:
            break
        T[k, k + 1] = T[k + 1, k] = beta
        basis.append(v / beta)
    return torch.nn.functional.pad(size.reshape(1), (0, many - 1)), T[:many, :many].clone(), Q, float(beta)


def _left(T: Tensor, beta: Tensor) -> float:
    """|g + H h| / |g| for Newton's step h in the space: only the next direction is left."""
    first = torch.zeros_like(T[:, :1])
    first[0] = 1
    step, info = torch.linalg.solve_ex(T, first)
    return float((beta * step[-1]).abs()) if int(info) == 0 else float("inf")


def conjugate(
    times: Callable[[Tensor], Tensor],
    right: Tensor,
    enough: Tensor,
    most: int,
    start: Tensor | None = None,
    precondition: Callable[[Tensor], Tensor] | None = None,
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
