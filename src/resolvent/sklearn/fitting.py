"""Fits a linear model by a federated algorithm until the optimality condition holds, and corrects its error."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight

from resolvent.errors import BadAnswer, ResolventWarning, quoted, refuse, whole
from resolvent.iteration.penalties import ElasticNet, Penalty, penalty_of
from resolvent.iteration.round import Round
from resolvent.iteration.table import TABLE
from resolvent.sklearn.correction import BLOCK_NUMBERS, MAX_ROOT_NUMBERS, Pooled, RowLoss, corrected, least_norm
from resolvent.sklearn.users import Units, blocks, dense_units, pieces, rows_by_user, units
from resolvent.solving.run import Run
from resolvent.solving.solve import solve

Floats = NDArray[np.float64]

ERROR_PER_TOL = 0.3
"""Coefficients that may be off by more than this multiple of tol, relative to their size in units in which columns have
size one, are corrected."""
WARNING_PER_TOL = 100
"""Those that may still be off by more than this multiple are pointed out."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Coefficients (scores, d) and intercepts (scores,) in the units of X, and how they were found."""

    coefficients: Floats
    intercepts: Floats
    rounds: int
    optimality: float
    users: list[Any]


@dataclass(frozen=True, eq=False)
class Objective:
    """sum over rows of a loss + l1 |w|_1 + l2/2 |w|^2, intercepts left alone.

    build: makes the problem from users' rows. loss: of a row. scores: per row. start: of the intercepts. size: of a
    typical residual. reach: of a typical score.
    """

    build: Callable[..., Any]
    loss: RowLoss
    l1: float
    l2: float
    scores: int = 1
    start: float = 0.0
    size: float = 1.0
    reach: float = 1.0


def fitted(estimator: Any, X: Any, b: Floats, weight: Floats, users: Any, objective: Objective) -> Fitted:
    """Solve the objective over users' rows by the estimator's algorithm, to its tolerance. weight: of each row's loss;
    rows of weight 0 are left out."""
    rows, names = rows_by_user(users, X.shape[0])
    scheme = _algorithm(estimator)
    rows = [own[weight[own] > 0] for own in rows]
    names, rows = [name for name, own in zip(names, rows, strict=True) if len(own)], [own for own in rows if len(own)]
    parts, targets, weights = ([of[own] for own in rows] for of in (X, b, weight))
    measured = units(parts, weights, estimator.fit_intercept)
    problem = objective.build(
        [measured.apply(part) for part in parts],
        targets,
        intercept=estimator.fit_intercept,
        penalty=_penalty(objective, measured, len(parts)),
        sample_weight=None if (weight == 1).all() else weights,
    )
    problem.gap = lambda W: None  # it would be against a minimum over all users' rows, pooled
    condition = Condition(problem, len(parts) / (weight.sum() * objective.size), _tolerance(estimator))
    run = _run(estimator, problem, scheme, condition, objective)
    w, violation = np.asarray(run.model.numpy(), np.float64), condition.at(run.state.w)
    if violation <= condition.tol:
        w, violation, measured = _corrected(estimator, parts, targets, weights, objective, measured, w, violation)
    else:
        what = f"after {run.state.round} rounds the optimality condition is violated by {violation:.2g}, more than tol"
        what += f" = {condition.tol:g}" + ("; the run diverged" if run.status == "diverged" else "")
        advice = "scale the columns of X or give eta" if run.status == "failed" else "raise max_iter or tol"
        warnings.warn(f"{what}: {advice}", ConvergenceWarning, stacklevel=4)
    coefficients, intercepts = measured.back(*_split(w, objective.scores, len(measured.scale)))
    return Fitted(coefficients, intercepts, run.state.round, violation, names)


def _run(estimator: Any, problem: Any, scheme: Any, condition: Condition, objective: Objective) -> Run:
    """The run of the federated algorithm, until the condition holds."""
    start = np.zeros(problem.dim)
    if estimator.fit_intercept:
        start[problem.dim - objective.scores :] = objective.start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # the tolerance, which the caller checks, is what counts here
        try:
            return solve(
                problem, scheme, rounds=whole(estimator.max_iter, "max_iter"), anderson=estimator.anderson,
                start=start, stop=condition, every=estimator.max_iter, progress=False,
            )  # fmt: skip
        except BadAnswer as error:  # a prox that round-off hides: the last model is judged like any other end
            return error.run  # type: ignore[attr-defined, no-any-return]


def _corrected(
    estimator: Any,
    parts: list[Any],
    b: list[Floats],
    weight: list[Floats],
    objective: Objective,
    measured: Units,
    w: Floats,
    violation: float,
) -> tuple[Floats, float, Units]:
    """Coefficients whose error is as small as tol promises, how far they violate the optimality condition, and their
    units. Sparse rows are centred for it, a few at a time: a column may vary little."""
    n, d, scores, tol = sum(map(len, b)), len(measured.scale), objective.scores, _tolerance(estimator)
    if min(n * scores, len(w)) * len(w) > MAX_ROOT_NUMBERS:
        return w, violation, measured
    sparse, intercept = hasattr(parts[0], "tocsr"), bool(estimator.fit_intercept)
    fine, size = measured, max(1, BLOCK_NUMBERS // d)
    if sparse:
        fine = dense_units(blocks(parts, size), pieces(weight, size), intercept)
    scale, none = np.tile(fine.scale, scores), np.zeros(scores * intercept)
    l1, l2 = np.append(objective.l1 / scale, none), np.append(objective.l2 / scale**2, none)
    start = w
    if sparse:
        own, shift = fine.forth(*measured.back(*_split(w, scores, d)))
        start = np.append(own, shift[: len(none)])

    def allowed(w: Floats) -> float:
        return ERROR_PER_TOL * tol * max(objective.reach, float(np.linalg.norm(w)))

    pooled = Pooled(parts, b, weight, fine, objective.loss, scores, intercept, l1, l2)
    end, unit = corrected(pooled, start, allowed), sum(map(np.sum, weight)) * objective.size
    error, smallest = end.error, None
    if len(end.nullspace) and not objective.l1 and not objective.l2:
        smallest = least_norm(end.w, end.nullspace, scale)
        if not np.linalg.norm(pooled.at(smallest).gradient) <= max(tol * unit, 2 * end.violation):
            error, smallest = math.inf, None  # flat at the model alone, on its way to infinity
    if not error <= allowed(end.w) * WARNING_PER_TOL / ERROR_PER_TOL:
        why = "columns that nearly depend on each other, or classes that a plane separates, leave them open"
        what = f"the coefficients, in units in which columns have size one, may be off by {error:.2g}, more than"
        what += f" {WARNING_PER_TOL} tol of their size: {why}; add a penalty, drop columns, or raise tol"
        warnings.warn(what, ConvergenceWarning, stacklevel=5)
    if smallest is not None:
        return smallest, violation, fine
    return (w, violation, measured) if end.w is start else (end.w, end.violation / unit, fine)


class Condition:
    """|sum_i grad f_i(w) + subgradient of the penalty|, over rows and in units in which columns and residuals have
    size one: how far the model violates the optimality condition. One gradient of every user."""

    def __init__(self, problem: Any, unit: float, tol: float) -> None:
        self.problem, self.unit, self.tol = problem, unit, tol
        self.penalty: Penalty | None = penalty_of(problem)

    def at(self, w: Any) -> float:
        gradient = self.problem.weights.double() @ self.problem.grad(w).double()
        if self.penalty is None:
            return float(torch.linalg.vector_norm(gradient)) * self.unit
        return float(self.penalty.distance(w[0].double(), -gradient)) * self.unit

    def __call__(self, happened: Round) -> bool:
        return self.at(happened.model) <= self.tol


def _penalty(objective: Objective, measured: Units, users: int) -> ElasticNet | None:
    """The penalty in the units of the problem, whose f is the mean over users."""
    if not objective.l1 and not objective.l2:
        return None
    scale = np.tile(measured.scale, objective.scores)
    return ElasticNet(objective.l1 / scale / users, objective.l2 / scale**2 / users)


def _algorithm(estimator: Any) -> Any:
    name = str(estimator.algorithm).lower().replace("-", "_")
    exact = [key for key, row in TABLE.items() if row.exact]
    if name not in exact:
        why = "solves another problem" if name in TABLE else "is unknown"
        refuse("algorithm", quoted(estimator.algorithm), f"it {why}: one of {', '.join(exact)} is needed")
    return TABLE[name].scheme(estimator.eta)


def _tolerance(estimator: Any) -> float:
    tol = estimator.tol
    if isinstance(tol, bool) or not isinstance(tol, int | float) or not 0 < tol < math.inf:
        refuse("tol", quoted(tol), "a number > 0 is needed")
    return float(tol)


def strength(value: Any, name: str, infinite: bool = False) -> float:
    """A number >= 0, of any number type."""
    plain = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not plain or not (0 <= value < math.inf or (infinite and value == math.inf)):
        refuse(name, quoted(value), "a finite number >= 0 is needed" if not infinite else "a number > 0 is needed")
    return float(value)


def weights_of(sample_weight: Any, X: Any) -> Floats:
    """One per row, numbers >= 0; 1 where none are given."""
    weight = np.asarray(_check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True))
    if not weight.sum() > 0:
        refuse("sample_weight", "0 for every row", "some row must count")
    return weight


def mixture(estimator: Any) -> tuple[float, float]:
    """The shares of |w|_1 and |w|^2/2 that the estimator's penalty asks for; both 0 without one."""
    shares = {None: (0.0, 0.0), "l2": (0.0, 1.0), "l1": (1.0, 0.0)}
    if estimator.penalty == "elasticnet":
        ratio = strength(estimator.l1_ratio, "l1_ratio")
        if ratio > 1:
            refuse("l1_ratio", ratio, "a number from 0 to 1 is needed")
        return ratio, 1 - ratio
    if estimator.penalty not in shares:
        refuse("penalty", quoted(estimator.penalty), "'l1', 'l2', 'elasticnet' or None is needed")
    return shares[estimator.penalty]


def _split(w: Floats, scores: int, d: int) -> tuple[Floats, Floats]:
    """Coefficients (scores, d) and intercepts (scores,), which are 0 in a model without them."""
    return w[: scores * d].reshape(scores, d), w[scores * d :] if len(w) > scores * d else np.zeros(scores)
