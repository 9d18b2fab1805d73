"""Figure fixed_pr_stationary: where FedAvg ends, for many k and eta; eta (k - 1) decides."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import torch

from resolvent.paper import networks
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import MNIST, QUICK_MNIST
from resolvent.paper.results import Results, fact, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, RAMP
from resolvent.paper.small import problem_of
from resolvent.theory import closed_forms

KS = (2, 5, 10, 20, 50, 100)
SQUARES_PRODUCTS = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 2e-4)
LOGISTIC_PRODUCTS = (2e-3, 3e-3, 5e-3, 1e-2, 1.5e-2)
PROPER, FIRST_PROPER = 0.35, 0.25
"""eta (k - 1) L up to here is what the text calls a proper range."""
FIRST_PRODUCTS, FIRST_MEMORY = (3e-4, 1e-3, 3e-3, 1e-2), 10
Gaps = dict[tuple[float, int], float]
"""By product and k."""


def _fedavg(label: str, eta: float, k: int, **more: Any) -> PanelLine:
    return PanelLine(label, {"scheme.algorithm": "fedavg", "scheme.eta": eta, "local.steps": k} | more)


def _cell(c: float, k: int) -> str:
    return f"eta (k-1) = {c:g}, k = {k}"


# --- what is computed ------------------------------------------------------------------------------------------------


def _closed_form(settings: Settings) -> dict[str, Any]:
    """Gaps of FedAvg's fixed points by the closed form, and whether one step is exact at any eta."""
    problem = problem_of(settings)
    L = closed_forms.curvatures(problem)[1]

    def gap(eta: float, k: int) -> float:
        return float(problem.gap(closed_forms.fedavg_fixed_point(problem, eta, k).unsqueeze(0)))

    scale = 1e-5 * 6600 / L  # smaller problems are less curved
    products = [c * scale / 1e-5 for c in SQUARES_PRODUCTS]
    gaps = {(c, k): gap(c / (k - 1), k) for c in products for k in KS}
    steady = {eta: [gap(eta, k) for k in KS] for eta in (0.1 / L / 99, 0.01 / L / 99)}
    one = max(gap(c, 1) for c in products)
    return {"gaps": gaps, "L": L, "one": one, "columns": steady, "plain": gap(settings["scheme.eta"], 5)}


def _curvature(settings: Settings) -> dict[str, Any]:
    problem = problem_of(settings)
    hessian = problem.hessian(problem.minimiser.unsqueeze(0))
    return {"L": float((hessian if hessian.ndim < 3 else torch.linalg.eigvalsh(hessian)).amax())}


def _grid(products: tuple[float, ...], memory: int) -> tuple[PanelLine, ...]:
    """A run to each fixed point, accelerated, and one of the stated rounds."""
    fast = {"anderson.memory": memory, "run.rounds": 300, "stop.residual": 1e-7}
    lines = (_fedavg(_cell(c, k), c / (k - 1), k, **fast) for c in products for k in KS)
    return (*lines, _fedavg("plain", 1e-2 / 4, 5, **{"run.rounds": 6000, "run.every": 10}))


def _gaps_of(results: Results) -> Gaps:
    cells = itertools.product((*FIRST_PRODUCTS, *LOGISTIC_PRODUCTS), KS)
    measured = {(c, k): results.final(_cell(c, k)) for c, k in cells if _cell(c, k) in results}
    gaps: Gaps = results.facts.get("gaps", measured)
    return gaps


# --- what is claimed of it -------------------------------------------------------------------------------------------


def _times(ratio: float) -> str:
    return f"{short(ratio)}x" if math.isfinite(ratio) else "any factor, since some diverged,"


def _product_decides(results: Results, most: float = PROPER) -> ClaimVerdict:
    """For each product, the largest gap over the least, over k."""
    gaps, L = _gaps_of(results), results.facts["L"]
    rows = {c: [gap for (d, _), gap in gaps.items() if d == c] for c in sorted({c for c, _ in gaps})}
    proper = [max(row) / min(row) for c, row in rows.items() if c * L <= most]
    other = [max(row) / min(row) for c, row in rows.items() if c * L > most]
    if not proper:
        return ClaimVerdict.of(False, f"no product has eta (k-1) L <= {most:g}")
    whole = max(gaps.values()) / min(gaps.values())
    numbers = f"over k = {min(KS)}..{max(KS)} gaps at one product differ by {_times(max(proper))} at most where "
    numbers += f"eta (k-1) L <= {most:g}, by {_times(max(other))} beyond" if other else f"eta (k-1) L <= {most:g}"
    return ClaimVerdict.of(max(proper) < 1.5, f"{numbers}; over all products by {_times(whole)}")


def _smaller_is_better(results: Results) -> ClaimVerdict:
    """Along every line of equal k the gap grows with eta; along every eta with k."""
    gaps = _gaps_of(results)
    products = itertools.pairwise(sorted({c for c, _ in gaps}))
    grows = all(gaps[c, k] < gaps[d, k] for c, d in products for k in KS)
    columns = results.facts.get("columns", {})
    in_k = all(a < b for column in columns.values() for a, b in itertools.pairwise(column))
    numbers = f"the gap {'grows' if grows else 'does not always grow'} with eta along every line of equal k"
    return ClaimVerdict.of(grows and in_k, numbers + (", and with k at equal eta" if columns else ""))


def _closed_form_confirmed(results: Results) -> ClaimVerdict:
    plain, closed = results.final("plain"), results.facts["plain"]
    off = abs(plain / closed - 1)
    return ClaimVerdict.of(off < 1e-3, f"k = 5, eta = 1e-5, run: {plain:.6g}; closed form: {closed:.6g}")


def _fixed_points_confirmed(results: Results) -> ClaimVerdict:
    plain, fast = results.final("plain"), results.final(_cell(1e-2, 5))
    numbers = f"k = 5, eta = 0.0025: 6000 plain rounds {plain:.6g}, accelerated {fast:.6g}"
    return ClaimVerdict.of(abs(plain / fast - 1) < 1e-3, numbers)


def _draw(axis: Any, results: Results) -> None:
    gaps = _gaps_of(results)
    products = sorted({c for c, _ in gaps})
    for c in products:
        axis.plot([c / (k - 1) for k in KS], [gaps[c, k] for k in KS], color="#999999", ls="--", lw=0.9)
        label, end = f"{c:.1e}".replace(".0e", "e").replace("e-0", "e-"), (c / (KS[0] - 1), gaps[c, KS[0]])
        axis.annotate(label, end, (5, -3), textcoords="offset points", fontsize=7, color="#777777")
    for k, colour in zip(KS, RAMP, strict=True):
        xs = [c / (k - 1) for c in products]
        axis.plot(xs, [gaps[c, k] for c in products], "o-", color=colour, ms=3.5, lw=1.5, label=f"k = {k}")
    axis.plot([], [], color="#999999", ls="--", lw=0.9, label="equal eta (k-1)")
    axis.set(xscale="log", yscale="log", xlabel="eta", ylabel="f(w) - f* at the fixed point")
    axis.set_xlim(right=3 * products[-1] / (KS[0] - 1))  # room for the last label


# --- the network -----------------------------------------------------------------------------------------------------

NETWORK_KS, NETWORK_RATES = (1, 2, 5, 10), (0.01, 0.03, 0.1, 0.3)
ALIKE = (((2, 0.1), (5, 0.03), (10, 0.01)), ((2, 0.3), (5, 0.1), (10, 0.03)))
"""Cells of about equal eta (k-1): 0.1 and 0.3."""
NETWORK_CELLS = {(k, rate): f"k = {k}, eta = {rate:g}" for k in NETWORK_KS for rate in NETWORK_RATES}


def _ends(results: Results) -> dict[tuple[int, float], float]:
    return {cell: results.final(label) for cell, label in NETWORK_CELLS.items()}


def _network_draw(axis: Any, results: Results) -> None:
    ends = _ends(results)

    def joined(cells: Any, **style: Any) -> None:
        points = [(rate, ends[k, rate]) for k, rate in cells if math.isfinite(ends[k, rate])]
        axis.plot(*zip(*points, strict=True), **style)

    for k, colour in zip(NETWORK_KS, RAMP[1:], strict=False):
        joined(((k, rate) for rate in NETWORK_RATES), marker="o", color=colour, ms=3.5, label=f"k = {k}")
    for cells, label in zip(ALIKE, ("about equal eta (k-1)", None), strict=True):
        joined(cells, color="#999999", ls="--", lw=0.9, label=label)
    axis.set(xscale="log", yscale="log", xlabel="eta", ylabel="training loss at the end")


def _product_says_little(results: Results) -> ClaimVerdict:
    """Runs at like products end at unlike losses."""
    ends = _ends(results)
    spreads = [max(ends[cell] for cell in cells) / min(ends[cell] for cell in cells) for cells in ALIKE]
    numbers = "cells of about equal eta (k-1) end at losses " + " and ".join(f"{spread:.2g}x" for spread in spreads)
    return ClaimVerdict.of(max(spreads) > 1.5, f"{numbers} apart")


def _smallest_is_best(results: Results) -> ClaimVerdict:
    """The text's "smaller is better" is said of enough rounds; with few, larger k and eta win."""
    ends = _ends(results)
    best, worst = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    numbers = f"best {NETWORK_CELLS[best]} ({short(ends[best])}), worst {NETWORK_CELLS[worst]} ({short(ends[worst])})"
    smallest = best == (min(NETWORK_KS), min(NETWORK_RATES))
    return ClaimVerdict.of(smallest, f"{numbers}: few rounds favour large steps")


NARROWER = functools.partial(_product_decides, most=FIRST_PROPER)
OTHERS = Panel("middle, first", "Logistic regression", LOGISTIC, _grid(FIRST_PRODUCTS, FIRST_MEMORY), facts=_curvature)
FEWER = "products from 3e-4 on, and memory 10, which does not find the fixed points of the smallest"
LOGISTIC_FIRST = First(FEWER, panel=OTHERS)

FIGURE = Figure(
    "fig:fixed_pr_stationary",
    "Where FedAvg ends",
    "Gaps of FedAvg's fixed points over eta, a colour for each number k of local steps; dashed lines join equal "
    "products eta (k-1).",
    (
        Panel("left", "Least squares, closed form", LEAST_SQUARES,
              (PanelLine("plain", {"scheme.algorithm": "fedavg", "local.steps": 5}, hidden=True),),
              (Claim("Fewer local steps and smaller eta give better final solutions.", _smaller_is_better),
               Claim("The product eta (k-1) almost completely decides the final gap, for small eta.", _product_decides,
                     first=First(f"eta (k-1) L up to {FIRST_PROPER:g}", NARROWER)),
               Claim("With k = 1 the fixed point does not depend on eta.",
                     fact("one", lambda gap: gap < 1e-15, "k = 1 ends at a gap of {short} or less")),
               Claim("A plain run confirms the closed form.", _closed_form_confirmed, ours=True)),
              facts=_closed_form, draw=_draw),
        Panel("middle", "Logistic regression", LOGISTIC, _grid(LOGISTIC_PRODUCTS, 4),
              (Claim("Smaller eta gives better final solutions at each k.", _smaller_is_better, first=LOGISTIC_FIRST),
               Claim("The product eta (k-1) almost completely decides the final gap, in a proper range.",
                     _product_decides, first=First(f"{FEWER}; eta (k-1) L up to {FIRST_PROPER:g}", NARROWER, OTHERS)),
               Claim("A plain run of the stated 6000 rounds confirms the accelerated fixed points.",
                     _fixed_points_confirmed, ours=True, first=LOGISTIC_FIRST)),
              facts=_curvature, draw=_draw),
        networks.panel("right", "CNN on MNIST, six digits a user",
                       tuple(_fedavg(label, rate, k) for (k, rate), label in NETWORK_CELLS.items()),
                       (Claim("For the network, with few rounds, eta (k-1) says little.", _product_says_little),
                        Claim("Fewer local steps and smaller eta give better final solutions (given enough rounds).",
                              _smallest_is_best)),
                       base=MNIST | {"run.rounds": 200, "run.every": 10}, quick=QUICK_MNIST | {"run.every": 5},
                       draw=_network_draw),
    ),
    settings="Least squares by the closed form, logistic regression with Anderson acceleration (memory 4) to the "
    "fixed point; one configuration of each is run plainly, for the stated rounds, and agrees.",
    network_settings="Quick: at most 24 training images a user (the paper: 2,400) and 20 rounds (200).",
)  # fmt: skip
