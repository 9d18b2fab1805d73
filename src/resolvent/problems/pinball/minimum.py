"""The minimum of a sum of tilted absolute values of residuals, with or without a ridge, by the duality gap.

F(w) = sum_j s_j(b_j - a_j . w) + kappa/2 |w|^2 with s_j(r) = max(high_j r, low_j r). For any multipliers y in their
bounds, and any minimiser x,

    F(w) - F* <= sum_j (s_j(r_j) - y_j r_j) + (A^T y - kappa w) . (w - x) - kappa/2 |w - x|^2.

With a ridge the last two terms are |A^T y - kappa w|^2 / (2 kappa) at most. Without one A^T y = 0 up to rounding. What
is left of it is A^T M rho, with M the lesser slopes min(high_j, -low_j): it gains at most 2 F(w) max_j |rho_j|, since
sum_j M_j |a_j . (w - x)| <= F(w) + F(x).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from resolvent.problems.compensated import predictors
from resolvent.problems.pinball.prox import Pinball, prox
from resolvent.problems.reference.door import Candidate, Unknown, Value
from resolvent.problems.reference.objective import EPS, Floats

ZEROS = (1e-15, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5)
"""Residuals of rows of length one, relative to the largest target, up to which a row may be one of those that fix w.
The best of these choices counts."""
REFINEMENTS = 2
"""Of points and multipliers, with residuals as if in twice the precision."""


@dataclass(frozen=True, eq=False)
class PinballPool:
    """Rows, targets and slopes, and kappa of each coordinate: all of them positive, or none."""

    rows: Pinball
    kappa: Floats

    def candidates(self) -> Iterator[Candidate | Unknown]:
        if self.kappa.all():
            yield self._by_prox()
            yield Unknown(
                "no minimiser could be certified: features of very different scales leave round-off too large"
            )
        elif self.kappa.any():
            yield Unknown("no minimum of absolute values is sought where reg leaves an intercept alone")
        else:
            yield from self._by_linear_program()

    def values(self, w: Floats) -> Iterator[Value]:
        """With residuals as if in twice the precision."""
        rows, steep = self.rows, np.maximum(self.rows.high, -self.rows.low)
        terms = steep * (np.abs(rows.b) + np.abs(rows.A) @ np.abs(w))
        r, size = -predictors(rows.A, w, -rows.b), float(terms.sum())
        value = rows.total(r) + float((self.kappa * w) @ w) / 2
        yield Value(value, 4 * EPS * (value + len(w) * EPS * size), size)

    def _by_prox(self) -> Candidate:
        """The minimiser is the prox of the sum at 0, in coordinates sqrt(kappa) w."""
        root = np.sqrt(self.kappa)
        rows = self.rows
        solution = prox(Pinball(rows.A / root, rows.b, rows.low, rows.high), np.zeros(len(root)))
        return Candidate(solution.x / root, solution.excess)

    def _by_linear_program(self) -> Iterator[Candidate | Unknown]:
        try:
            points = _vertices(self.rows)
        except ImportError:
            yield Unknown("the minimum of a sum of absolute values takes a linear program, and SciPy is not installed")
            return
        for w in sorted(points, key=lambda w: next(self.values(w)).value):
            yield Candidate(w, self._excess(w))
        yield Unknown("no minimiser could be certified: the linear program was not solved to enough digits")

    def _excess(self, w: Floats) -> float:
        """The duality gap of w, with the multipliers that suit it best."""
        rows = self.rows
        r = -predictors(rows.A, w, -rows.b)
        columns = np.linalg.norm(rows.A, axis=0)
        columns[columns == 0] = 1.0
        M = (np.minimum(rows.high, -rows.low)[:, None] * rows.A / columns).T
        inverse, bounds = np.linalg.pinv(M), []
        for zero in ZEROS:
            y = _multipliers(rows, r, columns, zero)
            slack = np.maximum(rows.high * r, rows.low * r) - y * r
            left = predictors(rows.A.T, y, np.zeros(len(w))) / columns
            rho = inverse @ left
            missed = np.abs(M @ rho - left) + len(r) * EPS * (
                EPS * np.abs(rows.A).T @ np.abs(y) / columns + np.abs(left)
            )
            gained = np.abs(rho).max(initial=0) + (np.abs(inverse) @ missed).max(initial=0)
            bounds.append(float(slack.clip(min=0).sum()) * (1 + 8 * EPS) + 2 * rows.total(r) * float(gained))
        return min(bounds)


def _vertices(rows: Pinball) -> list[Floats]:
    """Points that a linear program gives, with rows of length one and slopes in proportion. Its dual is small,

        max b . y   subject to   A^T y = 0,  low <= y <= high,

    and the multipliers of its d equations are w. Where y_j is strictly inside its bounds the residual is zero, so that
    these equations make w exact: HiGHS alone stops near 1e-10.
    """
    from scipy.optimize import linprog

    size = np.linalg.norm(rows.A, axis=1)
    used = np.maximum(rows.high, -rows.low) * size > 0
    if not used.any():
        return [np.zeros(rows.A.shape[1])]
    A, b = rows.A[used] / size[used, None], rows.b[used] / size[used]
    low, high = (rows.low * size)[used], (rows.high * size)[used]
    # The tolerances of HiGHS are absolute, so let everything be of size one: columns, targets and costs.
    columns = np.linalg.norm(A, axis=0)
    columns[columns == 0] = 1.0
    unit = np.abs(b).max() or 1.0
    most = np.maximum(high, -low).max()
    A, b, low, high = A / columns, b / unit, low / most, high / most
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    bounds, zero = np.stack([low, high], axis=1), np.zeros(A.shape[1])
    solution = linprog(-b, A_eq=A.T, b_eq=zero, bounds=bounds, method="highs", options=tight)
    if solution.status != 0:
        return []
    w = -solution.eqlin.marginals
    inside = 1e-8 * (high - low) / 2
    exact = (solution.x > low + inside) & (solution.x < high - inside)
    polished = w
    for _ in range(1 + REFINEMENTS):
        polished = polished - np.linalg.lstsq(A[exact], predictors(A[exact], polished, -b[exact]), rcond=None)[0]
    return [unit / columns * v for v in (polished, w)]


def _multipliers(rows: Pinball, r: Floats, columns: Floats, zero: float) -> Floats:
    """y in its bounds with A^T y = 0 as nearly as possible: at a bound where a residual has a sign, else free."""
    from scipy.optimize import lsq_linear

    size = np.linalg.norm(rows.A, axis=1)
    size[size == 0] = 1.0
    y = np.where(r > 0, rows.high, rows.low)
    free = (np.abs(r) <= zero * size * np.abs(rows.b / size).max()) & (rows.high > rows.low)
    if not free.any():
        return y
    E, right = (rows.A[free] / columns).T, -(rows.A[~free].T @ y[~free]) / columns
    y[free] = np.linalg.lstsq(E, right, rcond=None)[0]
    if (y < rows.low).any() or (y > rows.high).any():
        y[free] = lsq_linear(E, right, (rows.low[free], rows.high[free]), "bvls").x
    y = rows.clip(y)
    for _ in range(REFINEMENTS):
        some = free & (y > rows.low) & (y < rows.high)
        if some.any():
            left = predictors(rows.A.T, y, np.zeros(len(columns))) / columns
            y[some] -= np.linalg.lstsq((rows.A[some] / columns).T, left, rcond=None)[0]
            y = rows.clip(y)
    return y
