"""What the minimum of softmax regression over all users needs: a preconditioner, and a ball in which it lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MAX_PRECONDITIONER_ROWS = 10_000
"""So many rows of all users make the preconditioner."""
MAX_BLOCK_FEATURES = 2000
"""Up to so many features a class has a matrix; beyond, a diagonal."""


def preconditioner(problem: Any, w: Tensor) -> Callable[[Tensor], Tensor]:
    """Of the Hessian of f at w (1, d): the inverse of a block per class where features are few, else of the diagonal.

    A change that all classes share leaves the softmax as it is, so that only reg pulls at it.
    """
    if problem.rows.dim > MAX_BLOCK_FEATURES:
        diagonal = problem.weights @ problem.hessian_diagonal(w) + _least(problem)
        return lambda r: r / diagonal
    many, M = len(problem.classes), problem._matrices(w)[0]
    blocks = M.new_zeros((many, M.shape[1], M.shape[1]))
    every = max(1, int(problem.sizes.sum()) // MAX_PRECONDITIONER_ROWS)
    for i, lam in enumerate(problem.weights.tolist()):
        A = problem.rows.some(i, every) if lam > 0 else None
        if A is None:
            continue
        p = torch.softmax(M @ A.T, 0)
        share: Any = lam * int(problem.sizes[i]) / len(A)
        if (weight := problem.rows.weight(i)) is not None:
            share = share * weight[::every]
        for k in range(many):
            rows = A * (share * p[k] * (1 - p[k])).sqrt().unsqueeze(1)
            blocks[k].addmm_(rows.T, rows)
    ridge = float(problem.weights @ problem.reg)
    tiny = 1e-10 * float(blocks.diagonal(dim1=1, dim2=2).amax()) + 1e-300
    blocks.diagonal(dim1=1, dim2=2).add_(ridge + tiny)
    L = torch.linalg.cholesky(blocks)

    def apply(r: Tensor) -> Tensor:
        R = problem._matrices(r)[0]
        shared = R.mean(0, keepdim=True)
        H = torch.cholesky_solve((R - shared).unsqueeze(2), L).squeeze(2)
        H = H - H.mean(0, keepdim=True) + shared / (ridge + tiny)
        return problem._vectors(H.unsqueeze(0))  # type: ignore[no-any-return]

    return apply


def _least(problem: Any) -> float:
    return 1e-10 * float(problem.weights @ problem.lipschitz) + 1e-300


def reach(problem: Any, w: Tensor, mu: float) -> float:
    """How far a minimiser can be from w (d,), where reg pulls at coefficients with mu and leaves intercepts alone.

    f(w*) <= f(w), so mu/2 |coefficients|^2 <= f(w). A row a of class k has the loss >= (its score for another class) -
    (that for k), hence b_l - b_k <= f(w) / lambda + sqrt(2) |a| |coefficients|; with weights of rows lambda is times
    that of the row. Users must hold all classes. The intercepts of a minimiser may be shifted together: to the mean of
    those of w.
    """
    value = float(problem.weights @ problem.value(w.unsqueeze(0)))
    far = math.sqrt(2 * value / mu)
    many = len(problem.classes)
    apart = torch.full((many,), math.inf, dtype=torch.float64)
    for i, lam in enumerate(problem.weights.tolist()):
        if lam > 0:
            _, codes = problem.rows.one(i)
            weight = problem.rows.weight(i)
            bound = value / (lam if weight is None else lam * weight) + math.sqrt(2) * problem.rows.lengths(i) * far
            for k in range(many):
                mine = bound[codes == k]
                if len(mine):
                    apart[k] = min(float(apart[k]), float(mine.min()))
    widest = float(apart.max())
    b = w[problem.intercepts]
    shifted = float((b - b.mean()).norm()) + math.sqrt(many) * widest
    return float(w[: problem.dim - many].norm()) + far + shifted
