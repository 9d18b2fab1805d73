"""The theorems about FedProx, each shown at work on a small problem."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import resolvent as rs
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, Settings
from resolvent.paper.results import Results, fact, listed, short
from resolvent.paper.settings import BLACK, BLUE, GREEN, ORANGE, PINK, RED
from resolvent.paper.small import CURVES, draw_curves, gaps, last_values, path

ROUNDS = 2000


def _shared(rows: int, noise: float) -> rs.LeastSquares:
    """Three users in twenty unknowns: with four equations each and no noise they have many common minimisers."""
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((3, rows, 20)), rng.standard_normal(20)
    return rs.LeastSquares(A, A @ w + noise * rng.standard_normal((3, rows)))


# --- thm:fp-hom: common minimisers, whoever comes --------------------------------------------------------------------


def _homogeneous(settings: Settings) -> dict[str, Any]:
    same, other = _shared(4, 0.0), _shared(12, 0.3)
    curves, start = {}, np.ones(20)
    for p in (1.0, 0.5, 0.2):
        who = rs.Bernoulli(p, absent="paper")
        curves[f"common minimiser, p = {p:g}"] = gaps(same, rs.fedprox(1.0), 1000, participation=who, start=start)
    who = rs.Bernoulli(0.5, absent="paper")
    curves["no common minimiser, p = 0.5"] = gaps(other, rs.fedprox(1.0), 1000, participation=who, start=start)
    models = path(same, rs.fedprox(1.0), 300, participation=who, start=start)
    distance = [float((w - same.minimiser).norm()) for w in models]
    return {CURVES: curves, "rises": max(b - a for a, b in itertools.pairwise(distance))}


def _comes_home(results: Results) -> ClaimVerdict:
    ends = last_values(results)
    return ClaimVerdict.of(all(gap < 1e-12 for name, gap in ends.items() if name.startswith("common")), listed(ends))


def _needed(results: Results) -> ClaimVerdict:
    end = last_values(results)["no common minimiser, p = 0.5"]
    return ClaimVerdict.of(end > 1e-6, f"without a common minimiser it stalls at {short(end)}")


# --- thm:fp: steps that vanish slowly, on average --------------------------------------------------------------------


def _deviations(settings: Settings) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((8, 3))
    return _averages(rs.AbsoluteDeviations(A, 2 * rng.standard_normal(8)), 2000)


def _first_deviations(settings: Settings) -> dict[str, Any]:
    """30 users in 4 dimensions, tried first."""
    rng = np.random.default_rng(1)
    A, w = rng.standard_normal((30, 4)), rng.standard_normal(4)
    return _averages(rs.AbsoluteDeviations(A, A @ w + 0.5 * rng.standard_normal(30)), 3000)


def _averages(problem: rs.AbsoluteDeviations, rounds: int) -> dict[str, Any]:
    more = {"average": "ergodic", "column": "average_gap"}
    steps: dict[str, Callable[[int], float]] = {
        "1/t^0.6 (both conditions)": lambda t: 4 / (t + 1) ** 0.6,
        "1/t (both conditions)": lambda t: 4 / (t + 1),
        "constant (squares diverge)": lambda t: 4.0,
        "1/t^2 (sum converges)": lambda t: 4 / (t + 1) ** 2,
    }
    return {CURVES: {label: gaps(problem, rs.fedprox(step), rounds, **more) for label, step in steps.items()}}


def _conditions(results: Results, marks: tuple[int, ...] = (70, 200, 600)) -> ClaimVerdict:
    """Both schedules that meet the conditions still fall; the faster of them is below those that do not meet them."""
    curves = results.facts[CURVES]
    good = [values for label, values in curves.items() if "both" in label]
    bad = [values[-1] for label, values in curves.items() if "both" not in label]
    falls = all(values[n - 1] > values[3 * n - 1] for values in good for n in marks)
    numbers = f"gaps of the averages after {len(good[0])} rounds: {listed(last_values(results))}"
    return ClaimVerdict.of(falls and min(values[-1] for values in good) < min(bad), numbers)


LARGER = First(
    "30 users in 4 dimensions, 3000 rounds",
    functools.partial(_conditions, marks=(100, 300, 1000)),
    Panel("fp, first", "Averages, least absolute deviations", facts=_first_deviations),
)


# --- thm:fp, without averaging ---------------------------------------------------------------------------------------


def _vanilla(settings: Settings) -> dict[str, Any]:
    strong = rs.make_least_squares(users=5, dim=10, rows=40, seed=3)
    flat = rs.HalfSquares(2)
    harmonic = rs.schedules.harmonic
    return {
        CURVES: {
            "strongly convex, 1/t": gaps(strong, rs.fedprox(harmonic(1.0)), ROUNDS),
            "interior, 1/t": gaps(flat, rs.fedprox(harmonic(1.0)), ROUNDS, start=np.array([-1.0])),
            "interior, constant": gaps(flat, rs.fedprox(0.1), ROUNDS, start=np.array([-1.0])),
        }
    }


def _itself(results: Results) -> ClaimVerdict:
    curves = {label: values for label, values in results.facts[CURVES].items() if label.endswith("1/t")}
    ends = {label: values[-1] / values[0] for label, values in curves.items()}
    numbers = f"last gap over the first, without averaging: {listed(ends)}"
    return ClaimVerdict.of(all(gap < 1e-4 for gap in ends.values()), numbers)


def _linear(results: Results) -> ClaimVerdict:
    values = results.facts[CURVES]["interior, 1/t"]
    ratio = values[-1] / values[-2]
    slope = np.log(values[-1] / values[ROUNDS // 2]) / np.log(ROUNDS / (ROUNDS // 2 + 1))
    numbers = f"(-w)_+^2/2 with eta = 1/t: the gap falls like t^{slope:.2f}, the last round shrinks it to {ratio:.5f}"
    return ClaimVerdict.of(ratio < 0.99, numbers)


# --- the bound on envelopes ------------------------------------------------------------------------------------------

LIPSCHITZ: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {  # a function and its constant
    "2|w|": (lambda w: 2 * w.abs(), 2.0),
    "min(|w|, 1)": (lambda w: w.abs().clamp(max=1), 1.0),
    "sin 2w": (lambda w: torch.sin(2 * w), 2.0),
    "Huber": (lambda w: torch.where(w.abs() < 1, w * w / 2, w.abs() - 0.5), 1.0),
}
ETAS = tuple(10 ** (k / 4 - 2) for k in range(9))


def _envelopes(settings: Settings) -> dict[str, Any]:
    """max_w f - env f, by brute force on a grid, over the bound eta M^2 / 2."""
    w, x = torch.linspace(-2, 2, 101, dtype=torch.float64), torch.linspace(-5, 5, 5001, dtype=torch.float64)
    shares = {}
    for label, (f, M) in LIPSCHITZ.items():
        column = []
        for eta in ETAS:
            env = (f(x)[None] + (x[None] - w[:, None]) ** 2 / (2 * eta)).amin(1)
            column.append(float((f(w) - env).max()) / (eta * M * M / 2))
        shares[label] = column
    return {"shares": shares}


def _bounded(results: Results) -> ClaimVerdict:
    worst = max(max(column) for column in results.facts["shares"].values())
    numbers = f"f - env f is at most {worst:.6f} of the bound, over four functions, two nonconvex"
    return ClaimVerdict.of(worst < 1 + 1e-6, numbers)


def _tight(results: Results, least: float = 0.99) -> ClaimVerdict:
    share = results.facts["shares"]["2|w|"]
    return ClaimVerdict.of(min(share) > least, f"for M|w| it is {min(share):.5f} of the bound, or more")


def _draw_shares(axis: Any, results: Results) -> None:
    for (label, column), colour in zip(results.facts["shares"].items(), (BLUE, ORANGE, GREEN, RED), strict=True):
        axis.plot(ETAS, column, "o-", ms=3, color=colour, label=label)
    axis.axhline(1, color=BLACK, lw=1, ls="--", label="the bound")
    axis.set(xscale="log", xlabel="eta", ylabel="max (f - env f) / (eta M^2/2)", ylim=(0, 1.1))


DRAW_GAPS = draw_curves("f(w) - f*", BLUE, GREEN, ORANGE, RED, PINK)
NEVER_GROWS = fact(
    "rises", lambda rise: rise < 1e-12, "the distance to a minimiser never grew by more than {value:.1e}"
)
FIGURE = Figure(
    "theorems:fedprox",
    "The theorems about FedProx",
    "Each theorem at work on a problem small enough to see through: three users with common minimisers, least absolute "
    "deviations, half parabolas, Lipschitz functions on a line.",
    (
        Panel("fp-hom", "Common minimisers, users who come and go", claims=(
            Claim("With a common minimiser FedProx converges to one, whoever comes.", _comes_home),
            Claim("The distance to every common minimiser never grows.", NEVER_GROWS),
            Claim("Homogeneity is needed for it.", _needed, ours=True)), facts=_homogeneous, draw=DRAW_GAPS),
        Panel("fp", "Averages, least absolute deviations", claims=(
            Claim("With eta_t whose sum diverges and whose squares' sum converges, averages solve the original one.",
                  _conditions, first=LARGER),), facts=_deviations, draw=DRAW_GAPS),
        Panel("fp-erg", "Without averaging", bottom=1e-14, claims=(
            Claim("Averaging is not needed if f is strongly convex, or if the solutions have an interior.", _itself),
            Claim("In the second case convergence is linear.", _linear,
                  why="Steps that vanish contract less and less: by 1/(1 + eta_t) here.")),
            facts=_vanilla, draw=DRAW_GAPS),
        Panel("fp-nvx", "How far an envelope lies below its function", claims=(
            Claim("For M-Lipschitz functions, convex or not, f - env f is at most eta M^2/2.", _bounded),
            Claim("No better bound is possible.", _tight, ours=True, first=First(
                "0.999 of the bound", functools.partial(_tight, least=0.999)))), facts=_envelopes, draw=_draw_shares),
    ),
)  # fmt: skip
