"""All users' rows as one pool: sum_j omega_j phi_j(c_j . w) + ridge/2 |w|^2 + g(w), for any smooth loss and penalty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from resolvent.problems.compensated import predictors
from resolvent.problems.reference import ball
from resolvent.problems.reference.barrier import approximate
from resolvent.problems.reference.bound import excess
from resolvent.problems.reference.curvature import Certified, Iterate, certificate
from resolvent.problems.reference.door import Candidate, Unknown, Value, too_large
from resolvent.problems.reference.faces import Face, descend
from resolvent.problems.reference.objective import EPS, Floats, Objective
from resolvent.problems.reference.smooth import minimise
from resolvent.problems.reference.terms import Terms

MAX_PENALISED_DIM = 2000
"""The most coordinates for which a minimum with a penalty is sought: some fifty factorisations of d^3/3 operations."""
MAX_DOUBTFUL = 1e3
"""Singular values up to this many times the cutoff of the rank are neither zero nor not."""
MAX_REFINEMENTS = 3
"""Newton steps from a minimiser in coordinates along singular vectors, where these were not precise enough."""


@dataclass(frozen=True, eq=False)
class PooledRows:
    """The objective, a penalty (None: there is none), a lower bound on the losses, and a constant."""

    objective: Objective
    penalty: Terms | None = None
    least: float = -np.inf
    constant: float = 0.0

    @staticmethod
    def unaffordable(rows: int, dim: int, penalised: bool) -> Unknown | None:
        """Why so many rows of so many features are not pooled; None where they are."""
        if penalised and dim > MAX_PENALISED_DIM:
            message = f"the minimum with a penalty is sought for at most {MAX_PENALISED_DIM} coordinates, and there are"
            return Unknown(f"{message} {dim}")
        return too_large(8 * (4 * rows * dim + 6 * dim**2 if penalised else 3 * rows * dim + 3 * min(rows, dim) ** 2))

    def candidates(self) -> Iterator[Candidate | Unknown]:
        if self.penalty is None:
            return _with_ridge(self.objective) if np.any(self.objective.ridge) else _without_ridge(self.objective)
        return iter([self._in_ball() if self.penalty.centre is not None else self._separable(self.penalty)])

    def values(self, w: Floats) -> Iterator[Value]:
        """With plain predictors, and as if in twice the precision: where rows are long and nearly cancel in c . w, a
        unit in the last place of a predictor is a lot."""
        f, units = self.objective, EPS * self.objective.predictor_sizes(w)
        zero = np.zeros_like(w) if self.penalty is None else np.clip(0.0, self.penalty.low, self.penalty.high)
        size = 0.0 if self.penalty is None else abs(f.value(zero) + self.constant)  # losses alone: ten digits, or none
        for sharp in (False, True):
            t = f.sharp_predictors(w) if sharp else f.predictors(w)
            rounding = f.value_rounding(w, t, len(w) * EPS * units if sharp else (4 + np.sqrt(len(w))) * units)
            yield Value(f.value(w, t) + self._norms(w) + self.constant, rounding, size, sharp)

    def _norms(self, w: Floats) -> float:
        return 0.0 if self.penalty is None else float(self.penalty.l1 @ np.abs(w) + self.penalty.l2 @ (w * w) / 2)

    # --- with a penalty -----------------------------------------------------------------------------------------------

    def _separable(self, g: Terms) -> Candidate:
        """In coordinates that give columns a length of about one; those that bounds fix are put in first."""
        f, pinned = self.objective, g.low == g.high
        ridge, fixed, some = np.broadcast_to(f.ridge, g.l1.shape) + g.l2, np.where(pinned, g.low, 0.0), ~pinned
        size = _lengths(f, fixed, ridge)
        part = replace(
            f,
            C=np.ascontiguousarray(f.C[:, some] / size[some]),
            offset=f.offset + f.C @ fixed,
            ridge=ridge[some] / size[some] ** 2,
        )
        own = g.take(some).scaled(size[some])
        if g.a is not None:
            own = replace(own, total=g.total - float(g.a @ fixed))
        face = descend(part, own, approximate(part, own)) if some.any() else Face(fixed[:0], some[:0])
        x = np.where(np.abs(face.w) < 1e-250, 0.0, face.w)
        face = Face(x, face.moving & (x != 0) | face.moving & (own.l1 == 0))
        w = fixed.copy()
        w[some] = x / size[some]
        w = np.clip(w, g.low, g.high)
        slope = f.gradient(w, f.loss.slope(f.predictors(w))) + g.l2 * w
        s = np.zeros_like(w)
        s[some] = _subgradient(own, face, slope[some] / size[some]) * size[some]
        s[pinned] = -slope[pinned]
        return Candidate(w, excess(part, own, face, self.least), s)

    def _in_ball(self) -> Candidate:
        f, g = self.objective, self.penalty
        assert g is not None
        assert g.centre is not None
        ridge = np.broadcast_to(f.ridge, g.l1.shape)
        size = _lengths(f, g.centre, ridge)
        shifted = replace(
            f, C=f.C / size, offset=f.predictors(g.centre), ridge=ridge / size**2, tilt=ridge * g.centre / size
        )
        z, mu, excess = ball.minimise(shifted, g.members, g.radius, size)
        return Candidate(g.centre + z, excess, mu=mu)


def _subgradient(g: Terms, face: Face, v: Floats) -> Floats:
    """That of g at the minimiser which -grad f is, to rounding; with a fixed sum, beside the common slope."""
    if g.a is not None:
        some = face.moving & (g.a > 0)
        if some.any():
            v = v - g.a * float(np.mean(v[some] / g.a[some]))
    return np.asarray(np.where(face.moving, g.l1 * np.sign(face.w), g.nearest(face.w, -v)), np.float64)


def _lengths(objective: Objective, at: Floats, ridge: Floats) -> Floats:
    """Of the Hessian's columns at a point, to the nearest power of two, so that scaling by them is exact."""
    bend = replace(objective, ridge=ridge).bends(objective.loss.derivatives(objective.predictors(at))[1])
    return np.asarray(np.exp2(np.round(np.log2(np.where(bend > 0, np.sqrt(bend), 1.0)))), np.float64)


# --- without one ------------------------------------------------------------------------------------------------------


def _with_ridge(objective: Objective) -> Iterator[Candidate | Unknown]:
    yield _as_rounded(objective, minimise(objective, np.zeros(objective.C.shape[1])))


def _as_rounded(objective: Objective, certified: Certified) -> Candidate:
    """With a bound on F(z) - F* of z as it is, rounded after its certificate: its predictors have moved by units in the
    last place, by s in the norm of the Hessian, so that F rises to (sqrt(excess) + s)^2 at most."""
    loss, z = objective.loss, certified.z
    units = EPS * objective.predictor_sizes(z)
    smooth = loss.curvature_rate is not None
    curvature = loss.derivatives(objective.predictors(z))[1] if smooth else loss.largest_curvature
    return Candidate(z, float((np.sqrt(certified.excess) + np.linalg.norm(np.sqrt(curvature) * units)) ** 2))


def _without_ridge(objective: Objective) -> Iterator[Candidate | Unknown]:
    """In coordinates along the singular vectors of the rows, scaled to length one beforehand: scales of rows and of
    features do not decide what is zero."""
    lengths = np.linalg.norm(objective.C, axis=1)
    if not lengths.any():  # losses of rows of zeros are constants
        yield Candidate(np.zeros(objective.C.shape[1]), 0.0)
        return
    scaled = objective.C / np.where(lengths > 0, lengths, 1.0)[:, None]
    columns = np.linalg.norm(scaled, axis=0)
    columns[columns == 0] = 1.0
    U, S, Vt = np.linalg.svd(scaled / columns, full_matrices=False)
    cutoff = max(scaled.shape) * EPS * S.max(initial=0)
    rank = int(np.count_nonzero(cutoff < S))
    if S[rank - 1] <= MAX_DOUBTFUL * cutoff:
        yield Unknown("the features are so nearly dependent that round-off hides whether there is a minimiser")
        return
    inside = replace(objective, C=lengths[:, None] * U[:, :rank], ridge=0.0, rotated=True)
    solution = minimise(inside, np.zeros(rank))
    if np.isfinite(solution.error):
        w = (Vt[:rank].T @ (solution.z / S[:rank])) / columns
        yield from _refined(objective, inside, (Vt[:rank] / S[:rank, None] / columns).T, w)
    else:
        why = objective.loss.why_no_minimum(scaled)
        yield Unknown(why or "no minimiser could be certified: there may be none, since reg is 0")


@dataclass(frozen=True, eq=False)
class Around(Objective):
    """F(w + basis z) of these rows, with C the rows in the basis. Singular vectors of small singular values are less
    precise than the rows are, so that predictors at z = 0 and the gradient there come from the rows themselves."""

    rows: Floats = field(kw_only=True)
    basis: Floats = field(kw_only=True)

    def gradient(self, z: Floats, slope: Floats) -> Floats:
        return np.asarray(self.basis.T @ predictors(self.rows.T, slope, np.zeros(len(self.basis))))


def _refined(objective: Objective, inside: Objective, basis: Floats, w: Floats) -> Iterator[Candidate]:
    """w, and the points after one Newton step and after two, each certified as it is."""
    for _ in range(MAX_REFINEMENTS):
        own = Around(inside.C, objective.sharp_predictors(w), inside.loss, 0.0, True, rows=objective.C, basis=basis)
        here = Iterate.at(own, np.zeros(basis.shape[1]))
        if here is None:
            return
        yield _as_rounded(objective, replace(certificate(own, here), z=w))
        w = w - basis @ here.h
