"""Anderson acceleration, type II, in the lambda inner product, from inner products only, with safeguards.

Given points u_s and T u_s, s = t-tau..t, and residuals f_s = T u_s - u_s, the next point is sum_s pi_s T u_s where pi
minimises |sum_s pi_s f_s| subject to sum pi = 1 (section 4 of the paper). Written with differences y_s = f_t - f_s this
is an unconstrained least-squares problem in theta, pi_s = theta_s, pi_t = 1 - sum theta; its Gram matrix is all that
is needed, and every engine can provide that.

Raw Anderson can diverge on maps that are nonexpansive but not smooth. So:
- weights come from a ridge and a rank truncation, and weights of norm over `largest` are refused;
- an accelerated step is taken only while residuals fall summably fast (the test of A2DR);
- a point whose residual is larger than that of the point it was launched from, or that lies far out and is pulled back
  harder than the launch was pulled forward, is given up: the iteration goes back to the stored T(u) it was launched
  from, the memory is cleared, and plain steps follow, the more the oftener it failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.errors import flag, one_of, quoted, real, refuse, whole
from resolvent.iteration.acceleration import Acceleration, Gram, Unaccelerated
from resolvent.iteration.packing import remembered
from resolvent.iteration.registry import part

SUMMABLE, DECAY, EVERY = 1e6, 1 + 1e-6, 10
"""A2DR: after n accelerated steps residuals must be below SUMMABLE r_0 (n / EVERY + 1)^-DECAY."""
FAR, BEYOND = 30.0, 2.0
"""A step longer than FAR first residuals has overshot if the residual at its end pulls back along it harder than BEYOND
times the pull forward at its beginning: far out a residual can be small where f is not."""
MAX_REST_POWER = 6
"""After n failures, 2^min(n, MAX_REST_POWER) plain steps follow before acceleration is tried again."""


def weights(gram: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """theta that minimises |f - sum theta_j y_j|^2 + ridge |Y|^2 |theta|^2, from the Gram matrix of (f, y_1 .. y_k)."""
    scale = gram.diagonal()[1:].sum()
    if not (np.isfinite(gram).all() and scale > 0):
        return np.zeros(len(gram) - 1)
    s, V = np.linalg.eigh(gram[1:, 1:])
    inverse = np.where(s > len(s) * np.finfo(s.dtype).eps * s[-1], 1 / np.maximum(s + ridge * scale, 1e-300), 0.0)
    theta: NDArray[np.float64] = V @ (inverse * (V.T @ gram[1:, 0]))
    return theta


@remembered
@dataclass(frozen=True, eq=False)
class Past:
    """What Anderson acceleration remembers: T u and f of recent points, and how the last point came about."""

    points: tuple[Tensor, ...] = ()
    residuals: tuple[Tensor, ...] = ()
    first: float = float("nan")
    """The first residual norm."""
    launched: float = float("nan")
    """The residual norm of the point from which the current one was reached by acceleration; NaN after a plain step."""
    steps: int = 0
    """Accelerated steps so far."""
    failures: int = 0
    """Points given up so far."""
    rest: int = 0
    """Plain steps still to take after a failure."""
    accepted: bool = True
    """Whether the last point was accepted."""
    on: str = "u"
    """What the points are: "u", or "mean" of z."""

    def failed(self, residual: float) -> bool:
        """Whether the current point was reached by acceleration and is worse than where it was launched from."""
        return not math.isnan(self.launched) and not residual <= self.launched


@part("accelerate", "anderson")
@dataclass(frozen=True)
class Anderson(Acceleration):
    """Anderson acceleration with memory tau, on u or on the mean of z (the paper's choice for neural networks)."""

    memory: int
    """Anderson acceleration with this memory; 0 is none."""
    on: Literal["u", "mean"] = "u"
    """Which sequence is accelerated."""
    ridge: float = math.nan
    """Of the weights' least squares: 1e-10 on u, 1e-3 on the mean, where maps are stochastic or nonconvex."""
    damping: float = math.nan
    """The share of the weights that is taken: 1 on u, 1/2 on the mean."""
    safeguard: bool = True
    """Without it: raw Anderson, as the paper prints it."""
    largest: float = 1e4
    """Weights of a larger norm are refused."""

    def __post_init__(self) -> None:
        whole(self.memory, "memory", least=0)
        one_of(self.on, "on", ("u", "mean"), 'either "u" or "mean" is needed')
        flag(self.safeguard, "safeguard")
        careful = self.on == "mean"
        ridge, damping = self.ridge, self.damping
        if isinstance(ridge, float) and math.isnan(ridge):
            ridge = (1e-3 if careful else 1e-10) if self.safeguard else 0.0
        if isinstance(damping, float) and math.isnan(damping):
            damping = 0.5 if careful and self.safeguard else 1.0
        checked = {
            "ridge": real(ridge, "ridge", lambda x: x >= 0, "a number >= 0 is needed"),
            "damping": real(damping, "damping", lambda x: 0 < x <= 1, "a number in (0, 1] is needed"),
            "largest": real(self.largest, "largest", lambda x: x >= 0, "a number >= 0 is needed"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def title(self) -> str:  # type: ignore[override]
        return "Anderson acceleration" if self.memory else ""

    def begin(self, u: Tensor) -> Past:
        return Past()

    def restart(self, past: Past) -> Past:
        """Points of another T are worthless; how long the first residual was is not."""
        return Past(first=past.first)

    def fits(self, past: object, rows: int) -> bool:
        if not isinstance(past, Past):
            return False
        return not past.points or (past.on == self.on and len(past.points[0]) == (1 if self.on == "mean" else rows))

    def advance(self, past: Past, u: Tensor, Tu: Tensor, gram: Gram) -> tuple[Tensor, Past]:
        """The next point and what to remember, after T was seen at u."""
        if self.memory == 0:
            return Tu, past
        f = Tu - u
        points = (*past.points, Tu)[-self.memory - 1 :]
        residuals = (*past.residuals, f)[-self.memory - 1 :]
        rows = [f, *(f - r for r in residuals[:-1])]
        jumped = self.safeguard and not math.isnan(past.launched)
        if jumped:  # from where the point was launched to where it is, and the residual there
            before = past.residuals[-1]
            rows += [u - (past.points[-1] - before), before]
        G = gram(torch.stack(rows)).to("cpu", torch.float64).numpy()
        r = float(np.sqrt(max(G[0, 0], 0.0)))
        far = jumped and not G[-2, -2] <= (FAR * past.first) ** 2
        overshot = far and not G[0, -2] >= -BEYOND * abs(G[-1, -2])
        G = G[: len(residuals), : len(residuals)]
        if self.safeguard and (past.failed(r) or overshot):
            return past.points[-1], Past(
                first=past.first,
                steps=past.steps,
                failures=past.failures + 1,
                rest=2 ** min(past.failures + 1, MAX_REST_POWER),
                accepted=False,
                on=self.on,
            )
        first = r if math.isnan(past.first) else past.first
        now = replace(
            past,
            points=points,
            residuals=residuals,
            first=first,
            launched=math.nan,
            rest=max(0, past.rest - 1),
            accepted=True,
            on=self.on,
        )
        summable = SUMMABLE * first * (past.steps / EVERY + 1) ** -DECAY
        if len(points) == 1 or (self.safeguard and (past.rest > 0 or not r <= summable)):
            return Tu, now
        theta = weights(G, self.ridge)
        if self.safeguard and not np.linalg.norm(theta) <= self.largest:
            return Tu, replace(now, points=points[-1:], residuals=residuals[-1:])
        theta *= self.damping
        ahead = Tu
        for step, point in zip(theta.tolist(), points[:-1], strict=True):
            ahead = torch.add(ahead, point - Tu, alpha=step)
        return ahead, replace(now, launched=r, steps=past.steps + 1)

    def on_u(self, past: Past, u: Tensor, Tu: Tensor, gram: Gram) -> tuple[Tensor, Past]:
        """The next u, accelerated if that is where acceleration works."""
        return self.advance(past, u, Tu, gram) if self.on == "u" else (Tu, past)

    def on_mean(self, past: Past, at: Tensor, w: Tensor, gram: Gram) -> tuple[Tensor, Past]:
        """The next meeting point, accelerated if that is where acceleration works; w = mean(z) came out of `at`."""
        return self.advance(past, at, w, gram) if self.on == "mean" and self.memory else (w, past)


def as_acceleration(given: Acceleration | int | None, argument: str = "anderson") -> Acceleration:
    """None is no acceleration, a number the memory of Anderson's."""
    if given is None:
        return Unaccelerated()
    if isinstance(given, int) and not isinstance(given, bool):
        return Anderson(given)
    if not isinstance(given, Acceleration):
        needed = "None, a memory such as 2, rs.Anderson(memory), rs.Momentum(theta) or an acceleration of your own"
        refuse(argument, quoted(given), f"{needed} is needed")
    return given
