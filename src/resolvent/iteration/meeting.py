"""The meeting point of a round (gFL-2): the mean of the users' z, then, where the objective has a term g of its own,
the prox of g.

With W = prox_{s g}(mean(z)) in place of the mean and s = alpha eta / beta, fixed points solve the problem that the
scheme solves without g, plus g: at a fixed point mean(z) = W - (alpha / beta) sum_i lambda_i (u_i - p_i), so that
-sum_i lambda_i (u_i - p_i) / eta is a subgradient of g at W. FedPi is then Douglas-Rachford splitting for the sum of f
and of g restricted to consensus.

k gradient steps pull k times as hard as one: u_i - p_i is about k eta times a gradient. `span` is that k, and
s = span alpha eta / beta; otherwise g would count 1/k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration.metric import Metric
from resolvent.iteration.metric_prox import launch
from resolvent.iteration.part import Effect, Part
from resolvent.iteration.registry import part


class Met(NamedTuple):
    """A meeting point W (1, d), and where there is a g: a subgradient of g there, and the step s of its prox."""

    w: Tensor
    normal: Tensor | None = None
    step: float = 0.0


class Gathering(NamedTuple):
    """What comes to a meeting: rows z as they were sent, (users here, d), or (1, d) where users agree."""

    z: Tensor
    who: Tensor | None
    """Whose rows count, by index; None: everybody's."""
    weigh: Callable[[Tensor, Tensor | None], Tensor]
    """The weighted mean over these users, wherever they live, of rows such as z, (1, d)."""
    weights: Tensor
    """lambda, (users,)."""
    step: float
    """alpha eta / beta."""
    t: int = 0
    seed: int = 0
    metric: Metric | None = None
    """In which the prox of a penalty is taken; None: the identity."""
    secret: bool = False
    """Whether users are real, so that nobody may be able to compute what is drawn here."""

    @property
    def mean(self) -> Tensor:
        """mean(z), (1, d)."""
        return self.weigh(self.z, self.who)


class Meet(Part):
    """Met, memory = meet(gathering, memory): where users meet."""

    needs_rows = True
    """Whether each user's own z is needed; else means of them suffice, and users who start together may share one u."""
    penalises = False
    """Whether the objective has a term g of its own here."""
    central = False
    """Whether it needs the rows of all users in one place."""
    releases = False
    """Whether all that may be known of users is what it hands out. It then meets also where nobody came."""

    def __call__(self, at: Gathering, memory: Any) -> tuple[Met, Any]:
        raise NotImplementedError

    def centre(self, at: Gathering, memory: Any) -> Tensor:
        """What stands for mean(u), (1, d), at rows u, where the local operator starts from it."""
        return at.mean

    def check(self, weights: Tensor, present: int) -> None:
        """Refuse what cannot work with users of these weights, of whom `present` meet at most; before round 0."""

    def moved(self, memory: Any, met: Tensor, beta: float, gamma: float) -> Any:
        """What is remembered once users have moved to where `met`, the meeting point as it was accelerated, leads."""
        return memory

    def shown(self, came: int) -> int:
        """How many users are said to have taken part where so many came."""
        return came

    def curvature(self, w: Tensor, gradient: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
        """What automatic eta looks at, from the gradient (d,) and Hessian (d, d) of f at a model w (1, d)."""
        return gradient, hessian


@part("meet", "mean")
@dataclass(frozen=True)
class TheMean(Meet):
    """The weighted mean of z."""

    needs_rows = False

    def __call__(self, at: Gathering, memory: Any) -> tuple[Met, Any]:
        return Met(at.mean), memory


@dataclass(frozen=True)
class MeanThenProx(Meet):
    """The mean, or another meeting point, then prox_{s g}, given as a function of (point, s).

    In a metric M the prox is that of the point from which the identity's ends in the same W, `launch`: the difference
    over s is a subgradient of g at W there too.
    """

    penalises = True
    prox: Callable[[Tensor, float], Tensor]
    span: float = 1.0
    held: Callable[[Tensor], Tensor] | None = None
    """Which coordinates of a point lie at a kink or a bound of g, where that is known."""
    first: Meet = TheMean()
    value: Callable[[Tensor], Tensor] | None = None
    """g, where it is a sum over coordinates: its prox can then be taken in a metric."""

    @property
    def needs_rows(self) -> bool:  # type: ignore[override]
        return self.first.needs_rows

    @property
    def releases(self) -> bool:  # type: ignore[override]
        return self.first.releases

    def centre(self, at: Gathering, memory: Any) -> Tensor:
        return self.first.centre(at, memory)

    def moved(self, memory: Any, met: Tensor, beta: float, gamma: float) -> Any:
        return self.first.moved(memory, met, beta, gamma)

    def shown(self, came: int) -> int:
        return self.first.shown(came)

    def begin(self, u: Tensor) -> Any:
        return self.first.begin(u)

    def fits(self, past: Any, rows: int) -> bool:
        return self.first.fits(past, rows)

    def law(self, setting: Any) -> Effect:
        return self.first.law(setting)

    def __call__(self, at: Gathering, memory: Any) -> tuple[Met, Any]:
        s = self.span * at.step
        if not s > 0:
            raise InputError(
                "a penalty is applied with the step alpha eta / beta, which is not positive in this round; "
                "alpha > 0 and beta > 0 are needed"
            )
        (mean, _, _), memory = self.first(at, memory)
        before = mean
        if at.metric is not None:
            assert self.value is not None
            before = launch(self.prox, self.value, at.metric, mean, s)
        w = self.prox(before, s)
        return Met(w, (before - w) / s, s), memory

    def curvature(self, w: Tensor, gradient: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
        """The step of the proximal gradient method in place of the gradient, over the coordinates that g lets move.

        Of long models, whose curvature is told in coordinates of a Krylov space, it stays that of f alone.
        """
        if gradient.shape[-1] != w.shape[-1]:
            return gradient, hessian
        largest = float(hessian.abs().sum(1).max())
        if not (largest > 0 and math.isfinite(largest)):
            return gradient, hessian
        x = self.prox(w - gradient / largest, 1 / largest)
        step = ((w - x) * largest)[0]
        moving = None if self.held is None else ~self.held(x[0])
        if moving is None or not bool(moving.any()):
            return step, hessian
        return step[moving], hessian[moving][:, moving]


def as_meet(given: Meet | None) -> Meet:
    """None: users meet at the weighted mean."""
    if given is not None and not isinstance(given, Meet):
        refuse("meet", quoted(given), "None, or a part that inherits from resolvent.iteration.meeting.Meet, is needed")
    return TheMean() if given is None else given
