"""What is known in closed form: effective steps, fixed points, the best eta, heterogeneity."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.problems.problem import Problem


def effective_eta(alpha: float, beta: float, eta: float) -> float:
    """The fixed points of a prox scheme are those of FedProx at eta (alpha + beta - alpha beta) / beta.

    Zero, the original problem, exactly when alpha + beta = alpha beta: within [0, 2] only at (2, 2). gamma is free.
    """
    if beta == 0:
        refuse("beta", beta, "users who never meet have no common fixed point: beta != 0 is needed")
    return eta * (alpha + beta - alpha * beta) / beta


def reflector_norm(mu: float, L: float, eta: float) -> float:
    """The Lipschitz constant of 2 prox - id on quadratics with curvatures in [mu, L]."""
    return max((1 - eta * mu) / (1 + eta * mu), (eta * L - 1) / (eta * L + 1))


def best_eta(problem: Problem) -> float:
    """1 / sqrt(mu L), which minimises the reflector's norm: where FedSplit and FedPi are fastest in theory."""
    mu, L = curvatures(problem)
    if not (mu > 0 and math.isfinite(L)):
        raise InputError(
            f"best_eta needs a strongly convex and smooth problem, but here mu = {mu:g} and L = {L:g}; "
            'take eta="auto", which finds a good value while running'
        )
    return 1 / math.sqrt(mu * L)


def curvatures(problem: Problem) -> tuple[float, float]:
    """(mu, L) over all users: 0 and infinity where nothing is known."""
    mu, L = problem.convexity, problem.lipschitz
    return (0.0 if mu is None else float(mu.min())), (math.inf if L is None else float(L.max()))


def heterogeneity(problem: Problem) -> float:
    """H = (1/m) sum_i |grad f_i(w*)|^2, the measure of the paper's appendix."""
    if problem.minimiser is None:
        raise InputError("heterogeneity needs the minimiser of the problem, but it is not known here")
    return float(problem.grad(problem.minimiser.unsqueeze(0)).square().sum(1).mean())


def regularised_minimiser(problem: Any, eta: float) -> Tensor:
    """The minimiser of sum_i lambda_i env_eta f_i for least squares: where FedProx and FedRP end."""
    return _balance(problem, lambda s: 1 / (1 + eta * s))


def fedavg_fixed_point(problem: Any, eta: float, steps: int) -> Tensor:
    """Where FedAvg with `steps` local steps ends on least squares; with weights, and for any ranks."""
    return _balance(problem, lambda s: (1 - eta * s) ** steps)


def _balance(problem: Any, psi: Any) -> Tensor:
    """w with sum_i lambda_i (w - p_i(w)) = 0, where p_i filters the spectrum of user i by psi."""
    if "spectrum" not in problem.offers:
        raise InputError(f"a closed form needs quadratics, but {type(problem).__name__} is none; take rs.LeastSquares")
    maps = problem.filtered(psi, steady=False)
    zero = problem.weights.new_zeros((1, problem.dim))
    shift = problem.weights @ maps(zero, None)
    K = maps.spectrum.weighted(maps.c, problem.weights)
    w: Tensor = torch.linalg.lstsq(K, shift.unsqueeze(1), driver="gelsd").solution[:, 0]
    for _ in range(2):  # against round-off
        w = w - torch.linalg.lstsq(K, (w - problem.weights @ maps(w.unsqueeze(0), None)).unsqueeze(1)).solution[:, 0]
    return w
