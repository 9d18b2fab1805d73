"""The theorem about FedRP, and the two other variants of reflecting and projecting."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import resolvent as rs
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, Settings
from resolvent.paper.results import Results, short
from resolvent.paper.settings import BLUE, GREEN, ORANGE, PINK, RED
from resolvent.paper.small import CURVES, draw_curves, gaps, path

SETS = {"obtuse cones": True, "half parabolas": True, "one common point": False}


def _fedrp(settings: Settings) -> dict[str, Any]:
    problem = rs.make_least_squares(users=6, dim=10, rows=40, seed=4)
    eta = 0.02
    end = path(problem, rs.fedrp(eta), 400)[-1]
    same = rs.theory.regularised_minimiser(problem, eta)
    normals = np.random.default_rng(0).standard_normal((8, 6))
    normals[:, 0] = -1  # the first axis points into all of the halfspaces
    cones = rs.Indicators([rs.Halfspace(normal, 0.0) for normal in normals])
    starts: dict[str, tuple[Any, Any]] = {
        "obtuse cones": (cones, np.array([-1.0, 2.0, 1.0, -1.0, 0.5, 1.0])),
        "half parabolas": (rs.HalfSquares(3, 2), -np.ones(2)),
    }
    starts["one common point"] = (rs.Indicators([rs.AffineSet(np.eye(2), np.zeros(2))] * 2), np.array([1.0, 0.5]))
    moved = {}
    for name, (sets, start) in starts.items():
        models = path(sets, rs.fedrp(1.0), 150, start=start)
        moved[name] = [float((b - a).norm()) for a, b in itertools.pairwise(models)]
    inside = float(cones.value(path(cones, rs.fedrp(1.0), 150, start=starts["obtuse cones"][1])[-1].unsqueeze(0)).sum())
    return {"off": float((end - same).norm() / same.norm()), CURVES: moved, "inside": inside == 0}


def _narrow(settings: Settings) -> dict[str, Any]:
    """Three narrow cones in three dimensions, and the half parabolas, for 60 rounds."""
    axes = np.array([[1.0, 0.0, 0.0], [0.9, 0.4, 0.0], [0.9, 0.0, -0.4]])
    cones = rs.Indicators([rs.ObtuseCone(axis, math.pi / 3) for axis in axes])
    starts: dict[str, tuple[Any, Any]] = {
        "obtuse cones": (cones, np.array([-1.0, 2.0, 3.0])),
        "half parabolas": (rs.HalfSquares(3, 2), -np.ones(2)),
    }
    moved, ends = {}, {}
    for name, (sets, start) in starts.items():
        models = path(sets, rs.fedrp(1.0), 60, start=start)
        moved[name] = [float((b - a).norm()) for a, b in itertools.pairwise(models)]
        ends[name] = models[-1]
    return {CURVES: moved, "inside": float(cones.value(ends["obtuse cones"].unsqueeze(0)).sum()) == 0}


def _regularised(results: Results) -> ClaimVerdict:
    return ClaimVerdict.of(
        results.facts["off"] < 1e-10, f"relative distance to the regularised solution {results.facts['off']:.1e}"
    )


def _converges(results: Results, cones: str = "eight halfspaces") -> ClaimVerdict:
    ends = {name: results.facts[CURVES][name][-1] for name, idempotent in SETS.items() if idempotent}
    words = ", ".join(f"{name}: {short(step)}" for name, step in ends.items())
    return ClaimVerdict.of(
        max(ends.values()) < 1e-10 and results.facts["inside"],
        f"last steps: {words}; it ends {'inside' if results.facts['inside'] else 'outside'} all of the cones, {cones}",
    )


NARROW = First(
    "three narrower cones and 60 rounds, where there was little to see",
    lambda results: _converges(results, "three"),
    Panel("fedrp, first", "FedRP on homogeneous users", facts=_narrow),
)


def _needed(results: Results) -> ClaimVerdict:
    step = results.facts[CURVES]["one common point"][-1]
    return ClaimVerdict.of(
        step > 0.1, f"users who share one point: R = -id is not idempotent, and steps stay at {short(step)}"
    )


def _draw_steps(axis: Any, results: Results) -> None:
    draw_curves(axis, results, "step from a round to the next", logx=False, colours=(GREEN, BLUE, RED))


def _variants(settings: Settings) -> dict[str, Any]:
    problem = rs.make_least_squares(users=6, dim=10, rows=40, seed=4)
    eta = 0.01
    schemes = {"R_H G": rs.reflect_gradient(eta), "R_H P": rs.reflect_prox(eta), "FedRP": rs.fedrp(eta)}
    curves = {name: gaps(problem, scheme, 300) for name, scheme in schemes.items()}
    curves["FedPi"] = gaps(problem, rs.fedpi(eta), 300)
    models = {name: path(problem, schemes[name], 300) for name in ("R_H G", "R_H P")}
    rates = {}
    for name, those in models.items():
        steps = [float((b - a).norm()) for a, b in itertools.pairwise(those)]
        rates[name] = (steps[40] / steps[20]) ** (1 / 20)
    half = rs.theory.regularised_minimiser(problem, eta / 2)
    return {CURVES: curves, "rates": rates, "half": float((models["R_H P"][-1] - half).norm())}


def _linear(results: Results) -> ClaimVerdict:
    rates = results.facts["rates"]
    words = ", ".join(f"{name} by {rate:.3f} a round" for name, rate in rates.items())
    return ClaimVerdict.of(max(rates.values()) < 0.99, f"steps shrink: {words}")


def _elsewhere(results: Results) -> ClaimVerdict:
    ends = {name: results.facts[CURVES][name][-1] for name in ("R_H G", "R_H P")}
    words = ", ".join(f"{name}: {short(gap)}" for name, gap in ends.items())
    pi = results.facts[CURVES]["FedPi"][-1]
    return ClaimVerdict.of(
        min(ends.values()) > 1e6 * max(pi, 1e-18),
        f"final gaps: {words}, FedPi {short(pi)}; R_H P solves the regularised problem at eta/2 to "
        f"{results.facts['half']:.1e}",
    )


def _draw_variants(axis: Any, results: Results) -> None:
    draw_curves(axis, results, "f(w) - f*", logx=False, colours=(ORANGE, PINK, BLUE, RED))


FIGURE = Figure(
    "thm:rp",
    "FedRP and its relatives",
    "Reflect, then project: what FedRP solves, when it converges; and what the two variants that reflect through H do.",
    (
        Panel("fedrp", "FedRP on homogeneous users", bottom=1e-17, claims=(
            Claim("With a constant step the fixed points of FedRP solve the regularised problem.", _regularised),
            Claim("With idempotent reflectors and homogeneous users its iterates converge.", _converges, first=NARROW),
            Claim("Idempotence is needed for it.", _needed, ours=True)), facts=_fedrp, draw=_draw_steps),
        Panel("variants", "R_H G and R_H P on strongly convex least squares", claims=(
            Claim("Both variants converge linearly if f is strongly convex.", _linear),
            Claim("But not to solutions of the original problem.", _elsewhere, ours=True)),
            facts=_variants, draw=_draw_variants),
    ),
)  # fmt: skip
