"""The residual and the certificates of a round. Evidence is gathered in the round and read many rounds at a time.

With g_i = M (u_i - p_i) / eta, a subgradient of f_i at p_i (at u_i after one gradient step), a point solves the
original problem when stationarity |sum_i lambda_i g_i| and consensus, how far the p_i are apart, BOTH vanish. u - p is
known to the rounding error of p only, and eta divides that too: stationarity includes its bound, so that it vanishes
for no eta that is too small to move anything. M is the metric, the identity mostly; the residual is measured in it.

With a penalty g the meeting point is W = prox_{s g}(mean(z)), and n = (mean(z) - W) / s is a subgradient of g at W. A
point solves f + g when |sum_i lambda_i g_i + n| and the distances of the p_i to W both vanish. That the p_i agree among
themselves is not enough: identical users of FedProx do, away from W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.iteration.engine import Engine, Spread
from resolvent.iteration.meeting import Met
from resolvent.iteration.metric import Metric

ROUNDING = 2.0
"""Units in the last place by which an answer is taken to be wrong."""


class Evidence(NamedTuple):
    """What one round leaves behind, from which its certificates are computed.

    Users who share one u leave vectors behind; for others the sums over users are in `squares`.
    """

    eta: float
    step: tuple[Tensor, Tensor]
    """u and T u, (1, d), of users who share u; else only their shapes matter."""
    pull: tuple[Tensor, Tensor] | None
    """mean(u) and mean(p), (1, d); None where nothing is certified."""
    squares: Tensor | None = None
    """The Gram matrix of T u - u and, where certified, p - mean(p); or of T u - u and `unsent`."""
    spread: Spread | None = None
    error: Tensor | None = None
    """A bound on the distance of the answers to the exact ones, where the operator knows it."""
    certifies: str | None = None
    """Which points are certified, "u" or "p"."""
    meeting: Met | None = None
    """Where users met, with the subgradient of g there; None without a penalty."""
    metric: Metric | None = None
    """That of the prox; its largest eigenvalue is 1, so that no error grows by it."""
    lags: bool = False
    """Whether the meeting lacks a part of z: the residual is then |T u - u| plus what that part can add to it."""


class Certificates(NamedTuple):
    """NaN where nothing is certified."""

    residual: float
    stationarity: float
    consensus: float


UNKNOWN = Certificates(math.nan, math.nan, math.nan)


def gather(
    engine: Engine,
    eta: float,
    step: tuple[Tensor, Tensor],
    p: Tensor | None,
    spread: Spread | None,
    error: Tensor | None,
    meeting: Met | None,
    together: bool,
    unsent: Tensor | None = None,
    metric: Metric | None = None,
) -> Evidence:
    """The evidence of a round: u and T u, and the answers p where they belong to the u beside them; or what the meeting
    lacks, as far as it could move T u."""
    u, Tu = step
    certifies = engine.facts.operator.certifies
    if together:
        alone = no_spread if certifies == "u" else spread
        return Evidence(eta, step, None if p is None else (u, p), None, alone, error, certifies, meeting)
    moved = Tu - u if metric is None else metric.coordinates(Tu - u)
    if unsent is not None:
        lacking = unsent if metric is None else metric.coordinates(unsent)
        return Evidence(eta, step, None, engine.gram(torch.stack([moved, lacking])), meeting=meeting, lags=True)
    if p is None:
        return Evidence(eta, step, None, engine.gram(moved.unsqueeze(0)), meeting=meeting)
    means = engine.mean(u), engine.mean(p)
    apart = u - means[0] if certifies == "u" else p - means[1]
    squares = engine.gram(torch.stack([moved, apart]))
    return Evidence(eta, step, means, squares, None, error, certifies, meeting, metric)


def no_spread(u: Tensor) -> Tensor:
    """Of users who share the certified point."""
    return u.new_zeros(len(u))


def certificates(evidence: Sequence[Evidence | None]) -> list[Certificates]:
    """One per round; None is a round in which nothing happened."""
    found: list[Certificates] = []
    for _, group in groupby(evidence, key=_alike):
        block = [e for e in group if e is not None]
        found += _certify(block) if block else [UNKNOWN]
    return found


def _alike(e: Evidence | None) -> tuple[object, ...]:
    """What must agree for rounds to be read together. Rounds without evidence stand alone."""
    if e is None:
        return (object(),)
    shape = None if e.squares is None else e.squares.shape
    return e.pull is None, shape, e.spread, e.error is None, e.certifies, e.metric, e.meeting is None, e.lags


def _certify(block: list[Evidence]) -> list[Certificates]:
    first, eta = block[0], torch.tensor([e.eta for e in block], dtype=torch.float64)
    squares = [e.squares for e in block if e.squares is not None]
    if not squares:
        u, Tu = (torch.cat(part) for part in zip(*(e.step for e in block), strict=True))
        residual = torch.linalg.vector_norm(Tu - u, dim=1)
        apart = u.new_full((len(u),), torch.nan) if first.spread is None else first.spread(u).sqrt()
    else:
        roots = torch.stack(squares).diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        residual, apart = roots.sum(1) if first.lags else roots[:, 0], roots[:, -1]
    pulls = [e.pull for e in block if e.pull is not None]
    if pulls:
        mean_u, mean_p = (torch.cat(part) for part in zip(*pulls, strict=True))
        most = torch.maximum(*(torch.linalg.vector_norm(mean, dim=1) for mean in (mean_u, mean_p)))
        numbers = torch.finfo(most.dtype)
        rounding = ROUNDING * numbers.eps * torch.hypot(most, apart)  # hypot: the norm of all rows
        rounding = rounding + math.sqrt(mean_u.shape[1] * numbers.tiny)  # what a norm loses of numbers without squares
        moved = mean_u - mean_p
        if first.metric is not None:  # row by row, so that their bits do not depend on the rounds read together
            moved = torch.cat([first.metric.times(row) for row in moved.split(1)])
        meetings = [e.meeting for e in block if e.meeting is not None]
        if meetings:
            at = mean_u if first.certifies == "u" else mean_p
            moved, apart, rounding = _with_penalty(meetings, eta.to(moved), moved, at, apart, rounding)
        pull = torch.linalg.vector_norm(moved, dim=1) + rounding
    else:
        pull = apart = torch.full_like(residual, torch.nan)
    errors = [e.error for e in block if e.error is not None]
    if errors:
        pull = pull + torch.stack(errors)
    table = torch.stack([residual.cpu().double(), pull.cpu() / eta, apart.cpu().double()], 1)
    return [Certificates(*row) for row in table.tolist()]


def _with_penalty(
    meetings: list[Met], eta: Tensor, moved: Tensor, at: Tensor, apart: Tensor, rounding: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the subgradient n of g adds: eta n to the pull, the way from the certified points to W, and its rounding."""
    W = torch.cat([meeting.w for meeting in meetings])
    n = torch.cat([meeting.normal for meeting in meetings if meeting.normal is not None])
    s = eta.new_tensor([meeting.step for meeting in meetings])
    size = torch.linalg.vector_norm(W, dim=1) + s * torch.linalg.vector_norm(n, dim=1)
    apart = torch.hypot(apart, torch.linalg.vector_norm(at - W, dim=1))
    blur = ROUNDING * torch.finfo(moved.dtype).eps * size * eta / s
    return moved + eta.unsqueeze(1) * n, apart, rounding + blur
