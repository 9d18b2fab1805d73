"""The least value of f over a ball: f + mu/2 (|w - c|^2 - r^2) for the mu at which its minimiser lies on the sphere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from resolvent.problems.reference.curvature import excess
from resolvent.problems.reference.faces import descend
from resolvent.problems.reference.objective import EPS, Floats, Objective
from resolvent.problems.reference.terms import no_penalty

TINY = 1e-14
"""mu r^2 relative to f below which the sphere is taken not to matter."""


def minimise(f: Objective, members: np.ndarray, radius: float, size: Floats) -> tuple[Floats, float, float]:
    """A point z of the ball around 0, the multiplier mu, and a bound on f(z) - min f over the ball.

    f is in coordinates x = size z around the centre of the ball, which bounds the members of z.
    """
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
        tried = {mu: (x, length)}

        def lengths(mu: float) -> float:  # from another start the same mu may give another last digit
            if mu not in tried:
                tried[mu] = at(mu, next(reversed(tried.values()))[0])
            return tried[mu][1]

        _find_sphere(lengths, radius, mu, largest)
        mu = min(tried, key=lambda mu: abs(tried[mu][1] - radius))
        x, length = tried[mu]
    if length > radius:
        x = np.where(members, x * (radius / length), x)
    z = x / size
    slack = mu / 2 * abs(radius**2 - float(z[members] @ z[members]))
    return z, mu, excess(lagrangian(mu), x) + slack


def _find_sphere(length: Callable[[float], float], radius: float, low: float, high: float) -> None:
    """Ask for the lengths |z(mu)| of mu that come ever closer to the radius: 1/|z(mu)| is nearly linear in mu."""
    from scipy.optimize import brentq

    limit = 1e30 * high
    while length(high) > radius and high < limit:  # free coordinates may push the multiplier beyond the first bound
        high *= 10

    def short_of(mu: float) -> float:
        return 1 / max(length(mu), 1e-300) - 1 / radius

    if short_of(high) > 0:
        brentq(short_of, low, high, xtol=1e-300, rtol=4 * EPS)
