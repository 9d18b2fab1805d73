"""Products with the Hessians of a linear model: A^T diag(phi'') A v + reg v, without the matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.problems.inputs import as_rows

TINY = 1e-10
"""Of the largest curvature of a parameter: the least that a preconditioner takes for granted."""


def hessian_times(model: Any, W: Tensor) -> Callable[[Tensor], Tensor]:
    """The product with the Hessians at W, as a function of rows (users, d)."""
    W, buckets = as_rows(W, model), model.rows.buckets
    bend = [loss.curvature(b.margins(W)) for b, loss in zip(buckets, model._losses, strict=True)]

    def times(V: Tensor) -> Tensor:
        parts = [b.combine(k * b.margins(V)) for b, k in zip(buckets, bend, strict=True)]
        return torch.addcmul(model.rows.gather(parts), model.ridge, V)

    return times


def hessian_diagonal(model: Any, W: Tensor) -> Tensor:
    """(users, d)."""
    W, parts = as_rows(W, model), []
    for bucket, loss in zip(model.rows.buckets, model._losses, strict=True):
        parts.append(bucket.combine_squares(loss.curvature(bucket.margins(W)).unsqueeze(1)).squeeze(1))
    diagonal: Tensor = model.rows.gather(parts) + model.ridge
    return diagonal


def preconditioner(model: Any, w: Tensor) -> Callable[[Tensor], Tensor]:
    """The inverse of the diagonal of the Hessian of f at w (1, d)."""
    diagonal = model.weights @ model.hessian_diagonal(w)
    diagonal = diagonal + TINY * diagonal.max() + 1e-300
    return lambda r: r / diagonal
