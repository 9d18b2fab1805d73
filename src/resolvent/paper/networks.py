"""The paper's networks on MNIST and CIFAR-10, and what the scale "quick" makes of them."""

from __future__ import annotations

from typing import Any

from resolvent.iteration.table import TABLE
from resolvent.paper.figure import Claim, Panel, PanelLine, Settings
from resolvent.paper.settings import FEDAVG_1, PROX

MNIST: Settings = {"problem.name": "mnist", "problem.users": 20, "problem.partition": "shards:6", "run.rounds": 50}
QUICK, FINE = 10, 2
"""Local steps are divided by it in quick runs, and the step size is multiplied by it; `FINE` is for acceleration, which
does not stand long steps."""
QUICK_MNIST: Settings = {"problem.images": 600, "run.rounds": 20}
"""At most 24 training images per user instead of 2,400: users are cut to the size of the smallest."""
STEPS, RATE, ETA, SMALL_ETA = 100, 0.01, 100.0, 0.1
"""FedSplit and FedPi take the small one: at 100 quick runs run away, since duals of size eta |grad f_i| build up."""
TIE = 1.05
"""Losses this close count as equal."""
ONE, MANY = "FedAvg, one step", "FedAvg, many steps"
QUICK_LOCAL: Settings = {"local.steps": STEPS // QUICK, "local.lr": RATE * QUICK}
QUICK_TEXT = (
    "Quick: 20 users with at most 24 training images each (the paper: 2,400), 10 local steps of size 0.1 (100 of "
    "0.01), 20 rounds. Many steps are 100, quick 10. FedSplit and FedPi have eta = 0.1 (and quick steps of 0.05): at "
    "100 quick runs of them run away."
)
FINE_TEXT = (
    "Here quick runs take 50 local steps of size 0.02 (FedSplit and FedPi of 0.01): with 10 of 0.1, as elsewhere, "
    "acceleration as the paper prints it stood still for ten rounds."
)


def fedavg(k: int = STEPS, rate: float = RATE, fold: int = QUICK) -> PanelLine:
    """FedAvg's k steps of size eta = 0.01."""
    settings: Settings = {"scheme.algorithm": "fedavg", "scheme.eta": rate, "local.steps": k}
    quick: Settings = {"scheme.eta": rate * fold, "local.steps": max(1, k // fold)}
    return PanelLine(ONE if k == 1 else MANY, settings, quick=quick, colour=FEDAVG_1 if k == 1 else None)


def prox(title: str, eta: float | None = None, fold: int = QUICK) -> PanelLine:
    """A prox by gradient descent, 100 steps of size 0.01."""
    exact = TABLE[PROX[title]].exact
    settings: Settings = {
        "scheme.algorithm": PROX[title],
        "scheme.eta": (SMALL_ETA if exact else ETA) if eta is None else eta,
        "local.steps": STEPS,
        "local.lr": RATE,
    }
    rate = RATE * fold / (2 if exact and eta is None else 1)
    return PanelLine(title, settings, quick={"local.steps": STEPS // fold, "local.lr": rate})


def algorithms(alone: bool = False, fold: int = QUICK) -> tuple[PanelLine, ...]:
    """The five algorithms; FedAvg with k = 100 and, unless `alone`, with k = 1."""
    return (*(() if alone else (fedavg(1),)), fedavg(fold=fold), *(prox(title, fold=fold) for title in PROX))


def panel(key: str, title: str, lines: tuple[PanelLine, ...], claims: tuple[Claim, ...], **more: Any) -> Panel:
    """A panel of the network's training loss; on MNIST with six digits per user unless `base` says otherwise."""
    usual: dict[str, Any] = {"base": MNIST, "quick": QUICK_MNIST, "paper_seeds": 4}
    return Panel(key, title, lines=lines, claims=claims, column="value", ylabel="training loss", **usual | more)
