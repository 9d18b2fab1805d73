"""Figure eta_effect_fedprox: FedProx with constant and diminishing steps, with and without averaging."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

from resolvent.paper import networks
from resolvent.paper.figure import HOLDS, NOT, Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import ETA, MANY, QUICK_LOCAL, QUICK_TEXT, RATE, STEPS, TIE
from resolvent.paper.results import Results, each, listed, short
from resolvent.paper.settings import BLUE, GREEN, LEAST_SQUARES, LOGISTIC, ORANGE, PINK, RED, SKY, VIOLET, fedavg
from resolvent.report.curves import GREY

SCHEDULES = {"/t": "harmonic", "/sqrt t": "inverse-sqrt", "/log t": "inverse-log", ", halving": "halving"}
COLOURS = {"/t": GREEN, "/sqrt t": BLUE, "/log t": PINK, ", halving": VIOLET}
AVERAGED, SUFFIX = "averaged", "suffix average"
STYLES = {"-": "last model", "--": "averaged", ":": "suffix average (ours)"}
ROUNDS = 1500
RESTARTED = ("constant", "harmonic", "inverse-sqrt")
"""The schedules that are shown with a suffix average."""


def _lines(algorithm: str, constants: dict[float, str], eta0: float, column: str = "gap", more: Settings | None = None,
           schedules: dict[str, str] = SCHEDULES, **style: Any) -> tuple[PanelLine, ...]:  # fmt: skip
    """Constant steps, by colour, and diminishing ones, each with its average (the same run) and suffix average."""
    lines: list[PanelLine] = []
    cases = {f"eta = {eta:g}": (eta, "constant", colour) for eta, colour in constants.items()}
    cases |= {f"{eta0:g}{name}": (eta0, schedule, COLOURS[name]) for name, schedule in schedules.items()}
    for label, (eta, schedule, colour) in cases.items():
        scheme: Settings = {"scheme.algorithm": algorithm, "scheme.eta": eta, "scheme.schedule": schedule}
        last = PanelLine(label, scheme | (more or {}) | {"run.average": "ergodic"}, column, colour=colour, **style)
        average = replace(last, label=f"{label} | {AVERAGED}", column=f"average_{column}", style="--")
        lines += [last, average]
        if schedule in RESTARTED:
            suffix = last.settings | {"run.average": "suffix"}
            lines.append(replace(average, label=f"{label} | {SUFFIX}", settings=suffix, style=":", ours=True))
    return tuple(lines)


def panel(key: str, algorithm: str, title: str, logistic: bool, *beside: PanelLine) -> Panel:
    """Constant and diminishing steps on one of the convex problems."""
    name, base, unit = ("Logistic regression", LOGISTIC, 1.0) if logistic else ("Least squares", LEAST_SQUARES, 1e-3)
    lines = _lines(algorithm, {unit / 100: ORANGE, unit / 10: RED}, unit)
    base = base | {"run.rounds": ROUNDS}
    return Panel(key, name, base, (*lines, *beside), _claims(title), styles=STYLES)


def _constant(results: Results) -> str:
    """The smaller of the two constant steps."""
    return results.panel.lines[0].label


def _schedules(results: Results) -> list[str]:
    return [x.label for x in results.shown("-") if x.settings.get("scheme.schedule", "constant") != "constant"]


def _few_hundred(results: Results) -> ClaimVerdict:
    label = _constant(results)
    final = results.final(label)
    near = results.rounds_to(label, 1.01 * final)
    numbers = f"{label} is within 1 % of its final gap {short(final)} by round {short(near)}"
    return ClaimVerdict.of(near <= 600 and final > 1e-10, numbers)


def _better(results: Results) -> ClaimVerdict:
    label = _constant(results)
    level = results.final(label)
    return each(results.finals(*_schedules(results)), lambda gap: gap < level, f"{label}: {short(level)}; {{}}")


def _slower(results: Results) -> ClaimVerdict:
    """Rounds to three times where the constant step ends."""
    label = _constant(results)
    level = 3 * results.final(label)
    own = results.rounds_to(label, level)
    others = {name: results.rounds_to(name, level) for name in _schedules(results)}
    numbers = ", ".join(f"{name} {'never' if math.isinf(n) else short(n)}" for name, n in others.items())
    parts = {name: n > own for name, n in others.items()}
    return ClaimVerdict.share(parts, f"rounds to 3x its limit: {label}: {short(own)}; {numbers}")


def _only(results: Results) -> ClaimVerdict:
    """Which gaps still fall at the end, and how fast: a slope of -2 is 1/t^2."""
    slopes = {name: results.slope(name) for name in _schedules(results)}
    falling = [name for name, slope in slopes.items() if slope < -0.5]
    said = HOLDS if len(falling) == 1 and falling[0].endswith("/t") else NOT
    numbers = f"log-log slopes of the gap at the end: {listed(slopes, '{name} {value:.2f}')}; still falling: "
    return ClaimVerdict(said, numbers + (", ".join(falling) or "none"))


def _ratios(results: Results, above: str, below: str = "") -> dict[str, float]:
    """The last value of one kind of line over that of another, for each schedule that has both."""
    labels = {
        x.label: [f"{x.label} | {kind}" if kind else x.label for kind in (above, below)] for x in results.shown("-")
    }
    return {
        name: results.final(a) / results.final(b) for name, (a, b) in labels.items() if a in results and b in results
    }


def _averaging_is_free(results: Results) -> ClaimVerdict:
    ratios = _ratios(results, AVERAGED)
    if results.panel.networks:
        return each(ratios, lambda x: x < 1.25, "loss of the average over the last's: {}", "{name} {value:.2f}x")
    return each(ratios, lambda x: x < 3, "gap of the average over the last's: {}", "{name}: {short}x")


def _suffix_keeps_up(results: Results) -> ClaimVerdict:
    what = "loss" if results.panel.networks else "gap"
    text = f"{what} of the suffix average over the last's: {{}}"
    return each(_ratios(results, SUFFIX), lambda x: x < 3, text, "{name}: {short}x")


def _suffix_first(results: Results) -> ClaimVerdict:
    return each(_ratios(results, SUFFIX, AVERAGED), lambda x: x <= 1, form="{name}: {short}x")


KEEPS_UP = Claim(
    "An average that starts anew at powers of two forgets the start and keeps up.",
    _suffix_keeps_up,
    ours=True,
    first=First("no worse than the average over all rounds", _suffix_first),
)
TRACKS = "Gaps follow eta_t^2: these steps are still longer than the constant one when the run ends."
CARRIES = "The average carries the first models, of weight eta_s over the sum of all, for as long as it lasts."
ENOUGH = (
    "The conditions are sufficient, not necessary: f is strongly convex, the gap follows eta_t^2, and any step that "
    "vanishes slowly enough will do. Halving has a finite sum, so that it still falls says little about its limit."
)


def _claims(name: str) -> tuple[Claim, ...]:
    return (
        Claim(f"{name} with a constant step is at its suboptimal end within a few hundred rounds.", _few_hundred),
        Claim("Diminishing steps converge more slowly.", _slower, why="Its first steps are a hundred times as long."),
        Claim("They end at better solutions.", _better, why=TRACKS),
        Claim("Only a step that meets both conditions of the theorem, 1/t here, reaches a correct solution.", _only,
              why=ENOUGH),
        Claim("Ergodic averaging does not slow it down noticeably.", _averaging_is_free, why=CARRIES),
        KEEPS_UP,
    )  # fmt: skip


# --- the network -----------------------------------------------------------------------------------------------------


def _best(results: Results, tie: float = TIE) -> ClaimVerdict:
    finals = results.finals(*(x.label for x in results.shown("-") if not x.label.startswith("FedAvg")))
    least = min(finals[label] for label in ("eta = 100", "100/log t", "eta = 10"))
    return ClaimVerdict.of(least <= tie * min(finals.values()), f"final losses: {listed(finals)}")


def _overlap(results: Results) -> ClaimVerdict:
    ends = results.finals("eta = 100", "100/log t", MANY)
    least, most = min(ends.values()), max(ends.values())
    numbers = f"{results.numbers(*ends)}: at most {most / least - 1:.1%} apart"
    return ClaimVerdict.of(most - least < 0.02 * results.at("eta = 100", 1), numbers)


NETWORK_LINES = _lines(
    "fedprox", {1.0: SKY, 10.0: ORANGE, ETA: RED}, ETA, "value",
    {"local.steps": STEPS, "local.lr": RATE, "scheme.period": 10},
    SCHEDULES | {"/log t": "inverse-ln"}, quick=QUICK_LOCAL)  # fmt: skip
FIGURE = Figure(
    "fig:eta_effect_fedprox",
    "FedProx: step size and averaging",
    "FedProx with constant and diminishing steps: solid the last model, dashed the ergodic average, dotted the suffix "
    "average that this library adds. FedAvg stands beside it.",
    (
        panel("left", "fedprox", "FedProx", False, replace(fedavg(5), colour=GREY)),
        panel("middle", "fedprox", "FedProx", True, replace(fedavg(5), colour=GREY)),
        networks.panel(
            "right", "CNN on MNIST, six digits a user", (*NETWORK_LINES, replace(networks.fedavg(), colour=GREY)),
            (Claim("For the network the largest steps give the best results.", _best,
                   first=First("the least loss, however close", functools.partial(_best, tie=1.0))),
             Claim("FedAvg and FedProx at eta = 100 and 100/log t overlap.", _overlap),
             Claim("Averaging does not slow it down noticeably.", _averaging_is_free), KEEPS_UP), styles=STYLES),
    ),
    settings="Schedules are eta0/(t+1), eta0/sqrt(t+1), eta0/(log10(t+1)+1), and halving every 500 rounds; eta0 is "
    "1e-3 and 1.",
    network_settings="Networks: eta0/ln(t+e) in place of the logarithm, halving every 10 rounds, eta0 = 100. "
    + QUICK_TEXT,
)  # fmt: skip
