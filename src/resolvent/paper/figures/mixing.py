"""The study of alpha, beta and gamma that section 4 tells of without a figure."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, PanelLine
from resolvent.paper.results import Results, listed, short
from resolvent.paper.settings import LEAST_SQUARES, RAMP

NUMBERS = (1.0, 1.25, 1.5, 1.75, 2.0)
GAMMAS = (0.25, 0.5, 0.75, 1.0)
PAIRS = {(2.0, 2.0): "-", (1.0, 1.0): "--"}


def name(alpha: float, beta: float, gamma: float = 1.0) -> str:
    return f"({alpha:g}, {beta:g}, {gamma:g})"


def line(alpha: float, beta: float, gamma: float = 1.0, **more: Any) -> PanelLine:
    """A scheme by its three numbers."""
    numbers = {"scheme.algorithm": "custom", "scheme.alpha": alpha, "scheme.beta": beta, "scheme.gamma": gamma}
    return PanelLine(more.pop("label", name(alpha, beta, gamma)), numbers, **more)


GRID = tuple(line(alpha, beta) for alpha in NUMBERS for beta in NUMBERS)
SPEEDS = tuple(
    line(*pair, gamma, label=f"gamma = {gamma:g} | {pair[0]:g}, {pair[1]:g}", style=style, colour=RAMP[k + 2])
    for pair, style in PAIRS.items()
    for k, gamma in enumerate(GAMMAS)
)


def _rounds(results: Results, label: str) -> float:
    """Rounds until close to where it ends."""
    return results.rounds_to_limit(label, float(results.series(label).iloc[-1]))


def _gamma_speed(results: Results) -> ClaimVerdict:
    parts, numbers = {}, []
    for alpha, beta in PAIRS:
        counts = [_rounds(results, f"gamma = {gamma:g} | {alpha:g}, {beta:g}") for gamma in GAMMAS]
        parts[f"({alpha:g}, {beta:g})"] = all(b < a for a, b in itertools.pairwise(counts))
        numbers.append(f"({alpha:g}, {beta:g}): " + ", ".join(short(n) for n in counts))
    return ClaimVerdict.share(parts, f"rounds at gamma = 1/4, 1/2, 3/4, 1: {'; '.join(numbers)}")


def _gamma_limit(results: Results, alike: float = 0.05) -> ClaimVerdict:
    ends = [results.final(f"gamma = {gamma:g} | 1, 1") for gamma in GAMMAS]
    exact = max(results.final(f"gamma = {gamma:g} | 2, 2") for gamma in GAMMAS)
    apart = max(ends) / min(ends) - 1
    return ClaimVerdict.of(
        apart < alike and exact < 1e-3 * min(ends),
        f"(1, 1) ends within {apart:.1e} of {short(ends[0])} at every gamma, (2, 2) below {short(exact)}",
    )


def _both(results: Results) -> ClaimVerdict:
    ends = {f"both {x:g}": results.final(name(x, x)) for x in NUMBERS}
    values = list(ends.values())
    falls = all(b < a for a, b in itertools.pairwise(values))
    return ClaimVerdict.of(falls and values[-1] < 1e-6 * values[0], f"final gaps: {listed(ends)}")


def _one(results: Results) -> ClaimVerdict:
    """What moving one of them to 2 does to the gap and to the rounds."""
    base, single = name(1, 1), {"alpha = 2 alone": name(2, 1), "beta = 2 alone": name(1, 2)}
    gaps = {label: results.final(base) / results.final(x) for label, x in single.items()}
    speed = {label: _rounds(results, base) / _rounds(results, x) for label, x in single.items()}
    numbers = "; ".join(f"{label}: gap {gaps[label]:.2f}x smaller, {speed[label]:.1f}x fewer rounds" for label in gaps)
    parts = {f"{label}'s gap": ratio < 1.5 for label, ratio in gaps.items()}
    parts |= {f"{label}'s speed": ratio < 1.5 for label, ratio in speed.items()}
    return ClaimVerdict.share(parts, numbers)


def _draw_grid(axis: Any, results: Results) -> None:
    table = [[results.final(name(alpha, beta)) for alpha in NUMBERS] for beta in NUMBERS]
    floor = min(gap for row in table for gap in row if gap > 1e-12)
    shown = [[math.log10(max(gap, floor / 10)) for gap in row] for row in table]
    axis.imshow(shown, origin="lower", cmap="cividis", aspect="auto")
    middle = (max(map(max, shown)) + min(map(min, shown))) / 2
    for y, row in enumerate(table):
        for x, gap in enumerate(row):
            ink = "#ffffff" if shown[y][x] < middle else "#222222"
            axis.text(x, y, short(gap), ha="center", va="center", fontsize=9, color=ink)
    ticks = [f"{x:g}" for x in NUMBERS]
    axis.set(xlabel="alpha", ylabel="beta", xticks=range(len(ticks)), yticks=range(len(ticks)), xticklabels=ticks,
             yticklabels=ticks)  # fmt: skip


TIGHT = First("within 0.1 % (then 1 %)", functools.partial(_gamma_limit, alike=1e-3))
LAW = "alpha = 2 leaves eta_eff as it is and doubles the step; beta = 2 halves eta_eff, so the gap falls fourfold."
FIGURE = Figure(
    "sec:acc",
    "What alpha, beta and gamma do",
    "The study that the text describes without a figure, drawn: final gaps over alpha and beta at gamma = 1, and "
    "gaps against rounds for several gamma.",
    (
        Panel("alpha-beta", "Least squares: final gap over alpha and beta", LEAST_SQUARES, GRID, (
            Claim("The closer both alpha and beta are to 2, the considerably smaller the final gap.", _both),
            Claim("Only one of them close to 2 has a minor effect on gap or speed.", _one, why=LAW)), draw=_draw_grid),
        Panel("gamma", "Least squares: gamma", LEAST_SQUARES | {"run.rounds": 1200}, SPEEDS, (
            Claim("The closer gamma is to 1, the faster.", _gamma_speed),
            Claim("gamma does not change where it ends.", _gamma_limit, first=TIGHT)),
            styles={"-": "alpha = beta = 2", "--": "alpha = beta = 1"}),
    ),
)  # fmt: skip
