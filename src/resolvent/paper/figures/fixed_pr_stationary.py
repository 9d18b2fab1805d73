"""Figure fixed_pr_stationary: where FedAvg ends, for many k and eta; eta (k - 1) decides."""

from __future__ import annotations

import itertools
import math
from typing import Any

from resolvent.experiment.tasks import task
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import MNIST, QUICK_MNIST
from resolvent.paper.results import Results, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, RAMP
from resolvent.paper.small import section
from resolvent.theory import closed_forms

KS = (2, 5, 10, 20, 50, 100)
SQUARES_PRODUCTS = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 2e-4)
LOGISTIC_PRODUCTS = (2e-3, 3e-3, 5e-3, 1e-2, 1.5e-2)
NETWORK_KS = (1, 2, 5, 10)
NETWORK_RATES = (0.01, 0.03, 0.1, 0.3)
ALIKE = (((2, 0.1), (5, 0.03), (10, 0.01)), ((2, 0.3), (5, 0.1), (10, 0.03)))
"""Cells of about equal eta (k-1): 0.1 and 0.3."""
PROPER, FIRST_PROPER = 0.35, 0.25
"""eta (k - 1) L up to here is what the text calls a proper range."""
FIRST_PRODUCTS, FIRST_MEMORY = (3e-4, 1e-3, 3e-3, 1e-2), 10
Gaps = dict[tuple[float, int], float]
"""By product and k."""


def cell(c: float, k: int) -> str:
    return f"eta (k-1) = {c:g}, k = {k}"


def _closed(settings: Settings) -> dict[str, Any]:
    """Gaps of FedAvg's fixed points by the closed form, and whether one step is exact at any eta."""
    problem: Any = task(section(settings), 0).problem
    L = closed_forms.curvatures(problem)[1]

    def gap(eta: float, k: int) -> float:
        return float(problem.gap(closed_forms.fedavg_fixed_point(problem, eta, k).unsqueeze(0)))

    scale = 1e-5 * 6600 / L  # smaller problems are less curved
    products = [c * scale / 1e-5 for c in SQUARES_PRODUCTS]
    gaps = {(c, k): gap(c / (k - 1), k) for c in products for k in KS}
    steady = {eta: [gap(eta, k) for k in KS] for eta in (0.1 / L / 99, 0.01 / L / 99)}
    one = max(gap(c, 1) for c in products)
    return {"gaps": gaps, "L": L, "one": one, "columns": steady, "plain": gap(settings["scheme.eta"], 5)}


def _measured(settings: Settings) -> dict[str, Any]:
    problem = task(section(settings), 0).problem
    assert problem.minimiser is not None
    hessian = problem.hessian(problem.minimiser.unsqueeze(0))  # type: ignore[attr-defined]
    return {"L": float(hessian.amax() if hessian.ndim < 3 else _top(hessian))}


def _top(hessian: Any) -> Any:
    import torch

    return torch.linalg.eigvalsh(hessian).amax()


def gaps_of(results: Results) -> Gaps:
    if "gaps" in results.facts:
        known: Gaps = results.facts["gaps"]
        return known
    cells = itertools.product((*FIRST_PRODUCTS, *LOGISTIC_PRODUCTS), KS)
    return {(c, k): results.final(cell(c, k)) for c, k in cells if cell(c, k) in results}


def _spreads(gaps: Gaps) -> dict[float, float]:
    """For each product, the largest gap over the least, over k."""
    products = sorted({c for c, _ in gaps})
    rows = {c: [gap for (d, _), gap in gaps.items() if d == c] for c in products}
    return {c: max(row) / min(row) for c, row in rows.items()}


def _times(ratio: float) -> str:
    return f"{short(ratio)}x" if math.isfinite(ratio) else "any factor, since some diverged,"


def _product(results: Results, most: float = PROPER) -> ClaimVerdict:
    gaps, L = gaps_of(results), results.facts["L"]
    spreads = _spreads(gaps)
    proper = [spread for c, spread in spreads.items() if c * L <= most]
    other = [spread for c, spread in spreads.items() if c * L > most]
    if not proper:
        return ClaimVerdict.of(False, f"no product has eta (k-1) L <= {most:g}")
    whole = max(gaps.values()) / min(gaps.values())
    words = f"over k = {min(KS)}..{max(KS)} gaps at one product differ by {_times(max(proper))} at most where "
    words += f"eta (k-1) L <= {most:g}, by {_times(max(other))} beyond" if other else f"eta (k-1) L <= {most:g}"
    return ClaimVerdict.of(max(proper) < 1.5, f"{words}; over all products by {_times(whole)}")


def _smaller(results: Results) -> ClaimVerdict:
    """Along every line of equal k the gap grows with eta; along every eta with k."""
    gaps = gaps_of(results)
    grows = all(gaps[c, k] < gaps[d, k] for k in KS for c, d in _pairs({c for c, _ in gaps}))
    columns = results.facts.get("columns", {})
    in_k = all(a < b for column in columns.values() for a, b in itertools.pairwise(column))
    words = f"the gap {'grows' if grows else 'does not always grow'} with eta along every line of equal k"
    return ClaimVerdict.of(grows and in_k, words + (", and with k at equal eta" if columns else ""))


def _pairs(values: set[float]) -> list[tuple[float, float]]:
    ordered = sorted(values)
    return list(itertools.pairwise(ordered))


def _one(results: Results) -> ClaimVerdict:
    return ClaimVerdict.of(
        results.facts["one"] < 1e-15, f"k = 1 ends at a gap of {short(results.facts['one'])} or less"
    )


def _confirmed(results: Results) -> ClaimVerdict:
    plain, closed = results.final("plain"), results.facts["plain"]
    off = abs(plain / closed - 1)
    return ClaimVerdict.of(off < 1e-3, f"k = 5, eta = 1e-5, run: {plain:.6g}; closed form: {closed:.6g}")


def _accelerated(results: Results) -> ClaimVerdict:
    plain, fast = results.final("plain"), results.final(cell(1e-2, 5))
    return ClaimVerdict.of(
        abs(plain / fast - 1) < 1e-3, f"k = 5, eta = 0.0025: 6000 plain rounds {plain:.6g}, accelerated {fast:.6g}"
    )


def _draw(axis: Any, results: Results) -> None:
    gaps = gaps_of(results)
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
    axis.grid(alpha=0.25)


def _grid(products: tuple[float, ...] = LOGISTIC_PRODUCTS, memory: int = 4) -> tuple[PanelLine, ...]:
    lines = []
    for c in products:
        for k in KS:
            settings = {"scheme.algorithm": "fedavg", "scheme.eta": c / (k - 1), "local.steps": k}
            fast = {"anderson.memory": memory, "run.rounds": 300, "stop.residual": 1e-7}
            lines.append(PanelLine(cell(c, k), settings | fast))
    plain = {"scheme.algorithm": "fedavg", "scheme.eta": 1e-2 / 4, "local.steps": 5, "run.rounds": 6000}
    return (*lines, PanelLine("plain", plain | {"run.every": 10}))


def network_cell(k: int, rate: float) -> str:
    return f"k = {k}, eta = {rate:g}"


def _network_lines() -> tuple[PanelLine, ...]:
    cells = itertools.product(NETWORK_KS, NETWORK_RATES)
    fedavg = {"scheme.algorithm": "fedavg"}
    return tuple(PanelLine(network_cell(k, r), fedavg | {"scheme.eta": r, "local.steps": k}) for k, r in cells)


def _ends(results: Results) -> dict[tuple[int, float], float]:
    return {(k, r): results.final(network_cell(k, r)) for k in NETWORK_KS for r in NETWORK_RATES}


def _network_draw(axis: Any, results: Results) -> None:
    ends = _ends(results)
    for k, colour in zip(NETWORK_KS, RAMP[1:], strict=False):
        shown = [(r, ends[k, r]) for r in NETWORK_RATES if math.isfinite(ends[k, r])]
        axis.plot(*zip(*shown, strict=True), "o-", color=colour, ms=3.5, label=f"k = {k}")
    for k, those in enumerate(ALIKE):
        label = "about equal eta (k-1)" if k == 0 else None
        shown = [(cell[1], ends[cell]) for cell in those if math.isfinite(ends[cell])]
        axis.plot(*zip(*shown, strict=True), color="#999999", ls="--", lw=0.9, label=label)
    axis.set(xscale="log", yscale="log", xlabel="eta", ylabel="training loss at the end")
    axis.grid(alpha=0.25)


def _crude(results: Results) -> ClaimVerdict:
    """Runs at like products end at unlike losses."""
    ends = _ends(results)
    spreads = [max(ends[cell] for cell in those) / min(ends[cell] for cell in those) for those in ALIKE]
    words = "cells of about equal eta (k-1) end at losses " + " and ".join(f"{spread:.2g}x" for spread in spreads)
    return ClaimVerdict.of(max(spreads) > 1.5, f"{words} apart")


def _larger(results: Results) -> ClaimVerdict:
    """The text's "smaller is better" is said of enough rounds; with few, larger k and eta win."""
    ends = _ends(results)
    best, worst = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    words = f"best k = {best[0]}, eta = {best[1]:g} ({short(ends[best])}), worst k = {worst[0]}, eta = {worst[1]:g}"
    smallest = best[0] == min(NETWORK_KS) and best[1] == min(NETWORK_RATES)
    return ClaimVerdict.of(smallest, f"{words} ({short(ends[worst])}): few rounds favour large steps")


def _narrower(results: Results) -> ClaimVerdict:
    return _product(results, FIRST_PROPER)


NARROWER = First(f"eta (k-1) L up to {FIRST_PROPER:g}", _narrower)
OTHERS = Panel("middle, first", "Logistic regression", LOGISTIC, _grid(FIRST_PRODUCTS, FIRST_MEMORY), facts=_measured)
FEWER = "products from 3e-4 on, and memory 10, which does not find the fixed points of the smallest"
LOGISTIC_FIRST = First(FEWER, panel=OTHERS)

FIGURE = Figure(
    "fig:fixed_pr_stationary",
    "Where FedAvg ends",
    "Gaps of FedAvg's fixed points over eta, a colour for each number k of local steps; dashed lines join equal "
    "products eta (k-1).",
    (
        Panel(
            "left",
            "Least squares, closed form",
            LEAST_SQUARES,
            (PanelLine("plain", {"scheme.algorithm": "fedavg", "local.steps": 5}, hidden=True),),
            (
                Claim("Fewer local steps and smaller eta give better final solutions.", _smaller),
                Claim("The product eta (k-1) almost completely decides the final gap, for small eta.", _product,
                      first=NARROWER),
                Claim("With k = 1 the fixed point does not depend on eta.", _one),
                Claim("A plain run confirms the closed form.", _confirmed, ours=True),
            ),
            facts=_closed,
            draw=_draw,
        ),
        Panel(
            "middle",
            "Logistic regression",
            LOGISTIC,
            _grid(),
            (
                Claim("Smaller eta gives better final solutions at each k.", _smaller, first=LOGISTIC_FIRST),
                Claim("The product eta (k-1) almost completely decides the final gap, in a proper range.", _product,
                      first=First(f"{FEWER}; eta (k-1) L up to {FIRST_PROPER:g}", _narrower, OTHERS)),
                Claim("A plain run of the stated 6000 rounds confirms the accelerated fixed points.", _accelerated,
                      ours=True, first=LOGISTIC_FIRST),
            ),
            facts=_measured,
            draw=_draw,
        ),
        Panel(
            "right",
            "CNN on MNIST, six digits a user",
            MNIST | {"run.rounds": 200, "run.every": 10},
            _network_lines(),
            (
                Claim("For the network, with few rounds, eta (k-1) says little.", _crude),
                Claim("Fewer local steps and smaller eta give better final solutions (given enough rounds).", _larger),
            ),
            column="value",
            ylabel="training loss",
            paper_seeds=4, quick=QUICK_MNIST | {"run.every": 5},
            draw=_network_draw,
        ),
    ),
    settings="Least squares by the closed form, logistic regression with Anderson acceleration (memory 4) to the "
    "fixed point; one configuration of each is run plainly, for the stated rounds, and agrees. "
    "Quick: the network with at most 24 training images a user (the paper: 2,400) and 20 rounds (200).",
)  # fmt: skip
