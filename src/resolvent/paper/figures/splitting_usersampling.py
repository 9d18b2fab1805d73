"""Figure splitting_usersampling: when only some users come (Algorithm 1), and what "hold" makes of it."""

from __future__ import annotations

from dataclasses import replace

from resolvent.paper.figure import Across, Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.results import Results, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, algorithms

HOLD = "hold"
STYLES = {"-": "Algorithm 1", ":": "hold (ours)"}


def _lines(p: float) -> tuple[PanelLine, ...]:
    paper: Settings = {"participation.probability": p, "participation.absent": "paper"}
    printed = tuple(replace(line, settings=line.settings | paper) for line in algorithms())
    ours = [x for x in printed if x.settings["scheme.algorithm"] in ("fedsplit", "fedpi")]
    held = [replace(x, label=f"{x.label} | {HOLD}", style=":", ours=True,
                    settings=x.settings | {"participation.absent": "hold"}) for x in ours]  # fmt: skip
    return (*printed, *held)


def _floors(results: Results) -> dict[str, float]:
    return {line.label: results.floor(line.label) for line in results.shown("-")}


def _nobody(results: Results) -> ClaimVerdict:
    floors = _floors(results)
    start = results.at("FedProx", 1)
    words = "gaps where they settle: " + ", ".join(f"{label}: {short(value)}" for label, value in floors.items())
    return ClaimVerdict.share({label: value > 1e-9 * start for label, value in floors.items()}, words)


def _especially(results: Results) -> ClaimVerdict:
    floors = _floors(results)
    order = sorted(floors, key=floors.__getitem__)
    place = order.index("FedAvg, k = 1") + 1
    return ClaimVerdict.of(
        order[-1] == "FedAvg, k = 1",
        f"FedAvg, k = 1 settles at {short(floors['FedAvg, k = 1'])}: number {place} of {len(order)} from the best, "
        f"{order[-1]} is last at {short(floors[order[-1]])}",
    )


def _held(results: Results) -> ClaimVerdict:
    names = [line.label for line in results.shown(":")]
    floors = {label: (results.final(label), results.floor(label.split(" | ")[0])) for label in names}
    words = ", ".join(f"{label.split(' | ')[0]} {short(a)} instead of {short(b)}" for label, (a, b) in floors.items())
    return ClaimVerdict.share({label: a < b / 100 for label, (a, b) in floors.items()}, f"with hold {words}")


def _peak(results: Results, label: str) -> float:
    """The largest gap after the first tenth of the rounds."""
    values = results.series(label)
    return float(values[values.index > values.index[-1] / 10].max())


def _unstable(panels: dict[str, Results]) -> ClaimVerdict:
    """FedSplit against FedPi: how high it still jumps, and whether it comes back."""
    words, parts = [], {}
    for key, results in panels.items():
        split, pi = _peak(results, "FedSplit"), _peak(results, "FedPi")
        parts[key] = split > 10 * pi
        words.append(f"{key}: FedSplit jumps to {short(split)} and settles at {short(results.floor('FedSplit'))}, "
                     f"FedPi to {short(pi)} and {short(results.floor('FedPi'))}")  # fmt: skip
    return ClaimVerdict.share(parts, f"after the first tenth of the rounds {'; '.join(words)}")


def _unsettled(panels: dict[str, Results]) -> ClaimVerdict:
    """FedSplit against FedPi by where they settle."""
    floors = {key: (results.floor("FedSplit"), results.floor("FedPi")) for key, results in panels.items()}
    words = "; ".join(f"{key}: FedSplit {short(split)}, FedPi {short(pi)}" for key, (split, pi) in floors.items())
    return ClaimVerdict.share({key: split > 10 * pi for key, (split, pi) in floors.items()}, words)


SETTLES = First("ten times FedPi's gap where they settle", _unsettled)
SHORT = (
    "Likely: what is left is the difference between the means over some users and over all; short steps feel it least."
)
CLAIMS = (
    Claim("With only some users present, no algorithm reaches the correct solution.", _nobody),
    Claim("FedAvg with k = 1 suffers especially.", _especially, why=SHORT),
    Claim("If absent users' rows stay as they are, FedPi and FedSplit reach the solution.", _held, ours=True),
)


def _panel(key: str, name: str, base: Settings, p: float) -> Panel:
    return Panel(key, f"{name}, p = {p:g}", base, _lines(p), CLAIMS, styles=STYLES)


FIGURE = Figure(
    "fig:splitting_usersampling",
    "Users who come and go",
    "Each user takes part in a round with probability p. Solid: Algorithm 1 as printed; dotted: only present users' "
    "rows move, which this library does by itself.",
    (
        _panel("top-left", "Least squares", LEAST_SQUARES, 0.5),
        _panel("top-right", "Logistic regression", LOGISTIC, 0.5),
        _panel("bottom-left", "Least squares", LEAST_SQUARES, 0.7),
        _panel("bottom-right", "Logistic regression", LOGISTIC, 0.7),
    ),
    (Across("FedSplit becomes unstable at p = 0.5, while FedPi stays stable.", ("top-left", "top-right"), _unstable,
            first=SETTLES),),
    settings="The mean is over the users present, absent users keep their z and their u moves with it; a round to "
    "which nobody comes changes nothing.",
)  # fmt: skip
