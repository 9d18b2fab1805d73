"""The loss log sum_k exp(t_k) - t_y of scores t (users, classes, rows), and its derivatives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NEAR = 1e-3
"""Up to this |h| the divergence is a series."""
FAR = 30.0
"""Beyond this h exponentials of the divergence would overflow."""


def values(t: Tensor, truth: Tensor) -> Tensor:
    """(users, rows), with digits also where the loss is nearly 0; `truth` (users, classes, rows) is one-hot."""
    t = t - (t * truth).sum(1, keepdim=True)
    most, first = t.max(1, keepdim=True)
    rest = (t - most).exp().scatter(1, first, 0.0).sum(1)
    return most.squeeze(1) + torch.log1p(rest)


def slopes(t: Tensor, truth: Tensor) -> Tensor:
    """The gradient in t: the probabilities less the truth."""
    return torch.softmax(t, 1).sub_(truth)


def bend(p: Tensor, h: Tensor) -> Tensor:
    """(diag(p) - p p^T) h of each row, for probabilities p."""
    return p * (h - (p * h).sum(1, keepdim=True))


def divergence(p: Tensor) -> Callable[[Tensor], Tensor]:
    """log sum_k p_k exp(h_k) - p . h as a function of h, for probabilities p: never negative, and nothing cancels.

    With c = h - p . h it is log(1 + sum_k p_k (exp(c_k) - 1 - c_k)).
    """

    def of(h: Tensor) -> Tensor:
        c = h - (p * h).sum(1, keepdim=True)
        series = c * c * (1 / 2 + c * (1 / 6 + c * (1 / 24 + c / 120)))
        near = torch.log1p((p * torch.where(c.abs() < NEAR, series, torch.expm1(c) - c)).sum(1))
        if not bool((c > FAR).any()):
            return near
        return torch.where((c > FAR).any(1), torch.logsumexp(p.log() + c, 1), near)

    return of
