"""What is known in closed form: fixed points, the best eta, heterogeneity."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from resolvent.errors import InputError
from resolvent.iteration.facts import Facts
from resolvent.problems.problem import Problem


def reflector_norm(mu: float, L: float, eta: float) -> float:
    """The Lipschitz constant of 2 prox - id on quadratics with curvatures in [mu, L]."""
    return max((1 - eta * mu) / (1 + eta * mu), (eta * L - 1) / (eta * L + 1))


def best_eta(problem: Problem | Facts) -> float:
    """1 / sqrt(mu L), which minimises the reflector's norm: where FedSplit and FedPi are fastest in theory."""
    mu, L = curvatures(problem)
    if not (mu > 0 and math.isfinite(L)):
        raise InputError(
            f"best_eta needs a strongly convex and smooth problem, but here mu = {mu:g} and L = {L:g}; "
            'take eta="auto", which finds a good value while running'
        )
    return 1 / math.sqrt(mu * L)


def curvatures(problem: Problem | Facts) -> tuple[float, float]:
    """(mu, L) over all users: 0 and infinity where nothing is known."""
    mu, L = problem.convexity, problem.lipschitz
    return (0.0 if mu is None else float(mu.min())), (math.inf if L is None else float(L.max()))


def heterogeneity(problem: Problem) -> float:
    """H = (1/m) sum_i |grad f_i(w*)|^2, the measure of the paper's appendix."""
    if problem.minimiser is None or "grad" not in problem.offers:
        raise InputError("heterogeneity needs gradients and the minimiser of the problem, but they are not known here")
    return float(problem.grad(problem.minimiser.unsqueeze(0)).square().sum(1).mean())


def regularised_minimiser(problem: Any, eta: float) -> Tensor:
    """The minimiser of sum_i lambda_i env_eta f_i for least squares: where FedProx and FedRP end. eta may be 0."""
    return _balance(problem, lambda s: s / (1 + eta * s))


def fedavg_fixed_point(problem: Any, eta: float, steps: int) -> Tensor:
    """Where FedAvg with `steps` local steps ends on least squares; with weights, and for any ranks."""
    return _balance(problem, lambda s: s * sum((1 - eta * s) ** j for j in range(steps)))


def _balance(problem: Any, pull: Any) -> Tensor:
    """w with sum_i lambda_i V_i^T pull(s_i) V_i (w - x_i) = 0, where pull is (u - p) / eta along each eigenvector."""
    if "spectrum" not in problem.offers:
        raise InputError(f"a closed form needs quadratics, but {type(problem).__name__} is none; take rs.LeastSquares")
    return problem.balanced(pull(problem.spectrum.s))  # type: ignore[no-any-return]
