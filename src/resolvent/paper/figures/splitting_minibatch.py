"""Figure splitting_minibatch: users who compute with minibatches."""

from __future__ import annotations

from dataclasses import replace

from resolvent.paper import networks
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import MNIST, QUICK_MNIST, QUICK_WORDS, TIE
from resolvent.paper.results import Results, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, algorithms, also

FULL = "full gradients"
EPOCHS = 2
ROUNDS = 400
SQUARES_LR, LOGISTIC_LR = 1.5e-6, 1e-3
"""Of steps inside a prox: ten of them take it most of the way, and their noise stays below FedAvg's."""


def _lines(batch: int, lr: float) -> tuple[PanelLine, ...]:
    """A prox is two epochs of minibatch steps; the same with as many full gradient steps, thin."""
    made = []
    for line in algorithms():
        local: Settings = {"local.batch": batch}
        if line.settings["scheme.algorithm"] != "fedavg":
            local |= {"local.steps": EPOCHS, "local.lr": lr}
        made.append(replace(line, settings=line.settings | local))
    whole = []
    for line in made:
        steps = 5 * line.settings["local.steps"]
        settings = {key: value for key, value in line.settings.items() if key != "local.batch"}
        whole.append(replace(line, settings=settings | {"local.steps": steps}))
    return (*made, *also(whole, FULL, ":", {}))


def _nobody(results: Results) -> ClaimVerdict:
    floors = {line.label: results.floor(line.label) for line in results.shown("-")}
    start = results.at("FedAvg, k = 1", 1)
    words = "gaps where they settle: " + ", ".join(f"{label}: {short(value)}" for label, value in floors.items())
    return ClaimVerdict.share({label: value > 1e-12 * start for label, value in floors.items()}, words)


def _slower(results: Results) -> ClaimVerdict:
    """Rounds to a tenth above the worse of both ends, with minibatches and with as many full steps."""
    parts, words = {}, []
    for line in results.shown("-"):
        full = f"{line.label} | {FULL}"
        level = 1.5 * max(results.floor(line.label), results.floor(full))
        a, b = results.rounds_to(line.label, level), results.rounds_to(full, level)
        parts[line.label] = a > b
        words.append(f"{line.label} {short(b)} -> {short(a)}")
    return ClaimVerdict.share(parts, f"rounds to a common level, full -> minibatches: {', '.join(words)}")


def _one_epoch(results: Results) -> ClaimVerdict:
    one = results.floor("FedAvg, k = 1")
    others = {label: results.floor(label) for label in ("FedSplit", "FedPi")}
    words = f"FedAvg, k = 1 {short(one)}, " + ", ".join(f"{label}: {short(x)}" for label, x in others.items())
    return ClaimVerdict.share({label: x < one / 1.1 for label, x in others.items()}, words)


FIRST_ROUNDS, FIRST_LR = 120, 1e-6
SHORTER = First(
    "steps of 1e-6 and 120 rounds",
    panel=Panel("top-left, first", "Least squares, batches of 1000", LEAST_SQUARES | {"run.rounds": FIRST_ROUNDS},
                _lines(1000, FIRST_LR)),
)  # fmt: skip
"""No prox method settles in so few rounds; the order at the end depends on the step."""
CLAIMS = (
    Claim("With minibatches no algorithm reaches the correct solution.", _nobody),
    Claim("Convergence is slower than with full gradients.", _slower),
    Claim(
        "FedAvg with k = 1 is no better than the others, and FedSplit and FedPi end at better solutions.", _one_epoch
    ),
)


SQUARES = tuple(replace(claim, first=SHORTER) for claim in CLAIMS)


def _network() -> tuple[PanelLine, ...]:
    """100 epochs of 5 batches; quick: 2 epochs of 5 batches, so 10 steps."""
    made = []
    for line in networks.algorithms():
        quick = line.quick | {"local.batch": 8, "local.steps": 1 if line.label == networks.ONE else 2}
        made.append(replace(line, settings=line.settings | {"local.batch": 500}, quick=quick))
    return tuple(made)


def _network_best(results: Results, tie: float = TIE) -> ClaimVerdict:
    finals = {label: results.final(label) for label in results.lines}
    order = sorted(finals, key=finals.__getitem__)
    words = "final losses: " + ", ".join(f"{label}: {short(finals[label])}" for label in order)
    return ClaimVerdict.of(finals[networks.MANY] <= tie * finals[order[0]], words)


STRICT = First(
    "the least loss, however close; not judged with eta = 100 for FedSplit and FedPi, which was first too",
    lambda results: _network_best(results, tie=1.0),
)


FIGURE = Figure(
    "fig:splitting_minibatch",
    "Minibatches",
    "Users compute with five minibatches an epoch (Algorithm 2). Dotted: as many steps with full gradients.",
    (
        Panel("top-left", "Least squares, batches of 1000", LEAST_SQUARES | {"run.rounds": ROUNDS},
              _lines(1000, SQUARES_LR), SQUARES, styles={"-": "minibatches", ":": FULL}),
        Panel("top-right", "Logistic regression, batches of 200", LOGISTIC | {"run.rounds": ROUNDS},
              _lines(200, LOGISTIC_LR), CLAIMS, styles={"-": "minibatches", ":": FULL}),
        Panel("bottom", "CNN on MNIST, five batches an epoch", MNIST, _network(),
              (Claim("On the network FedAvg with many epochs does best.", _network_best, first=STRICT),),
              column="value", ylabel="training loss", paper_seeds=4, quick=QUICK_MNIST),
    ),
    settings="k counts epochs, shuffled passes over the batches; gradients of batches are scaled to be unbiased. A "
    f"prox is {EPOCHS} epochs of steps of size 1.5e-6 (least squares) or 1e-3 (logistic regression); FedAvg's steps "
    "are eta. " + QUICK_WORDS + " Here 5 batches of 8 images an epoch, 2 epochs.",
)  # fmt: skip
