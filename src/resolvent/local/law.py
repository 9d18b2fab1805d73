"""The law of a local operator: what the fixed points of a scheme solve when users apply it.

At a fixed point with w = mean(z), d_i = u_i - p_i and c = alpha (beta - 1) / beta,

    u_i = w + c d_i,    p_i = w - (1 - c) d_i,    sum_i lambda_i d_i = 0.

What d_i is depends on what users compute. A prox has d_i = eta g_i with g_i a subgradient at p_i, so that
p_i = prox f_i(w) at eta_eff = (1 - c) eta. One gradient step has d_i = eta grad f_i(u_i), so that for c < 0
u_i = prox f_i(w) at -c eta. Other operators pull like these only approximately; on quadratics their pulls are known
functions of the curvature, and `pull_error` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import refuse
from resolvent.iteration.scheme import cancels

ORIGINAL, REGULARISED, NEITHER, UNKNOWN = "original", "regularised", "neither", "unknown"

TOLERANCE = 0.25
"""The largest relative error of users' pulls for which "about" is said."""

Floats = NDArray[np.float64]


class Target(NamedTuple):
    """What is solved where the iteration converges."""

    solves: str
    eta_eff: float = math.nan
    exactly: bool = True
    error: float = 0.0
    """The relative error of users' pulls on the model, where local steps are not exact; NaN where it is not known."""
    why: str = ""
    """Why nothing is claimed, where there is more to say than that the fixed points are others."""


class UserFacts(NamedTuple):
    """What a law may depend on beside alpha, beta and eta, of the users with a positive weight."""

    rows: NDArray[np.int64] | None = None
    """Rows of each user; None where users have none."""
    curvatures: tuple[Floats, float] | None = None
    """(L_i, the least mu_i); None where L_i are not known or some f_i may not be convex."""
    penalised: bool = False
    """Whether a penalty is weighed against users' pulls."""


class Law(NamedTuple):
    """What an operator's answers make of a scheme with given alpha, beta and eta; eta = 0 means that eta vanishes."""

    target: Target
    exact: bool
    """Whether every user computes its prox, or one gradient step, exactly."""
    steps: tuple[int, ...] = (1,)
    """The numbers of gradient steps per round that users take: batches make them differ."""
    momentum: float = 0.0
    lr: float | None = None
    """The step size inside a prox, where it is a given number."""
    minimises: bool = True
    """Whether a user alone comes to rest exactly at its own minimiser."""
    proximal: bool = True
    """Whether steps of size lr are on f_i + |x - u|^2 / (2 eta), rather than on f_i itself."""
    uncovered: str = ""
    """Why no theorem covers it, where there is more to say than that it is not exact."""
    span: float | None = None
    """Number of gradient steps that one answer amounts to; None: the mean of `steps`."""


def of_prox(alpha: float, beta: float, eta: float, exact: bool) -> Law:
    """The law of a prox; inexact ones come as close as they compute it."""
    return Law(settled(prox_eta(alpha, beta, eta), exact), exact)


def of_step(alpha: float, beta: float, eta: float) -> Law:
    """The law of one exact gradient step."""
    return Law(settled(-offset(alpha, beta) * eta, exact=True), exact=True)


def unstated(name: str, forward: bool, certified: bool, alpha: float, beta: float, eta: float) -> Law:
    """What holds for an operator that states no law of its own: its certificates show whether it is exact."""
    if not forward:
        return of_prox(alpha, beta, eta, exact=certified)
    if certified:
        return of_step(alpha, beta, eta)
    if eta == 0:
        return Law(settled(0.0, exact=False), exact=False)
    return Law(Target(UNKNOWN, why=f"it is not known what {name} computes"), exact=False)


def settled(eta_eff: float, exact: bool, error: float = math.nan) -> Target:
    """The Moreau envelopes at eta_eff, as closely as this error of users' pulls allows; exact answers have none."""
    if not eta_eff >= 0:
        return Target(NEITHER)
    if error > TOLERANCE:
        return Target(NEITHER, error=error, why="its local steps are too few, too short or too long")
    solves = ORIGINAL if eta_eff == 0 else REGULARISED
    return Target(solves, abs(eta_eff), exact, 0.0 if exact else error)  # abs: no -0


def uneven(steps: tuple[int, ...]) -> Target:
    """Users with more batches take more steps per round, and pull harder."""
    few, many = min(steps), max(steps)
    return Target(NEITHER, why=f"users take between {few} and {many} steps per round, and who takes more pulls harder")


# --- effective steps -------------------------------------------------------------------------------------------------


def offset(alpha: float, beta: float) -> float:
    """c = alpha (beta - 1) / beta: at a fixed point u_i = w + c (u_i - p_i). NaN where users never meet."""
    return alpha * (beta - 1) / beta if beta else math.nan


def prox_eta(alpha: float, beta: float, eta: float) -> float:
    """eta_eff of a prox scheme: zero for every eta, also one not found yet, where alpha and beta cancel."""
    if cancels(alpha, beta):
        return 0.0
    return effective_eta(alpha, beta, eta) if beta else math.nan


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


# --- how far inexact pulls are off -----------------------------------------------------------------------------------


def pull_error(
    c: float,
    eta_eff: float,
    curvatures: tuple[Floats, float],
    steps: tuple[int, ...],
    left: Callable[[Floats, float, int], Floats],
    unit: float | None = None,
) -> float:
    """The relative error of the pulls of inexact local steps, at worst over the curvatures that users have.

    On a quadratic whose curvature is s, users answer p - x = psi(s) (u - x), x being the minimiser, and so

        d = pull(s) (w - x),    pull = (1 - psi) / (1 - c (1 - psi)),

    where the envelope at eta_eff has s / (1 + eta_eff s). A factor that all pulls share moves no fixed point, unless a
    penalty is weighed against them, which counts `unit`.
    `left(s, L, k)` is psi after k steps of a user whose largest curvature is L.
    """
    L, mu = curvatures
    top = np.quantile(L[L > 0], [0, 0.25, 0.5, 0.75, 1]) if (L > 0).any() else np.zeros(0)
    parts = []
    for steep in np.unique(top):
        s = np.geomspace(max(mu, 1e-6 * steep), steep, 65)
        for k in steps:
            with np.errstate(all="ignore"):
                moved = 1 - left(s, float(steep), k)
                parts.append(moved / (1 - c * moved) * (1 + eta_eff * s) / s)
    ratios = np.concatenate(parts) if parts else np.ones(1)
    if not (np.isfinite(ratios).all() and (ratios > 0).all()):
        return math.inf
    if unit is not None:
        return float(np.abs(ratios / unit - 1).max())
    return float((ratios.max() - ratios.min()) / (ratios.max() + ratios.min()))


def left_after(curvature: Floats, lr: float | Floats, steps: int, momentum: float = 0.0) -> Floats:
    """The part of the distance to the minimiser that k gradient steps leave on a quadratic of this curvature."""
    h, lr = np.broadcast_arrays(np.asarray(curvature, float), np.asarray(lr, float))
    with np.errstate(over="ignore", invalid="ignore"):
        if momentum == 0:
            return np.asarray((1 - lr * h) ** steps)
        m = np.full_like(h, momentum)
        step = np.stack([np.stack([1 - lr * h, -lr * m], -1), np.stack([h, m], -1)], -2)  # of (distance, velocity)
        return np.asarray(np.linalg.matrix_power(step, steps)[..., 0, 0])
