"""What a configuration solves, by which theorem, what speaks against it and what to change: in data and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from resolvent import theory
from resolvent.anderson import Anderson, as_anderson
from resolvent.errors import MayNotConverge, ResolventWarning, SolvesAnotherProblem
from resolvent.local import GradientProx, GradientSteps, Operator, best
from resolvent.participation import Participation, as_participation
from resolvent.problems.problem import Problem
from resolvent.scheme import Scheme, as_scheme

ORIGINAL, REGULARISED, NEITHER = "original", "regularised", "neither"


@dataclass(frozen=True)
class Finding:
    """Something that speaks against the configuration, and what to do about it."""

    about: type[ResolventWarning]
    words: str
    advice: str

    def __str__(self) -> str:
        return f"{self.words}; {self.advice}."


@dataclass(frozen=True)
class Explanation:
    """`solves` is "original", "regularised" (Moreau envelopes at eta_eff) or "neither"."""

    scheme: str
    solves: str
    eta_eff: float
    exactly: bool
    """False where local steps are too few or too noisy for the fixed points to be exactly those."""
    theorem: str | None
    """What promises convergence; None where nothing does."""
    personal: str
    findings: tuple[Finding, ...]

    @property
    def problem(self) -> str:
        """What is solved, as a phrase."""
        about = "" if self.exactly else "about "
        if self.solves == ORIGINAL:
            return f"{about}the original problem, min sum_i lambda_i f_i"
        if self.solves == REGULARISED:
            envelopes = f"min sum_i lambda_i env_eta f_i (Moreau envelopes) at eta = {self.eta_eff:g}"
            return f"{about}the regularised problem, {envelopes}"
        return "neither the original nor a regularised problem"

    def __str__(self) -> str:
        lines = [f"{self.scheme} solves {self.problem}."]
        lines.append(f"Convergence: {self.theorem}." if self.theorem else "Convergence: no theorem covers this.")
        lines.append(f"Personal models: {self.personal}.")
        return "\n".join([*lines, *(f"- {finding}" for finding in self.findings)])


def operator_of(scheme: Scheme, problem: Problem | None) -> Operator:
    """The scheme's local operator, or the one it takes by itself."""
    if scheme.local is not None:
        return scheme.local  # type: ignore[no-any-return]
    if scheme.forward:
        return GradientSteps(scheme.steps)
    return GradientProx() if problem is None else best(problem)


def explain(
    scheme: Scheme | str,
    problem: Problem | None = None,
    participation: Participation | float | None = None,
    anderson: Anderson | int | None = None,
) -> Explanation:
    """Say what this configuration solves. Without a problem, what holds for convex f_i with an exact prox is said."""
    scheme, participation, anderson = as_scheme(scheme), as_participation(participation), as_anderson(anderson)
    operator = operator_of(scheme, problem) if problem is not None or scheme.local or scheme.forward else None
    solves, eta_eff, exactly = _target(scheme, problem, participation, operator)
    theorem = _theorem(scheme, problem, participation, exactly)
    findings = (
        *_wrong_problem(scheme, participation, solves, eta_eff, exactly),
        *_convergence(scheme, problem),
        *_step_sizes(scheme, problem, participation, operator),
        *_acceleration(scheme, participation, anderson),
    )
    return Explanation(str(scheme), solves, eta_eff, exactly, theorem, _personal(scheme), findings)


# --- what is solved --------------------------------------------------------------------------------------------------


def _target(
    scheme: Scheme, problem: Problem | None, participation: Participation, operator: Operator | None
) -> tuple[str, float, bool]:
    """(what, eta_eff, exactly), with the eta of round 0 where eta changes."""
    nothing = NEITHER, math.nan, True
    pair = scheme.relaxation
    if pair is None or 0 in pair or scheme.gamma(0) == 0 or _stale(participation):
        return nothing
    alpha, beta = pair
    inexact = isinstance(operator, GradientProx) or getattr(operator, "batch", None) is not None
    if scheme.exact or scheme.vanishing:
        return ORIGINAL, 0.0, not inexact
    if _stops_short(scheme):
        return nothing
    eta = scheme.eta_at(0)
    if not scheme.forward:
        return REGULARISED, theory.effective_eta(alpha, beta, eta), not inexact
    if beta != 1:
        return nothing
    steps = _steps(scheme, problem, operator)
    return (ORIGINAL, 0.0, not inexact) if steps == 1 else (REGULARISED, eta * (steps - 1) / 2, False)


def _stale(participation: Participation) -> bool:
    """Whether Algorithm 1 leaves absent users behind."""
    return not participation.full and participation.absent == "paper"


def _stops_short(scheme: Scheme) -> bool:
    """Whether the sum of eta_t is finite, so that the iteration may stop anywhere."""
    return scheme.eta is not None and scheme.eta.sum_diverges is False


def _steps(scheme: Scheme, problem: Problem | None, operator: Operator | None) -> float:
    """Gradient steps a round: with batches, as many an epoch as a user of mean size has."""
    steps, batch = getattr(operator, "steps", scheme.steps), getattr(operator, "batch", None)
    sizes = getattr(problem, "sizes", None)
    return steps if batch is None or sizes is None else steps * float((sizes / batch).ceil().mean())


def _personal(scheme: Scheme) -> str:
    if scheme.exact:
        return "every user's own answer agrees with the model at convergence"
    if scheme.forward:
        return "each user's own is the model after its local steps"
    return "each user's own is prox_eta f_i of the model, which is what pFedMe trains"


# --- whether it gets there -------------------------------------------------------------------------------------------


def _averaged(scheme: Scheme) -> bool:
    """Whether T is an averaged map for convex f_i: two under-relaxed halves, or under-relaxed as a whole.

    One gradient step below 2/L is under-relaxed, whatever alpha, as long as alpha eta is below 2/L too.
    """
    mixing = scheme.fixed_mixing
    return mixing is not None and (mixing[2] < 1 or ((scheme.forward or mixing[0] < 2) and mixing[1] < 2))


def _contracts(problem: Problem | None) -> bool:
    mu, L = (0.0, math.inf) if problem is None else theory.curvatures(problem)
    return mu > 0 and math.isfinite(L)


def _theorem(scheme: Scheme, problem: Problem | None, participation: Participation, exactly: bool) -> str | None:
    if (problem is not None and not problem.convex) or scheme.beyond or scheme.fixed_mixing is None:
        return None
    if _stale(participation) or _stops_short(scheme):
        return None
    if scheme.vanishing and not scheme.exact:
        if not scheme.forward and scheme.projects and scheme.eta and scheme.eta.squares_converge:
            return "sum eta_t diverges and sum eta_t^2 converges, so the averaged iterates converge (Theorem thm:fp)"
        return None
    if scheme.changes != "never" and not scheme.exact:
        return None
    blocks = "" if participation.full else ", almost surely under sampling that holds absent users (random blocks)"
    if scheme.forward and not exactly:
        return None
    if _averaged(scheme):
        if scheme.forward:
            return f"forward-backward splitting converges for convex smooth f_i and eta < 2/L{blocks}"
        name = "Douglas-Rachford splitting, Spingarn's partial inverse" if scheme.exact else "T is averaged"
        return f"{name}: converges for convex f_i if a solution exists{blocks}"
    if _contracts(problem):
        return f"every f_i is strongly convex and smooth, so T contracts: linear convergence{blocks}"
    return None


def _wrong_problem(
    scheme: Scheme, participation: Participation, solves: str, eta_eff: float, exactly: bool
) -> Iterator[Finding]:
    if _stale(participation):
        words = "under Algorithm 1's sampling absent users' z grow stale and no algorithm reaches the right solution"
        yield Finding(SolvesAnotherProblem, words, 'take absent="hold", which converges')
    elif solves == REGULARISED:
        what = f"{scheme.name} at eta = {scheme.eta} does not solve the original problem but"
        if exactly:
            words = f"{what} its Moreau envelopes at eta_eff = {eta_eff:g}"
        elif scheme.forward:
            words = f"{what} about its Moreau envelopes at eta (k-1)/2 = {eta_eff:g}, since users take k > 1 steps"
        else:
            words = f"{what} about its Moreau envelopes at eta_eff = {eta_eff:g}, since the prox is inexact"
        advice = "take rs.fedpi for the original problem, or eta = rs.schedules.harmonic(...)"
        yield Finding(SolvesAnotherProblem, words, advice)
    elif solves == NEITHER and not _stops_short(scheme):
        words = f"the fixed points of {scheme} solve neither the original nor a regularised problem"
        yield Finding(SolvesAnotherProblem, words, "take beta = 1, or a prox with alpha = beta = 2 (rs.fedpi)")
    elif solves == ORIGINAL and not exactly:
        words = f"{scheme.name} solves the original problem only as well as its local operator computes the prox"
        advice = "take more local steps, all rows a step, or rs.ExactProx or rs.NewtonProx"
        yield Finding(SolvesAnotherProblem, words, advice)


def _convergence(scheme: Scheme, problem: Problem | None) -> Iterator[Finding]:
    if problem is not None and not problem.convex:
        yield Finding(
            MayNotConverge, "the f_i are not convex, so no theorem promises convergence", "watch the residual"
        )
    elif scheme.exact and not _averaged(scheme) and not _contracts(problem):
        words = f"{scheme.name} needs strongly convex and smooth f_i, and these are not known to be"
        yield Finding(MayNotConverge, words, "take rs.fedpi, which needs convexity only")
    elif scheme.beyond:
        words = "alpha or beta outside [0, 2], or gamma outside [0, 1], leaves the theory"
        yield Finding(MayNotConverge, words, "watch the residual")
    if getattr(problem, "without_minimum", None) is not None:
        words = f"{problem.without_minimum}: values are right, but gaps are not known"  # type: ignore[union-attr]
        yield Finding(MayNotConverge, words, "give a regulariser, reg > 0, or read `value` alone")
    if _stops_short(scheme):
        words = f"eta = {scheme.eta} vanishes so fast that the iteration stops before it arrives"
        yield Finding(MayNotConverge, words, "take rs.schedules.harmonic, whose sum diverges")


def _step_sizes(
    scheme: Scheme, problem: Problem | None, participation: Participation, operator: Operator | None
) -> Iterator[Finding]:
    """Gradient steps are stable below 2/L: of f where users share u and take one, else of the steepest f_i."""
    L = None if problem is None or not (scheme.forward or isinstance(operator, GradientProx)) else problem.lipschitz
    if L is None or problem is None or scheme.auto:
        return
    eta = scheme.eta_at(0)
    if scheme.forward:
        one = _steps(scheme, problem, operator) == 1
        top = 2 / float(problem.weights @ L if one and scheme.projects and participation.full else L.max())
        step = eta * (scheme.alpha(0) if one else 1)
        if step > top:
            name = "eta" if step == eta else "alpha eta"
            words = f"{name} = {step:g} is above 2/L = {top:.3g}, where gradient steps may diverge"
            yield Finding(
                MayNotConverge, words, f"stay below {top:.3g} (a global bound: the curvature met may be less)"
            )
    elif isinstance(operator, GradientProx) and operator.lr is not None:
        top = 2 / (float(L.max()) + 1 / eta)
        if operator.lr > top:
            words = f"lr = {operator.lr:g} is above 2/(L + 1/eta) = {top:.3g}, where the prox's steps may diverge"
            yield Finding(MayNotConverge, words, f"take lr < {top:.3g}, or rs.NewtonProx")


def _acceleration(scheme: Scheme, participation: Participation, anderson: Any) -> Iterator[Finding]:
    if anderson.memory == 0:
        return
    if scheme.changes == "always":
        words = f"eta = {scheme.eta} changes every round, which makes Anderson acceleration start anew: it does nothing"
        yield Finding(ResolventWarning, words, "take a constant eta or rs.schedules.halving")
    if not participation.full:
        words = "Anderson acceleration assumes one map, and with sampling each round has another: it can hurt"
        yield Finding(ResolventWarning, words, "leave it out, or compare both")
