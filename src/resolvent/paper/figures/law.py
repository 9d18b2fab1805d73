"""The law behind the figures: what a scheme solves depends on one number, its effective step."""

from __future__ import annotations

from typing import Any

from resolvent import theory
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, Settings
from resolvent.paper.figures.mixing import GRID, NUMBERS, name
from resolvent.paper.results import Results, short
from resolvent.paper.settings import BLUE, LEAST_SQUARES, RED
from resolvent.paper.small import problem_of
from resolvent.report.curves import GREY

STEPS = (2, 3, 5, 10, 20, 50)
PROPER = 0.35
"""What counts as small."""


def _predicted(settings: Settings) -> dict[str, Any]:
    problem = problem_of(settings)
    gaps = {}
    for alpha in NUMBERS:
        for beta in NUMBERS:
            eta = theory.effective_eta(alpha, beta, settings["scheme.eta"])
            gaps[name(alpha, beta)] = float(problem.gap(theory.regularised_minimiser(problem, eta).unsqueeze(0)))
    return {"predicted": gaps}


def _agree(results: Results) -> ClaimVerdict:
    predicted = results.facts["predicted"]
    biased = [label for label in predicted if label != name(2, 2)]
    off = max(abs(results.final(label) / predicted[label] - 1) for label in biased)
    exact = results.final(name(2, 2))
    numbers = f"{len(biased)} gaps agree to {off:.1e}; (2, 2) ends at {short(exact)}"
    return ClaimVerdict.of(off < 1e-3 and exact < 1e-12, numbers)


def _draw_predicted(axis: Any, results: Results) -> None:
    predicted = results.facts["predicted"]
    points = [(predicted[label], results.final(label)) for label in predicted if label != name(2, 2)]
    ends = [min(x for x, _ in points), max(x for x, _ in points)]
    axis.plot(ends, ends, color=GREY, lw=1, label="equal")
    axis.plot(*zip(*points, strict=True), "o", color=BLUE, ms=5, alpha=0.7, label="a pair (alpha, beta)")
    axis.set(xscale="log", yscale="log", xlabel="predicted gap, FedProx at eta_eff", ylabel="measured gap, 600 rounds")


def _averages(settings: Settings) -> dict[str, Any]:
    """FedAvg's fixed points against FedProx's at eta (k-1)/2 and at eta (k-1), in closed form."""
    problem = problem_of(settings)
    eta, star, rows = settings["scheme.eta"], problem.minimiser, {}
    for k in STEPS:
        w = theory.fedavg_fixed_point(problem, eta, k)
        half, whole = (theory.regularised_minimiser(problem, eta * (k - 1) / n) for n in (2, 1))
        rows[k] = tuple(float((w - x).norm() / (w - star).norm()) for x in (half, whole))
    return {"rows": rows, "curvature": eta * theory.curvatures(problem)[1]}


def _listed(rows: dict[int, tuple[float, float]]) -> str:
    return ", ".join(f"k = {k}: {half:.0%} against {whole:.0%}" for k, (half, whole) in rows.items())


def _half(results: Results) -> ClaimVerdict:
    rows, L = results.facts["rows"], results.facts["curvature"]
    near = [row for k, row in rows.items() if (k - 1) * L <= PROPER]
    return ClaimVerdict.of(
        bool(near) and all(half < 0.1 and half < whole / 5 for half, whole in near),
        f"distance to FedProx at eta (k-1)/2 and at eta (k-1), over that to w*: {_listed(rows)}; L eta = {short(L)}",
    )


def _half_first(results: Results) -> ClaimVerdict:
    rows = {k: row for k, row in results.facts["rows"].items() if k <= 10}
    return ClaimVerdict.of(all(half < 0.05 and half < whole / 5 for half, whole in rows.values()), _listed(rows))


def _draw_averages(axis: Any, results: Results) -> None:
    rows = results.facts["rows"]
    axis.plot(list(rows), [half for half, _ in rows.values()], "o-", color=BLUE, label="FedProx at eta (k-1)/2")
    axis.plot(list(rows), [whole for _, whole in rows.values()], "s--", color=RED, label="FedProx at eta (k-1)")
    axis.set(xscale="log", yscale="log", xlabel="k", ylabel="distance to FedAvg's fixed point, relative")
    axis.set_xticks(list(rows), [str(k) for k in rows])
    axis.xaxis.minorticks_off()


FIGURE = Figure(
    "law",
    "One number decides what is solved",
    "Fixed points of a prox scheme are those of FedProx at eta_eff = eta (alpha + beta - alpha beta)/beta; FedAvg with "
    "k steps ends close to FedProx at eta (k-1)/2.",
    (
        Panel("eta-eff", "Least squares: predicted and measured", LEAST_SQUARES, GRID, (
            Claim("Gaps follow from eta_eff alone.", _agree, ours=True),), facts=_predicted, draw=_draw_predicted),
        Panel("fedavg", "Least squares: FedAvg as FedProx", LEAST_SQUARES, (), (
            Claim("While eta (k-1) L is small, FedAvg with k steps is like FedProx at eta (k-1)/2.",
                  _half, ours=True, first=First("within 5 %, for every k up to 10", _half_first)),), facts=_averages,
            draw=_draw_averages),
    ),
)  # fmt: skip
