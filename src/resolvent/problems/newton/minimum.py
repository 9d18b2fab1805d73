"""The minimum of a weighted sum of losses over all rows of all users: certified, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from resolvent.problems.compensated import predictors
from resolvent.problems.newton.certificate import Certified, Iterate, certificate
from resolvent.problems.newton.certified import minimise
from resolvent.problems.newton.objective import EPS, Floats, Objective, WeightedLoss
from resolvent.problems.room import gib, room

SURE = 1e-10
"""f(w) - f* relative to |f(w)| beyond which w is no minimiser."""
UNCLEAR = 1e3
"""Singular values up to this many times the cutoff of the rank are neither zero nor not."""
REFINED = 3
"""Newton steps from a minimiser in coordinates along singular vectors, at most, where these were not precise enough."""

ROUND_OFF = (
    "no minimiser could be certified: features of very different scales, or a tiny reg, leave round-off too large"
)


@dataclass(frozen=True, eq=False)
class Minimum:
    """A minimiser w and the value there, or why they are not known.

    `sharp` is f up to a constant, where only its `sharp_value` has as many digits as the certificate of w; `excess`
    bounds f(w) - f*.
    """

    w: Floats | None
    value: float | None
    why: str | None = None
    sharp: Objective | None = None
    excess: float = 0.0

    @staticmethod
    def unknown(why: str) -> Minimum:
        return Minimum(None, None, why)


@dataclass(frozen=True, eq=False)
class StackedRows:
    """All users' rows C (n, d), with their targets and weights (n,), and the loss that these have."""

    C: Floats
    target: Floats
    weight: Floats
    loss: Callable[[Floats, Floats], WeightedLoss]

    def objective(self, ridge: float | Floats, C: Floats | None = None, rotated: bool = False) -> Objective:
        """Of these rows, or of these losses over other rows."""
        loss = self.loss(self.target, self.weight)
        return Objective(self.C if C is None else C, np.zeros(len(self.C)), loss, ridge, rotated)

    def take(self, some: Any) -> StackedRows:
        return replace(self, C=self.C[some], target=self.target[some], weight=self.weight[some])


def minimum(
    users: Sequence[tuple[Any, Any]],
    weights: Sequence[float],
    loss: Callable[[Floats, Floats], WeightedLoss],
    ridge: float | Floats,
) -> Minimum:
    """Of sum_i weights_i sum_j phi(a_ij . w) + ridge/2 |w|^2, given each user's rows (n_i, d) and targets (n_i,), and
    the loss phi as a function of targets and weights. `ridge` is a number, or one per coordinate."""
    n, d = sum(len(A) for A, _ in users), users[0][0].shape[1]
    needed = 8 * (3 * n * d + 3 * min(n, d) ** 2)
    if needed > room():
        return Minimum.unknown(f"finding the minimum takes {gib(needed)}, and this machine has {gib(room())}")
    rows = stacked(users, weights, loss)
    return _without_ridge(rows) if not np.any(ridge) else _with_ridge(rows.objective(ridge))


def stacked(
    users: Sequence[tuple[Any, Any]], weights: Sequence[float], loss: Callable[[Floats, Floats], WeightedLoss]
) -> StackedRows:
    """All users' rows, one below the other, in float64."""
    C, target = (np.concatenate(parts).astype(np.float64, copy=False) for parts in zip(*users, strict=True))
    return StackedRows(C, target, np.repeat(weights, [len(A) for A, _ in users]), loss)


def _with_ridge(objective: Objective) -> Minimum:
    return _accepted(objective, minimise(objective, np.zeros(objective.C.shape[1])))


def _without_ridge(rows: StackedRows) -> Minimum:
    """In coordinates along the singular vectors of the rows, scaled to length one beforehand: scales of rows and of
    features do not decide what is zero."""
    lengths = np.linalg.norm(rows.C, axis=1)
    if not lengths.all():  # the loss of a row of zeros is a constant
        some = lengths > 0
        constant = rows.take(~some).objective(0.0).value(np.zeros(rows.C.shape[1]))
        return _plus(_without_ridge(rows.take(some)), constant)
    if not len(lengths):
        return Minimum(np.zeros(rows.C.shape[1]), 0.0)
    scaled = rows.C / lengths[:, None]
    columns = np.linalg.norm(scaled, axis=0)
    columns[columns == 0] = 1.0
    U, S, Vt = np.linalg.svd(scaled / columns, full_matrices=False)
    cutoff = max(scaled.shape) * EPS * S.max(initial=0)
    rank = int(np.count_nonzero(cutoff < S))
    if rank and S[rank - 1] <= UNCLEAR * cutoff:
        return Minimum.unknown("the features are so nearly dependent that round-off hides whether there is a minimiser")
    inside = rows.objective(0.0, lengths[:, None] * U[:, :rank], rotated=True)
    found = minimise(inside, np.zeros(rank))
    if np.isfinite(found.error):
        w = (Vt[:rank].T @ (found.z / S[:rank])) / columns
        return _refined(rows, inside, (Vt[:rank] / S[:rank, None] / columns).T, w)
    why = inside.loss.why_no_minimum(scaled)
    return Minimum.unknown(why or "no minimiser could be certified: there may be none, since reg is 0")


@dataclass(frozen=True, eq=False)
class Around(Objective):
    """F(w + basis z) of these rows, with C the rows in the basis. Singular vectors of small singular values are less
    precise than the rows are, so that predictors at z = 0 and the gradient there come from the rows themselves."""

    rows: StackedRows = field(kw_only=True)
    basis: Floats = field(kw_only=True)

    def gradient(self, z: Floats, slope: Floats) -> Floats:
        return np.asarray(self.basis.T @ predictors(self.rows.C.T, slope, np.zeros(len(self.basis))))


def _refined(rows: StackedRows, inside: Objective, basis: Floats, w: Floats) -> Minimum:
    """The minimum near w, certified as it is: after a few Newton steps where w itself is not good enough."""
    objective = rows.objective(0.0)
    for _ in range(REFINED):
        own = Around(inside.C, objective.sharp_predictors(w), inside.loss, 0.0, True, rows=rows, basis=basis)
        here = Iterate.at(own, np.zeros(basis.shape[1]))
        if here is None:
            break
        least = _accepted(objective, replace(certificate(own, here), z=w))
        if least.w is not None:
            return least
        w = w - basis @ here.h
    return Minimum.unknown(ROUND_OFF)


def _plus(least: Minimum, constant: float) -> Minimum:
    return replace(least, value=None if least.value is None else least.value + constant)


def _accepted(objective: Objective, found: Certified) -> Minimum:
    """The minimum, where what is certified is enough.

    The value may round by more than what is certified: where rows are long and nearly cancel in c . z, a unit in the
    last place of a predictor is a lot. Then it is computed with more digits.
    """
    z = found.z
    if np.isfinite(found.excess):
        t, units = objective.predictors(z), EPS * objective.predictor_sizes(z)
        excess, rounding = _excess(objective, found, t, units), (4 + np.sqrt(len(z))) * units
        value = objective.value(z)
        if excess + objective.value_rounding(z, t, rounding) <= SURE * abs(value):
            return Minimum(z, value, excess=excess)
        t, value = objective.sharp_predictors(z), objective.sharp_value(z)
        if excess + objective.value_rounding(z, t, len(z) * EPS * units) <= SURE * abs(value):
            return Minimum(z, value, sharp=objective, excess=excess)
    return Minimum.unknown(ROUND_OFF)


def _excess(objective: Objective, found: Certified, t: Floats, units: Floats) -> float:
    """A bound on F(z) - F* of z as it is, rounded after its certificate: its predictors have moved by units in the last
    place, by s in the norm of the Hessian, so that F rises to (sqrt(excess) + s)^2 at most."""
    loss = objective.loss
    curvature = loss.largest_curvature if loss.curvature_rate is None else loss.derivatives(t)[1]
    return float((np.sqrt(found.excess) + np.linalg.norm(np.sqrt(curvature) * units)) ** 2)
