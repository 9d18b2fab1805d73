"""What `solve` demands of its arguments before the first round."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent import engines
from resolvent.errors import InputError, MayNotConverge, flag, quoted, refuse, whole
from resolvent.iteration.acceleration import Acceleration
from resolvent.iteration.anderson import as_acceleration
from resolvent.iteration.averaging import Averaging
from resolvent.iteration.facts import Facts, facts_of, needs_problem
from resolvent.iteration.meeting import Meet, TheMean, as_meet
from resolvent.iteration.metric_choice import MetricChoice, as_metric
from resolvent.iteration.participation import Participation
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.sending import Send, as_send
from resolvent.iteration.state import State
from resolvent.local import choice
from resolvent.local.operators import Operator
from resolvent.problems.custom import Custom
from resolvent.problems.problem import Problem
from resolvent.problems.verify import verify
from resolvent.solving.stopping import Stop


def check(
    problem: Any,
    scheme: Scheme,
    participation: Participation,
    rounds: int,
    every: int = 1,
    average: str | None = None,
    seed: int = 0,
    send: Send | None = None,
    meet: Meet | None = None,
    metric: MetricChoice | None = None,
    down: Send | None = None,
) -> Operator:
    """The local operator, once everything that `solve` needs of these arguments is there."""
    facts = facts_of(problem)
    operator = choice.local_operator(scheme, facts)
    participation.check(facts.users)
    choice.check(operator, facts)
    _check_penalty(facts, scheme)
    as_send(send), as_send(down, "down")
    _check_crossing(facts, participation, as_meet(meet))
    if scheme.auto and not participation.full and participation.absent == "paper":
        raise InputError(
            'eta is "auto", but absent="paper" lets answers grow stale; take absent="hold" or a number for eta'
        )
    _check_sampling(scheme, participation, facts, (as_send(send), as_send(down, "down")), as_meet(meet))
    if scheme.auto and operator.certifies is None and facts.lipschitz is None:
        raise InputError(
            f'eta is "auto", but {operator} computes the prox only roughly and nothing is known of the curvature; '
            "give eta a number" + (", or Custom lipschitz= or hessian=True" if facts.kind == "Custom" else "")
        )
    as_metric(metric).check(scheme, facts, operator)
    whole(rounds, "rounds")
    whole(every, "every")
    Averaging(average)
    if whole(seed, "seed", least=0) >= 2**63:
        refuse("seed", seed, "a whole number below 2^63 is needed")
    return operator


def _check_penalty(facts: Facts, scheme: Scheme) -> None:
    """Refuse a penalty that does not fit the model, or a scheme that cannot apply one."""
    if facts.g is None:
        return
    alpha, beta = scheme.alpha(0), scheme.beta(0)
    if not (alpha > 0 and beta > 0):
        raise InputError(
            f"a penalty is applied where users meet, with the step alpha eta / beta, but alpha is {alpha:g} and beta "
            f"{beta:g}; alpha > 0 and beta > 0 are needed"
        )


def _check_sampling(
    scheme: Scheme, participation: Participation, facts: Facts, sends: Sequence[Send], meet: Meet
) -> None:
    """Refuse absent="paper" where the algorithm's paper says nothing of it, and what its rule says nothing of."""
    if participation.full or participation.absent != "paper":
        return
    if scheme.sampling == "none":
        refuse("absent", '"paper"', f'the paper of {scheme.name} has everybody present: take absent="hold"')
    if participation.sampling(scheme) is None:
        return
    plain = type(meet) is TheMean and facts.g is None and not any(send.compresses for send in sends)
    if scheme.fixed_mixing != (2, 2, 0.5) or scheme.changes != "never" or not plain:
        refuse("absent", '"paper"', f"{scheme.name}'s paper has (alpha, beta, gamma) = (2, 2, 1/2), one eta, no "
               'penalty, the plain mean, and everything sent: take absent="hold"')  # fmt: skip


def _check_crossing(facts: Facts, participation: Participation, meet: Meet) -> None:
    """Refuse what cannot be put together where users meet."""
    if meet.central and facts.here < facts.users:
        refuse(
            "meet", quoted(meet), "it needs the rows of all users in one place, and every rank has its own users' only"
        )
    present_only = participation.absent == "paper" and not participation.full  # under "hold", all users seen meet
    meet.check(facts.weights, participation.most_present(facts.users) if present_only else facts.users)


def check_hooks(stop: object, callback: object, progress: object = None) -> None:
    if stop is not None and not isinstance(stop, Stop) and not callable(stop):
        refuse("stop", quoted(stop), "rs.Stop(...) or a function of the round is needed")
    if callback is not None and not callable(callback):
        refuse("callback", quoted(callback), "a function of the round is needed")
    if progress is not None:
        flag(progress, "progress")


def warn_of_stop(stop: object, facts: Facts, operator: Operator, send: Send) -> None:
    """Where a limit can never be met, since what it limits is not known."""
    if not isinstance(stop, Stop):
        return
    if stop.certificates is not None and (operator.certifies is None or send.compresses):
        why = "what crosses is compressed" if operator.certifies else f"{operator} certifies nothing"
        if facts.kind == "Custom" and not send.compresses:
            why += "; give Custom prox= or hessian="
        warnings.warn(f"stop.certificates is never met: {why}", MayNotConverge, stacklevel=4)
    if stop.gap is not None and facts.kind in ("Custom", "Neural") and facts.fstar is None:
        why = "the minimum is not known" + ("; give Custom minimiser=" if facts.kind == "Custom" else "")
        warnings.warn(f"stop.gap is never met: {why}", MayNotConverge, stacklevel=4)


def known_users(problem: Problem | Facts | None, engine: Any, scheme: Scheme) -> tuple[Facts, Scheme]:
    """What is known of the users, from the problem or from a ready-made engine, whose operator is then the scheme's."""
    if engines.is_engine(engine):
        facts = engine.facts
        if not isinstance(facts, Facts):
            needed = "an engine's facts are a resolvent.iteration.facts.Facts"
            refuse("engine", f"of type {type(engine).__name__} with other facts", needed)
        if problem is not None and problem is not facts.problem:
            refuse(
                "problem", f"of type {type(problem).__name__}", "the engine has its own users: None is needed beside it"
            )
        return facts, scheme.computing(facts.operator)
    needs_problem(problem, "rs.LeastSquares, rs.Logistic, rs.Custom or another problem is needed")
    return facts_of(problem), scheme


def one_acceleration(anderson: Acceleration | int | None, accelerate: Acceleration | int | None) -> Acceleration:
    """The acceleration that is asked for under either name."""
    if anderson is not None and accelerate is not None:
        refuse("accelerate", quoted(accelerate), "anderson is given as well: one of the two is enough")
    return as_acceleration(anderson) if accelerate is None else as_acceleration(accelerate, "accelerate")


def verify_functions(problem: Problem | None, scheme: Scheme, state: State) -> None:
    """Before the first round, a user's own functions must not contradict each other."""
    if isinstance(problem, Custom) and problem.check and state.round == 0:
        eta = state.parts.eta.eta if scheme.auto else scheme.eta_at(0)
        verify(problem, state.u, eta, changes=scheme.changes != "never")


def described(given: dict[str, Any], plain: dict[str, Any], start: Any) -> dict[str, Any]:
    """What must not differ: arguments of `solve` without their addresses in memory, plain ones, and the start."""
    words = {name: f"{_plain(str(value))} [{_digest(_plain(repr(value)).encode())}]" for name, value in given.items()}
    return words | plain | _start(start)


def _plain(words: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", words)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _start(start: Any) -> dict[str, Any]:
    """Where the run begins, as far as all processes share it: rows of u are each process's own."""
    if isinstance(start, State):
        facts = {"the round to go on from": start.round, "the eta to go on with": repr(start.eta)}
        return facts | {"the model to go on from": _sum(start.w), "sharing one vector": start.together}
    if start is None:
        return {"start": "where the problem begins"}
    vector = torch.as_tensor(start)
    return {"start": "rows of users" if vector.ndim == 2 and len(vector) > 1 else f"a vector, {_sum(vector)}"}


def _sum(tensor: Tensor) -> str:
    return _digest(tensor.detach().cpu().contiguous().double().numpy().tobytes())
