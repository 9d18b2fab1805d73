"""What a configuration solves, by which theorem, what speaks against it and what to change: in data and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from numpy.typing import ArrayLike

from resolvent.errors import MayNotConverge, SolvesAnotherProblem, titled
from resolvent.iteration.acceleration import Acceleration
from resolvent.iteration.anderson import as_acceleration
from resolvent.iteration.facts import Facts, facts_of, needs_problem
from resolvent.iteration.meeting import Meet, as_meet
from resolvent.iteration.metric_choice import MetricChoice, as_metric, obstacle
from resolvent.iteration.part import Finding
from resolvent.iteration.participation import Participation, as_participation
from resolvent.iteration.parts import Parts
from resolvent.iteration.privacy import Privacy, UserPrivacy, as_privacy
from resolvent.iteration.private_mean import PrivateMean
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.sending import Send, as_send
from resolvent.iteration.table import TABLE, as_scheme
from resolvent.local.choice import exact_names, local_operator, settled
from resolvent.local.law import NEITHER, ORIGINAL, REGULARISED, UNKNOWN, Target
from resolvent.problems.problem import Problem
from resolvent.theory.convergence import averaged, contracts, largest_step, promise
from resolvent.theory.setting import Setting, never_moves
from resolvent.theory.target import target


@dataclass(frozen=True)
class Explanation:
    """`solves` is "original", "regularised" (Moreau envelopes at eta_eff), "neither" or "unknown".

    It tells the limit where the iteration converges; `theorem` tells whether it does.
    """

    scheme: str
    solves: str
    eta_eff: float
    exactly: bool
    """False where local steps are too few or too noisy for the fixed points to be exactly those."""
    error: float
    """The relative error of users' pulls on the model where `exactly` is False; NaN where it is not known."""
    theorem: str | None
    """What promises convergence; None where nothing does."""
    why: str
    """Why no theorem does; empty where one does."""
    personal: str
    findings: tuple[Finding, ...]
    penalty: str = ""
    """g at the meeting point; empty where there is none."""
    metric: str = ""
    """In which metric proxes are taken, where it was given or eta is automatic, and what that costs; else empty."""
    kin: str = ""
    """What the algorithm is an instance of, and what differs from its paper; empty where its name says it."""
    privacy: str = ""
    """What is private, what is released, and what is left out for it; empty where nothing is."""

    @property
    def problem(self) -> str:
        """What is solved, as a phrase."""
        about = "" if self.exactly else "about "
        if self.solves == ORIGINAL:
            return f"{about}the original problem, min sum_i lambda_i f_i{self._plus}"
        if self.solves == REGULARISED:
            envelopes = f"min sum_i lambda_i env_eta f_i (Moreau envelopes) at eta = {self.eta_eff:g}{self._plus}"
            return f"{about}the regularised problem, {envelopes}"
        return (
            "something that is not known"
            if self.solves == UNKNOWN
            else "neither the original nor a regularised problem"
        )

    @property
    def _plus(self) -> str:
        return f" + g, g = {titled(self.penalty)}" if self.penalty else ""

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that is said, as plain values; None for numbers that are not known."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        numbers = {
            name: value if math.isfinite(value) else None for name, value in values.items() if type(value) is float
        }
        return values | numbers | {"findings": [str(finding) for finding in self.findings]}

    def __str__(self) -> str:
        sure = self.theorem is not None or self.solves in (NEITHER, UNKNOWN)
        lines = [f"{'' if sure else 'Where it converges, '}{self.scheme} solves {self.problem}."]
        lines.append(f"Convergence: {self.theorem or self.why}.")
        lines.append(f"Personal models: {self.personal}.")
        lines += [f"Metric: {self.metric}."] if self.metric else []
        lines += [f"{self.kin}."] if self.kin else []
        lines += [f"Privacy: {self.privacy}."] if self.privacy else []
        return "\n".join([*lines, *(f"- {finding}" for finding in self.findings)])


def explain(
    scheme: Scheme | str,
    problem: Problem | Facts | None = None,
    participation: Participation | float | None = None,
    anderson: Acceleration | int | None = None,
    *,
    send: Send | None = None,
    down: Send | None = None,
    meet: Meet | None = None,
    metric: MetricChoice | ArrayLike | str | None = None,
    privacy: Privacy | None = None,
) -> Explanation:
    """Say what this configuration solves. Without a problem, what holds for convex f_i with an exact prox is said."""
    if problem is not None:
        needs_problem(problem, "None, rs.LeastSquares, rs.Logistic, rs.Custom or another problem is needed")
    facts, own = None if problem is None else facts_of(problem), as_privacy(privacy)
    if facts is not None and own.asked:  # what is said of a private run is no more than what it releases
        facts = facts.withholding()
    parts = Parts(
        as_participation(participation),
        as_send(send),
        PrivateMean(own, math.nan, 1.0, 0) if isinstance(own, UserPrivacy) else as_meet(meet),
        as_acceleration(anderson),
        down=as_send(down, "down"),
    )
    if facts is not None:
        parts.participation.check(facts.users)
    setting = Setting(settled(as_scheme(scheme), facts), facts, parts)
    aim, promised = target(setting), promise(setting)
    findings = (
        *_left_behind(setting),
        *_wrong_problem(setting, aim),
        *_convergence(setting),
        *_step_sizes(setting),
        *(finding for law in setting.laws for finding in law.findings),
    )
    return Explanation(
        scheme=str(setting.scheme),
        solves=aim.solves,
        eta_eff=aim.eta_eff,
        exactly=aim.exactly,
        error=aim.error,
        theorem=promised.theorem,
        why=promised.why,
        personal=_personal(setting, aim),
        findings=findings,
        penalty="" if setting.penalty is None else str(setting.penalty),
        metric=_metric(setting, as_metric(metric)),
        privacy=own.words(facts is not None and facts.secret) if isinstance(own, UserPrivacy) else "",
        kin=next((row.kin for row in TABLE.values() if row.title == setting.scheme.name), ""),
    )


def _personal(setting: Setting, aim: Target) -> str:
    """What user i's latest answer p_i is at a fixed point."""
    arrives = not (setting.missing or setting.stale or setting.stops)
    if setting.scheme.forward and setting.beta.limit == 1 and arrives:
        return "each user's own is the model after its local steps"
    if aim.solves in (NEITHER, UNKNOWN):
        return "each user's own is its local answer to its own u_i, and nothing more is known of it"
    if aim.solves == ORIGINAL:
        return "every user's own answer agrees with the model at convergence"
    about = "" if aim.exactly else "about "
    at = "" if setting.beta.limit == 1 else f" at eta = {aim.eta_eff:g}"
    more = ", after its local steps" if setting.scheme.forward else ", which is what pFedMe trains"
    return f"each user's own is {about}prox_eta f_i of the model{at}{more}"


def _metric(setting: Setting, choice: MetricChoice) -> str:
    """Which metric was given, or an automatic eta comes with."""
    scheme, facts = setting.scheme, setting.problem
    if choice.matrix is not None:
        return f"{choice}, whose largest eigenvalue counts as 1"
    if facts is None or not scheme.auto:
        return ""
    why = obstacle(scheme, facts, local_operator(scheme, facts))
    if not choice.curved(why):
        return f"the identity, since {why}" if why else "the identity, as was asked for"
    if facts.matrix_free:
        return f"the mean Hessian along a few directions, found {_looks(setting)} by up to 64 products"
    d, once = facts.dim, facts.quadratic
    when = "before round 1 only" if once else f"{_looks(setting)}, and sent back where it has changed"
    return f"the mean Hessian, for which every user sends {d * (d + 3) // 2} numbers {when}"


def _looks(setting: Setting) -> str:
    """When users are asked for curvature."""
    if setting.partial:
        return (
            "in the first round, when everybody has come, and when twice as many rounds are over, also of who is absent"
        )
    return "before rounds 1, 2, 3, 5, 9, ..."


# --- what speaks against it ------------------------------------------------------------------------------------------


def _left_behind(setting: Setting) -> Iterator[Finding]:
    if setting.missing:
        some = ", ".join(map(str, setting.missing[:5])) + (", ..." if len(setting.missing) > 5 else "")
        one = len(setting.missing) == 1
        what = f"user{'' if one else 's'} {some} never come{'s' if one else ''}, so that {'its' if one else 'their'} "
        what += "f_i has no say: what is solved is the problem of the others"
        yield Finding(SolvesAnotherProblem, what, "let everybody come at some time, or leave them out of the problem")
    if setting.stale and not setting.parts.meet.releases:  # where users share u nobody is left behind
        what = "under Algorithm 1's sampling absent users' z grow stale, so that the right solution is not reached"
        yield Finding(SolvesAnotherProblem, what, 'take absent="hold"')


def _wrong_problem(setting: Setting, aim: Target) -> Iterator[Finding]:
    scheme = setting.scheme
    if setting.missing or setting.stale or (setting.stops and not never_moves(setting.gamma)):
        return
    own = next((law.advice for law in setting.laws if law.solves is not None and law.advice), None)
    if aim.solves == REGULARISED:
        what = f"{scheme.name} at eta = {scheme.eta} does not solve the original problem but"
        advice = "take rs.fedpi for the original problem, or eta = rs.schedules.harmonic(...)"
        if setting.problem is not None and not setting.problem.convex:  # where no scheme is known to be better
            advice = "judge it by held-out data, and compare others at several eta (rs.compare)"
        plus = "" if setting.penalty is None else ", plus g"
        yield Finding(SolvesAnotherProblem, f"{what} {_regularised(setting, aim)}{plus}", advice)
    elif aim.solves == NEITHER:
        what = f"the fixed points of {scheme} solve neither the original nor a regularised problem"
        what += f": {aim.why}" if aim.why else ""
        advice = "take beta = 1, or a prox with alpha = beta = 2 (rs.fedpi)"
        yield Finding(SolvesAnotherProblem, what, own or _advice(setting, aim) or advice)
    elif aim.solves == UNKNOWN:
        what = f"it is not known what {scheme} solves: {aim.why}"
        stated = aim == setting.law.target  # by the operator itself, not for its numbers
        advice = "compare it with rs.fedpi and an exact prox" if stated else "take numbers, or one of rs.schedules"
        yield Finding(SolvesAnotherProblem, what, own or advice)
    elif not aim.exactly:
        what = f"{scheme.name} solves the original problem only as well as its local operator computes the prox"
        what = f"{scheme.name} solves the original problem up to {aim.why}" if aim.why else what
        what += f" ({_off(aim)})" if _off(aim) else ""
        yield Finding(
            SolvesAnotherProblem,
            what,
            _listed("take a smaller lr", "all rows per step")
            if aim.why
            else _listed("take more local steps", "all rows per step", *exact_names(setting.problem)),
        )


def _regularised(setting: Setting, aim: Target) -> str:
    """Which envelopes are minimised, and how well."""
    off = f" ({_off(aim)})" if _off(aim) else ""
    if aim.exactly:
        return f"its Moreau envelopes at eta_eff = {aim.eta_eff:g}"
    if not setting.scheme.forward:
        return f"about its Moreau envelopes at eta_eff = {aim.eta_eff:g}{off}, since the prox is inexact"
    plain = setting.beta.limit == 1 and not setting.law.momentum
    law = "eta (k-1)/2" if plain else "eta_eff"
    if math.isnan(aim.error):
        off = ", if its local steps are small against 1/L"
    return f"about its Moreau envelopes at {law} = {aim.eta_eff:g}{off}, since users take k > 1 steps"


def _off(aim: Target) -> str:
    return "" if math.isnan(aim.error) else f"each user's pull is right to {max(aim.error, 0.001):.1%}"


def _advice(setting: Setting, aim: Target) -> str | None:
    """What to do where local steps are to blame; None where they are not."""
    if math.isfinite(aim.error) and aim.error == 0:
        instead = "rs.fednova, batches of all rows" if setting.scheme.forward else "batches of all rows"
        return f"take {instead}, or a prox" if len(setting.law.steps) > 1 else None
    return (
        "take smaller local steps"
        if setting.scheme.forward
        else _listed("take more local steps", "another lr", *exact_names(setting.problem)[-1:])
    )


def _listed(*parts: str) -> str:
    return " or ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _convergence(setting: Setting) -> Iterator[Finding]:
    scheme, problem = setting.scheme, setting.problem
    steady = setting.alpha.steady and setting.beta.steady and setting.gamma.steady
    if problem is not None and not problem.convex:
        what = "the f_i are not convex, so no theorem promises convergence, and any stationary point may be reached"
        if "training" not in problem.offers:  # who trains a network knows; `Explanation.why` says it
            yield Finding(MayNotConverge, what, "watch the residual")
    elif steady and scheme.exact and not averaged(setting) and not contracts(setting):
        what = f"{scheme.name} needs strongly convex and smooth f_i, and these are not known to be"
        yield Finding(MayNotConverge, what, "take rs.fedpi, which needs convexity only")
    elif setting.outside:
        what = "alpha or beta outside [0, 2], or gamma outside [0, 1], leaves the theory"
        yield Finding(MayNotConverge, what, "watch the residual")
    without = None if problem is None else problem.lookup("without_minimum")
    if without is not None:
        yield Finding(
            MayNotConverge,
            f"{without}: values are right, but gaps are not known",
            "give a larger `reg`, or read `value` alone",
        )
    for name, trend, given in (("eta", setting.eta, scheme.eta), ("gamma", setting.gamma, scheme.gamma)):
        if trend.stops and not never_moves(trend):
            what = f"{name} = {given} vanishes so fast that the iteration stops before it arrives"
            yield Finding(MayNotConverge, what, "take rs.schedules.harmonic, whose sum diverges")
    if scheme.exact and not setting.eta.steady and not setting.eta.stops:
        what = f"{scheme.name} converges for an eta that stays or settles, and eta = {scheme.eta} is not known to"
        yield Finding(MayNotConverge, what, 'take a constant or eta="auto"')


def _step_sizes(setting: Setting) -> Iterator[Finding]:
    """Gradient steps are stable below 2/L."""
    problem, lr, scheme = setting.problem, setting.law.lr, setting.scheme
    if problem is None or problem.lipschitz is None or scheme.auto:
        return
    eta = setting.eta.high if math.isfinite(setting.eta.high) else scheme.eta_at(0)
    top = largest_step(setting)
    if scheme.forward and top is not None:
        step = eta * (setting.alpha.high if setting.law.steps == (1,) else 1)
        if step > top:
            name = "eta" if step == eta else "alpha eta"
            what = f"{name} = {step:g} is above 2/L = {top:.3g}, where gradient steps may diverge"
            yield Finding(MayNotConverge, what, f"stay below {top:.3g} (a global bound: the curvature met may be less)")
    elif lr is not None:
        proximal = setting.law.proximal
        steepest = float(problem.lipschitz.max()) + (1 / eta if proximal else 0)
        top = 2 / steepest if steepest > 0 else math.inf
        if lr > top:
            bound, whose = ("2/(L + 1/eta)", "the prox's") if proximal else ("2/L", "local")
            what = f"lr = {lr:g} is above {bound} = {top:.3g}, where {whose} steps may diverge"
            others = exact_names(setting.problem)[-1:] if proximal else ()
            yield Finding(MayNotConverge, what, _listed(f"take lr < {top:.3g}", *others))
