"""What `solve` does with a penalty: where it comes from, what it needs of a scheme, and the meeting that applies it."""

from __future__ import annotations

from typing import Any

from resolvent import engines
from resolvent.engines.penalty import WithPenalty
from resolvent.errors import InputError, refuse
from resolvent.iteration.meeting import MeanThenProx, Meet, TheMean
from resolvent.iteration.penalties import Penalty, held, penalised, penalty_of
from resolvent.iteration.scheme import Scheme
from resolvent.local.choice import span_of
from resolvent.local.operators import Operator


def with_penalty(problem: Any, engine: Any, penalty: Penalty | None) -> tuple[Any, Penalty | None]:
    """The problem with a penalty that was given to `solve`; or the penalty itself where the users know of none."""
    if penalty is None:
        return (problem.without, problem.penalty) if isinstance(problem, WithPenalty) else (problem, None)
    own: Any = engine.facts if engines.is_engine(engine) else problem
    if getattr(own, "penalty", None) is not None:
        refuse("penalty", str(penalty), f"there is one already, {own.penalty}: give one of the two")
    if engines.is_engine(engine) or not hasattr(problem, "penalty"):
        return problem, penalty
    return penalised(problem, penalty), None


def check_penalty(problem: Any, scheme: Scheme) -> None:
    """Refuse a penalty that does not fit the model, or a scheme that cannot apply one."""
    if penalty_of(problem) is None:
        return
    alpha, beta = scheme.alpha(0), scheme.beta(0)
    if not (alpha > 0 and beta > 0):
        raise InputError(
            f"a penalty is applied where users meet, with the step alpha eta / beta, but alpha is {alpha:g} and beta "
            f"{beta:g}; alpha > 0 and beta > 0 are needed"
        )


def meeting(facts: Any, operator: Operator) -> Meet:
    """The mean, then the prox of the penalty where there is one."""
    g = penalty_of(facts)
    return TheMean() if g is None else MeanThenProx(g.prox, span_of(operator, facts), held(g))
