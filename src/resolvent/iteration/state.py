"""The State of a run, how one begins, and how another configuration goes on from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from resolvent.iteration.facts import Memory
from resolvent.iteration.metric import Metric
from resolvent.iteration.packing import remembered
from resolvent.iteration.parts import Memories, Parts
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.yardstick import Yardstick


@remembered
@dataclass(frozen=True, eq=False, slots=True)
class State:
    """Everything a round needs from the past; going on from it equals never having stopped.

    u and p belong together: p_i is user i's answer to u_i at `eta`. One vector (1, d) each where users are `together`,
    p then being the mean of the answers. `next` is where u will move when the next round begins.
    """

    round: int
    u: Tensor
    p: Tensor
    w: Tensor
    """The model: mean(z), (1, d), of the last accepted point."""
    met: Tensor
    """The meeting point that u moves by: mean(z), extrapolated with Anderson on the mean."""
    eta: float = math.nan
    metric: Metric | None = None
    """In which p_i is the prox of u_i; None: the identity."""
    next: Tensor | None = None
    memory: Memory = field(default_factory=dict)
    """What users remember. The loop hands it on and does not look inside."""
    error: Tensor | None = None
    """Bounds on the errors of the latest answers, (users,), where the operator knows them."""
    parts: Memories = field(default_factory=Memories)
    """What the parts of a round remember."""
    aligned: bool = True
    """Whether every p_i was given at the same eta; not so under "hold" when eta changes and p_i cannot be kept."""
    together: bool = False
    """Whether users share one u. A shape does not tell: one user alone has one row as well."""
    yardstick: Yardstick | None = None
    """What the run is judged against. No round needs it; whoever goes on from here is judged by it."""
    users: int | None = None
    """How many there are in all, wherever they live; None in States that were stored without it."""

    @property
    def complete(self) -> bool:
        """Whether every user has answered, wherever it lives."""
        return self.parts.participation.complete

    @property
    def reported(self) -> Tensor:
        """The model that a run reports and hands back, (1, d): the average of past models where one is asked for."""
        return self.w if self.parts.average is None else self.parts.average.model

    def __repr__(self) -> str:
        users = "users together" if self.together else f"{len(self.u)} users"
        return f"State(round {self.round}, {users}, d = {self.u.shape[1]}, eta = {self.eta:g})"


def begin(u0: Tensor, w0: Tensor, users: int, scheme: Scheme, parts: Parts) -> State:
    """The state before the first round, at u0, (1, d) or (users, d), with mean w0 (1, d)."""
    together = parts.share(scheme) and u0.shape[0] == 1
    u = u0 if together else u0.expand(users, -1).clone()
    return State(round=0, u=u, p=u, w=w0, met=w0, parts=parts.begin(u, together, scheme), together=together)


def adapt(state: State, users: int, scheme: Scheme, parts: Parts) -> State | None:
    """A state as this configuration can go on from it: unchanged if it made it; None if users together must part."""
    if state.together and not parts.share(scheme):
        if users > 1:
            return None
        state = replace(state, together=False)  # one user's vector is its row
    return replace(state, parts=parts.go_on(state, scheme))
