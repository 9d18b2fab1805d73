"""The prox of a penalty g in a metric, argmin_x g(x) + |x - v|_M^2 / (2 s), from its ordinary prox.

It is the x with x = prox_{s g}(x - M (x - v)), which the proximal gradient method finds slowly. Where g is a sum over
coordinates, so is the derivative of its prox, and Newton's method on that equation ends after a few steps. A step of it
is taken, or a part of it, where it goes down further than one of the proximal gradient method, which always does, as M
has no eigenvalue above 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.iteration.metric import Metric

Prox = Callable[[Tensor, float], Tensor]
Value = Callable[[Tensor], Tensor]

MAX_STEPS = 1000
PARTS = [4.0**-k for k in range(14)]
"""Of a step of Newton's method that are tried."""


def launch(prox: Prox, value: Value, metric: Metric, v: Tensor, s: float) -> Tensor:
    """The point y (1, d) whose prox_{s g}(y) is the prox of v in the metric.

    Whatever is left of an error in y, (y - prox(y)) / s is a subgradient of g at prox(y).
    """
    M = metric.times(torch.eye(v.shape[1], dtype=v.dtype, device=v.device))
    x = prox(v, s)

    def before(x: Tensor) -> Tensor:
        return x - (x - v) @ M

    def height(x: Tensor) -> float:
        away = x - v
        return float(s * value(x) + ((away @ M) * away).sum() / 2)

    for _ in range(MAX_STEPS):
        y = before(x)
        nearer = prox(y, s)
        if not float((x - nearer).norm()) > 4 * torch.finfo(v.dtype).eps * float(x.norm() + v.norm()):
            break
        slope = _slopes(prox, y, s)
        step, info = torch.linalg.solve_ex(torch.diag(1 - slope) + slope.unsqueeze(1) * M, (nearer - x).T)
        lowest, best = height(nearer), nearer
        for part in PARTS if int(info) == 0 and bool(torch.isfinite(step).all()) else ():
            tried = prox(before(x + part * step.T), s)
            if height(tried) < lowest:
                lowest, best = height(tried), tried
                break
        if not lowest < height(x):  # round-off
            break
        x = best
    return before(x)


def _slopes(prox: Prox, y: Tensor, s: float) -> Tensor:
    """The derivative (d,) of each coordinate of the prox by its own coordinate of y."""
    with torch.enable_grad():
        at = y.detach().clone().requires_grad_()
        out = prox(at, s)
        slope = torch.autograd.grad(out.sum(), at, allow_unused=True)[0] if out.requires_grad else None
    return torch.zeros_like(y)[0] if slope is None else slope[0].clamp(0, 1)
