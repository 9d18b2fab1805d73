"""The State of a run, how one begins, and how another configuration goes on from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.iteration.acceleration import Accelerate, NoPast
from resolvent.iteration.averaging import Average
from resolvent.iteration.engine import Memory
from resolvent.iteration.packing import remembered
from resolvent.iteration.participation import Participation
from resolvent.iteration.scheme import Scheme, mix
from resolvent.iteration.tuning import Tuning
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
    next: Tensor | None = None
    z: Tensor | None = None
    """Only for Algorithm 1 as printed, where an absent user's z stays while its u moves on."""
    seen: Tensor | None = None
    """Which users have answered, (users,); None: all, always."""
    complete: bool = True
    """Whether every user has answered, wherever it lives."""
    memory: Memory = field(default_factory=dict)
    """What users remember. The loop hands it on and does not look inside."""
    error: Tensor | None = None
    """Bounds on the errors of the latest answers, (users,), where the operator knows them."""
    past: Any = field(default_factory=NoPast)
    """What the acceleration remembers."""
    average: Average | None = None
    tuning: Tuning | None = None
    aligned: bool = True
    """Whether every p_i was given at the same eta; not so under "hold" when eta changes and p_i cannot be kept."""
    together: bool = False
    """Whether users share one u. A shape does not tell: one user alone has one row as well."""
    yardstick: Yardstick | None = None
    """What the run is judged against. No round needs it; whoever goes on from here is judged by it."""

    @property
    def reported(self) -> Tensor:
        """The model that a run reports and hands back, (1, d): the average of past models where one is asked for."""
        return self.w if self.average is None else self.average.model

    def __repr__(self) -> str:
        users = "users together" if self.together else f"{len(self.u)} users"
        return f"State(round {self.round}, {users}, d = {self.u.shape[1]}, eta = {self.eta:g})"


def begin(
    u0: Tensor,
    w0: Tensor,
    users: int,
    scheme: Scheme,
    participation: Participation,
    accelerate: Accelerate,
    eta0: float = 1.0,
) -> State:
    """The state before the first round, at u0, (1, d) or (users, d), with mean w0 (1, d).

    eta0 is where an automatic eta starts.
    """
    together = agrees(scheme, participation) and u0.shape[0] == 1
    u = u0 if together else u0.expand(users, -1).clone()
    sampled = not participation.full and not together
    holds = sampled and participation.absent == "hold"
    return State(
        round=0,
        u=u,
        p=u,
        w=w0,
        met=w0,
        z=u if sampled and participation.absent == "paper" else None,
        seen=torch.zeros(users, dtype=torch.bool, device=u.device) if holds else None,
        complete=not holds,
        past=accelerate.begin(),
        tuning=Tuning(eta0) if scheme.auto else None,
        together=together,
    )


def adapt(
    state: State, users: int, scheme: Scheme, participation: Participation, accelerate: Accelerate, eta0: float
) -> State | None:
    """A state as this configuration can go on from it: unchanged if it made it; None if users together must part."""
    if state.together and not agrees(scheme, participation):
        if users > 1:
            return None
        state = replace(state, together=False)  # one user's vector is its row
    together = state.together
    sampled = not participation.full and not together
    seen, complete, z, tuning = state.seen, state.complete, state.z, state.tuning
    if not (sampled and participation.absent == "hold"):
        seen, complete = None, True
    elif seen is None:
        complete = state.next is not None
        seen = torch.full((len(state.u),), complete, device=state.u.device)
    if not (sampled and participation.absent == "paper"):
        z = None
    elif z is None:
        z = mix(state.u, state.p, scheme.mixing(max(state.round - 1, 0))[0])
    past = state.past if accelerate.fits(state.past, 1 if together else users) else accelerate.begin()
    if (tuning is None) == scheme.auto:
        tuning = Tuning(eta0 if math.isnan(state.eta) else state.eta) if scheme.auto else None
    return replace(state, seen=seen, complete=complete, z=z, past=past, tuning=tuning)


def agrees(scheme: Scheme, participation: Participation) -> bool:
    """Whether users who start together stay together, so that u is one vector: beta = 1, and nobody is left behind."""
    return scheme.projects and (participation.full or participation.absent == "paper")
