"""Figure splitting_minibatch: users who compute with minibatches."""

from __future__ import annotations

import functools
from dataclasses import replace

from resolvent.paper import networks
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import QUICK_TEXT, TIE
from resolvent.paper.results import Results, each, listed, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, algorithms, also

FULL = "full gradients"
STYLES = {"-": "minibatches", ":": FULL}
EPOCHS = 2
ROUNDS = 400
SQUARES_LR, LOGISTIC_LR = 1.5e-6, 1e-3
"""Of steps inside a prox: ten of them take it most of the way, and their noise stays below FedAvg's."""


def _lines(batch: int, lr: float) -> tuple[PanelLine, ...]:
    """A prox is two epochs of minibatch steps; the same with as many full gradient steps, thin."""
    batches, whole = [], []
    for line in algorithms():
        inner: Settings = {} if "local.steps" in line.settings else {"local.steps": EPOCHS, "local.lr": lr}
        settings = line.settings | inner
        batches.append(replace(line, settings=settings | {"local.batch": batch}))
        whole.append(replace(line, settings=settings | {"local.steps": 5 * settings["local.steps"]}))
    return (*batches, *also(whole, FULL, ":", {}))


def _nobody(results: Results) -> ClaimVerdict:
    start = results.at("FedAvg, k = 1", 1)
    return each(results.floors(), lambda floor: floor > 1e-12 * start, "gaps where they settle: {}")


def _slower(results: Results) -> ClaimVerdict:
    """Rounds to a tenth above the worse of both ends, with minibatches and with as many full steps."""
    parts, numbers = {}, []
    for line in results.shown("-"):
        full = f"{line.label} | {FULL}"
        level = 1.5 * max(results.floor(line.label), results.floor(full))
        a, b = results.rounds_to(line.label, level), results.rounds_to(full, level)
        parts[line.label] = a > b
        numbers.append(f"{line.label}: {short(b)} -> {short(a)}")
    return ClaimVerdict.share(parts, f"rounds to a common level, full -> minibatches: {', '.join(numbers)}")


def _one_epoch(results: Results) -> ClaimVerdict:
    one = results.floor("FedAvg, k = 1")
    others = {label: results.floor(label) for label in ("FedSplit", "FedPi")}
    return each(others, lambda floor: floor < one / 1.1, f"FedAvg, k = 1 {short(one)}, {{}}")


CLAIMS = (
    Claim("With minibatches no algorithm reaches the correct solution.", _nobody),
    Claim("Convergence is slower than with full gradients.", _slower),
    Claim(
        "FedAvg with k = 1 is no better than the others, and FedSplit and FedPi end at better solutions.", _one_epoch
    ),
)
SHORTER = First(
    "steps of 1e-6 and 120 rounds",
    panel=Panel("top-left, first", "Least squares, batches of 1000", LEAST_SQUARES | {"run.rounds": 120},
                _lines(1000, 1e-6)),
)  # fmt: skip
"""No prox method settles in so few rounds; the order at the end depends on the step."""


def _network_line(line: PanelLine) -> PanelLine:
    """100 epochs of 5 batches; quick: 2 epochs of 5 batches, so 10 steps."""
    quick = line.quick | {"local.batch": 8, "local.steps": 1 if line.label == networks.ONE else 2}
    return replace(line, settings=line.settings | {"local.batch": 500}, quick=quick)


NETWORK_LINES = tuple(map(_network_line, networks.algorithms()))


def _many_epochs_best(results: Results, tie: float = TIE) -> ClaimVerdict:
    ordered = dict(sorted(results.finals().items(), key=lambda item: item[1]))
    least = min(ordered.values())
    return ClaimVerdict.of(ordered[networks.MANY] <= tie * least, f"final losses: {listed(ordered)}")


STRICT = First(
    "the least loss, however close; not judged with eta = 100 for FedSplit and FedPi, which was first too",
    functools.partial(_many_epochs_best, tie=1.0),
)
FIGURE = Figure(
    "fig:splitting_minibatch",
    "Minibatches",
    "Users compute with five minibatches an epoch (Algorithm 2). Dotted: as many steps with full gradients.",
    (
        Panel("top-left", "Least squares, batches of 1000", LEAST_SQUARES | {"run.rounds": ROUNDS},
              _lines(1000, SQUARES_LR), tuple(replace(claim, first=SHORTER) for claim in CLAIMS), styles=STYLES),
        Panel("top-right", "Logistic regression, batches of 200", LOGISTIC | {"run.rounds": ROUNDS},
              _lines(200, LOGISTIC_LR), CLAIMS, styles=STYLES),
        networks.panel("bottom", "CNN on MNIST, five batches an epoch", NETWORK_LINES, (
            Claim("On the network FedAvg with many epochs does best.", _many_epochs_best, first=STRICT),)),
    ),
    settings="k counts epochs, shuffled passes over the batches; gradients of batches are scaled to be unbiased. A "
    f"prox is {EPOCHS} epochs of steps of size 1.5e-6 (least squares) or 1e-3 (logistic regression); FedAvg's steps "
    "are eta.",
    network_settings=QUICK_TEXT + " Here 5 batches of 8 images an epoch, 2 epochs.",
)  # fmt: skip
