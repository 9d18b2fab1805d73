"""The map of algorithms: which setting of the scheme, and which local operator, each row of the table is.

    python -m bench.map docs/images/map.png    # the picture of docs/schemes.md

Everything in it is read from the table and the registry: a new row, or a new part, appears by itself. What a row solves
is what `explain` says of it.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import resolvent as rs
from resolvent.iteration import registry
from resolvent.iteration.table import TABLE, Row
from resolvent.report.figures import save, sheet, symbols

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 5
"""Local steps that stand for more than one."""
SOLVES = {
    "original": ("#D5EEDD", "the original problem"),
    "regularised": ("#FCE8C8", "the regularised problem, or nearly"),
    "neither": ("#E4E4EA", "neither"),
    "unknown": ("#FFFFFF", "no claim is made"),
}
PARTS = {
    "accelerate": "goes beyond T",
    "send": "what crosses",
    "meet": "where users meet",
    "participation": "who comes",
}
INK, FAINT, LINE, PAPER = "#1B1B1F", "#5C5C66", "#C9C9D1", "#FFFFFF"


class Place(NamedTuple):
    """Where an algorithm is on the map, and what it solves there."""

    title: str
    setting: str
    local: str
    solves: str
    colour: str


def setting_of(row: Row) -> str:
    """alpha, beta and gamma as one reads them."""
    numbers = {"alpha": row.alpha, "beta": row.beta, "gamma": row.gamma}
    names = {0.5: "½"}
    return ", ".join("> 1" if name in row.free else names.get(x, f"{x:g}") for name, x in numbers.items())


def places() -> list[Place]:
    """Every row of the table: twice where one gradient step solves another problem than several."""
    rng = np.random.default_rng(0)
    problem = rs.LeastSquares(rng.standard_normal((3, 8, 2)), rng.standard_normal((3, 8)))
    eta = 0.1 / float(problem.lipschitz.max())
    found = []
    for row in TABLE.values():
        local = row.local.replace("-", " ") if row.local else "gradient steps" if row.forward else "prox"
        counts = (1, FEW) if row.forward and row.local is None else (row.steps,)
        solves = [rs.explain(row.scheme(eta, steps=k), problem).solves for k in counts]
        titles = [f"{row.title}, k = 1", f"{row.title}, k > 1"] if len(set(solves)) > 1 else [row.title]
        found += [Place(title, setting_of(row), local, s, row.colour) for title, s in zip(titles, solves, strict=False)]
    return found


def draw(path: Path) -> Path:
    """A table of settings and local operators with the algorithms in it; below, the parts that go with any of them."""
    all_places = places()
    rows = sorted(TABLE.values(), key=lambda row: (row.alpha, row.beta, row.gamma))
    settings, operators = list(dict.fromkeys(map(setting_of, rows))), list(dict.fromkeys(p.local for p in all_places))
    cells = {(p.setting, p.local): [q for q in all_places if q[1:3] == p[1:3]] for p in all_places}
    heights = [max(len(cells.get((s, o), ())) for o in operators) for s in settings]
    figure, (axis,) = sheet(size=(10.5, 0.36 * (sum(heights) + 0.4 * len(heights)) + 2.9))
    figure.set_facecolor(PAPER)
    width, top = len(operators) + 0.75, sum(heights) + 0.4 * len(heights)
    axis.set(xlim=(0, width), ylim=(-len(PARTS) - 2.4, top + 1.7))
    axis.axis("off")
    axis.text(0.02, top + 0.6, "α, β, γ", color=FAINT, fontsize=11, va="center")
    for column, operator in enumerate(operators):
        axis.text(column + 1.25, top + 0.6, operator, color=FAINT, fontsize=10, ha="center", va="center")
    y = float(top)
    for setting, height in zip(settings, heights, strict=True):
        axis.plot([0, width], [y, y], color=LINE, lw=0.8)
        axis.text(0.02, y - height / 2 - 0.2, setting, color=INK, fontsize=12, va="center")
        for column, operator in enumerate(operators):
            for k, place in enumerate(cells.get((setting, operator), ())):
                _label(axis, column + 1.25, y - k - 0.7, place)
        y -= height + 0.4
    _legend(axis, width, {place.solves for place in all_places})
    return save(figure, path, advice="name another picture")


def _label(axis: Axes, x: float, y: float, place: Place) -> None:
    box = {"boxstyle": "round,pad=0.3", "facecolor": SOLVES[place.solves][0], "edgecolor": place.colour, "lw": 1.6}
    axis.text(x, y, symbols(place.title), color=INK, fontsize=10, ha="center", va="center", bbox=box)


def _legend(axis: Axes, width: float, solved: set[str]) -> None:
    """What the colours say, and which parts go with every algorithm."""
    axis.plot([0, width], [0, 0], color=LINE, lw=0.8)
    axis.text(0.02, -0.8, "solves", color=FAINT, fontsize=10, va="center")
    for k, (colour, words) in enumerate(SOLVES[each] for each in SOLVES if each in solved):
        x = 0.75 + (width - 0.75) / len(solved) * k
        axis.text(x, -0.8, "    ", fontsize=8, va="center", bbox={"boxstyle": "round", "fc": colour, "ec": LINE})
        axis.text(x + 0.2, -0.8, words, color=INK, fontsize=9.5, va="center")
    for k, (kind, words) in enumerate(PARTS.items()):
        names = ", ".join(part.make.__name__ for part in registry.parts(kind).values())
        axis.text(0.02, -2.0 - k, f"{kind}=", color=INK, fontsize=10, va="center", family="monospace")
        axis.text(1.25, -2.0 - k, f"{words}: {names}", color=INK, fontsize=9.5, va="center")


def main(path: str = "docs/images/map.png") -> None:
    """Draw it, and say where everything is."""
    warnings.simplefilter("ignore")
    for place in places():
        print(f"({place.setting}) {place.local:20} {place.title:16} {place.solves}")
    print(draw(Path(path)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
