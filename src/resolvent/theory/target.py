"""What a configuration solves, where it converges: the original problem, a regularised one, neither, or not known.

The local operator's law (`resolvent.local.law`) says what fixed points solve. Here is what may keep the iteration from
them: users who never come, numbers that keep changing, steps that vanish.
"""

from __future__ import annotations

import math

from resolvent.local.law import NEITHER, ORIGINAL, UNKNOWN, Target
from resolvent.theory.setting import Setting, never_moves
from resolvent.theory.trends import UNCLEAR, VANISHES, VARIES


def target(setting: Setting) -> Target:
    """What is solved where the iteration converges: what the local operator's law says, unless a part changes it."""
    for law in setting.laws:
        if law.solves is not None:
            return Target(law.solves, why=law.why)
    return _without_parts(setting)


def _without_parts(setting: Setting) -> Target:
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
    return setting.law.target


def _of_one(setting: Setting) -> Target:
    """One user: where it stops moving, u = p, its gradient is zero, unless its steps are so long that several of them
    lead back to where they began."""
    if _may_return(setting):
        return Target(UNKNOWN, why="several local steps longer than 2/L may lead back to where they began")
    sound = setting.law.minimises
    return Target(ORIGINAL, 0.0, exactly=sound, error=0.0 if sound else math.nan)


def _may_return(setting: Setting) -> bool:
    """Whether users take several steps that no bound on the curvature makes contract."""
    law, problem = setting.law, setting.problem
    step = setting.eta.high if setting.scheme.forward else law.lr
    if max(law.steps, default=1) == 1 or step is None or problem is None or problem.lipschitz is None:
        return False
    steepest = float(problem.lipschitz.max()) + (
        1 / setting.eta.low if law.proximal and not setting.scheme.forward and setting.eta.low > 0 else 0.0
    )
    return step * steepest > 2


def _vanishing(setting: Setting) -> Target:
    """As eta_t falls to 0 every pull tends to that of f_i, if users take equally many steps: the law says."""
    if setting.gamma.kind == VANISHES:
        return Target(UNKNOWN, why="eta and gamma both vanish")
    if setting.partial and not setting.attendance.random:
        return Target(UNKNOWN, why="eta vanishes while users come in a given order")
    return setting.law.target


def _varying(setting: Setting) -> Target:
    """An eta that never settles. A scheme that is exact at any eta carries every p_i and g_i over to the next one.

    One gradient step of everybody is exact at any eta too; answers given at different eta would count differently.
    """
    one_step = setting.law.exact and setting.scheme.forward and setting.beta.limit == 1 and not setting.partial
    if setting.scheme.exact or one_step:
        return Target(ORIGINAL, 0.0, setting.law.exact, 0.0 if setting.law.exact else math.nan)
    return Target(UNKNOWN, why=f"eta = {setting.scheme.eta} keeps changing, and with it what is solved")
