"""The state that a run begins with: from a vector, from rows, or from where an earlier run was left."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from resolvent.engines.delayed import forget_delays
from resolvent.errors import refuse
from resolvent.iteration.acceleration import Accelerate
from resolvent.iteration.checkpoint import moved
from resolvent.iteration.engine import Engine
from resolvent.iteration.facts import Facts
from resolvent.iteration.participation import Participation
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.state import State, adapt, begin
from resolvent.problems.inputs import as_tensor
from resolvent.theory import closed_forms


def beginning(
    engine: Engine,
    scheme: Scheme,
    participation: Participation,
    accelerate: Accelerate,
    start: ArrayLike | Tensor | State | None,
) -> State:
    """The state before the first round, as this engine, scheme, participation and acceleration need it."""
    facts = engine.facts
    rows, dim = facts.here, facts.dim
    eta0 = _eta0(facts) if scheme.auto else 1.0
    if isinstance(start, State):
        if start.u.shape[1] != dim or start.u.shape[0] != (1 if start.together else rows):
            refuse("start", f"a State of shape {tuple(start.u.shape)}", f"({rows}, {dim}) is what fits here")
        start = moved(start, facts.device)
        adapted = adapt(start, rows, scheme, participation, accelerate, eta0)
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
    return begin(u0, w0, rows, scheme, participation, accelerate, eta0)


def _eta0(facts: Facts) -> float:
    """Where an automatic eta starts: 1/L where L is known, else what the problem itself suggests."""
    _, L = closed_forms.curvatures(facts)
    return 1 / L if 0 < L < float("inf") else facts.typical_eta
