"""Figure extrap_error: Anderson acceleration of the network, an algorithm a panel, with bands over four seeds."""

from __future__ import annotations

from resolvent.paper import networks
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, Panel, PanelLine
from resolvent.paper.figures import extrap
from resolvent.paper.figures.extrap import LONG_STEPS, NETWORK_LINES, accelerated, gain
from resolvent.paper.networks import FINE_TEXT, QUICK_TEXT
from resolvent.paper.results import Results, listed, short


def _panel(line: PanelLine) -> Panel:
    algorithm = str(line.settings["scheme.algorithm"])
    unstable, labels = algorithm in extrap.UNSTABLE, (line.label, f"{line.label} | {extrap.RAW}")

    def check(results: Results) -> ClaimVerdict:
        ratio = gain(results, line.label)
        plain, fast = (short(results.final(label)) for label in labels)
        numbers = f"area under the loss {short(ratio)}x the plain one's; final losses, plain and accelerated: "
        numbers += f"{plain} and {fast}"
        if len(results[line.label]) > 1:
            plain, fast = (short(results.spread(label)) for label in labels)
            numbers += f"; the seeds end {plain} apart, accelerated {fast}"
        return ClaimVerdict.of(ratio > 1 if unstable else ratio < extrap.BETTER, numbers)

    name = line.label.split(",")[0]
    text = f"Acceleration makes {name} worse." if unstable else f"{name} converges much faster with it."
    claim = Claim(text, check, why=extrap.ROWS if algorithm in extrap.EXACT else "", first=LONG_STEPS)
    return networks.panel(algorithm, f"CNN on MNIST: {line.label}", accelerated((line,), 10, "mean"), (claim,), seeds=4,
                          styles=extrap.STYLES)  # fmt: skip


def _stability(panels: dict[str, Results]) -> ClaimVerdict:
    spreads = {key: results.spread(next(iter(results.lines))) for key, results in panels.items()}
    numbers = f"spread of the plain runs' final losses over seeds: {listed(spreads, '{name} {short}')}"
    parts = {"FedRP": spreads["fedrp"] > spreads["fedprox"], "FedSplit": spreads["fedsplit"] > spreads["fedpi"]}
    return ClaimVerdict.share(parts, numbers)


FIGURE = Figure(
    "fig:extrap_error",
    "Anderson acceleration of the network, by algorithm",
    "Medians over four seeds with bands from least to most; dashed accelerated as the paper prints it, dotted with "
    "safeguards.",
    tuple(_panel(line) for line in NETWORK_LINES),
    (Claim("FedRP and FedSplit are less stable than FedProx and FedPi.", _stability, first=LONG_STEPS,
           panels=("fedprox", "fedsplit", "fedpi", "fedrp")),),
    network_settings=f"{QUICK_TEXT} {FINE_TEXT}",
)  # fmt: skip
