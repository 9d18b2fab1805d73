"""Gradient steps whose displacement is divided by their number: what FedNova's users compute."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.errors import InputError, listed, real, refuse, whole
from resolvent.iteration.engine import Ask
from resolvent.iteration.facts import Facts
from resolvent.iteration.registry import part
from resolvent.local import law as laws
from resolvent.local.bound import Bound
from resolvent.local.descent import descend, gradients
from resolvent.local.law import Law, Target, UserFacts
from resolvent.local.operators import StepsOperator, check_descent, pulls_error, rows_of_batch, steps_of
from resolvent.local.training import stepping


@part("local", "normalised-steps")
@dataclass(frozen=True)
class NormalisedSteps(StepsOperator):
    """k_i gradient steps of size eta from u_i, whose displacement counts as that of `scale` steps: FedNova's.

    p_i = u_i + scale (y_i - u_i) / k_i, with y_i where the steps lead: users with many steps pull no harder than those
    with few. With momentum a step counts as often as its gradient does. `steps` may be one number per user; with
    `batch` these are shuffled passes, and k_i is larger for users with more rows.
    """

    steps: int | tuple[int, ...]
    """Gradient steps per user and round, one number or one per user; with batch, shuffled passes over the rows."""
    batch: int | None = None
    """Rows in a minibatch."""
    momentum: float = 0.0
    """Momentum of the steps, in [0, 1)."""
    scale: float | None = None
    """How many steps the meeting goes; else their weighted mean, as FedNova has it."""
    forward = True

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int):
            needed = "a whole number >= 1 is needed, or one per user"
            own = tuple(int(whole(k, "steps")) for k in listed(self.steps, "steps", needed))
            if not own:
                refuse("steps", "empty", needed)
            object.__setattr__(self, "steps", own)
        check_descent(self._passes.max(), self.batch, self.momentum)
        if self.scale is not None:
            scale = real(self.scale, "scale", lambda x: x > 0, "a finite number > 0 is needed, or None")
            object.__setattr__(self, "scale", scale)

    @property
    def _passes(self) -> NDArray[np.int64]:
        return np.atleast_1d(np.asarray(self.steps))

    def settled(self, facts: Facts) -> NormalisedSteps:
        """With the scale that FedNova has: the weighted mean of the users' numbers of steps."""
        if len(self._passes) not in (1, facts.users):
            refuse("steps", f"{len(self._passes)} numbers", f"one is needed, or one for each of {facts.users} users")
        weights = facts.weights.cpu().double()
        if self.scale is not None or abs(float(weights.sum()) - 1) > 1e-6 or (self.batch and facts.sizes is None):
            return self
        counts = self._counts(facts.sizes, np.arange(facts.users))
        return replace(self, scale=float(weights @ counts.double().cpu()))

    def _counts(self, sizes: Tensor | None, users: NDArray[np.int64]) -> Tensor:
        """What each user's steps amount to, (users,)."""
        steps = np.full(len(users), self._passes[0]) if len(self._passes) == 1 else self._passes[users]
        if self.batch is not None:
            assert sizes is not None
            steps = steps * -(-sizes.cpu().numpy() // self.batch)
        return torch.tensor([laws.step_sums(int(k), self.momentum)[0] for k in steps], dtype=torch.float64)

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        """The original problem to first order in eta, however many steps users take."""
        return self._law(alpha, beta, eta, users)._replace(span=self.scale)

    def _law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        batch = rows_of_batch(self.batch, users)
        steps = tuple(sorted({k for own in set(self._passes.tolist()) for k in steps_of(own, batch, users)}))
        if batch is None and steps == (1,):
            long = 1.0 if self.scale is None else self.scale  # a step is so many times as long as eta
            return laws.of_step(alpha, beta, long * eta)._replace(exact=long == 1, momentum=self.momentum)
        if beta != 1:
            return Law(Target(laws.UNKNOWN, why="normalised steps are made for beta = 1"), False, steps, self.momentum)
        if eta == 0:
            return Law(Target(laws.ORIGINAL, 0.0, batch is None, math.nan), False, steps, self.momentum)

        def remaining(s: laws.Floats, steep: float, k: int) -> laws.Floats:
            return 1 - (1 - laws.left_after(s, eta, k, self.momentum)) / laws.step_sums(k, self.momentum)[0]

        eta_eff = eta * float(np.mean([laws.step_sums(k, self.momentum)[1] for k in steps]))
        aim = laws.settled(eta_eff, False, pulls_error(alpha, beta, eta, eta_eff, batch, steps, users, remaining))
        return Law(aim, False, steps, self.momentum, minimises=batch is None)

    def bind(self, problem: Any, steady: bool) -> Bound:
        if self.scale is None:
            raise InputError(
                "scale is None, and not all users live here, of whose numbers of steps it is the weighted mean; "
                "a number > 0 is needed"
            )
        return stepping(problem, self._descend)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        assert self.scale is not None
        users = np.arange(part.users) if ask.names is None else ask.names.cpu().numpy()
        passes = self._passes if len(self._passes) == 1 else self._passes[users]
        steps = gradients(part, ask, passes if len(passes) > 1 else int(passes[0]), self.batch)
        end = descend(part, u, ask.eta, self.momentum, steps)
        share = self.scale / self._counts(None if self.batch is None else part.sizes, users).to(u).unsqueeze(1)
        return u + share * (end - u)
