"""How far coefficients are from the minimiser, and Newton's steps that bring them there.

A small gradient says little where columns nearly depend on each other: the error is H^+ gradient, and H^+ may be as
large as the square of the rows' condition number. Users report sums: their gradient, and the triangular root of their
Hessian, R_i^T R_i = H_i, by QR of their rows, which never squares the condition number. Roots are merged by QR too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.sklearn.users import Units, blocks, pieces

Floats = NDArray[np.float64]
RowLoss = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""From scores (n, K) and targets (n,): slopes (n, K), and roots M (n, K, K) of the Hessians M^T M by the scores."""

EPS = float(np.finfo(np.float64).eps)
BLOCK_NUMBERS = 1 << 22
"""That are made of a user's rows at a time."""
MAX_ROOT_NUMBERS = 1 << 24
"""In the largest root; for more parameters only the gradient is tested."""
MAX_STEPS = 50
"""Each but the last ones halves the error or lets go of a coefficient."""


def square(t: Floats, b: Floats) -> tuple[Floats, Floats]:
    return t - b[:, None], np.ones((len(b), 1, 1))


def logistic(t: Floats, b: Floats) -> tuple[Floats, Floats]:
    from scipy.special import expit

    return -b[:, None] * expit(-b[:, None] * t), np.sqrt(expit(t) * expit(-t))[:, :, None]


def poisson(t: Floats, b: Floats) -> tuple[Floats, Floats]:
    mean = np.exp(t)
    return mean - b[:, None], np.sqrt(mean)[:, :, None]


def softmax(t: Floats, b: Floats) -> tuple[Floats, Floats]:
    from scipy.special import softmax as shares

    p = shares(t, axis=1)
    root = np.sqrt(p)
    slope = p.copy()
    slope[np.arange(len(b)), b.astype(int)] -= 1
    return slope, root[:, :, None] * np.eye(t.shape[1]) - root[:, :, None] * p[:, None, :]


@dataclass(frozen=True, eq=False)
class Pooled:
    """The sum of users' losses as a function of a model w: coefficients class by class, then intercepts.

    parts: users' rows, dense or sparse, which are measured in `units`. l1, l2: of each parameter, 0 for intercepts.
    weight: of each row's loss.
    """

    parts: list[Any]
    b: list[Floats]
    weight: list[Floats]
    units: Units
    loss: RowLoss
    scores: int
    intercept: bool
    l1: Floats
    l2: Floats

    @property
    def dim(self) -> int:
        return len(self.l1)

    def at(self, w: Floats) -> Report:
        """The reports of all users, merged."""
        total = Report.nothing(self.dim)
        for rows, b, weight in self._blocks():
            total = total + self._report(rows, b, weight, w)
        penalised = self.l2 > 0
        ridge = np.sqrt(self.l2[penalised])[:, None] * np.eye(self.dim)[penalised]
        return replace(total, gradient=total.gradient + self.l2 * w, root=_triangle(total.root, ridge))

    def _blocks(self) -> Iterator[tuple[Floats, Floats, Floats]]:
        size = max(1, BLOCK_NUMBERS // (self.dim * self.scores))
        each = zip(blocks(self.parts, size), pieces(self.b, size), pieces(self.weight, size), strict=True)
        for rows, b, weight in each:
            yield np.hstack([self.units.apply(rows), np.ones((len(rows), int(self.intercept)))]), b, weight

    def _report(self, rows: Floats, b: Floats, weight: Floats, w: Floats) -> Report:
        M = self.by_score(w)
        slope, root = self.loss(rows @ M.T, b)
        slope, root = weight[:, None] * slope, np.sqrt(weight)[:, None, None] * root
        reach = np.einsum("nkl,nl->nk", np.abs(root), np.abs(rows) @ np.abs(M.T))
        J = self.flat(np.einsum("nkl,nj->nklj", root, rows).reshape(-1, *M.shape))
        return Report(
            self.flat(slope.T @ rows), _triangle(J), self.flat((slope**2).T @ rows**2), float((reach**2).sum()), len(b)
        )

    def by_score(self, w: Floats) -> Floats:
        """(scores, features), with the intercept as the coefficient of a last feature, which is 1."""
        coefficients = w[: len(w) - self.scores * self.intercept].reshape(self.scores, -1)
        return np.hstack([coefficients, w[coefficients.size :].reshape(self.scores, int(self.intercept))])

    def flat(self, M: Floats) -> Floats:
        """The vector of such a matrix, or of each one of several."""
        d = M.shape[-1] - self.intercept
        parts = [part.reshape(*M.shape[:-2], -1) for part in (M[..., :d], M[..., d:])]
        return np.concatenate(parts, -1)


@dataclass(frozen=True, eq=False)
class Report:
    """gradient: of the smooth part. root: R with R^T R the Hessian. noise: sums of squares of the terms of each entry
    of the gradient; reach: of the sizes of the terms of a row's scores, in units of `root`; their rounding errors are
    proportional to these. rows: how many."""

    gradient: Floats
    root: Floats
    noise: Floats
    reach: float
    rows: int

    @classmethod
    def nothing(cls, dim: int) -> Report:
        return cls(np.zeros(dim), np.zeros((0, dim)), np.zeros(dim), 0.0, 0)

    def __add__(self, other: Report) -> Report:
        return Report(
            self.gradient + other.gradient,
            _triangle(self.root, other.root),
            self.noise + other.noise,
            self.reach + other.reach,
            self.rows + other.rows,
        )


def _triangle(*blocks: Floats) -> Floats:
    """R with R^T R = sum_k B_k^T B_k, of at most as many rows as columns."""
    from scipy.linalg import qr

    rows = np.vstack(blocks)
    return rows if len(rows) <= rows.shape[1] else np.asarray(qr(rows, mode="r")[0])[: rows.shape[1]]


@dataclass(frozen=True, eq=False)
class Step:
    """Newton's step on the parameters that are free to move. rounding: how far such steps are off by rounding errors,
    about. nullspace: (k, dim), directions in which the objective does not change."""

    step: Floats
    rounding: float
    nullspace: Floats


def newton(report: Report, gradient: Floats, free: NDArray[np.bool_]) -> Step:
    """-H^+ gradient, by the singular values of the root, whose columns are scaled to length one."""
    R = report.root[:, free]
    size = np.linalg.norm(R, axis=0)
    size = np.where(size > 0, size, 1.0)
    _, s, V = np.linalg.svd(R / size, full_matrices=True)
    s = np.append(s, np.zeros(len(V) - len(s)))
    real = s > EPS * max(report.rows, len(V)) * s.max(initial=0.0)
    V, s, null = V[real], s[real], V[~real]
    step, nullspace = np.zeros(len(free)), np.zeros((len(null), len(free)))
    step[free] = -(V.T @ ((V @ (gradient[free] / size)) / s**2)) / size
    nullspace[:, free] = null / size
    slopes = np.sqrt((report.noise[free] / size**2).max(initial=0.0))
    scores = np.sqrt(report.reach / max(report.rows, 1))
    rounding = EPS * np.linalg.norm(np.linalg.norm(V / size, axis=1) * (slopes / s**2 + scores / s))
    return Step(step, float(rounding), nullspace)


@dataclass(frozen=True, eq=False)
class Corrected:
    """A model, how far it is from the minimiser and from the optimality condition, and the nullspace there."""

    w: Floats
    error: float
    violation: float
    nullspace: Floats


def corrected(pooled: Pooled, w: Floats, allowed: Callable[[Floats], float]) -> Corrected:
    """The model that Newton's steps from w lead to; w itself if its error is at most `allowed(w)`.

    With an l1 penalty a step moves what is not zero, and what the gradient pulls away from zero. A coefficient that
    would change its sign stops at zero.
    """
    before: tuple[Corrected, bytes] | None = None
    for _ in range(MAX_STEPS):
        report = pooled.at(w)
        newton_step, gradient, free = _step(pooled, report, w)
        error = float(np.linalg.norm(newton_step.step)) + newton_step.rounding
        now = Corrected(w, error, float(np.linalg.norm(gradient)), newton_step.nullspace)
        if error <= max(allowed(w), 2 * newton_step.rounding):
            return now
        crossing = (pooled.l1 > 0) & ((w + newton_step.step) * w < 0)
        if crossing.any():
            w = _first_crossing(w, newton_step.step, crossing)
            continue
        if before is not None and before[1] == free.tobytes() and not error <= before[0].error / 2:
            return min(before[0], now, key=lambda each: each.error)
        before, w = (now, free.tobytes()), w + newton_step.step
    return now


def _step(pooled: Pooled, report: Report, w: Floats) -> tuple[Step, Floats, NDArray[np.bool_]]:
    """The step, the gradient that violates the optimality condition, and what moves.

    Of the coefficients that are pulled away from zero all move, or the one that is pulled most, or none, so that each
    moves to the side to which it is pulled.
    """
    zero = (w == 0) & (pooled.l1 > 0)
    excess = np.where(zero, np.abs(report.gradient) - pooled.l1, 0.0)
    pulled = excess > 0
    side = np.where(zero, -np.sign(report.gradient), np.sign(w))
    gradient = np.where(zero & ~pulled, 0.0, report.gradient + pooled.l1 * side)
    for entering in (pulled, pulled & (excess == excess.max(initial=0.0)), np.zeros_like(pulled)):
        free = ~zero | entering
        newton_step = newton(report, gradient, free)
        if not (newton_step.step * side < 0)[entering].any():
            break
    return newton_step, gradient, free


def _first_crossing(w: Floats, step: Floats, crossing: NDArray[np.bool_]) -> Floats:
    """w on its way along the step, where the first coefficient becomes zero."""
    share = np.where(crossing, np.abs(w) / np.where(crossing, np.abs(step), 1.0), np.inf)
    first = share.min()
    return np.where(share == first, 0.0, w + first * step)


def least_norm(w: Floats, nullspace: Floats, scale: Floats) -> Floats:
    """Of the models that differ by the nullspace, the one whose coefficients in the units of X are smallest.

    scale: what divides each coefficient to bring it into these units; intercepts have none.
    """
    noise = 1e3 * EPS * np.abs(nullspace).max(1, keepdims=True)  # which columns of tiny scale would make large
    nullspace = np.where(np.abs(nullspace) > noise, nullspace, 0.0)
    raw = nullspace[:, : len(scale)] / scale
    length = np.linalg.norm(raw, axis=1, keepdims=True)
    length[length == 0] = 1.0  # of an intercept alone
    share = np.linalg.lstsq((raw / length).T, w[: len(scale)] / scale, rcond=None)[0]
    return np.asarray(w - share @ (nullspace / length))
