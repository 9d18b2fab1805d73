"""What `solve` does with a penalty: where it comes from, what it needs of a scheme, and the meeting that applies it."""

from __future__ import annotations

from typing import Any

from resolvent import engines
from resolvent.errors import InputError, refuse
from resolvent.iteration.facts import Facts
from resolvent.iteration.meeting import MeanThenProx, Meet, TheMean
from resolvent.iteration.penalties import Penalty, held, penalised
from resolvent.iteration.scheme import Scheme
from resolvent.local.choice import span_of
from resolvent.local.operators import Operator


def with_penalty(problem: Any, engine: Any, penalty: Penalty | None) -> tuple[Any, Penalty | None]:
    """The problem with a penalty that was given to `solve`; or the penalty itself where the users know of none."""
    if penalty is None:
        return (problem.problem, problem.penalty) if isinstance(problem, Facts) else (problem, None)
    ready = engines.is_engine(engine)
    own = engine.facts.penalty if ready else getattr(problem, "penalty", None)
    if own is not None:
        refuse("penalty", str(penalty), f"there is one already, {own}: give one of the two")
    if ready or not hasattr(problem, "penalty"):
        return problem, penalty
    return penalised(problem, penalty), None


def check_penalty(facts: Facts, scheme: Scheme) -> None:
    """Refuse a penalty that does not fit the model, or a scheme that cannot apply one."""
    if facts.g is None:
        return
    alpha, beta = scheme.alpha(0), scheme.beta(0)
    if not (alpha > 0 and beta > 0):
        raise InputError(
            f"a penalty is applied where users meet, with the step alpha eta / beta, but alpha is {alpha:g} and beta "
            f"{beta:g}; alpha > 0 and beta > 0 are needed"
        )


def meeting(facts: Facts, operator: Operator) -> Meet:
    """The mean, then the prox of the penalty where there is one."""
    g = facts.g
    return TheMean() if g is None else MeanThenProx(g.prox, span_of(operator, facts), held(g))
