"""`make demo`: the paper's least squares and logistic regression with all five algorithms, plain and accelerated."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import resolvent as rs

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {"FedAvg": "#0072B2", "FedProx": "#E69F00", "FedSplit": "#009E73", "FedPi": "#D55E00", "FedRP": "#CC79A7"}
"""Okabe and Ito's palette: told apart by colour-blind readers too."""
MEMORY = 2
CLOSE = 1e-6


def schemes(eta: float) -> list[rs.Scheme]:
    """The five algorithms as in the paper's figure on acceleration: FedAvg takes two local steps."""
    return [rs.fedavg(eta, steps=2), rs.fedprox(eta), rs.fedsplit(eta), rs.fedpi(eta), rs.fedrp(eta)]


def rounds_to_limit(gaps: pd.Series[float], limit: float) -> int | None:
    """Rounds until the distance of the gap to its limit is, and stays, within 1e-6 of the first."""
    distance = (gaps - limit).abs().to_numpy()
    far = (distance > CLOSE * distance[0]).nonzero()[0]
    return None if len(far) and far[-1] + 1 == len(distance) else int(far[-1]) + 2 if len(far) else 1


def compare(problem: Any, eta: float, rounds: int) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Each algorithm's history, plain and accelerated."""
    histories = {}
    for scheme in schemes(eta):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rs.ResolventWarning)  # the table says what each solves
            plain = rs.solve(problem, scheme, rounds=rounds)
            fast = rs.solve(problem, scheme, rounds=rounds, anderson=MEMORY)
        histories[scheme.name] = (plain.history, fast.history)
    return histories


def show(title: str, problem: Any, eta: float, histories: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> None:
    """A table of final gaps and of rounds to each algorithm's own limit."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("algorithm", no_wrap=True)
    table.add_column("solves", no_wrap=True)
    for heading in ("gap", "accelerated", "rounds to 1e-6", "accelerated"):
        table.add_column(heading, justify="right", no_wrap=True)
    for scheme in schemes(eta):
        plain, fast = histories[scheme.name]
        explanation = rs.explain(scheme, problem)
        limit = float(fast.gap.iloc[-1])
        cells = [f"{h.gap.iloc[-1]:.2e}" for h in (plain, fast)]
        cells += [str(rounds_to_limit(h.gap, limit) or f"> {len(h)}") for h in (plain, fast)]
        table.add_row(scheme.name, f"{'' if explanation.exactly else 'about '}{explanation.solves}", *cells)
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def draw(panels: dict[str, dict[str, tuple[pd.DataFrame, pd.DataFrame]]], path: Path) -> None:
    """Gap against rounds, dashed where accelerated."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(6.5 * len(panels), 4.4), layout="constrained")
    for axis, (title, histories) in zip(axes, panels.items(), strict=True):
        for name, (plain, fast) in histories.items():
            axis.plot(plain["round"], plain.gap, color=COLOURS[name], lw=1.6, label=name)
            axis.plot(fast["round"], fast.gap, color=COLOURS[name], lw=1.6, ls="--")
        axis.set_title(title, fontsize=11)
        axis.set(xlabel="round", ylabel="f(w) - f*", yscale="log", xscale="log")
        axis.grid(alpha=0.25)
    axes[0].plot([], [], color="grey", ls="--", label=f"with Anderson, memory {MEMORY}")
    axes[0].legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(folder: str = "out") -> None:
    """Solve, print, draw."""
    began = time.perf_counter()
    torch.set_num_threads(
        1
    )  # rounds are short: threads that wait for each other on a busy machine cost more than they save
    cases = {
        "Least squares: 25 users, 5000 rows each, d = 100, eta = 1e-5": (rs.make_least_squares(), 1e-5, 600),
        "Logistic regression: 10 users, 1000 rows each, d = 100, eta = 1e-2": (rs.make_logistic(), 1e-2, 800),
    }
    panels = {}
    for title, (problem, eta, rounds) in cases.items():
        panels[title] = compare(problem, eta, rounds)
        show(f"{title} ({rounds} rounds)", problem, eta, panels[title])
    path = Path(folder) / "demo.png"
    draw(panels, path)
    print(f"{path}: the gaps of all rounds, as a picture ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
