"""The residual and the certificates: what a round leaves behind, read many rounds at a time.

With g_i = (u_i - p_i) / eta, a subgradient of f_i at p_i (at u_i after one gradient step), a point solves the original
problem when stationarity |sum_i lambda_i g_i| and consensus, how far the p_i are apart, BOTH vanish. u - p is known to
the rounding error of p only, and eta divides that too: stationarity carries its bound, so that it vanishes for no eta
that is too small to move anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.iteration.engine import Spread


class Signs(NamedTuple):
    """Of one round. Users who share one u leave vectors behind, for others the sums over users are in `squares`."""

    eta: float
    step: tuple[Tensor, Tensor]
    """u and T u, (1, d), of users together; else only their shapes matter."""
    pull: tuple[Tensor, Tensor] | None
    """mean(u) and mean(p), (1, d); None where nothing is certified."""
    squares: Tensor | None = None
    """The Gram matrix of T u - u and, where certified, p - mean(p)."""
    spread: Spread | None = None
    error: Tensor | None = None
    """A bound on the distance of the answers to the exact ones, where the operator knows it."""


class Reading(NamedTuple):
    """NaN where nothing is certified."""

    residual: float
    stationarity: float
    consensus: float


ROUNDING = 2.0
"""Units in the last place by which an answer is taken to be wrong."""
NOTHING = Reading(math.nan, math.nan, math.nan)


def no_spread(u: Tensor) -> Tensor:
    """Of users who share the certified point."""
    return u.new_zeros(len(u))


def read(signs: Sequence[Signs | None]) -> list[Reading]:
    """One reading a round; None is a round in which nothing happened."""
    readings: list[Reading] = []
    for _, group in groupby(signs, key=_alike):
        block = [s for s in group if s is not None]
        readings += _read(block) if block else [NOTHING]
    return readings


def _alike(s: Signs | None) -> tuple[object, ...]:
    """What must agree for rounds to be read together. Rounds without signs stand alone."""
    if s is None:
        return (object(),)
    return s.pull is None, None if s.squares is None else s.squares.shape, s.spread, s.error is None


def _read(block: list[Signs]) -> list[Reading]:
    first, eta = block[0], torch.tensor([s.eta for s in block], dtype=torch.float64)
    squares = [s.squares for s in block if s.squares is not None]
    if not squares:
        u, Tu = (torch.cat(part) for part in zip(*(s.step for s in block), strict=True))
        residual = torch.linalg.vector_norm(Tu - u, dim=1)
        apart = u.new_full((len(u),), torch.nan) if first.spread is None else first.spread(u).sqrt()
    else:
        roots = torch.stack(squares).diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        residual, apart = roots[:, 0], roots[:, -1]
    pulls = [s.pull for s in block if s.pull is not None]
    if pulls:
        mean_u, mean_p = (torch.cat(part) for part in zip(*pulls, strict=True))
        most = torch.maximum(*(torch.linalg.vector_norm(mean, dim=1) for mean in (mean_u, mean_p)))
        rounding = ROUNDING * torch.finfo(most.dtype).eps * torch.hypot(most, apart)  # hypot: the norm of all rows
        pull = torch.linalg.vector_norm(mean_u - mean_p, dim=1) + rounding
    else:
        pull = apart = torch.full_like(residual, torch.nan)
    errors = [s.error for s in block if s.error is not None]
    if errors:
        pull = pull + torch.stack(errors)
    table = torch.stack([residual.cpu().double(), pull.cpu() / eta, apart.cpu().double()], 1)
    return [Reading(*row) for row in table.tolist()]
