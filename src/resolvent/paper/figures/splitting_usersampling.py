"""Figure splitting_usersampling: when only some users come (Algorithm 1), and what "hold" makes of it."""

from __future__ import annotations

from dataclasses import replace

from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, Settings
from resolvent.paper.results import Results, each, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, algorithms, also

HOLD = "hold"
STYLES = {"-": "Algorithm 1", ":": "hold (ours)"}


def _nobody(results: Results) -> ClaimVerdict:
    start = results.at("FedProx", 1)
    return each(results.floors(), lambda floor: floor > 1e-9 * start, "gaps where they settle: {}")


def _especially(results: Results) -> ClaimVerdict:
    floors, one = results.floors(), "FedAvg, k = 1"
    order = sorted(floors, key=floors.__getitem__)
    place, last = order.index(one) + 1, order[-1]
    numbers = f"{one} settles at {short(floors[one])}: number {place} of {len(order)} from the best, "
    return ClaimVerdict.of(last == one, f"{numbers}{last} is last at {short(floors[last])}")


def _with_hold(results: Results) -> ClaimVerdict:
    ends = {x.label: (x.name, results.final(x.label), results.floor(x.name)) for x in results.shown(":")}
    numbers = ", ".join(f"{name} {short(held)} instead of {short(printed)}" for name, held, printed in ends.values())
    parts = {label: held < printed / 100 for label, (_, held, printed) in ends.items()}
    return ClaimVerdict.share(parts, f"with hold {numbers}")


def _peak(results: Results, label: str) -> float:
    """The largest gap after the first tenth of the rounds."""
    values = results.series(label)
    return float(values[values.index > values.index[-1] / 10].max())


def _unstable(panels: dict[str, Results]) -> ClaimVerdict:
    """FedSplit against FedPi: how high it still jumps, and whether it comes back."""
    numbers, parts = [], {}
    for key, results in panels.items():
        split, pi = _peak(results, "FedSplit"), _peak(results, "FedPi")
        parts[key] = split > 10 * pi
        numbers.append(f"{key}: FedSplit jumps to {short(split)} and settles at {short(results.floor('FedSplit'))}, "
                       f"FedPi to {short(pi)} and {short(results.floor('FedPi'))}")  # fmt: skip
    return ClaimVerdict.share(parts, f"after the first tenth of the rounds {'; '.join(numbers)}")


def _unsettled(panels: dict[str, Results]) -> ClaimVerdict:
    """FedSplit against FedPi by where they settle."""
    floors = {key: (results.floor("FedSplit"), results.floor("FedPi")) for key, results in panels.items()}
    numbers = "; ".join(f"{key}: FedSplit {short(split)}, FedPi {short(pi)}" for key, (split, pi) in floors.items())
    return ClaimVerdict.share({key: split > 10 * pi for key, (split, pi) in floors.items()}, numbers)


SHORT = (
    "Likely: what is left is the difference between the means over some users and over all; short steps feel it least."
)
CLAIMS = (
    Claim("With only some users present, no algorithm reaches the correct solution.", _nobody),
    Claim("FedAvg with k = 1 suffers especially.", _especially, why=SHORT),
    Claim("If absent users' rows stay as they are, FedPi and FedSplit reach the solution.", _with_hold, ours=True),
)


def _panel(key: str, name: str, base: Settings, p: float) -> Panel:
    """Each algorithm as printed; FedSplit and FedPi also with absent users' rows held."""
    paper: Settings = {"participation.probability": p, "participation.absent": "paper"}
    printed = tuple(replace(line, settings=line.settings | paper) for line in algorithms())
    exact = (line for line in printed if line.label in ("FedSplit", "FedPi"))
    held = also(exact, HOLD, ":", {"participation.absent": HOLD}, ours=True)
    return Panel(key, f"{name}, p = {p:g}", base, (*printed, *held), CLAIMS, styles=STYLES)


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
    (Claim("FedSplit becomes unstable at p = 0.5, while FedPi stays stable.", _unstable,
           first=First("ten times FedPi's gap where they settle", _unsettled), panels=("top-left", "top-right")),),
    settings="The mean is over the users present, absent users keep their z and their u moves with it; a round to "
    "which nobody comes changes nothing.",
)  # fmt: skip
