"""The theorems about FedSplit, FedPi and FedRP, each shown at work on a small problem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import resolvent as rs
from resolvent.paper.figure import HOLDS, IN_PART, NOT, Claim, ClaimVerdict, Figure, Panel, Settings
from resolvent.paper.results import Results, listed, short
from resolvent.paper.settings import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY, VIOLET
from resolvent.paper.small import CURVES, draw_curves, gaps, path, quietly

# --- a contractive reflector needs strong convexity ------------------------------------------------------------------


def _constant(problem: Any, eta: float, spread: float = 5.0) -> float:
    """The largest |R x - R y| / |x - y| seen over many pairs, near and far."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for scale in (1e-2, 1.0, 10.0):
        x = spread * torch.randn(100, problem.dim, dtype=torch.float64, generator=generator)
        y = x + scale * torch.randn(100, problem.dim, dtype=torch.float64, generator=generator)
        for a, b in zip(x, y, strict=True):
            R = [2 * problem.prox(point.unsqueeze(0), eta)[0] - point for point in (a, b)]
            worst = max(worst, float((R[0] - R[1]).norm() / (a - b).norm()))
    return worst


FLAT = {  # convex, but not strongly
    "|a.w - b|": rs.AbsoluteDeviations(np.array([[1.0, 0.5]]), np.array([0.3])),
    "(-w)_+^2/2": rs.HalfSquares(1),
    "thin least squares": rs.LeastSquares(np.array([[[1.0, 2.0]]]), np.array([[1.0]])),
    "indicator of a ball": rs.Indicators([rs.Ball([0.0, 0.0], 1.0)]),
}
MUS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def _reflectors(settings: Settings) -> dict[str, Any]:
    measured, predicted = [], []
    for mu in MUS:  # curvatures mu and 1 in two directions
        problem = rs.LeastSquares(np.diag([math.sqrt(mu), 1.0])[None], np.ones((1, 2)))
        measured.append(_constant(problem, 1.0))
        predicted.append(rs.theory.reflector_norm(mu, 1.0, 1.0))
    return {"measured": measured, "predicted": predicted, "flat": {k: _constant(f, 1.0) for k, f in FLAT.items()}}


def _contraction(results: Results) -> ClaimVerdict:
    flat = results.facts["flat"]
    numbers = f"reflectors without strong convexity: {listed(flat, '{name} {value:.4f}')}"
    return ClaimVerdict.of(all(value > 0.999 for value in flat.values()), numbers)


def _modulus(results: Results) -> ClaimVerdict:
    """f is (1 - gamma)/(1 + gamma) strongly convex, at eta = 1."""
    implied = {mu: (1 - g) / (1 + g) for mu, g in zip(MUS, results.facts["measured"], strict=True)}
    numbers = listed(implied, "mu = {name:g} implied {value:.3g}")
    return ClaimVerdict.of(all(value <= 1.02 * mu for mu, value in implied.items()), numbers)


def _converse(results: Results) -> ClaimVerdict:
    pairs = zip(results.facts["measured"], results.facts["predicted"], strict=True)
    worst = max(abs(a - b) for a, b in pairs)
    return ClaimVerdict.of(worst < 0.01, f"max((1-eta mu)/(1+eta mu), (eta L-1)/(eta L+1)) to within {worst:.1e}")


def _draw_reflectors(axis: Any, results: Results) -> None:
    axis.plot(MUS, results.facts["predicted"], color=BLACK, lw=1.2, label="predicted, L = 1")
    axis.plot(MUS, results.facts["measured"], "o", color=GREEN, ms=5, label="measured")
    flat = zip(results.facts["flat"].items(), (RED, ORANGE, PINK, VIOLET), strict=True)
    for place, ((label, value), colour) in enumerate(flat, 1):  # side by side: a logarithmic axis has no 0
        axis.plot([place * 3e-4], [value], "s", ms=5, color=colour, label=f"{label}, mu = 0", alpha=0.8)
    axis.axhline(1, color="#999999", lw=0.8, ls="--")
    axis.set(xscale="log", xlabel="mu", ylabel="Lipschitz constant of the reflector, eta = 1", ylim=(0, 1.06))


# --- FedPi: convex is enough -----------------------------------------------------------------------------------------


def _deviations(settings: Settings) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    A, w = rng.standard_normal((30, 4)), rng.standard_normal(4)
    problem = rs.AbsoluteDeviations(A, A @ w + 0.5 * rng.standard_normal(30))
    lines = rs.Indicators([rs.AffineSet([[0.0, 1.0]], [0.0]), rs.AffineSet([[1.0, -1.0]], [0.0])])
    curves = {
        "FedPi, least absolute deviations": gaps(problem, rs.fedpi(1.0), 4000),
        "FedSplit, least absolute deviations": gaps(problem, rs.fedsplit(1.0), 4000),
    }
    for name, scheme in (("FedPi", rs.fedpi(1.0)), ("FedSplit", rs.fedsplit(1.0))):
        models = path(lines, scheme, 400, start=np.array([[1.0, 0.4], [0.3, -0.8]]))
        curves[f"{name}, two crossing lines (distance)"] = [float(w.norm()) for w in models]
    return {CURVES: curves}


def _worst_late(results: Results) -> dict[str, float]:
    return {label: max(values[-50:]) for label, values in results.facts[CURVES].items()}


def _convex_enough(results: Results) -> ClaimVerdict:
    worst = _worst_late(results)
    pi = max(value for label, value in worst.items() if label.startswith("FedPi"))
    return ClaimVerdict.of(pi < 1e-6, f"largest over the last 50 rounds: {listed(worst)}")


def _split_fails(results: Results) -> ClaimVerdict:
    worst = [value for label, value in _worst_late(results).items() if label.startswith("FedSplit")]
    return ClaimVerdict.of(min(worst) > 1e-3, f"FedSplit still at {' and '.join(map(short, worst))}")


def _admm(settings: Settings) -> dict[str, Any]:
    """eq:pi-1..3 beside the scheme, and with the dual variable frozen."""
    problem = rs.make_least_squares(users=4, dim=6, rows=20, seed=2)
    eta, lam = 0.03, problem.weights
    w, u = torch.zeros(1, 6, dtype=torch.float64), torch.zeros(4, 6, dtype=torch.float64)
    apart, off, frozen = 0.0, 0.0, torch.zeros(1, 6, dtype=torch.float64)
    pi, prox = path(problem, rs.fedpi(eta), 30), path(problem, rs.fedprox(eta), 30)
    stays = 0.0
    for k in range(30):
        v = w + u
        z = problem.prox(v, eta)
        w = lam @ (z - u)
        u = u + w - z
        apart = max(apart, float((lam @ (2 * z - v) - pi[k]).abs().max()))
        off = max(off, float((lam @ u).abs().max()))
        frozen = (lam @ problem.prox(frozen.reshape(1, -1), eta)).reshape(1, -1)
        stays = max(stays, float((frozen[0] - prox[k]).abs().max()))
    return {"apart": apart, "off": off, "frozen": stays}


def _same_as_admm(results: Results) -> ClaimVerdict:
    f = results.facts["admm"]
    numbers = f"over 30 rounds: iterates differ by {f['apart']:.1e}, the mean of the dual is {f['off']:.1e}"
    numbers += f", and with the dual frozen at 0 it is FedProx to {f['frozen']:.1e}"
    return ClaimVerdict.of(max(f.values()) < 1e-12, numbers)


# --- how much slower FedPi is ----------------------------------------------------------------------------------------

TARGET = 1e-10


def _tuned(settings: Settings) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    well = rs.make_least_squares(users=8, dim=20, rows=200, seed=0)
    scale = np.geomspace(1, 0.03, 20)
    A = rng.standard_normal((8, 200, 20)) * scale
    ill = rs.LeastSquares(A, A @ rng.standard_normal(20) + 0.5 * rng.standard_normal((8, 200)))
    tuned: dict[str, dict[str, list[float]]] = {}
    for name, problem in (("well conditioned", well), ("ill conditioned", ill)):
        best = rs.theory.best_eta(problem)
        etas = [best * 10 ** (k / 12) for k in range(-6, 7, 2)]
        tuned[name] = {"eta": [eta / best for eta in etas]}
        for title, make in (("FedSplit", rs.fedsplit), ("FedPi", rs.fedpi)):
            tuned[name][title] = [_rounds(problem, make(eta)) for eta in etas]
    return {"tuned": tuned}


def _rounds(problem: Any, scheme: Any) -> float:
    run = quietly(problem, scheme, 600, stop=rs.Stop(gap=TARGET))
    return float(run.history["round"].iloc[-1]) if run.status == "stopped" else math.inf


def _ratios(results: Results) -> dict[str, float]:
    """Rounds of FedPi over those of FedSplit, each at its best eta."""
    return {name: min(t["FedPi"]) / min(t["FedSplit"]) for name, t in results.facts["tuned"].items()}


def _root_two(results: Results) -> ClaimVerdict:
    ratios = _ratios(results)
    near = [abs(ratio / math.sqrt(2) - 1) < 0.15 for ratio in ratios.values()]
    said = HOLDS if all(near) else IN_PART if any(near) else NOT
    numbers = listed(ratios, "{name} {value:.2f}")
    return ClaimVerdict(said, f"rounds of FedPi over those of FedSplit, each at its best eta: {numbers}")


def _slower(results: Results) -> ClaimVerdict:
    ratios = _ratios(results).values()
    return ClaimVerdict.of(min(ratios) >= 1, f"by {min(ratios):.2f} to {max(ratios):.2f}")


def _draw_tuned(axis: Any, results: Results) -> None:
    for (name, table), style in zip(results.facts["tuned"].items(), ("-", "--"), strict=True):
        for title, colour in (("FedSplit", GREEN), ("FedPi", RED)):
            axis.plot(table["eta"], table[title], style, color=colour, marker="o", ms=3, label=f"{title}, {name}")
    axis.set(xscale="log", yscale="log", xlabel="eta over 1/sqrt(mu L)", ylabel=f"rounds to a gap of {TARGET:g}")
    axis.set_xticks([0.3, 0.5, 1, 2, 3], ["0.3", "0.5", "1", "2", "3"])
    axis.xaxis.minorticks_off()


HALF = "Likely: where f is well conditioned FedSplit contracts by a small r, and FedPi by no less than about (1 + r)/2."
FIGURE = Figure(
    "theorems:others",
    "The theorems about FedSplit and FedPi",
    "Reflectors and their Lipschitz constants; FedPi and FedSplit where f is convex and no more; both "
    "at their best eta.",
    (
        Panel("r-contraction", "A contractive reflector needs strong convexity", claims=(
            Claim("If the reflector is a contraction, f is strongly convex.", _contraction),
            Claim("By the proof, with a modulus of (1-gamma)/(1+gamma) over eta.", _modulus),
            Claim("Conversely, strongly convex and smooth f have contractive reflectors.", _converse)),
            facts=_reflectors, draw=_draw_reflectors),
        Panel("fedpi", "Convex is enough for FedPi", claims=(
            Claim("With a constant step FedPi converges to a correct solution for any convex f_i.", _convex_enough),
            Claim("FedSplit needs more than convexity.", _split_fails),
            Claim("FedPi is ADMM; its dual stays in H-perp; frozen at zero, FedPi becomes FedProx.", _same_as_admm)),
            facts=lambda settings: _deviations(settings) | {"admm": _admm(settings)},
            draw=draw_curves("f(w) - f*, or distance", RED, GREEN, BLUE, ORANGE, PINK, SKY)),
        Panel("sqrt2", "FedSplit and FedPi, tuned", claims=(
            Claim("Where f is strongly convex and smooth FedPi is slower than FedSplit.", _slower),
            Claim("By a factor close to the square root of 2.", _root_two, why=HALF)), facts=_tuned, draw=_draw_tuned),
    ),
)  # fmt: skip
