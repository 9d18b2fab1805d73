"""Figure eta_effect_fedprox: FedProx with constant and diminishing steps, with and without averaging."""

from __future__ import annotations

import math

from resolvent.paper.figure import HOLDS, NOT, Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import ETA, MANY, MNIST, QUICK_LOCAL, QUICK_MNIST, QUICK_WORDS, RATE, STEPS, TIE
from resolvent.paper.networks import fedavg as network_fedavg
from resolvent.paper.results import Results, short
from resolvent.paper.settings import (
    BLUE,
    GREEN,
    LEAST_SQUARES,
    LOGISTIC,
    ORANGE,
    PINK,
    RED,
    SKY,
    VIOLET,
    fedavg,
)
from resolvent.report.curves import GREY

SCHEDULES = {"/t": "harmonic", "/sqrt t": "inverse-sqrt", "/log t": "inverse-log", ", halving": "halving"}
COLOURS = {"/t": GREEN, "/sqrt t": BLUE, "/log t": PINK, ", halving": VIOLET}
AVERAGED, SUFFIX = "averaged", "suffix average"
STYLES = {"-": "last model", "--": "averaged", ":": "suffix average (ours)"}
ROUNDS = 1500
RESTARTED = ("constant", "harmonic", "inverse-sqrt")
"""The schedules that are shown with a suffix average."""
BESIDE = PanelLine("FedAvg, k = 5", fedavg(5).settings, colour=GREY)


def lines(algorithm: str, constants: tuple[float, float], eta0: float, names: dict[str, str]) -> tuple[PanelLine, ...]:
    """Constant and diminishing steps, each with its average (the same run) and its suffix average (another)."""
    made: list[PanelLine] = []
    cases = {f"eta = {eta:g}": (eta, "constant", (ORANGE, RED)[k]) for k, eta in enumerate(constants)}
    cases |= {f"{eta0:g}{name}": (eta0, schedule, COLOURS[name]) for name, schedule in names.items()}
    for label, (eta, schedule, colour) in cases.items():
        scheme: Settings = {"scheme.algorithm": algorithm, "scheme.eta": eta, "scheme.schedule": schedule}
        scheme |= {"run.average": "ergodic"}
        made.append(PanelLine(label, scheme, "gap", colour=colour))
        made.append(PanelLine(f"{label} | {AVERAGED}", scheme, "average_gap", "--", colour))
        if schedule in RESTARTED:
            suffix = scheme | {"run.average": "suffix"}
            made.append(PanelLine(f"{label} | {SUFFIX}", suffix, "average_gap", ":", colour, ours=True))
    return tuple(made)


def _constant(results: Results) -> str:
    """The smaller of the two constant steps."""
    return next(iter(results.panel.lines)).label


def _schedules(results: Results) -> list[str]:
    return [x.label for x in results.shown("-") if x.settings.get("scheme.schedule", "constant") != "constant"]


def _few_hundred(results: Results) -> ClaimVerdict:
    label = _constant(results)
    final = results.final(label)
    near = results.rounds_to(label, 1.01 * final)
    return ClaimVerdict.of(
        near <= 600 and final > 1e-10, f"{label} is within 1 % of its final gap {short(final)} by round {short(near)}"
    )


def _better(results: Results) -> ClaimVerdict:
    label = _constant(results)
    level = results.final(label)
    finals = {name: results.final(name) for name in _schedules(results)}
    numbers = ", ".join(f"{name}: {short(gap)}" for name, gap in finals.items())
    return ClaimVerdict.share(
        {name: gap < level for name, gap in finals.items()}, f"{label}: {short(level)}; {numbers}"
    )


def _slower(results: Results) -> ClaimVerdict:
    """Rounds to three times where the constant step ends."""
    label = _constant(results)
    level = 3 * results.final(label)
    own = results.rounds_to(label, level)
    others = {name: results.rounds_to(name, level) for name in _schedules(results)}
    words = f"rounds to 3x its limit: {label}: {short(own)}; "
    words += ", ".join(f"{name} {'never' if math.isinf(n) else short(n)}" for name, n in others.items())
    return ClaimVerdict.share({name: n > own for name, n in others.items()}, words)


def _only(results: Results) -> ClaimVerdict:
    """Which gaps still fall at the end, and how fast: a slope of -2 is 1/t^2."""
    slopes = {name: results.slope(name) for name in _schedules(results)}
    falling = [name for name, slope in slopes.items() if slope < -0.5]
    words = ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items())
    said = HOLDS if len(falling) == 1 and falling[0].endswith("/t") else NOT
    return ClaimVerdict(
        said, f"log-log slopes of the gap at the end: {words}; still falling: {', '.join(falling) or 'none'}"
    )


def _free(results: Results) -> ClaimVerdict:
    pairs = {x.label: results.final(f"{x.label} | {AVERAGED}") / results.final(x.label) for x in _averaged(results)}
    words = ", ".join(f"{name}: {short(ratio)}x" for name, ratio in pairs.items())
    return ClaimVerdict.share(
        {name: ratio < 3 for name, ratio in pairs.items()}, f"gap of the average over the last's: {words}"
    )


def _averaged(results: Results) -> list[PanelLine]:
    return [line for line in results.shown("-") if f"{line.label} | {AVERAGED}" in results]


def _suffix(results: Results) -> ClaimVerdict:
    names = [x.label for x in results.shown("-") if f"{x.label} | {SUFFIX}" in results]
    pairs = {name: results.final(f"{name} | {SUFFIX}") / results.final(name) for name in names}
    words = ", ".join(f"{name}: {short(ratio)}x" for name, ratio in pairs.items())
    what = "loss" if results.panel.networks else "gap"
    return ClaimVerdict.share(
        {k: v < 3 for k, v in pairs.items()}, f"{what} of the suffix average over the last's: {words}"
    )


FAST = "Its first steps are a hundred times as long."
TRACKS = "Gaps follow eta_t^2: these steps are still longer than the constant one when the run ends."
ENOUGH = (
    "The conditions are sufficient, not necessary: f is strongly convex, the gap follows eta_t^2, and any step that "
    "vanishes slowly enough will do. Halving has a finite sum, so that it still falls says little about its limit."
)
CARRIES = "The average carries the first models, of weight eta_s over the sum of all, for as long as it lasts."


def _suffix_first(results: Results) -> ClaimVerdict:
    names = [
        x.label for x in results.shown("-") if {f"{x.label} | {SUFFIX}", f"{x.label} | {AVERAGED}"} <= set(results)
    ]
    pairs = {name: results.final(f"{name} | {SUFFIX}") / results.final(f"{name} | {AVERAGED}") for name in names}
    words = ", ".join(f"{name}: {short(ratio)}x" for name, ratio in pairs.items())
    return ClaimVerdict.share({name: ratio <= 1 for name, ratio in pairs.items()}, words)


KEEPS_UP = Claim(
    "An average that starts anew at powers of two forgets the start and keeps up.",
    _suffix,
    ours=True,
    first=First("no worse than the average over all rounds", _suffix_first),
)


def claims(name: str) -> tuple[Claim, ...]:
    return (
        Claim(f"{name} with a constant step is at its suboptimal end within a few hundred rounds.", _few_hundred),
        Claim("Diminishing steps converge more slowly.", _slower, why=FAST),
        Claim("They end at better solutions.", _better, why=TRACKS),
        Claim(
            "Only a step that meets both conditions of the theorem, 1/t here, reaches a correct solution.",
            _only,
            why=ENOUGH,
        ),
        Claim("Ergodic averaging does not slow it down noticeably.", _free, why=CARRIES),
        KEEPS_UP,
    )


def _best(results: Results, tie: float = TIE) -> ClaimVerdict:
    finals = {x.label: results.final(x.label) for x in results.shown("-") if not x.label.startswith("FedAvg")}
    least = min(finals[label] for label in ("eta = 100", "100/log t", "eta = 10"))
    words = ", ".join(f"{name}: {short(value)}" for name, value in finals.items())
    return ClaimVerdict.of(least <= tie * min(finals.values()), f"final losses: {words}")


NO_TIES = First("the least loss, however close", lambda results: _best(results, tie=1.0))


def _overlap(results: Results) -> ClaimVerdict:
    labels = ["eta = 100", "100/log t", MANY]
    ends = [results.final(label) for label in labels]
    apart = max(ends) / min(ends) - 1
    starts = results.at(labels[0], 1)
    return ClaimVerdict.of(
        max(ends) - min(ends) < 0.02 * starts, f"{results.numbers(*labels)}: at most {apart:.1%} apart"
    )


def _network_lines() -> tuple[PanelLine, ...]:
    made = []
    cases = {f"eta = {eta:g}": (eta, "constant", colour) for eta, colour in ((1.0, SKY), (10.0, ORANGE), (ETA, RED))}
    names = SCHEDULES | {"/log t": "inverse-ln"}
    cases |= {f"{ETA:g}{name}": (ETA, schedule, COLOURS[name]) for name, schedule in names.items()}
    for label, (eta, schedule, colour) in cases.items():
        settings: Settings = {"scheme.algorithm": "fedprox", "scheme.eta": eta, "scheme.schedule": schedule}
        settings |= {"local.steps": STEPS, "local.lr": RATE, "scheme.period": 10, "run.average": "ergodic"}
        made.append(PanelLine(label, settings, "value", colour=colour, quick=QUICK_LOCAL))
        made.append(PanelLine(f"{label} | {AVERAGED}", settings, "average_value", "--", colour, quick=QUICK_LOCAL))
        if schedule in RESTARTED:
            suffix = settings | {"run.average": "suffix"}
            made.append(PanelLine(f"{label} | {SUFFIX}", suffix, "average_value", ":", colour, QUICK_LOCAL, ours=True))
    beside = network_fedavg()
    return (*made, PanelLine(beside.label, beside.settings, colour=GREY, quick=beside.quick))


def _network_free(results: Results) -> ClaimVerdict:
    pairs = {x.label: results.final(f"{x.label} | {AVERAGED}") / results.final(x.label) for x in _averaged(results)}
    words = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in pairs.items())
    return ClaimVerdict.share({k: v < 1.25 for k, v in pairs.items()}, f"loss of the average over the last's: {words}")


FIGURE = Figure(
    "fig:eta_effect_fedprox",
    "FedProx: step size and averaging",
    "FedProx with constant and diminishing steps: solid the last model, dashed the ergodic average, dotted the suffix "
    "average that this library adds. FedAvg stands beside it.",
    (
        Panel("left", "Least squares", LEAST_SQUARES | {"run.rounds": ROUNDS},
              (*lines("fedprox", (1e-5, 1e-4), 1e-3, SCHEDULES), BESIDE),
              claims("FedProx"), styles=STYLES),
        Panel("middle", "Logistic regression", LOGISTIC | {"run.rounds": ROUNDS},
              (*lines("fedprox", (1e-2, 1e-1), 1.0, SCHEDULES), BESIDE),
              claims("FedProx"), styles=STYLES),
        Panel("right", "CNN on MNIST, six digits a user", MNIST, _network_lines(),
              (Claim("For the network the largest steps give the best results.", _best, first=NO_TIES),
               Claim("FedAvg and FedProx at eta = 100 and 100/log t overlap.", _overlap),
               Claim("Averaging does not slow it down noticeably.", _network_free), KEEPS_UP),
              column="value", ylabel="training loss", paper_seeds=4, quick=QUICK_MNIST, styles=STYLES),
    ),
    settings="Schedules are eta0/(t+1), eta0/sqrt(t+1), eta0/(log10(t+1)+1) (the network: eta0/ln(t+e)), and halving "
    "every 500 rounds (the network: 10); eta0 is 1e-3, 1 and 100. " + QUICK_WORDS,
)  # fmt: skip
