"""Tilted gradient steps: what SCAFFOLD's and Scaffnew's users compute.

Write u_i = x + eta s_i with x = mean(u), so that sum_i lambda_i s_i = 0. With (alpha, beta, gamma) = (2, 2, 1/2) a
round is then, whatever p_i users answer,

    x+ = mean(p),    s_i+ = s_i + (x+ - p_i) / eta.

Where p_i is prox_eta f_i(x + eta s_i) this is FedPi. Where p_i is k gradient steps of size lr from x on the tilted
function f_i(v) - s_i.v, and eta = k lr, it is SCAFFOLD (option II, server step 1) with s_i = c_i - c; with a
geometric number of steps of mean k it is Scaffnew (ProxSkip). At a fixed point every p_i is x, so that s_i is the
gradient of f_i at x, and these add up to zero: the original problem is solved, whatever eta is.

With a penalty g users begin at the last meeting point W in place of mean(u), since fixed points have p_i = W and
mean(u) = W - eta n, where n is a subgradient of g at W: f + g is solved.

Under sampling users who are absent keep u_i, as FedPi's do ("hold"). SCAFFOLD as printed moves c by |S|/N of the mean
change of those present and x by the mean of their models alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resolvent import randomness
from resolvent.errors import real, refuse
from resolvent.iteration.engine import Ask
from resolvent.iteration.facts import Facts
from resolvent.iteration.registry import part
from resolvent.iteration.scheme import cancels
from resolvent.local import law as laws
from resolvent.local.bound import Bound
from resolvent.local.descent import Pull, descend, gradients
from resolvent.local.law import Law, Target, UserFacts
from resolvent.local.operators import StepsOperator, check_descent, rows_of_batch, steps_of
from resolvent.local.training import stepping

NOISE = "the noise of its batches"


@part("local", "tilted-steps")
@dataclass(frozen=True)
class TiltedSteps(StepsOperator):
    """k gradient steps of size lr from mean(u) on f_i(v) - s_i.v, s_i = (u_i - mean(u)) / eta: SCAFFOLD's.

    eta="auto" is k lr, as SCAFFOLD has it; with `batch`, which makes `steps` shuffled passes over the rows, lr times
    the steps of the user who takes most; with momentum, lr times what these steps amount to. lr=None is eta / k.
    """

    steps: int
    """Gradient steps per user and round; with batch, shuffled passes over the rows."""
    lr: float | None = None
    """The size of a step; else eta / k."""
    batch: int | None = None
    """Rows in a minibatch."""
    momentum: float = 0.0
    """Momentum of the steps, in [0, 1)."""
    wants_centre = True

    def __post_init__(self) -> None:
        check_descent(self.steps, self.batch, self.momentum)
        if self.lr is not None:
            lr = real(self.lr, "lr", lambda x: 0 < x < math.inf, "a finite number > 0 is needed, or None for eta / k")
            object.__setattr__(self, "lr", lr)
        if self.lr is None and self.batch is not None:
            refuse("lr", None, "with batches the number of steps depends on the users' rows: a number > 0 is needed")

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        """Where users come to rest their steps do not move them: s_i is the gradient of f_i at the model."""
        batch = rows_of_batch(self.batch, users)
        steps = steps_of(self.steps, batch, users)
        if not cancels(alpha, beta):
            aim = Target(laws.UNKNOWN, why="tilted steps are made for alpha = beta = 2")
        elif batch is None:
            aim = Target(laws.ORIGINAL, 0.0)
        else:
            aim = Target(laws.ORIGINAL, 0.0, False, math.nan, why=NOISE)
        lr = self._rate(eta) if eta > 0 and math.isfinite(eta) else self.lr
        return Law(aim, False, steps, self.momentum, lr, batch is None, proximal=False, uncovered=self.theory)

    @property
    def theory(self) -> str:
        return (
            "SCAFFOLD's own theorem (Karimireddy et al., 2020) needs lr to be small against 1/L, which is not checked "
            "here; s_i is a gradient only in the limit: nothing is certified before"
        )

    def own_eta(self, facts: Facts | None) -> float | None:
        if self.lr is None or (self.batch is not None and (facts is None or facts.sizes is None)):
            return None
        passes = 1 if self.batch is None else math.ceil(int(facts.sizes.max()) / self.batch)  # type: ignore[union-attr]
        return self.lr * laws.step_sums(self.steps * passes, self.momentum)[0]

    def _rate(self, eta: float) -> float:
        return eta / laws.step_sums(self.steps, self.momentum)[0] if self.lr is None else self.lr

    def count(self, ask: Ask) -> int | NDArray[np.int64]:
        """How many steps, or passes, are taken in this round: of all users, or of each."""
        return self.steps

    def bind(self, problem: Any, steady: bool) -> Bound:
        return stepping(problem, self._descend, steady and self.batch is None)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        assert ask.centre is not None
        centre = ask.centre.expand_as(u)
        steps = gradients(part, ask, self.count(ask), self.batch)
        tilt = Pull((centre - u) / ask.eta, None)
        return descend(part, centre, self._rate(ask.eta), self.momentum, steps, tilt)


@part("local", "random-tilted-steps")
@dataclass(frozen=True)
class RandomTiltedSteps(TiltedSteps):
    """Tilted steps whose number is drawn anew in every round, the same for all users: geometric, with mean k.

    This is Scaffnew (ProxSkip), in which users meet after each step with probability 1/k.
    """

    @property
    def theory(self) -> str:
        return (
            "Scaffnew's own theorem (Mishchenko et al., 2022) needs lr < 2/L and f_i that are strongly convex and "
            "smooth, which is not checked here; s_i is a gradient only in the limit: nothing is certified before"
        )

    def bind(self, problem: Any, steady: bool) -> Bound:
        return stepping(problem, self._descend)  # no two rounds have the same number of steps

    def count(self, ask: Ask) -> int | NDArray[np.int64]:
        drawn = geometric(self.steps, randomness.uniforms(ask.seeding, randomness.STEP_COUNTS, ask.t))
        return drawn if ask.seeds is not None else int(drawn[0])


def geometric(mean: int, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many trials it takes until one succeeds that does so with probability 1/mean, from numbers in [0, 1)."""
    if mean == 1:
        return np.ones(uniform.shape, dtype=np.int64)
    return 1 + np.floor(np.log1p(-uniform) / math.log1p(-1 / mean)).astype(np.int64)
