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
from typing import NamedTuple, Protocol

from torch import Tensor

from resolvent.errors import InputError


class Met(NamedTuple):
    """A meeting point W (1, d), and where there is a g: a subgradient of g there, and the step s of its prox."""

    w: Tensor
    normal: Tensor | None = None
    step: float = 0.0


class Meet(Protocol):
    """From the mean of z, (1, d), to the meeting point; `step` is alpha eta / beta."""

    def __call__(self, mean: Tensor, step: float) -> Met: ...

    def curvature(self, w: Tensor, gradient: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
        """What automatic eta looks at, from the gradient (d,) and Hessian (d, d) of f at a model w (1, d)."""
        ...


@dataclass(frozen=True)
class TheMean:
    """The mean itself."""

    def __call__(self, mean: Tensor, step: float) -> Met:
        return Met(mean)

    def curvature(self, w: Tensor, gradient: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, hessian


@dataclass(frozen=True)
class MeanThenProx:
    """The mean, then prox_{s g}, given as a function of (point, s)."""

    prox: Callable[[Tensor, float], Tensor]
    span: float = 1.0
    held: Callable[[Tensor], Tensor] | None = None
    """Which coordinates of a point lie at a kink or a bound of g, where that is known."""

    def __call__(self, mean: Tensor, step: float) -> Met:
        s = self.span * step
        if not s > 0:
            raise InputError(
                "a penalty is applied with the step alpha eta / beta, which is not positive in this round; "
                "alpha > 0 and beta > 0 are needed"
            )
        w = self.prox(mean, s)
        return Met(w, (mean - w) / s, s)

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
