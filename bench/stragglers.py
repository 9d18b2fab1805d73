"""Late answers against synchronous rounds, over simulated time: FedPi and FedSplit on least squares.

    python -m bench.stragglers                                # a table
    python -m bench.stragglers docs/images/stragglers.png     # and the picture of docs/participation.md

Users answer in 1 to 30 seconds. A synchronous round (close = 1) waits for the slowest. The others close after some of
the answers, and later ones count when they come.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pandas as pd

import resolvent as rs

FACTOR = 30.0
SHARES = (1.0, 0.5, 0.2)
ROUNDS = {1.0: 150, 0.5: 1200, 0.2: 3000}


def histories() -> dict[tuple[str, float], pd.DataFrame]:
    """The history of every scheme and share."""
    problem = rs.make_least_squares(users=40, dim=20, rows=30)
    eta = rs.theory.best_eta(problem)
    curves = {}
    for scheme in (rs.fedpi(eta), rs.fedsplit(eta)):
        for share in SHARES:
            who = rs.Stragglers(FACTOR, close=share)
            run = rs.solve(problem, scheme, rounds=ROUNDS[share], participation=who, progress=False)
            curves[scheme.name, share] = run.history
    return curves


def seconds_to(history: pd.DataFrame, part: float) -> float:
    """Simulated seconds until the gap is this part of the first one."""
    there = history[history.gap <= part * history.gap.iloc[0]]
    return float(there.clock.iloc[0]) if len(there) else float("nan")


def draw(curves: dict[tuple[str, float], pd.DataFrame], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    styles = {1.0: ("0.45", "synchronous"), 0.5: ("C0", "closes after half"), 0.2: ("C1", "closes after a fifth")}
    for panel, name in zip(panels, ("FedPi", "FedSplit"), strict=True):
        for share in SHARES:
            colour, label = styles[share]
            history = curves[name, share]
            panel.semilogy(history.clock, history.gap.clip(lower=1e-30), color=colour, label=label)
        panel.set(title=name, xlabel="simulated seconds", xlim=(0, 2500), ylim=(1e-26, None))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("f - f*")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(path: str | None = None) -> None:
    warnings.simplefilter("ignore")
    curves = histories()
    print("simulated seconds until the gap is 1e-6 and 1e-12 of the first")
    for (name, share), history in curves.items():
        print(f"{name:9} close = {share:3}   {seconds_to(history, 1e-6):8.0f}  {seconds_to(history, 1e-12):8.0f}")
    if path is not None:
        draw(curves, Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:2])
