"""Pictures by Matplotlib: gaps against rounds, time and bytes; who holds what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.errors import InputError
from resolvent.installed import install
from resolvent.report.curves import Curve, drawn_rows, logarithmic
from resolvent.report.tables import measure
from resolvent.runs.durable import storing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"round": "round", "seconds": "seconds", "bytes": "bytes communicated"}
NAMES = {"gap": r"$f(w) - f^\ast$", "value": r"$f(w)$"}
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*<>"
DPI = 150
MAX_LEGEND_CLASSES = 20
THICK, THIN = 3.0, 1.3
"""Widths of the first and of the last curve, which lies on top: what it covers shows on both sides."""
SYMBOLS = ((r"\beta(?= = )", "η"), (r"\bsteps(?= = )", "k"), (r"\bR_H (?=[GP]\b)", r"$R_H\\,$"))
"""Names in labels and the symbols of the paper for them."""
PARTED = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#6B4C9A", "#999999", "#333333")


def needed(*names: str) -> None:
    """Refuse, before anything is run, what could not be drawn afterwards."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(f"{name}, which draws this, is not installed; {install('plot')}")


def draw(curves: Sequence[Curve], path: Path, title: str = "", y: str | None = None, xs: Sequence[str] = ()) -> Path:
    """One panel for each of `xs` (round, seconds, bytes); dashed where accelerated; seeds as bands. PNG or SVG."""
    shown = [curve for curve in curves if curve.frames]
    xs = list(xs) or telling_axes(shown)
    y = y or (measure(shown[0].frames[0]) if shown else "value")
    figure, axes = sheet(len(xs))
    log = logarithmic(shown, y)
    for axis, x in zip(axes, xs, strict=True):
        for place, curve in enumerate(shown):
            _curve(axis, curve, x, y, log, _style(curve, place, shown))
        axis.set(xlabel=AXES.get(x, x), yscale="log" if log else "linear", xscale="log" if shown else "linear")
        axis.grid(alpha=0.25)
        _ticks(axis)
    axes[0].set_ylabel(NAMES.get(y, y))
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    return save(figure, path)


def telling_axes(curves: Sequence[Curve]) -> list[str]:
    """The axes that show something of their own: bytes do where rounds of some curves cost more than others'."""
    prices = {float(p) for curve in curves for frame in curve.frames for p in (frame["bytes"] / frame["round"]).round()}
    return [x for x in AXES if x != "bytes" or len(prices) > 1]


def symbols(label: str) -> str:
    """A label with the paper's symbols: η for eta, k for local steps, and R_H as mathematics."""
    label = plain(label)
    for name, symbol in SYMBOLS:
        label = re.sub(name, symbol, label)
    return label


def plain(text: str) -> str:
    """Text with its dollar signs escaped: Matplotlib would set what lies between two of them as mathematics."""
    return text.replace("$", r"\$")


def _curve(axis: Axes, curve: Curve, x: str, y: str, log: bool, style: dict[str, Any]) -> None:
    xs, ys = curve.over(x, y)
    rows = drawn_rows(ys)
    xs, ys = xs.iloc[rows], ys.iloc[rows]
    shown = ys["median"] > 0 if log else ys["median"].notna()
    axis.plot(xs[shown], ys["median"][shown], label=symbols(curve.label), **style)
    if len(curve.frames) > 1:
        low = ys["least"].clip(lower=1e-300 if log else None)
        axis.fill_between(xs[shown], low[shown], ys["most"][shown], color=curve.colour, alpha=0.2, lw=0)


def _style(curve: Curve, place: int, curves: Sequence[Curve]) -> dict[str, Any]:
    """A marker for each colour, and widths and places of marks that keep curves apart which lie on each other."""
    colours = list(dict.fromkeys(each.colour for each in curves))
    last = max(len(curves) - 1, 1)
    return {
        "color": curve.colour,
        "ls": DASHES[curve.dash % len(DASHES)],
        "lw": width(place, len(curves)),
        "marker": MARKERS[colours.index(curve.colour) % len(MARKERS)],
        "ms": 4.5,
        "mew": 0,
        "markevery": (0.03 + 0.12 * place / last, 0.14),  # in diagonals of the picture: the first mark, and between two
    }


def width(place: int, many: int) -> float:
    """Of the curve drawn at this place: what lies under later ones shows on both of their sides."""
    return THICK - (THICK - THIN) * place / max(many - 1, 1)


def _ticks(axis: Axes) -> None:
    """Label powers of ten, and between them only what fits."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_xlim()
    if axis.get_xscale() == "log" and high < 100 * low:
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def draw_partition(partition: dict[str, Any], path: Path, title: str = "Who holds what") -> Path:
    """One bar per user, divided by class."""
    figure, (axis,) = sheet()
    counts = partition.get("counts") or [[rows] for rows in partition["users"]]
    classes = partition.get("classes") or [""]
    bottom = [0] * len(counts)
    for k, name in enumerate(classes):
        rows = [user[k] for user in counts]
        colour = PARTED[k % len(PARTED)]
        axis.bar(range(len(counts)), rows, bottom=bottom, label=plain(str(name)), width=0.85, color=colour)
        bottom = [a + b for a, b in zip(bottom, rows, strict=True)]
    if "classes" in partition and len(classes) <= MAX_LEGEND_CLASSES:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8, title="class")
    axis.set(xlabel="user", ylabel="rows")
    axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11)
    return save(figure, path)


def sheet(panels: int = 1, size: tuple[float, float] | None = None) -> tuple[Figure, Any]:
    """An empty picture, and its axes beside each other."""
    needed("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    size = size or (2.2 + 4.2 * panels, 4.0)
    figure, axes = plt.subplots(1, panels, figsize=size, layout="constrained", squeeze=False, sharey=True)
    return figure, axes[0]


def save(figure: Figure, path: Path, dpi: int = DPI, advice: str = "name another place for it") -> Path:
    """Write a picture and let go of it."""
    from matplotlib import pyplot as plt

    try:
        with storing(path, advice):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=dpi)
    finally:
        plt.close(figure)
    return path
