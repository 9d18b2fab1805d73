"""Figure cifar10: FedAvg on CIFAR-10 with more and more local epochs."""

from __future__ import annotations

from resolvent.paper import networks
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, PanelLine, Settings
from resolvent.paper.results import Results
from resolvent.paper.settings import RAMP

CIFAR10: Settings = {
    "problem.name": "cifar10",
    "problem.users": 10,
    "problem.partition": "sorted:10",
    "problem.images": 10000,
    "scheme.algorithm": "fedavg",
    "scheme.eta": 0.1,
    "local.batch": 20,
    "run.rounds": 100,
}
EPOCHS = (1, 2, 5, 10)
QUICK: Settings = {"problem.images": 300, "local.batch": 8, "scheme.eta": 0.05, "run.rounds": 5}
LINES = tuple(
    PanelLine(f"k = {k}", {"local.steps": k, "scheme.algorithm": "fedavg"}, colour=colour)
    for k, colour in zip(EPOCHS, RAMP[1:], strict=False)
)


def _no_trade_off(results: Results) -> ClaimVerdict:
    finals = results.finals()
    best = min(finals, key=finals.__getitem__)
    return ClaimVerdict.of(best != f"k = {min(EPOCHS)}", f"final losses: {results.numbers(*finals)}")


NO_TRADE_OFF = "Fewer local epochs do not pay in the end: there is no trade-off, as far as one can compute."
FIGURE = Figure(
    "fig:cifar10",
    "FedAvg on CIFAR-10",
    "FedAvg with more and more local epochs on a network of 797,962 parameters; ten users with unlike data.",
    (
        networks.panel("only", "CNN on CIFAR-10, ten users", LINES, (Claim(NO_TRADE_OFF, _no_trade_off),), base=CIFAR10,
                       quick=QUICK),
    ),
    settings="Rounds and k are not stated: 100 rounds, k = 1, 2, 5, 10. Quick: 24 training images a user (the paper: "
    "800), batches of 8, eta = 0.05, 5 rounds. At the paper's size eta = 0.1 is too long a step for some seeds: of 16 "
    "runs five ended in NaN or infinity (k = 1 with seeds 0 and 1, k = 5 with 3, k = 10 with 1 and 2). It is the step: "
    "with half of it k = 1 does all 100 rounds with seeds 0, 1 and 2, and with a tenth with seed 0.",
)  # fmt: skip
