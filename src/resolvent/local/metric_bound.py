"""The prox in a metric: the ordinary prox of f_i(C y) in the coordinates y of the metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.iteration.engine import Ask
from resolvent.iteration.facts import Memory
from resolvent.iteration.metric import Metric
from resolvent.local.bound import Bound, Plain
from resolvent.local.operators import NewtonProx
from resolvent.local.training import stepping
from resolvent.problems.newton.safeguard import SafeProx, prox_with_line_search
from resolvent.problems.products import rows_times
from resolvent.problems.quadratic.affine import Affine, Spectrum

METRIC = "metric"
"""The entry of a memory that says in which metric each user's other entries are, by the round it is of."""


ROUGH = 1e-4
"""Relative to 1 + |u| + |x|: the bound on rounding, a rough one where coordinates are stretched, up to which a prox is
taken. It enters the certificates."""


class Measured:
    """A problem in the coordinates of a metric."""

    def __init__(self, problem: Any, metric: Metric) -> None:
        self.problem, self.metric = problem, metric
        self.users, self.dim, self.weights = problem.users, problem.dim, problem.weights
        self.offers = problem.offers & {"grad", "hessian", "spectrum"}
        self.matrix_free, self.convex, self.convexity = problem.matrix_free, problem.convex, None
        if hasattr(problem, "careful_prox"):  # functions of this package: what rounding makes of them is known
            self.careful_prox = self._careful_prox

    def rounding(self, Y: Tensor) -> Tensor:
        """A bound on the rounding error of grad at Y, about: C lengthens that of the problem's own gradient."""
        x = self.metric.back(Y)
        if hasattr(self.problem, "rounding"):
            own = self.problem.rounding(x)
        else:
            L = self.problem.lipschitz
            steep = torch.linalg.matrix_norm(self.problem.hessian(x)) if L is None else L
            own = 8 * torch.finfo(x.dtype).eps * steep * x.norm(dim=1)
        amplified: Tensor = self.metric.least**-0.5 * own
        return amplified

    def _careful_prox(self, u: Tensor, eta: float, x: Tensor, tol: float) -> SafeProx:
        """Newton's method with a line search in float64, to the round-off of the gradient in these coordinates."""
        same = Measured(self.problem.double(), self.metric)
        solved = prox_with_line_search(same, u.double(), eta, x.double(), tol)
        blur = eta * float(same.rounding(solved.x.unsqueeze(0))[0])
        if solved.wrong and solved.error <= blur <= ROUGH * (1 + float(u.norm()) + float(solved.x.norm())):
            solved = SafeProx(solved.x, solved.error + blur)
        p = solved.x.to(u)
        return SafeProx(p, solved.error + float((solved.x - p).norm()), solved.wrong)

    def grad(self, Y: Tensor) -> Tensor:
        return self.metric.pull(self.problem.grad(self.metric.back(Y)))

    def hessian(self, Y: Tensor) -> Tensor:
        """One user at a time, so that a cached inverse has the same bits whichever users are asked together."""
        x = torch.cat([self.metric.back(row.clone()) for row in Y.split(1)])
        return torch.stack([self.metric.curvature(H.clone()) for H in self.problem.hessian(x)])

    def hessian_times(self, Y: Tensor) -> Callable[[Tensor], Tensor]:
        product = self.problem.hessian_times(self.metric.back(Y))
        return lambda v: self.metric.pull(product(self.metric.back(v)))

    def conditioner(self, Y: Tensor, eta: float) -> Callable[[Tensor], Tensor]:
        """About (I + eta C^T H C)^-1 = C^-1 (M + eta H)^-1 C^-T, from the metric and the diagonals of Hessians."""
        metric = self.metric
        inverse = metric.beside(eta * self.problem.hessian_diagonal(metric.back(Y)))
        return lambda r: metric.coordinates(inverse(metric.push(r)))

    @property
    def groups(self) -> list[tuple[Tensor | None, Measured]]:
        return [(who, Measured(group, self.metric)) for who, group in self.problem.groups]

    def take(self, who: Tensor) -> Measured:
        return Measured(self.problem.take(who), self.metric)

    def filtered(self, share: Callable[[Tensor], Tensor], steady: bool) -> Affine:
        """Of quadratics: each user's Hessian is decomposed anew. Where it is flat, y does not count."""
        old, metric = self.problem.spectrum, self.metric
        s, Q = torch.linalg.eigh(metric.curvature(old.hessian(old.s)))
        slope = rows_times(metric.pull(old.back(old.s * old.y)), Q)
        y = torch.where(s > 0, slope / s, 0)
        spectrum = Spectrum(Q.mT.contiguous(), s.clamp_min(0), y, old.floor)
        return Affine(spectrum, share(spectrum.s), self.weights.double(), steady, self.weights.dtype)


@dataclass(eq=False)
class InMetric(Bound):
    """An operator that answers in the metric of the question: that of the identity is `plain`."""

    problem: Any
    operator: Any
    steady: bool
    plain: Bound
    bound: tuple[Metric, Bound] | None = None

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        metric = ask.metric
        if metric is None:
            return self.plain.rows(ask, u, {} if METRIC in memory else memory)
        if self.bound is None or self.bound[0] is not metric:
            self.bound = metric, self.operator.bind(Measured(self.problem, metric), self.steady)
        at = metric.coordinates(u.clone())
        p, after = self.bound[1].rows(ask, at, _converted(memory, metric, ask.metric_before))
        if after:
            after = after | {METRIC: p.new_full((self.problem.users,), metric.since)}
        return u + metric.back(p - at), after


def _converted(memory: Memory, metric: Metric, before: Metric | None) -> Memory:
    """What users remember of Newton's method, in the coordinates of this metric."""
    if METRIC not in memory:
        return {}
    inside = {name: rows for name, rows in memory.items() if name != METRIC}
    if bool((memory[METRIC] == metric.since).all()):
        return inside
    if before is None or not bool((memory[METRIC] == before.since).all()):
        return {}
    converted = inside | {
        "x": metric.coordinates(before.back(inside["x"])),
        "g": metric.pull(before.push(inside["g"])),
    }
    if "debt" in inside:  # cached inverses are those of the old coordinates; NaN stays: a user who has never answered
        converted |= {"debt": inside["debt"] + torch.inf, "anchor": torch.full_like(inside["anchor"], torch.nan)}
    return converted


def bind(operator: Any, problem: Any, steady: bool) -> Bound:
    """The operator joined to a problem, in any metric where it can be asked in one."""
    bound: Bound = operator.bind(problem, steady)
    if isinstance(bound, Plain) and "training" in problem.offers:
        return stepping(problem, bound.answer)  # with what networks remember, and what they drop
    if operator.certifies != "p" or not {"grad", "hessian"} <= problem.offers:
        return bound
    inside = operator if "spectrum" in problem.offers or isinstance(operator, NewtonProx) else NewtonProx()
    return InMetric(problem, inside, steady, bound)
