"""Pictures by Matplotlib: gaps against rounds, time and bytes; who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.report.curves import Curve, logarithmic
from resolvent.report.packages import needed
from resolvent.report.tables import measure
from resolvent.runs.durable import storing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"round": "round", "seconds": "seconds", "bytes": "bytes communicated"}
NAMES = {"gap": "f(w) - f*", "value": "f(w)"}
DASHES = ("-", "--", "-.", ":")
PARTED = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#6B4C9A", "#999999", "#333333")


def draw(curves: Sequence[Curve], path: Path, title: str = "", y: str | None = None, xs: Sequence[str] = ()) -> Path:
    """One panel for each of `xs` (round, seconds, bytes); dashed where accelerated; seeds as bands. PNG or SVG."""
    xs = list(xs) or list(AXES)
    shown = [curve for curve in curves if curve.frames]
    y = y or (measure(shown[0].frames[0]) if shown else "value")
    figure, axes = _figure(len(xs))
    log = logarithmic(shown, y)
    for axis, x in zip(axes, xs, strict=True):
        for curve in shown:
            _curve(axis, curve, x, y, log)
        axis.set(xlabel=AXES.get(x, x), yscale="log" if log else "linear", xscale="log" if shown else "linear")
        axis.grid(alpha=0.25)
        _ticks(axis)
    axes[0].set_ylabel(NAMES.get(y, y))
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    return _save(figure, path)


def plain(text: str) -> str:
    """Text with its dollar signs escaped: Matplotlib would set what lies between two of them as mathematics."""
    return text.replace("$", r"\$")


def _curve(axis: Axes, curve: Curve, x: str, y: str, log: bool) -> None:
    xs, ys = curve.over(x, y)
    shown = ys["median"] > 0 if log else ys["median"].notna()
    style: dict[str, Any] = {"color": curve.colour, "lw": 1.6, "ls": DASHES[curve.dash % len(DASHES)]}
    axis.plot(xs[shown], ys["median"][shown], label=plain(curve.label), **style)
    if len(curve.frames) > 1:
        low = ys["least"].clip(lower=1e-300 if log else None)
        axis.fill_between(xs[shown], low[shown], ys["most"][shown], color=curve.colour, alpha=0.2, lw=0)


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
    figure, (axis,) = _figure(1)
    if "counts" in partition:
        counts, left = partition["counts"], [0] * len(partition["counts"])
        for k, name in enumerate(partition["classes"]):
            rows = [user[k] for user in counts]
            colour = PARTED[k % len(PARTED)]
            axis.bar(range(len(counts)), rows, bottom=left, label=plain(str(name)), width=0.85, color=colour)
            left = [a + b for a, b in zip(left, rows, strict=True)]
        if len(partition["classes"]) <= 20:
            figure.legend(loc="outside right upper", frameon=False, fontsize=8, title="class")
    else:
        axis.bar(range(len(partition["users"])), partition["users"], width=0.85, color=PARTED[0])
    axis.set(xlabel="user", ylabel="rows")
    axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11)
    return _save(figure, path)


def _figure(panels: int) -> tuple[Figure, Any]:
    needed("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, panels, figsize=(2.2 + 4.2 * panels, 4.0), layout="constrained", squeeze=False, sharey=True
    )
    return figure, axes[0]


def _save(figure: Figure, path: Path) -> Path:
    from matplotlib import pyplot as plt

    try:
        with storing(path, "name another place for it"):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=130)
    finally:
        plt.close(figure)
    return path
