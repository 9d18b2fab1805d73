"""The paper's settings, with what it leaves open settled, and the five algorithms as lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from resolvent.iteration.table import TABLE
from resolvent.paper.figure import PanelLine, Settings

LEAST_SQUARES: Settings = {"problem.name": "least-squares", "scheme.eta": 1e-5, "run.rounds": 600}
LOGISTIC: Settings = {"problem.name": "logistic", "scheme.eta": 1e-2, "run.rounds": 800}

BLUE, ORANGE, GREEN, RED, PINK, SKY, VIOLET = (
    TABLE[name].colour
    for name in ("fedavg", "fedprox", "fedsplit", "fedpi", "fedrp", "reflect_gradient", "reflect_prox")
)
BLACK = "#222222"
RAMP = ("#f2c14e", "#f08a3c", "#dc5b3b", "#b0355a", "#7a2a6e", "#3d1c5c")
"""From light to dark, for a number that grows."""
FEDAVG_1 = SKY
"""FedAvg with one local step; with more it has FedAvg's own colour."""
PROX = {TABLE[name].title: name for name in ("fedprox", "fedsplit", "fedpi", "fedrp")}
"""Those that the paper compares, by title."""


def fedavg(k: int) -> PanelLine:
    """FedAvg with k local steps."""
    settings: Settings = {"scheme.algorithm": "fedavg", "local.steps": k}
    return PanelLine(f"FedAvg, k = {k}", settings, colour=FEDAVG_1 if k == 1 else None)


def algorithms(k: int = 5, alone: bool = False) -> tuple[PanelLine, ...]:
    """The five algorithms, FedAvg with k local steps and, unless `alone`, with one."""
    prox = (PanelLine(title, {"scheme.algorithm": name}) for title, name in PROX.items())
    return (*(() if alone else (fedavg(1),)), fedavg(k), *prox)


def also(
    lines: Iterable[PanelLine], word: str, style: str, settings: Settings, ours: bool = False
) -> tuple[PanelLine, ...]:
    """Each line once more with other settings, in another style: its label is "name | word"."""
    return tuple(
        replace(line, label=f"{line.label} | {word}", settings=line.settings | settings, style=style, ours=ours)
        for line in lines
    )
