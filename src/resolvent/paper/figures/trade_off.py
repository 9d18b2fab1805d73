"""Figure trade_off: FedAvg, faster at first or better in the end."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import replace

from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.results import Results, listed
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, RAMP


def _along(values: dict[str, float], ordered: Callable[[float, float], bool], text: str) -> ClaimVerdict:
    """Whether each value stands in the right order to the one before it."""
    pairs = itertools.pairwise(values.items())
    parts = {f"{b} after {a}": ordered(y, x) for (a, x), (b, y) in pairs}
    return ClaimVerdict.share(parts, f"{text}: {listed(values)}")


def _early(results: Results) -> ClaimVerdict:
    return _along({label: results.at(label, 2) for label in results.lines}, operator.le, "gaps in round 2")


def _late(results: Results) -> ClaimVerdict:
    return _along(results.finals(), operator.ge, "final gaps")


def _panel(key: str, base: Settings, cases: list[tuple[float, int]]) -> Panel:
    """FedAvg with these eta and k, one of which stays the same."""
    same_k, (eta, k) = len({k for _, k in cases}) == 1, cases[0]
    stays = f"k = {k}" if same_k else f"eta = {eta:.0e}".replace("e-0", "e-")
    name = "Least squares" if base is LEAST_SQUARES else "Logistic regression"
    lines = tuple(
        PanelLine(f"eta = {eta:g}" if same_k else f"k = {k}",
                  {"scheme.algorithm": "fedavg", "scheme.eta": eta, "local.steps": k}, colour=colour)
        for (eta, k), colour in zip(cases, RAMP, strict=False)
    )  # fmt: skip
    faster = "At equal k, a larger eta is" if same_k else "At equal eta, more local steps are"
    claims = (
        Claim(f"{faster} faster at first.", _early),
        Claim(f"And {'ends' if same_k else 'end'} at a worse solution.", _late),
    )
    return Panel(key, f"{name}, {stays}", base, lines, claims, logx=True)


def _with_first(panel: Panel, first: First) -> Panel:
    return replace(panel, claims=tuple(replace(claim, first=first) for claim in panel.claims))


KS = (1, 2, 5, 10, 20, 50)
FIRST = _panel("bottom-right, first", LOGISTIC, [(eta, 5) for eta in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)])
SMALLER = First("eta from 1e-4, where 800 rounds are too few to converge", panel=replace(FIRST, claims=()))

FIGURE = Figure(
    "fig:trade_off",
    "FedAvg: fast or exact",
    "FedAvg with more local steps (left) or a larger eta (right). Top least squares, bottom logistic regression; both "
    "axes logarithmic.",
    (
        _panel("top-left", LEAST_SQUARES, [(1e-5, k) for k in KS]),
        _panel("top-right", LEAST_SQUARES, [(eta, 5) for eta in (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 2e-4)]),
        _panel("bottom-left", LOGISTIC, [(1e-2, k) for k in KS]),
        _with_first(_panel("bottom-right", LOGISTIC, [(eta, 5) for eta in (1e-3, 2e-3, 3e-3, 5e-3, 1e-2)]), SMALLER),
    ),
)
