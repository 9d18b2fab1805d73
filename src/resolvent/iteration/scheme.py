"""The one scheme (gFL-1..3): three numbers, a step size and a local operator.

z = (1-alpha) u + alpha local(u)      (gFL-1)
w = (1-beta)  z + beta  mean(z)       (gFL-2)
u = (1-gamma) u + gamma w             (gFL-3)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import InputError, flag, one_of, quoted, refuse, whole
from resolvent.iteration.schedules import Schedule, as_schedule

Number = float | Schedule | Callable[[int], float]

AUTO = "auto"
SAMPLINGS = ("", "none", "scaffold", "feddyn", "fedadmm")
"""What a scheme may say of users who are absent, as its paper has it."""


def cancels(alpha: float, beta: float) -> bool:
    """Whether alpha + beta = alpha beta > 0: the fixed points of a prox scheme then do not depend on eta."""
    return alpha + beta == alpha * beta > 0


@dataclass(frozen=True, init=False)
class Scheme:
    """alpha, beta, gamma and eta (numbers, schedules or functions of the round) and a local operator.

    eta="auto" finds eta while running, where what is solved does not depend on it. `local=None` takes the best prox
    the problem offers; with `forward=True`, `steps` gradient steps of size eta. alpha and beta outside [0, 2] or gamma
    outside [0, 1] leave the theory: say so with `beyond=True`.
    """

    alpha: Schedule
    beta: Schedule
    gamma: Schedule
    eta: Schedule | None
    """None: automatic."""
    local: Any
    name: str
    forward: bool
    steps: int
    beyond: bool
    sampling: str
    """Whose rule `absent="paper"` is where it is not Algorithm 1; "none": the paper has everybody present."""

    def __init__(
        self,
        alpha: Number,
        beta: Number,
        gamma: Number,
        eta: Number | str,
        local: Any = None,
        *,
        name: str = "scheme",
        forward: bool = False,
        steps: int = 1,
        beyond: bool = False,
        sampling: str = "",
    ) -> None:
        whole(steps, "steps")
        flag(forward, "forward"), flag(beyond, "beyond")
        if not isinstance(name, str):
            refuse("name", quoted(name), "text is needed")
        one_of(sampling, "sampling", SAMPLINGS, f"one of {', '.join(map(repr, SAMPLINGS))} is needed")
        if isinstance(eta, str) and eta != AUTO:
            refuse("eta", quoted(eta), 'a number > 0, a schedule, a function of the round or "auto" is needed')
        if isinstance(local, type):
            refuse("local", f"the class {local.__name__}", f"an operator is needed: {local.__name__}(...)")
        fields = {
            "alpha": _mixing("alpha", alpha, 2, beyond),
            "beta": _mixing("beta", beta, 2, beyond),
            "gamma": _mixing("gamma", gamma, 1, beyond),
            "eta": None if isinstance(eta, str) else as_schedule(eta, "eta"),
            "local": local,
            "name": name,
            # an operator knows itself whether it is a prox or a gradient step
            "forward": forward if local is None else bool(getattr(local, "forward", False)),
            "steps": steps,
            "beyond": beyond,
            "sampling": sampling,
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        if not self.auto:
            self.eta_at(0)
        elif not self.exact:
            raise InputError(
                f'eta is "auto", but {name} solves a problem that depends on eta; '
                "give eta a number, or take FedPi or FedSplit, whose solution does not depend on it"
            )

    def computing(self, operator: Any) -> Scheme:
        """The same scheme with the operator that users apply already; refused where the scheme names another one."""
        steps = getattr(operator, "steps", self.steps) if self.local is None and self.forward else self.steps
        if operator.forward != self.forward or self.local not in (None, operator) or steps != self.steps:
            own = self.local or (f"{self.steps} gradient steps" if self.forward else "a prox")
            what = f"the engine's users compute {operator}, but {self.name} takes {own}"
            raise InputError(f"{what}; build the engine with that operator")
        made = copy(self)
        object.__setattr__(made, "local", operator)
        return made

    def settled(self, operator: Any, eta: float | None) -> Scheme:
        """The same scheme with this operator, and this eta where one is given."""
        changed = copy(self)
        object.__setattr__(changed, "local", operator)
        if eta is not None:
            object.__setattr__(changed, "eta", as_schedule(eta, "eta"))
        return changed

    def mixing(self, t: int) -> tuple[float, float, float]:
        """alpha_t, beta_t, gamma_t, checked: a schedule may do anything."""
        return (
            _within("alpha", self.alpha, t, 2, self.beyond),
            _within("beta", self.beta, t, 2, self.beyond),
            _within("gamma", self.gamma, t, 1, self.beyond),
        )

    def eta_at(self, t: int) -> float:
        """eta_t, checked: a schedule may do anything."""
        assert self.eta is not None
        eta = self.eta(t)
        if not (math.isfinite(eta) and eta > 0):
            refuse("eta", f"{eta} in round {t}", "a finite number > 0 is needed in every round")
        return float(eta)

    @property
    def auto(self) -> bool:
        """Whether eta is found while running."""
        return self.eta is None

    @property
    def changes(self) -> str:
        """How often eta changes: "never", "sometimes" or "always"."""
        return "sometimes" if self.eta is None else self.eta.changes

    @property
    def steady(self) -> bool:
        """Whether a factorisation made for one eta can serve again."""
        return self.changes != "always"

    @property
    def fixed_mixing(self) -> tuple[float, float, float] | None:
        """(alpha, beta, gamma) where they are the same in every round, else None."""
        schedules = (self.alpha, self.beta, self.gamma)
        return self.mixing(0) if all(s.changes == "never" for s in schedules) else None

    @property
    def relaxation(self) -> tuple[float, float] | None:
        """(alpha, beta), which decide what is solved, where they are the same in every round, else None."""
        fixed = self.alpha.changes == self.beta.changes == "never"
        return (self.alpha(0), self.beta(0)) if fixed else None

    @property
    def exact(self) -> bool:
        """Whether alpha + beta = alpha beta always: a prox scheme then solves the original problem at any eta."""
        pair = self.relaxation
        return pair is not None and not self.forward and cancels(*pair)

    @property
    def projects(self) -> bool:
        """Whether beta = 1 always: users who start together stay together, so u is one vector."""
        return self.beta.changes == "never" and self.beta(0) == 1

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.name}(alpha={self.alpha}, beta={self.beta}, gamma={self.gamma}, eta={self.eta or AUTO})"


def _mixing(argument: str, given: Number, top: int, beyond: bool) -> Schedule:
    schedule = as_schedule(given, argument)
    _within(argument, schedule, 0, top, beyond)
    return schedule


def _within(argument: str, schedule: Schedule, t: int, top: int, beyond: bool) -> float:
    value = schedule(t)
    if 0 <= value <= top:
        return value
    when = "" if schedule.changes == "never" else f" in round {t}"
    if not math.isfinite(value):
        refuse(argument, f"{value}{when}", "a finite number is needed")
    if not beyond:
        refuse(
            argument, f"{value}{when}", f"the theory needs it in [0, {top}]; pass beyond=True to leave it on purpose"
        )
    return value


def mix(a: Tensor, b: Tensor, theta: float) -> Tensor:
    """(1 - theta) a + theta b: 1 projects, 2 reflects, 1/2 averages."""
    return b if theta == 1 else torch.lerp(a, b, theta)
