"""What is known in closed form: effective steps, fixed points, the best eta, heterogeneity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
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


def step_sums(steps: int, momentum: float = 0.0) -> tuple[float, float]:
    """(total, lag) of k gradient steps with momentum: for small eta they move by

        eta total (grad f - eta lag Hess f grad f + ...),

    while -grad env_e f = -(grad f - e Hess f grad f + ...): k steps pull like the envelope at e = eta lag. A gradient
    met n steps before the end counts c_n = 1 + m + ... + m^(n-1) times, so that with C_i = c_1 + ... + c_i

        total = C_k,    lag = sum_{i<k} c_(k-i) C_i / C_k,

    which without momentum are k and (k-1)/2.
    """
    if momentum == 0:
        return float(steps), (steps - 1) / 2
    c = (1 - momentum ** np.arange(1, steps + 1)) / (1 - momentum)
    C = np.cumsum(c)
    return float(C[-1]), float(c[::-1][1:] @ C[:-1] / C[-1])


def left_after(
    curvature: NDArray[np.float64], lr: float | NDArray[np.float64], steps: int, momentum: float = 0.0
) -> NDArray[np.float64]:
    """The part of the distance to the minimiser that k gradient steps leave on a quadratic of this curvature."""
    h, lr = np.broadcast_arrays(np.asarray(curvature, float), np.asarray(lr, float))
    with np.errstate(over="ignore", invalid="ignore"):
        if momentum == 0:
            return np.asarray((1 - lr * h) ** steps)
        m = np.full_like(h, momentum)
        step = np.stack([np.stack([1 - lr * h, -lr * m], -1), np.stack([h, m], -1)], -2)  # of (distance, velocity)
        return np.asarray(np.linalg.matrix_power(step, steps)[..., 0, 0])


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
