"""How a run begins: its first State, its step size, where users meet, and the penalty that is applied there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from resolvent import engines
from resolvent.engines.delayed import forget_delays
from resolvent.errors import quoted, refuse
from resolvent.iteration.checkpoint import moved
from resolvent.iteration.engine import Engine
from resolvent.iteration.facts import Facts
from resolvent.iteration.meeting import MeanThenProx, Meet
from resolvent.iteration.metric_choice import MetricChoice, obstacle
from resolvent.iteration.parts import Parts
from resolvent.iteration.penalties import Penalty, held, penalised
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.state import State, adapt, begin
from resolvent.iteration.tuning import Automatic, Scheduled, StepSize
from resolvent.local.choice import span_of
from resolvent.local.operators import Operator
from resolvent.problems.inputs import as_tensor
from resolvent.theory import closed_forms


def beginning(engine: Engine, scheme: Scheme, parts: Parts, start: ArrayLike | Tensor | State | None) -> State:
    """The state before the first round, as this engine, scheme and parts need it."""
    facts = engine.facts
    rows, dim = facts.here, facts.dim
    if isinstance(start, State):
        if start.users not in (None, facts.users):
            refuse("start", f"a State of {start.users} users", f"the problem has {facts.users}")
        if start.u.shape[1] != dim or start.u.shape[0] != (1 if start.together else rows):
            refuse("start", f"a State of shape {tuple(start.u.shape)}", f"({rows}, {dim}) is what fits here")
        if start.parts.eta is None:
            refuse("start", "a State that an earlier version stored", "only that version can go on from it")
        start = moved(start, facts.device)
        adapted = adapt(start, rows, scheme, parts)
        if adapted is not None:
            return forget_delays(engine, adapted)
        start = start.u if start.next is None else start.next  # users must part: only the point carries over
    if start is None:
        start = facts.start
    if start is None:
        u0 = torch.zeros((1, dim), dtype=facts.dtype, device=facts.device)
    else:
        u0 = as_tensor(start, "start").detach().to(dtype=facts.dtype, device=facts.device)
        u0 = u0.unsqueeze(0) if u0.ndim == 1 else u0
        if u0.ndim != 2 or u0.shape[1] != dim or u0.shape[0] not in (1, rows):
            refuse("start", f"of shape {tuple(u0.shape)}", f"({dim},) or ({rows}, {dim}) is needed")
        if not bool(torch.isfinite(u0).all()):
            refuse("start", "partly NaN or infinite", "finite numbers are needed")
    w0 = u0 if u0.shape[0] == 1 else engine.mean(u0)
    return replace(begin(u0, w0, rows, scheme, parts), users=facts.users)


def drawn_start(facts: Facts, start: Any, seed: int) -> Any:
    """The start that was given; in place of "random", initial weights of a network that the seed draws."""
    if not isinstance(start, str):
        return start
    if start != "random":
        refuse("start", quoted(start), 'numbers (a vector), a State or "random" are needed')
    draw = getattr(facts.problem, "random_start", None)
    if draw is None:
        refuse("start", "'random'", f"{facts.kind} has no layers that draw their weights: a vector is needed")
    return draw(seed)


def step_size(facts: Facts, scheme: Scheme, operator: Operator, metric: MetricChoice) -> StepSize:
    """The scheme's eta; an automatic one starts at 1/L where L is known, else where the problem itself suggests."""
    curved = metric.curved(obstacle(scheme, facts, operator))
    if not scheme.auto:
        return Scheduled(metric.matrix)
    _, L = closed_forms.curvatures(facts)
    return Automatic(1 / L if 0 < L < float("inf") else facts.typical_eta, curved, metric.matrix)


def meeting(facts: Facts, operator: Operator, meet: Meet) -> Meet:
    """Where users meet: then the prox of the penalty, where there is one."""
    g = facts.g
    return meet if g is None else MeanThenProx(g.prox, span_of(operator, facts), held(g), meet, g.value)


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
