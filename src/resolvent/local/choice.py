"""Which local operator a scheme takes on a problem, whether the problem can serve it, and the law it follows."""

from __future__ import annotations

from resolvent.errors import InputError
from resolvent.iteration.facts import Facts
from resolvent.iteration.scheme import Scheme
from resolvent.local import law as laws
from resolvent.local.law import UserFacts
from resolvent.local.operators import ExactProx, GradientProx, GradientSteps, NewtonProx, Operator, as_operator
from resolvent.problems.problem import Problem


def local_operator(scheme: Scheme, problem: Problem | Facts | None) -> Operator:
    """The scheme's local operator: the one it was given, else gradient steps, else the best prox of the problem.

    Without a problem an exact prox is meant.
    """
    if scheme.local is not None:
        return as_operator(scheme.local)
    if scheme.forward:
        return GradientSteps(scheme.steps)
    return ExactProx() if problem is None else best(problem)


def settled(scheme: Scheme, facts: Facts | None) -> Scheme:
    """The scheme with what its operator must know of all users, and with a number for an automatic eta where the
    operator has one: k lr of tilted steps."""
    if scheme.local is None:
        return scheme
    operator = as_operator(scheme.local)
    own = operator.own_eta(facts) if scheme.auto else None
    return scheme.settled(operator if facts is None else operator.settled(facts), own)


def span_of(operator: Operator, facts: Facts) -> float:
    """Number of gradient steps that one local answer amounts to: 1 for a prox, k for k gradient steps.

    Where users take different numbers of steps it is the mean of these.
    """
    if not operator.forward:
        return 1.0
    rows = None if facts.sizes is None else facts.sizes.cpu().numpy()[facts.weights.cpu().numpy() > 0]
    law = operator.law(1.0, 1.0, 1.0, UserFacts(rows))
    if law.span is not None:
        return law.span
    return sum(laws.step_sums(k, law.momentum)[0] for k in law.steps) / len(law.steps)


def check(operator: Operator, facts: Facts) -> None:
    """Refuse an operator that the users' problem cannot serve."""
    missing = operator.needs - facts.offers
    if missing:
        raise InputError(
            f"local is {operator}, which needs {', '.join(sorted(missing))} of the problem, but "
            f"{facts.kind} offers {', '.join(sorted(facts.offers))}; {_advice(facts)}"
        )


def _advice(facts: Facts) -> str:
    if "prox" in facts.offers:
        return "take rs.ExactProx() (a prox scheme)"
    also = ", or give Custom hessian=" if facts.kind == "Custom" else ""
    return f"take rs.GradientProx(steps, lr) or rs.GradientSteps(steps){also}"


def best(problem: Problem | Facts) -> Operator:
    """The best prox a problem offers: a formula, else Newton's method, else gradient steps."""
    if "prox" in problem.offers and problem.closed_form:
        return ExactProx()
    if "hessian" in problem.offers:
        return NewtonProx()
    return ExactProx() if "prox" in problem.offers else GradientProx()


def exact_names(facts: Facts | None) -> list[str]:
    """The operators by which these users can compute their prox exactly; a network has none."""
    kinds = (ExactProx(), NewtonProx())
    return [f"rs.{type(kind).__name__}" for kind in kinds if facts is None or kind.needs <= facts.offers]
