"""Which theorem promises that a configuration converges, or why none does. What is not proved is not promised."""

from __future__ import annotations

import math
from typing import NamedTuple

from resolvent.theory import closed_forms
from resolvent.theory.setting import Setting
from resolvent.theory.trends import VANISHES


class Promise(NamedTuple):
    theorem: str | None
    why: str = ""
    """Why there is none; empty where there is one."""


def promise(setting: Setting) -> Promise:
    """The theorem that promises convergence; a part such as an acceleration may take it away."""
    plain = _plain(setting)
    if plain.theorem is not None and setting.parts.participation.asks_everybody:
        plain = Promise(f"{plain.theorem}, while everybody answers")
    uncovered = [law.uncovered for law in setting.laws if law.uncovered]
    if not uncovered or plain.theorem is None:
        return plain
    return Promise(None, f"{'; '.join(uncovered)}; without {'it' if len(uncovered) == 1 else 'them'}: {plain.theorem}")


def _plain(setting: Setting) -> Promise:
    gap = _uncovered(setting)
    if gap is not None:
        return Promise(None, gap)
    if setting.eta.kind == VANISHES:
        return _passty(setting)
    if not setting.eta.steady:
        return Promise(None, "no theorem covers an eta that keeps changing")
    if setting.scheme.forward and not below(setting):
        return Promise(None, f"no theorem covers {_step(setting)} >= 2/L = {largest_step(setting):.3g}")
    blocks = ", almost surely under sampling that holds absent users (random blocks)" if setting.partial else ""
    if averaged(setting):
        return Promise(f"{_averaged_words(setting)}{blocks}")
    if contracts(setting):
        return Promise(f"every f_i is strongly convex and smooth, so T contracts: linear convergence{blocks}")
    return Promise(None, "no theorem covers this")


def _uncovered(setting: Setting) -> str | None:
    """What lies outside of every theorem here; None if nothing does."""
    if setting.problem is not None and not setting.problem.convex:
        return "no theorem covers f_i that are not convex"
    if setting.stops:
        return "the iteration stops before it arrives"
    if setting.outside or not (setting.alpha.steady and setting.beta.steady and setting.gamma.steady):
        return "no theorem covers these alpha, beta and gamma"
    if setting.stale or setting.missing:
        return "no theorem covers users who are left behind"
    if setting.partial and setting.sampling is not None:
        return setting.sampling.theory
    if setting.attendance.late:
        return (
            "late answers are covered by ARock (Peng, Xu, Yan and Yin, 2016) only where T is averaged, delays stay "
            "below tau rounds, those who answer are drawn at random, and gamma is below about "
            "1/(1 + 2 tau/sqrt(users)): here that is not checked"
        )
    if setting.partial and not setting.attendance.random:
        return "no theorem covers users who come in a given order"
    if not setting.law.exact:
        steps = "these local steps" if setting.scheme.forward else "an inexact prox"
        return setting.law.uncovered or f"no theorem covers {steps}"
    return None


def _passty(setting: Setting) -> Promise:
    """FedProx with a vanishing eta (Theorem thm:fp)."""
    numbers = setting.alpha.limit, setting.beta.limit, setting.gamma.limit
    if setting.scheme.forward or setting.partial or numbers != (1, 1, 1) or not setting.eta.squares_converge:
        return Promise(None, "no theorem covers this vanishing eta")
    return Promise(
        "sum eta_t diverges and sum eta_t^2 converges, so the averaged iterates converge (Theorem thm:fp) "
        "if a solution exists"
    )


def averaged(setting: Setting) -> bool:
    """Whether T is an averaged map for convex f_i: two under-relaxed halves, or under-relaxed as a whole.

    One gradient step below 2/L is under-relaxed, whatever alpha, as long as alpha eta is below 2/L too.
    """
    alpha, beta, gamma = setting.alpha.limit, setting.beta.limit, setting.gamma.limit
    return gamma < 1 or ((setting.scheme.forward or alpha < 2) and beta < 2)


def contracts(setting: Setting) -> bool:
    """Whether strong convexity, beyond round-off, and smoothness make T a contraction."""
    mu, L = (0.0, math.inf) if setting.problem is None else closed_forms.curvatures(setting.problem)
    return math.isfinite(L) and mu > 1e-12 * L and setting.alpha.limit > 0 and setting.gamma.limit > 0


def _averaged_words(setting: Setting) -> str:
    if setting.scheme.forward:
        bound = largest_step(setting)
        number = "" if bound is None else f" = {bound:.3g}"
        return f"forward-backward splitting converges for convex smooth f_i and {_name(setting)} < 2/L{number}"
    name = "Douglas-Rachford splitting, Spingarn's partial inverse" if setting.agrees else "T is averaged"
    if setting.penalty is not None and setting.agrees:
        name = "Douglas-Rachford splitting of f, and of g where users agree"
    return f"{name}: converges for convex f_i if a solution exists"


# --- step sizes of gradient steps ------------------------------------------------------------------------------------


def largest_step(setting: Setting) -> float | None:
    """2/L, below which gradient steps are stable: of f where users share u and take one, else of the steepest f_i."""
    problem = setting.problem
    if problem is None or problem.lipschitz is None:
        return None
    L = problem.lipschitz
    shared = setting.scheme.projects and not setting.partial and setting.law.steps == (1,)
    steepest = float(problem.weights @ L if shared else L.max())
    return 2 / steepest if steepest > 0 else math.inf


def below(setting: Setting) -> bool:
    """Whether the step is below 2/L, or may be since L is not known."""
    bound = largest_step(setting)
    return bound is None or setting.alpha.limit * setting.eta.limit < bound


def _name(setting: Setting) -> str:
    return "eta" if setting.alpha.limit == 1 else "alpha eta"


def _step(setting: Setting) -> str:
    return f"{_name(setting)} = {setting.alpha.limit * setting.eta.limit:g}"
