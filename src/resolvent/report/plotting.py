"""Pictures of runs in memory: curves of their histories, and what notebooks show."""

from __future__ import annotations

import base64
import html as markup
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration.table import TABLE
from resolvent.report.curves import colour_of, drawn_rows, palette, reported
from resolvent.report.figures import AXES, NAMES, needed, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS = 150
HELD_OUT = ("loss", "log_loss", "rmse", "accuracy", "auc")
MAX_MARKED_ROWS = 40
"""Whose points are marked, so that a curve of few rows can be seen."""


def plot(runs: Any, y: Any = None, x: str = "round", ax: Any = None) -> Figure:
    """Curves of one run, of a list of runs, or of a dictionary of runs by name, as a Matplotlib figure.

    y: a column of the history, or several, each a panel; without it the gap (or the value) of the model that the run
    hands back and what was measured on held-out data. ax: draw into these axes. Axes of values above zero are
    logarithmic.
    """
    named = _named(runs)
    frames = {name: reported(run.history) if y is None else run.history for name, run in named.items()}
    several = list(y) if isinstance(y, list | tuple) else [y]
    columns = _columns(list(frames.values())) if y is None else several
    if not columns:
        refuse("y", quoted(y), "a column of the history, or several, are needed")
    for column in (*columns, x):
        if not isinstance(column, str) or not any(column in frame for frame in frames.values()):
            columns_there = ", ".join(dict.fromkeys(str(c) for frame in frames.values() for c in frame))
            refuse("x" if column is x else "y", quoted(column), f"a column of the history is needed: {columns_there}")
    figure, axes = _axes(len(columns), ax)
    for axis, column in zip(axes, columns, strict=True):
        _panel(axis, column, x, named, frames)
    if len(named) > 1:
        axes[0].legend(frameon=False, fontsize=8)
    return figure


def _panel(axis: Axes, column: str, x: str, named: Mapping[str, Any], frames: Mapping[str, Any]) -> None:
    lowest, colours, several = float("inf"), palette(), len(named) > 1
    seen: set[str] = set()
    for k, (name, run) in enumerate(named.items()):
        frame = frames[name]
        if column not in frame or x not in frame:
            continue
        shown = frame[frame[column].notna()]
        shown = shown.iloc[drawn_rows(shown[[column]])]
        algorithm = str(run.config.get("scheme", {}).get("algorithm", ""))
        own = algorithm in TABLE and algorithm not in seen
        seen.add(algorithm)
        style: dict[str, Any] = {"color": colour_of(algorithm) if own or not several else colours[k % len(colours)]}
        style |= {"marker": "o", "ms": 3} if len(shown) <= MAX_MARKED_ROWS else {}
        axis.plot(shown[x], shown[column], lw=1.6, label=plain(name), **style)
        lowest = min(lowest, float(shown[column].min()) if len(shown) else lowest)
    share = column.endswith(("accuracy", "auc"))
    axis.set(xlabel=AXES.get(x, x), ylabel=NAMES.get(column, column.replace("_", " ")))
    axis.set_yscale("log" if 0 < lowest < float("inf") and not share else "linear")
    axis.grid(alpha=0.25)


def _named(runs: Any) -> dict[str, Any]:
    """Runs by name: as given, or by algorithm, numbered where several have the same."""
    if isinstance(runs, Mapping):
        named = {str(name): run for name, run in runs.items()}
    else:
        several = list(runs) if isinstance(runs, list | tuple) else [runs]
        titles = [str(getattr(run, "config", {}).get("scheme", {}).get("title", "run")) for run in several]
        titles = [f"{t} {titles[: k + 1].count(t)}" if titles.count(t) > 1 else t for k, t in enumerate(titles)]
        named = dict(zip(titles, several, strict=True))
    wrong = [run for run in named.values() if not (hasattr(run, "history") and hasattr(run, "config"))]
    if wrong or not named:
        given = f"a {type(wrong[0]).__name__} among them" if wrong else "empty"
        refuse("runs", given, "what rs.solve or rs.open hands back, a list or a dictionary of such runs, is needed")
    if not any(len(run.history) for run in named.values()):
        raise InputError("there is nothing to draw: no run has a row in its history")
    return named


def _columns(frames: Sequence[Any]) -> list[str]:
    """What there is to see: the gap where it is known, else the value, and metrics on held-out data."""
    first = "gap" if any("gap" in f and f["gap"].notna().any() for f in frames) else "value"
    every = dict.fromkeys(str(column) for frame in frames for column in frame)
    held_out = [c for c in every if c.startswith(("validation_", "test_")) and c.endswith(HELD_OUT)]
    return [first, *held_out[:2]]


def _axes(panels: int, ax: Any) -> tuple[Figure, Sequence[Any]]:
    if ax is not None:
        axes = list(ax.flat) if hasattr(ax, "flat") else list(ax) if isinstance(ax, list | tuple) else [ax]
        if not all(hasattr(axis, "plot") and hasattr(axis, "figure") for axis in axes):
            refuse("ax", quoted(ax), "axes of Matplotlib are needed, one for each column")
        if len(axes) != panels:
            refuse("ax", f"{len(axes)} axes", f"{panels} are needed, one for each column")
        figure: Figure = axes[0].figure
        return figure, axes
    needed("matplotlib")
    from matplotlib.figure import Figure as Sheet  # without pyplot: nothing is opened, and no backend is chosen

    sheet = Sheet(figsize=(1 + 4.2 * panels, 3.6), layout="constrained", dpi=DOTS / 1.5)
    return sheet, sheet.subplots(1, panels, squeeze=False)[0]


def png(run: Any) -> bytes | None:
    """A picture of a run; None where it has no rows, or where nothing draws."""
    try:
        figure = plot(run)
    except InputError:
        return None
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS)
    return file.getvalue()


def html(run: Any) -> str:
    """What a notebook shows of a run: how it ended, and its curves."""
    picture = png(run)
    source = "" if picture is None else f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    image = f'<br><img alt="curves of the run" width="640" src="{source}">' if source else ""
    return f"<div><code>{markup.escape(repr(run))}</code>{image}</div>"
