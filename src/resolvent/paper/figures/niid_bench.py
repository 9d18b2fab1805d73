"""Flower's niid_bench on MNIST, run again, with FedPi and FedRP beside the algorithms of its table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from resolvent.iteration.table import TABLE
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, Panel, PanelLine, Settings
from resolvent.paper.results import Results
from resolvent.report.figures import width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASE: Settings = {
    "problem.name": "mnist",
    "problem.protocol": "niid-bench",
    "problem.users": 10,
    "problem.weights": "rows",
    "run.rounds": 50,
    "local.steps": 10,
    "local.batch": 64,
    "local.momentum": 0.9,
}
QUICK: Settings = {"problem.images": 2000, "run.rounds": 20}
RATE = 0.01
GRIDS = {"fedprox": (1.0, 10.0, 100.0, 1000.0), "fedpi": (0.1, 1.0, 10.0), "fedrp": (0.1, 1.0, 10.0)}
"""FedProx's is niid_bench's own, eta = 1/mu. Too small an eta stands still, too large a one is no prox any more."""
TEST, VALIDATION = "test_accuracy", "validation_accuracy"
SCAFFOLD, OURS = "SCAFFOLD", ("FedPi", "FedRP")
THEIRS = ("FedAvg", SCAFFOLD, "FedProx", "FedNova")
PUBLISHED = {
    "mnist": {
        "one-label": (10.0, 10.0, 81.3, 55.1),
        "two-labels": (96.6, 96.6, 96.7, 96.5),
        "three-labels": (98.2, 97.8, 97.8, 97.7),
        "dirichlet": (98.9, 99.0, 99.0, 98.8),
        "iid": (99.1, 99.2, 99.2, 99.0),
    },
    "cifar10": {
        "one-label": (10.0, 10.0, 11.6, 10.0),
        "two-labels": (49.9, 48.9, 50.0, 46.4),
        "three-labels": (58.1, 60.0, 60.0, 57.7),
        "dirichlet": (63.4, 68.0, 65.6, 65.0),
        "iid": (71.7, 70.7, 70.6, 71.1),
    },
}
"""The tables of its README: test accuracy in per cent of the algorithms in THEIRS, one seed."""
PARTITIONS = {
    "one-label": ("One label per user", "shards:1"),
    "two-labels": ("At most two labels per user", "shards:2"),
    "three-labels": ("At most three labels per user", "shards:3"),
    "dirichlet": ("Dirichlet(0.5)", "dirichlet:0.5"),
    "iid": ("Alike", "iid"),
}


def _steps(name: str) -> PanelLine:
    """FedAvg and FedNova: their steps have the size eta; SCAFFOLD finds its own."""
    size = "local.lr" if name == "scaffold" else "scheme.eta"
    return PanelLine(TABLE[name].title, {"scheme.algorithm": name, size: RATE})


def _prox(name: str) -> list[PanelLine]:
    """A prox by ten epochs, at every eta of the grid."""
    settings: Settings = {"scheme.algorithm": name, "local.lr": RATE}
    return [PanelLine(f"{TABLE[name].title} | eta = {eta:g}", settings | {"scheme.eta": eta}) for eta in GRIDS[name]]


LINES = (_steps("fedavg"), _steps("scaffold"), _steps("fednova"), *(line for name in GRIDS for line in _prox(name)))


def bests(results: Results, label: str, column: str = TEST) -> list[float]:
    """The best accuracy over rounds in per cent, by seed."""
    return [100 * float(frame[column].max()) for frame in results[label]]


def chosen(results: Results) -> dict[str, str]:
    """By algorithm, the line that does best on validation images, in the mean over seeds; of equal ones the first."""
    by_name: dict[str, list[str]] = {}
    for label, line in results.lines.items():
        by_name.setdefault(line.name, []).append(label)
    scores = {label: statistics.mean(bests(results, label, VALIDATION)) for label in results.lines}
    return {name: max(labels, key=scores.__getitem__) for name, labels in by_name.items()}


def said(results: Results, label: str) -> str:
    """A line's best accuracies as a phrase: their mean, and their standard deviation where there are several seeds."""
    values = bests(results, label)
    spread = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{label.replace(' | ', ' at ')}: {statistics.mean(values):.1f}{spread}"


def _numbers(results: Results) -> str:
    values = PUBLISHED[str(results.panel.base["problem.name"])][results.panel.key]
    published = ", ".join(f"{name} {value}" for name, value in zip(THEIRS, values, strict=True))
    return f"{', '.join(said(results, label) for label in chosen(results).values())}; published: {published}"


def _theirs(results: Results) -> dict[str, float]:
    """The mean accuracy of each algorithm that was published."""
    lines = chosen(results)
    return {name: statistics.mean(bests(results, lines[name])) for name in THEIRS}


def _close(results: Results) -> ClaimVerdict:
    values = _theirs(results).values()
    return ClaimVerdict.of(max(values) - min(values) <= 1, _numbers(results))


def _two_learn(results: Results) -> ClaimVerdict:
    values = _theirs(results)
    level = 2 * max(values["FedAvg"], values[SCAFFOLD])
    return ClaimVerdict.share({name: values[name] > level for name in ("FedProx", "FedNova")}, _numbers(results))


def _beats(*others: str) -> Callable[[Results], ClaimVerdict]:
    """Whether FedPi or FedRP, whichever did better on validation images, is better than the others on every seed."""

    def check(results: Results) -> ClaimVerdict:
        lines = chosen(results)
        best = max(OURS, key=lambda name: statistics.mean(bests(results, lines[name], VALIDATION)))
        rivals = zip(*(bests(results, lines[name]) for name in others), strict=True)
        seeds = zip(bests(results, lines[best]), map(max, rivals), strict=True)
        return ClaimVerdict.share(
            {f"seed {k}": own > theirs for k, (own, theirs) in enumerate(seeds)}, _numbers(results)
        )

    return check


def _draw(axis: Axes, results: Results) -> None:
    """Test accuracy against rounds, each algorithm at its eta: the mean over seeds, and a band from least to most."""
    from matplotlib.ticker import MaxNLocator

    lines = list(chosen(results).values())
    for place, label in enumerate(lines):
        seeds = 100 * results.seeds(label)
        colour = TABLE[results.algorithm(label)].colour
        name = said(results, label)
        axis.plot(seeds.index, seeds.mean(axis=1), color=colour, lw=width(place, len(lines)), label=name)
        axis.fill_between(seeds.index, seeds.min(axis=1), seeds.max(axis=1), color=colour, alpha=0.15, lw=0)
    axis.set(xlabel="round", ylabel="test accuracy, per cent", ylim=(0, 100))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _panels(images: str) -> tuple[Panel, ...]:
    """One panel per partition of the set of images."""
    panels = []
    for key, (title, partition) in PARTITIONS.items():
        claims = (
            Claim(
                "FedProx and FedNova reach more than twice the accuracy of FedAvg and SCAFFOLD.", _two_learn, ours=True
            )
            if (images, key) == ("mnist", "one-label")
            else Claim("The four algorithms of its table are within one point of each other.", _close, ours=True),
            Claim("FedPi or FedRP does better than SCAFFOLD.", _beats(SCAFFOLD), ours=True),
            Claim("FedPi or FedRP does better than all four.", _beats(*THEIRS), ours=True),
        )
        base = BASE | {"problem.name": images, "problem.partition": partition}
        panels.append(Panel(key, title, base, LINES, claims, column=TEST, ylabel=TEST, seeds=3, paper_seeds=4,
                            quick=QUICK, draw=_draw))  # fmt: skip
    return tuple(panels)


FIGURE = Figure(
    "niid-bench",
    "Beside Flower's niid_bench",
    "MNIST over ten users who are all present: FedAvg, SCAFFOLD, FedProx and FedNova as in the table of Flower's "
    "baseline niid_bench, with FedPi and FedRP. Numbers are the best test accuracy over the rounds, as there: mean and "
    "standard deviation over seeds.",
    _panels("mnist"),
    settings="50 rounds of 10 epochs, batches of 64, steps of 0.01 with momentum 0.9, a network of 6 and 16 channels "
    "(44,426 parameters), pixels from 0 to 1, users weighted by their images. eta of FedProx (1, 10, 100, 1000: "
    "niid_bench's mu), FedPi and FedRP (0.1, 1, 10) is the one with the best validation accuracy, in the "
    "mean over seeds, on 10 % of every user's images, which no algorithm trains on. niid_bench trains on these too, "
    "decays weights by 1e-5, leaves momentum out of SCAFFOLD's correction, and draws users' second and third labels at "
    "random; here each class is cut into equal shards. Quick: 2,000 of the 60,000 images, 20 rounds.",
    lead="Tables that others publish, run again beside this library's algorithms.",
)
CIFAR10 = replace(
    FIGURE,
    label="niid-bench-cifar10",
    title="Beside Flower's niid_bench, on CIFAR-10",
    caption=FIGURE.caption.replace("MNIST", "CIFAR-10"),
    panels=_panels("cifar10"),
    settings=FIGURE.settings.replace("44,426", "62,006").replace("60,000", "50,000"),
)
