"""Automatic eta for schemes that solve the original problem at any eta.

With g = (u - p) / eta, a subgradient at p, the ratio |dp| / |dg| of successive changes is the inverse of the curvature
along the path. eta follows it, ever more slowly, so that it settles and the theorems for constant eta apply. Changing
eta keeps every p_i and g_i: u <- p + (eta'/eta) (u - p).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.anderson import Gram

WIDEST = 1e3
"""The largest factor by which one round may change eta."""
PATIENCE = 8
"""Changes after which eta begins to move more slowly."""


@dataclass(frozen=True, eq=False)
class Tuning:
    """The next eta, the last p and g, and how often eta was changed."""

    eta: float
    p: Tensor | None = None
    g: Tensor | None = None
    changes: int = 0


def tune(tuning: Tuning, eta: float, u: Tensor, p: Tensor, gram: Gram, ready: bool) -> Tuning:
    """The next eta, from this round's p and g and the last one's; `ready` once everybody had answered before."""
    g = (u - p) / eta
    if tuning.p is None or tuning.g is None or not ready:
        return Tuning(eta, p, g)
    G = gram(torch.stack([p - tuning.p, g - tuning.g])).diagonal().tolist()
    if not (G[0] > 0 and G[1] > 0 and 0 < G[0] / G[1] < math.inf):  # values of 1e100 over- or underflow here
        return Tuning(eta, p, g, tuning.changes)
    aim = 0.5 * math.log(G[0] / G[1]) - math.log(eta)
    slowly = min(1.0, (PATIENCE / (tuning.changes + 1)) ** 2)
    move = max(-math.log(WIDEST), min(math.log(WIDEST), aim)) * slowly
    if abs(move) < math.log(1.25):  # not worth the acceleration's memory
        return Tuning(eta, p, g, tuning.changes)
    return Tuning(eta * math.exp(move), p, g, tuning.changes + 1)
