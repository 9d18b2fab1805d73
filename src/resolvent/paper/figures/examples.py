"""The examples after the proofs: two parabolas, obtuse cones, an idempotent reflector that is no cone's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import resolvent as rs
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, Panel, Settings
from resolvent.paper.results import Results, fact, listed, short
from resolvent.paper.settings import BLACK, BLUE, GREEN, ORANGE, RED
from resolvent.paper.small import CURVES, draw_curves, last_values, path

ETAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
ROUNDS = 1000


def _parabolas(settings: Settings) -> dict[str, Any]:
    steps: dict[str, Any] = {
        "eta = 0.1": lambda t: 0.1,
        "1/t": rs.schedules.harmonic(1.0),
        "1/sqrt t": rs.schedules.inverse_sqrt(1.0),
        "1/t^2": lambda t: 1 / (t + 1) ** 2,
    }
    curves, off = {}, 0.0
    for label, step in steps.items():
        models = path(rs.plus_minus(), rs.fedprox(step), ROUNDS, start=np.array([1.0]))
        curves[label] = [abs(float(w)) for w in models]
        product = np.cumprod([1 / (1 + step(t)) for t in range(ROUNDS)])
        off = max(off, float(np.abs(np.array(curves[label]) - product).max()))
    return {CURVES: curves, "off": off}


def _iff(results: Results) -> ClaimVerdict:
    ends, limit = last_values(results), math.pi / math.sinh(math.pi)
    stuck = abs(ends["1/t^2"] - limit) < 1e-3
    numbers = f"|w| after {ROUNDS} rounds: {listed(ends)} (its limit is pi/sinh pi = {limit:.4f})"
    return ClaimVerdict.of(stuck and all(w < 0.01 for label, w in ends.items() if label != "1/t^2"), numbers)


def _unequal(settings: Settings) -> dict[str, Any]:
    problem = rs.plus_minus(2.0)
    limits = [float(path(problem, rs.fedprox(eta), 3000)[-1]) for eta in ETAS]
    vanishing = float(path(problem, rs.fedprox(rs.schedules.harmonic(1.0)), 5000)[-1])
    return {"limits": limits, "vanishing": vanishing}


def _limits(results: Results) -> ClaimVerdict:
    predicted = [1 / (3 + 4 * eta) for eta in ETAS]
    off = max(abs(a - b) for a, b in zip(results.facts["limits"], predicted, strict=True))
    vanishing = results.facts["vanishing"]
    return ClaimVerdict.of(
        off < 1e-9 and abs(vanishing - 1 / 3) < 1e-3 and all(abs(w - 1 / 3) > 1e-3 for w in results.facts["limits"]),
        f"limits are 1/(3 + 4 eta) to {off:.1e}, never 1/3; with eta = 1/t w is {vanishing:.5f}",
    )


def _draw_unequal(axis: Any, results: Results) -> None:
    fine = np.geomspace(ETAS[0], ETAS[-1], 100)
    axis.plot(fine, 1 / (3 + 4 * fine), color=BLACK, lw=1.2, label="1/(3 + 4 eta)")
    axis.plot(ETAS, results.facts["limits"], "o", color=ORANGE, label="FedProx, measured")
    axis.axhline(1 / 3, color=GREEN, ls="--", lw=1.2, label="the minimiser 1/3")
    axis.set(xscale="log", xlabel="eta", ylabel="limit of w")


# --- idempotent reflectors -------------------------------------------------------------------------------------------

ANGLES = tuple(range(20, 91, 5))


def _wedge(x: Any, angle: float) -> Any:
    """The projection onto all directions within `angle` of the first axis, in the plane; obtuse or not."""
    edge = torch.stack([torch.full_like(x[:, 0], math.cos(angle)), math.sin(angle) * x[:, 1].sign()], 1)
    inside = math.cos(angle) * x[:, 1].abs() <= math.sin(angle) * x[:, 0]
    return torch.where(inside[:, None], x, (x * edge).sum(1, keepdim=True).clamp(min=0) * edge)


def _cones(settings: Settings) -> dict[str, Any]:
    x = torch.randn(2000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    defects, agree = [], 0.0
    for degrees in ANGLES:
        angle = math.radians(degrees)
        R = 2 * _wedge(x, angle) - x
        RR = 2 * _wedge(R, angle) - R
        defects.append(float((RR - R).norm(dim=1).max()))
        if degrees >= 45:
            ours = rs.ObtuseCone([1.0, 0.0], angle)
            agree = max(agree, float((ours.project(x) - _wedge(x, angle)).abs().max()))
    return {"defects": defects, "agree": agree}


def _iff_obtuse(results: Results) -> ClaimVerdict:
    pairs = dict(zip(ANGLES, results.facts["defects"], strict=True))
    sharp = min(defect for angle, defect in pairs.items() if angle < 45)
    obtuse = max(defect for angle, defect in pairs.items() if angle >= 45)
    return ClaimVerdict.of(
        sharp > 1e-3 and obtuse < 1e-12,
        f"|R R x - R x| is at least {short(sharp)} below 45 degrees, {short(obtuse)} from there on",
    )


def _draw_cones(axis: Any, results: Results) -> None:
    axis.plot(ANGLES, results.facts["defects"], "o-", color=BLUE, label="max |R R x - R x|")
    axis.axvline(45, color=RED, ls="--", lw=1.2, label="obtuse from here on")
    axis.set(xlabel="half opening of the cone, degrees", ylabel="defect of idempotence")


def _half(settings: Settings) -> dict[str, Any]:
    problem, w = rs.HalfSquares(1), torch.linspace(-2, 2, 401, dtype=torch.float64)
    R, defects = {}, {}
    for eta in (0.3, 0.6, 1.0, 2.0):
        reflect = [float(2 * problem.prox(x.reshape(1, 1), eta) - x) for x in w]
        twice = [float(2 * problem.prox(torch.tensor([[x]], dtype=torch.float64), eta) - x) for x in reflect]
        R[f"eta = {eta:g}"] = reflect
        defects[eta] = max(abs(a - b) for a, b in zip(reflect, twice, strict=True))
    plus = max(abs(a - max(float(x), 0.0)) for a, x in zip(R["eta = 1"], w, strict=True))
    return {"w": w.tolist(), "R": R, "defects": defects, "plus": plus}


def _idempotent(results: Results) -> ClaimVerdict:
    defects = results.facts["defects"]
    numbers = f"R = (w)_+ at eta = 1; |R R w - R w| {listed(defects, 'eta = {name:g}: {short}')}"
    return ClaimVerdict.of(results.facts["plus"] < 1e-12 and defects[1.0] < 1e-12, numbers)


def _draw_half(axis: Any, results: Results) -> None:
    for (label, values), colour in zip(results.facts["R"].items(), (ORANGE, RED, BLUE, GREEN), strict=True):
        axis.plot(results.facts["w"], values, color=colour, lw=1.5, label=label)
    axis.set(xlabel="w", ylabel="R w for f = (-w)_+^2/2")


FIGURE = Figure(
    "examples",
    "The examples after the proofs",
    "Two parabolas whose minimiser FedProx finds or misses with the step size; cones whose reflector is idempotent, "
    "and a function that is no cone's indicator and whose reflector is idempotent too.",
    (
        Panel("f+f-", "f+ and f-: steps must not vanish too fast", claims=(
            Claim("FedProx multiplies w by 1/(1 + eta_t) in every round.",
                  fact("off", lambda off: off < 1e-13, "iterates are the products to {value:.1e}")),
            Claim("So it reaches the minimiser 0 if and only if the steps' sum diverges.", _iff)), facts=_parabolas,
            draw=draw_curves("|w|, the minimiser is 0", ORANGE, GREEN, BLUE, RED, ylim=(1e-6, 2))),
        Panel("f+2f-", "f+ and 2 f-: steps must vanish", claims=(
            Claim("With steps that do not vanish FedProx misses the minimiser 1/3.", _limits),), facts=_unequal,
            draw=_draw_unequal),
        Panel("obtuse", "Cones in the plane", claims=(
            Claim("A cone's reflector is idempotent if and only if the cone is obtuse.", _iff_obtuse),), facts=_cones,
            draw=_draw_cones),
        Panel("idempotent", "f = (-w)_+^2/2", claims=(
            Claim("Its reflector at eta = 1 is (w)_+, idempotent although f is no indicator of a cone.", _idempotent),),
            facts=_half, draw=_draw_half),
    ),
)  # fmt: skip
