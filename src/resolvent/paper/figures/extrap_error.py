"""Figure extrap_error: Anderson acceleration of the network, an algorithm a panel, with bands over four seeds."""

from __future__ import annotations

from resolvent.paper import networks
from resolvent.paper.figure import Across, Claim, ClaimVerdict, Figure, Panel, PanelLine
from resolvent.paper.figures.extrap import BETTER, EXACT, LONG_STEPS, RAW, ROWS, STYLES, UNSTABLE, accelerated, gain
from resolvent.paper.networks import FINE, FINE_WORDS, MNIST, QUICK_MNIST, QUICK_WORDS
from resolvent.paper.results import Results, short


def _says(line: PanelLine) -> Claim:
    unstable = line.settings["scheme.algorithm"] in UNSTABLE
    name = line.label.split(",")[0]

    def check(results: Results) -> ClaimVerdict:
        ratio = gain(results, line.label)
        ends = (short(results.final(label)) for label in (line.label, f"{line.label} | {RAW}"))
        words = f"area under the loss {short(ratio)}x the plain one's; final losses, plain and accelerated: "
        words += " and ".join(ends)
        if len(results[line.label]) > 1:
            plain, fast = (short(results.spread(label)) for label in (line.label, f"{line.label} | {RAW}"))
            words += f"; the seeds end {plain} apart, accelerated {fast}"
        return ClaimVerdict.of(ratio > 1 if unstable else ratio < BETTER, words)

    words = f"Acceleration makes {name} worse." if unstable else f"{name} converges much faster with it."
    return Claim(words, check, why=ROWS if line.settings["scheme.algorithm"] in EXACT else "", first=LONG_STEPS)


def _stability(panels: dict[str, Results]) -> ClaimVerdict:
    spreads = {key: results.spread(next(iter(results.lines))) for key, results in panels.items()}
    words = "spread of the plain runs' final losses over seeds: "
    words += ", ".join(f"{key} {short(value)}" for key, value in spreads.items())
    parts = {"FedRP": spreads["fedrp"] > spreads["fedprox"], "FedSplit": spreads["fedsplit"] > spreads["fedpi"]}
    return ClaimVerdict.share(parts, words)


def _panel(line: PanelLine) -> Panel:
    return Panel(str(line.settings["scheme.algorithm"]), f"CNN on MNIST: {line.label}", MNIST,
                 accelerated((line,), 10, "mean"), (_says(line),), column="value", ylabel="training loss",
                 quick=QUICK_MNIST, seeds=4, styles=STYLES)  # fmt: skip


FIGURE = Figure(
    "fig:extrap_error",
    "Anderson acceleration of the network, by algorithm",
    "Medians over four seeds with bands from least to most; dashed accelerated as the paper prints it, dotted with "
    "safeguards.",
    tuple(_panel(line) for line in networks.algorithms(alone=True, fold=FINE)),
    (Across("FedRP and FedSplit are less stable than FedProx and FedPi.", ("fedprox", "fedsplit", "fedpi", "fedrp"),
            _stability, first=LONG_STEPS),),
    settings=f"{QUICK_WORDS} {FINE_WORDS}",
)  # fmt: skip
