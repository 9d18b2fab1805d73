"""The theorem about FedRP, and the two other variants of reflecting and projecting."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

import resolvent as rs
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, Settings
from resolvent.paper.results import Results, fact, listed, short
from resolvent.paper.settings import BLUE, GREEN, ORANGE, PINK, RED
from resolvent.paper.small import CURVES, draw_curves, gaps, last_values, path

IDEMPOTENT = ("obtuse cones", "half parabolas")
HALF_PARABOLAS = (rs.HalfSquares(3, 2), -np.ones(2))


def _steps(models: list[Any]) -> list[float]:
    return [float((b - a).norm()) for a, b in itertools.pairwise(models)]


def _moves(sets: dict[str, tuple[Any, Any]], rounds: int) -> dict[str, Any]:
    """How far FedRP still moves on each, from a start, and whether it ends inside all of the cones."""
    paths = {name: path(problem, rs.fedrp(1.0), rounds, start=start) for name, (problem, start) in sets.items()}
    cones, end = sets["obtuse cones"][0], paths["obtuse cones"][-1]
    inside = float(cones.value(end.unsqueeze(0)).sum()) == 0
    return {CURVES: {name: _steps(models) for name, models in paths.items()}, "inside": inside}


def _fedrp(settings: Settings) -> dict[str, Any]:
    problem = rs.make_least_squares(users=6, dim=10, rows=40, seed=4)
    eta = 0.02
    end = path(problem, rs.fedrp(eta), 400)[-1]
    same = rs.theory.regularised_minimiser(problem, eta)
    normals = np.random.default_rng(0).standard_normal((8, 6))
    normals[:, 0] = -1  # the first axis points into all of the halfspaces
    cones = rs.Indicators([rs.Halfspace(normal, 0.0) for normal in normals])
    point = rs.Indicators([rs.AffineSet(np.eye(2), np.zeros(2))] * 2)
    sets = {
        "obtuse cones": (cones, np.array([-1.0, 2.0, 1.0, -1.0, 0.5, 1.0])),
        "half parabolas": HALF_PARABOLAS,
        "one common point": (point, np.array([1.0, 0.5])),
    }
    return {"off": float((end - same).norm() / same.norm())} | _moves(sets, 150)


def _narrow(settings: Settings) -> dict[str, Any]:
    """Three narrow cones in three dimensions, and the half parabolas, for 60 rounds."""
    axes = np.array([[1.0, 0.0, 0.0], [0.9, 0.4, 0.0], [0.9, 0.0, -0.4]])
    cones = rs.Indicators([rs.ObtuseCone(axis, math.pi / 3) for axis in axes])
    return _moves({"obtuse cones": (cones, np.array([-1.0, 2.0, 3.0])), "half parabolas": HALF_PARABOLAS}, 60)


def _converges(results: Results, cones: str = "eight halfspaces") -> ClaimVerdict:
    ends, inside = last_values(results), results.facts["inside"]
    ends = {name: ends[name] for name in IDEMPOTENT}
    numbers = f"last steps: {listed(ends)}; it ends {'inside' if inside else 'outside'} all of the cones, {cones}"
    return ClaimVerdict.of(max(ends.values()) < 1e-10 and inside, numbers)


NARROW = First(
    "three narrower cones and 60 rounds, where there was little to see",
    functools.partial(_converges, cones="three"),
    Panel("fedrp, first", "FedRP on homogeneous users", facts=_narrow),
)


def _needed(results: Results) -> ClaimVerdict:
    step = last_values(results)["one common point"]
    numbers = f"users who share one point: R = -id is not idempotent, and steps stay at {short(step)}"
    return ClaimVerdict.of(step > 0.1, numbers)


def _variants(settings: Settings) -> dict[str, Any]:
    problem = rs.make_least_squares(users=6, dim=10, rows=40, seed=4)
    eta = 0.01
    schemes = {"R_H G": rs.reflect_gradient(eta), "R_H P": rs.reflect_prox(eta), "FedRP": rs.fedrp(eta)}
    curves = {name: gaps(problem, scheme, 300) for name, scheme in schemes.items()}
    curves["FedPi"] = gaps(problem, rs.fedpi(eta), 300)
    models = {name: path(problem, schemes[name], 300) for name in ("R_H G", "R_H P")}
    steps = {name: _steps(those) for name, those in models.items()}
    rates = {name: (those[40] / those[20]) ** (1 / 20) for name, those in steps.items()}
    half = rs.theory.regularised_minimiser(problem, eta / 2)
    return {CURVES: curves, "rates": rates, "half": float((models["R_H P"][-1] - half).norm())}


def _linear(results: Results) -> ClaimVerdict:
    rates = results.facts["rates"]
    return ClaimVerdict.of(
        max(rates.values()) < 0.99, f"steps shrink: {listed(rates, '{name} by {value:.3f} a round')}"
    )


def _elsewhere(results: Results) -> ClaimVerdict:
    ends, pi = last_values(results), last_values(results)["FedPi"]
    ends = {name: ends[name] for name in ("R_H G", "R_H P")}
    numbers = f"final gaps: {listed(ends)}, FedPi {short(pi)}; R_H P solves the regularised problem at eta/2 to "
    return ClaimVerdict.of(min(ends.values()) > 1e6 * max(pi, 1e-18), f"{numbers}{results.facts['half']:.1e}")


FIGURE = Figure(
    "thm:rp",
    "FedRP and its relatives",
    "Reflect, then project: what FedRP solves, when it converges; and what the two variants that reflect through H do.",
    (
        Panel("fedrp", "FedRP on homogeneous users", bottom=1e-17, claims=(
            Claim("With a constant step the fixed points of FedRP solve the regularised problem.",
                  fact("off", lambda off: off < 1e-10, "relative distance to the regularised solution {value:.1e}")),
            Claim("With idempotent reflectors and homogeneous users its iterates converge.", _converges, first=NARROW),
            Claim("Idempotence is needed for it.", _needed, ours=True)), facts=_fedrp,
            draw=draw_curves("step from a round to the next", GREEN, BLUE, RED, logx=False)),
        Panel("variants", "R_H G and R_H P on strongly convex least squares", claims=(
            Claim("Both variants converge linearly if f is strongly convex.", _linear),
            Claim("But not to solutions of the original problem.", _elsewhere, ours=True)),
            facts=_variants, draw=draw_curves("f(w) - f*", ORANGE, PINK, BLUE, RED, logx=False)),
    ),
)  # fmt: skip
