"""The least value of f over a ball: f + mu/2 (|w - c|^2 - r^2) for the mu at which its minimiser lies on the sphere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from resolvent.problems.reference.curvature import excess
from resolvent.problems.reference.faces import descend
from resolvent.problems.reference.objective import Floats, Objective
from resolvent.problems.reference.terms import no_penalty

TINY = 1e-14
"""mu r^2 relative to f below which the sphere is taken not to matter."""


@dataclass(frozen=True, eq=False)
class OnBall:
    """A point z of the ball around 0, the multiplier mu, and a bound on f(z) - min f over the ball."""

    z: Floats
    mu: float
    excess: float


def minimise(f: Objective, members: np.ndarray, radius: float, size: Floats) -> OnBall:
    """f is in coordinates x = size z around the centre of the ball, which bounds the members of z."""
    plain, inner = no_penalty(len(members)), members / size**2

    def lagrangian(mu: float) -> Objective:
        return replace(f, ridge=f.ridge + mu * inner)

    def at(mu: float, x: Floats) -> tuple[Floats, float]:
        x = descend(lagrangian(mu), plain, x).w
        return x, float(np.linalg.norm((x / size)[members]))

    start = np.zeros(len(members))
    slope = f.gradient(start, f.loss.slope(f.predictors(start))) * size
    largest = float(np.linalg.norm(slope[members])) / radius + 1e-300
    mu = TINY * max(largest, abs(f.value(start)) / radius**2)
    x, length = at(mu, start)
    if length > radius:
        mu, x, length = _on_sphere(at, radius, (mu, x, length), largest)
    if length > radius:
        x = np.where(members, x * (radius / length), x)
    z = x / size
    slack = mu / 2 * abs(radius**2 - float(z[members] @ z[members]))
    return OnBall(z, mu, excess(lagrangian(mu), x) + slack)


Point = tuple[float, Floats, float]
"""mu, x(mu) and the length of z(mu)."""


def _on_sphere(at: Callable[[float, Floats], tuple[Floats, float]], radius: float, low: Point, top: float) -> Point:
    """By the secant method on 1/|z(mu)|, which is nearly linear in mu, kept between bounds."""
    high = (top, *at(top, low[1]))
    while high[2] > radius and high[0] < 1e30 * top:  # free coordinates may push the multiplier beyond the first bound
        high = (10 * high[0], *at(10 * high[0], high[1]))
    last, now, best = low, high, high
    for _ in range(100):
        bend = 1 / max(now[2], 1e-300) - 1 / max(last[2], 1e-300)
        guess = now[0] + (1 / radius - 1 / max(now[2], 1e-300)) * (now[0] - last[0]) / bend if bend else 0.0
        if not low[0] < guess < high[0]:
            guess = float(np.sqrt(low[0] * high[0])) if high[0] > 4 * low[0] else (low[0] + high[0]) / 2
        if not low[0] < guess < high[0]:
            break
        last, now = now, (guess, *at(guess, now[1]))
        if abs(now[2] - radius) < abs(best[2] - radius):
            best = now
        if abs(now[2] - radius) <= 4e-16 * radius:
            break
        low, high = (now, high) if now[2] > radius else (low, now)
    return best
