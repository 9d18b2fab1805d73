"""The certified prox of one user of a linear model, and what round-off does to gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.problems.newton.equation import length
from resolvent.problems.newton.safeguard import WORST, SafeProx
from resolvent.problems.reference.objective import Objective
from resolvent.problems.reference.smooth import minimise


def careful_prox(model: Any, u: Tensor, eta: float, x: Tensor, tol: float) -> SafeProx:
    """The prox of the first user, certified: with c = 1 + eta reg and z = x - u / c it minimises
    eta sum_j phi(a_j . (u / c + z)) + c/2 |z|^2."""
    A, b = (part.cpu().numpy().astype(np.float64) for part in (model.rows.dense(0), model.rows.one(0)[1]))
    c: Any = 1 + eta * float(model.reg[0])
    if model.intercept:
        c = np.append(np.full(model.dim - 1, c), 1.0)
    centre = u.cpu().numpy().astype(np.float64) / c
    weight = np.full(len(A), float(eta)) * model._own_weights([0])
    objective = Objective(A, A @ centre, model._weighted(b, weight), c)
    solution = minimise(objective, x.cpu().numpy().astype(np.float64) - centre)
    if not np.isfinite(solution.error) and math.isinf(model._losses[0].largest_curvature):  # exp never overflows at 0
        solution = minimise(objective, -centre)
    p = torch.from_numpy(centre + solution.z).to(u)
    size, reach = 1 + float(u.norm()), 1 + float(u.norm()) + float(p.norm())
    error = solution.error + 4 * torch.finfo(u.dtype).eps * reach
    if error <= max(tol * size, max(WORST, 16 * torch.finfo(u.dtype).eps) * reach):
        return SafeProx(p, error)
    left = f"an error of {error:.1g}" if np.isfinite(error) else "nothing certain"
    return SafeProx(p, error, f"since its margins a . w are too large for {u.dtype}: round-off leaves {left}")


def rounding(model: Any, W: Tensor) -> Tensor:
    """A bound on the rounding error of grad at W, about: units in the last place of every predictor and slope."""
    slope, curvature = model._losses[0].largest_slope, model._losses[0].largest_curvature
    eps = 4 * torch.finfo(W.dtype).eps
    if not (math.isfinite(slope) and math.isfinite(curvature)):
        return eps * _rounding_here(model, W)
    bend, spread = model.frobenius * curvature + model.reg, model.frobenius.sqrt() * slope
    solution: Tensor = eps * (bend * length(W) + spread)
    return solution


def value_rounding(model: Any, W: Tensor) -> Tensor:
    """The same of value at W: sum_j |phi'| |a_j| |w|, and units in the last place of the value itself."""
    parts = []
    for bucket, loss in zip(model.rows.buckets, model._losses, strict=True):
        t, size = bucket.margins(W), length(bucket.of(W)).unsqueeze(1)
        parts.append((loss.slope(t).abs() * bucket.norms() * size).sum(1))
    rounding: Tensor = 4 * torch.finfo(W.dtype).eps * (model.rows.gather(parts) + model.value(W).abs())
    return rounding


def _rounding_here(model: Any, W: Tensor) -> Tensor:
    """The same from the slopes and curvatures at W, relative to eps: sum_j |a_j| (|phi'| + phi'' |a_j| |w|)."""
    parts = []
    for bucket, loss in zip(model.rows.buckets, model._losses, strict=True):
        t, norms, size = bucket.margins(W), bucket.norms(), length(bucket.of(W)).unsqueeze(1)
        parts.append((norms * (loss.slope_size(t) + loss.curvature(t) * norms * size)).sum(1))
    solution: Tensor = model.rows.gather(parts) + model.reg * length(W)
    return solution
