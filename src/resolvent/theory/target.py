"""What a configuration solves, where it converges: the original problem, a regularised one, neither, or not known.

At a fixed point with w = mean(z), d_i = u_i - p_i and c = alpha (beta - 1) / beta,

    u_i = w + c d_i,    p_i = w - (1 - c) d_i,    sum_i lambda_i d_i = 0.

What d_i is depends on what users compute. A prox has d_i = eta g_i with g_i a subgradient at p_i, so that
p_i = prox f_i(w) at eta_eff = (1 - c) eta. One gradient step has d_i = eta grad f_i(u_i), so that for c < 0
u_i = prox f_i(w) at -c eta. Other operators pull like these only about; on quadratics their pulls are known functions
of the curvature, and `_error` compares them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.local.operators import GradientProx, GradientSteps
from resolvent.theory import closed_forms
from resolvent.theory.setting import Setting, never_moves
from resolvent.theory.trends import UNCLEAR, VANISHES, VARIES

ORIGINAL, REGULARISED, NEITHER, UNKNOWN = "original", "regularised", "neither", "unknown"

TOLERANCE = 0.25
"""The largest relative error of users' pulls for which "about" is said."""


class Target(NamedTuple):
    solves: str
    eta_eff: float = math.nan
    exactly: bool = True
    error: float = 0.0
    """The relative error of users' pulls on the model, where local steps are not exact; NaN where not known."""
    why: str = ""
    """Why nothing is claimed, where there is more to say than that the fixed points are others."""


def target(setting: Setting) -> Target:
    """What is solved where the iteration converges."""
    alpha, beta, gamma, eta = setting.alpha, setting.beta, setting.gamma, setting.eta
    if setting.missing or setting.stale:
        return Target(NEITHER)
    if not (alpha.steady and beta.steady):
        return Target(UNKNOWN, why="alpha or beta keep changing, or it is not clear what they do")
    if alpha.limit == 0 or never_moves(gamma) or (beta.limit == 0 and not setting.alone):
        return Target(NEITHER)
    if setting.stops:
        return Target(NEITHER, why="the iteration stops before it arrives")
    if gamma.sum_diverges is None:
        return Target(UNKNOWN, why=f"its values do not show what gamma = {setting.scheme.gamma} does in the long run")
    if eta.kind == UNCLEAR or eta.sum_diverges is None:
        return Target(UNKNOWN, why=f"its values do not show what eta = {setting.scheme.eta} does in the long run")
    if setting.alone:
        return _of_one(setting)
    if eta.kind == VANISHES:
        return _vanishing(setting)
    if eta.kind == VARIES:
        return _varying(setting)
    return _steady(setting)


def _of_one(setting: Setting) -> Target:
    """One user: where it stops moving, u = p, its gradient is zero, whatever the numbers are."""
    sound = setting.exact or (setting.batch is None and getattr(setting.operator, "optimiser", None) is None)
    return Target(ORIGINAL, 0.0, exactly=sound, error=0.0 if sound else math.nan)


def _vanishing(setting: Setting) -> Target:
    """As eta_t falls to 0 every pull tends to that of f_i, if users take equally many steps."""
    operator = setting.operator
    if setting.gamma.kind == VANISHES:
        return Target(UNKNOWN, why="eta and gamma both vanish")
    if setting.partial and not setting.random:
        return Target(UNKNOWN, why="eta vanishes while users come in a given order")
    if setting.exact:
        return Target(ORIGINAL, 0.0)
    if isinstance(operator, GradientSteps):
        return Target(ORIGINAL, 0.0, setting.batch is None, math.nan) if len(setting.steps) == 1 else _uneven(setting)
    if isinstance(operator, GradientProx) and (operator.lr is not None or setting.curvatures is None):
        return Target(NEITHER, why="lr stays while eta vanishes, so that in the end the prox's steps diverge")
    return Target(ORIGINAL, 0.0, False, math.nan)


def _varying(setting: Setting) -> Target:
    """An eta that never settles. A scheme that is exact at any eta carries every p_i and g_i over to the next one.

    One gradient step of everybody is exact at any eta too; answers given at different eta would count differently.
    """
    one_step = setting.exact and setting.forward and setting.beta.limit == 1 and not setting.partial
    if setting.scheme.exact or one_step:
        return Target(ORIGINAL, 0.0, setting.exact, 0.0 if setting.exact else math.nan)
    return Target(UNKNOWN, why=f"eta = {setting.scheme.eta} keeps changing, and with it what is solved")


def _steady(setting: Setting) -> Target:
    alpha, beta, eta = setting.alpha.limit, setting.beta.limit, setting.eta.limit
    c = alpha * (beta - 1) / beta
    if not setting.forward:
        eta_eff = 0.0 if setting.agrees else closed_forms.effective_eta(alpha, beta, eta)
    elif setting.exact:
        eta_eff = -c * eta
    elif not isinstance(setting.operator, GradientSteps):
        return Target(UNKNOWN, why=f"it is not known what {type(setting.operator).__name__} computes")
    elif len(setting.steps) > 1:
        return _uneven(setting)
    else:
        total, lag = closed_forms.step_sums(setting.steps[0], setting.momentum)
        eta_eff = eta * (lag - c * total)
    if not eta_eff >= 0:
        return Target(NEITHER)
    error = 0.0 if setting.exact else _error(setting, c, eta, eta_eff)
    if error > TOLERANCE:
        return Target(NEITHER, error=error, why="its local steps are too few, too short or too long")
    eta_eff = abs(eta_eff)  # no -0
    return Target(ORIGINAL if eta_eff == 0 else REGULARISED, eta_eff, setting.exact, error)


def _uneven(setting: Setting) -> Target:
    """Users with more batches take more steps per round, and pull harder."""
    few, many = min(setting.steps), max(setting.steps)
    return Target(NEITHER, why=f"users take between {few} and {many} steps per round, and who takes more pulls harder")


# --- how far inexact pulls are off -----------------------------------------------------------------------------------


def _error(setting: Setting, c: float, eta: float, eta_eff: float) -> float:
    """The relative error of the pulls of inexact local steps, at worst over the curvatures that users have.

    On a quadratic whose curvature is s, users answer p - x = psi(s) (u - x), x being the minimiser, and so

        d = pull(s) (w - x),    pull = (1 - psi) / (1 - c (1 - psi)),

    where the envelope at eta_eff has s / (1 + eta_eff s). A factor that all pulls share moves no fixed point. NaN
    where nothing is known: no L_i, an automatic eta, batches (whose noise is not counted), other inner methods.
    """
    operator, known = setting.operator, setting.curvatures
    other = getattr(operator, "anderson", 0) or getattr(operator, "optimiser", None) is not None
    if known is None or not math.isfinite(eta) or other or not isinstance(operator, (GradientSteps, GradientProx)):
        return math.nan
    L, mu = known
    top = np.quantile(L[L > 0], [0, 0.25, 0.5, 0.75, 1]) if (L > 0).any() else np.zeros(0)
    parts = []
    for steep in np.unique(top):
        s = np.geomspace(max(mu, 1e-6 * steep), steep, 65)
        for steps in setting.steps:
            with np.errstate(all="ignore"):
                moved = 1 - _answer(operator, s, float(steep), eta, steps)
                parts.append(moved / (1 - c * moved) * (1 + eta_eff * s) / s)
    ratios = np.concatenate(parts) if parts else np.ones(1)
    if not (np.isfinite(ratios).all() and (ratios > 0).all()):
        return math.inf
    error = float((ratios.max() - ratios.min()) / (ratios.max() + ratios.min()))
    return math.nan if setting.batch is not None and error <= TOLERANCE else error


def _answer(
    operator: GradientSteps | GradientProx, s: NDArray[np.float64], steep: float, eta: float, steps: int
) -> NDArray[np.float64]:
    """psi(s): which part of the distance to the minimiser a user's answer leaves."""
    if isinstance(operator, GradientSteps):
        return closed_forms.left_after(s, eta, steps, operator.momentum)
    prox = 1 / (1 + eta * s)
    lr = 1 / (steep + 1 / eta) if operator.lr is None else operator.lr
    return prox + closed_forms.left_after(s + 1 / eta, lr, steps, operator.momentum) * (1 - prox)
