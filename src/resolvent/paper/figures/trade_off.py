"""Figure trade_off: FedAvg, faster at first or better in the end."""

from __future__ import annotations

from dataclasses import replace

from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, PanelLine
from resolvent.paper.results import Results, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, RAMP


def _lines(pairs: list[tuple[float, int]], vary: str) -> tuple[PanelLine, ...]:
    made = []
    for (eta, k), colour in zip(pairs, RAMP, strict=False):
        label = f"k = {k}" if vary == "k" else f"eta = {eta:g}"
        made.append(
            PanelLine(label, {"scheme.algorithm": "fedavg", "scheme.eta": eta, "local.steps": k}, colour=colour)
        )
    return tuple(made)


def _early(results: Results) -> ClaimVerdict:
    values = {label: results.at(label, 2) for label in results.lines}
    ordered = list(values.values())
    words = "gaps in round 2: " + ", ".join(f"{label}: {short(value)}" for label, value in values.items())
    parts = {f"{b} after {a}": y <= x for (a, x), (b, y) in zip(values.items(), list(values.items())[1:], strict=False)}
    return ClaimVerdict.share(parts, words) if len(ordered) > 1 else ClaimVerdict.of(False, words)


def _late(results: Results) -> ClaimVerdict:
    values = {label: results.final(label) for label in results.lines}
    words = "final gaps: " + ", ".join(f"{label}: {short(value)}" for label, value in values.items())
    parts = {f"{b} after {a}": y >= x for (a, x), (b, y) in zip(values.items(), list(values.items())[1:], strict=False)}
    return ClaimVerdict.share(parts, words)


CLAIMS = {
    "k": (
        Claim("At equal eta, more local steps are faster at first.", _early),
        Claim("And end at a worse solution.", _late),
    ),
    "eta": (
        Claim("At equal k, a larger eta is faster at first.", _early),
        Claim("And ends at a worse solution.", _late),
    ),
}
SQUARES_K = [(1e-5, k) for k in (1, 2, 5, 10, 20, 50)]
SQUARES_ETA = [(eta, 5) for eta in (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 2e-4)]
LOGISTIC_K = [(1e-2, k) for k in (1, 2, 5, 10, 20, 50)]
LOGISTIC_ETA = [(eta, 5) for eta in (1e-3, 2e-3, 3e-3, 5e-3, 1e-2)]

FIRST_ETA = [(eta, 5) for eta in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)]
SMALLER = First(
    "eta from 1e-4, where 800 rounds are too few to converge",
    panel=Panel("bottom-right, first", "Logistic regression, k = 5", LOGISTIC, _lines(FIRST_ETA, "eta"), logx=True),
)

FIGURE = Figure(
    "fig:trade_off",
    "FedAvg: fast or exact",
    "FedAvg with more local steps (left) or a larger eta (right). Top least squares, bottom logistic regression; both "
    "axes logarithmic.",
    (
        Panel("top-left", "Least squares, eta = 1e-5", LEAST_SQUARES, _lines(SQUARES_K, "k"), CLAIMS["k"], logx=True),
        Panel("top-right", "Least squares, k = 5", LEAST_SQUARES, _lines(SQUARES_ETA, "eta"), CLAIMS["eta"], logx=True),
        Panel("bottom-left", "Logistic regression, eta = 1e-2", LOGISTIC, _lines(LOGISTIC_K, "k"), CLAIMS["k"],
              logx=True),
        Panel("bottom-right", "Logistic regression, k = 5", LOGISTIC, _lines(LOGISTIC_ETA, "eta"),
              tuple(replace(claim, first=SMALLER) for claim in CLAIMS["eta"]), logx=True),
    ),
)  # fmt: skip
