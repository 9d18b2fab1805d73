"""Pictures of runs in memory: curves of their histories, and what notebooks show."""

from __future__ import annotations

import base64
import html as markup
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resolvent.errors import InputError, bounded, listed, quoted, refuse
from resolvent.report.curves import colours, drawn_rows, labels, over_seeds, reported, with_bytes
from resolvent.report.figures import AXES, NAMES, needed, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DOTS = 150
SHARES, LEVELS = ("accuracy", "auc"), ("value", "loss", "rmse")
HELD_OUT = ("loss", "log_loss", "rmse", "accuracy", "auc")
MAX_MARKED_ROWS = 40
"""Whose points are marked, so that a curve of few rows can be seen."""


def plot(runs: Any, y: Any = None, x: str = "round", ax: Any = None) -> Figure:
    """Curves of one run, of a list of runs, or of a dictionary of runs by name, as a Matplotlib figure.

    A list under a name, {"FedAvg": [run, run, run]}, is one curve: the median of these runs in a band from the least to
    the most. y: a column of the history, or several, each a panel; without it the gap (or the value) of the model that
    the run hands back and what was measured on held-out data. x: a column, or "bytes", those communicated so far. ax:
    draw into these axes. Axes of values above zero are logarithmic, but for losses within a factor of ten.
    """
    named = by_name(runs)
    frames = {
        name: [with_bytes(reported(run.history) if y is None else run.history) for run in those]
        for name, those in named.items()
    }
    every = [frame for those in frames.values() for frame in those]
    several = listed(y, "y", "a column of the history, or several, are needed") if isinstance(y, list | tuple) else [y]
    columns = list(dict.fromkeys([*columns_shown(every), *_asked(named, every)])) if y is None else several
    if not columns:
        refuse("y", quoted(y), "a column of the history, or several, are needed")
    for column in (*columns, x):
        if not isinstance(column, str) or not any(column in frame for frame in every):
            columns_there = ", ".join(dict.fromkeys(str(c) for frame in every for c in frame))
            refuse("x" if column is x else "y", quoted(column), f"a column of the history is needed: {columns_there}")
    figure, axes = _axes(len(columns), ax)
    painted = colours([_algorithm(those[0]) for those in named.values()], list(named))
    for axis, column in zip(axes, columns, strict=True):
        _panel(axis, column, x, dict(zip(named, painted, strict=True)), frames)
    if len(named) > 1:
        axes[0].legend(frameon=False, fontsize=8)
    return figure


def _panel(axis: Axes, column: str, x: str, painted: Mapping[str, str], frames: Mapping[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    lowest, highest = float("inf"), 0.0
    for name, colour in painted.items():
        there = [frame for frame in frames[name] if column in frame and x in frame and len(frame)]
        if not there:
            continue
        xs, ys = over_seeds(there, x, column)
        xs, ys = xs[ys["median"].notna()], ys[ys["median"].notna()]
        rows = drawn_rows(ys)
        xs, ys = xs.iloc[rows], ys.iloc[rows]
        marks: dict[str, Any] = {"marker": "o", "ms": 3} if len(ys) <= MAX_MARKED_ROWS else {}
        axis.plot(xs, ys["median"], lw=1.6, label=plain(name), color=colour, **marks)
        if len(there) > 1:
            axis.fill_between(xs, ys["least"], ys["most"], color=colour, alpha=0.2, lw=0)
        if len(ys):
            lowest, highest = min(lowest, float(ys["least"].min())), max(highest, float(ys["most"].max()))
    narrow = column.endswith(LEVELS) and highest < 10 * lowest  # no two powers of ten to label
    axis.set(xlabel=AXES.get(x, x), ylabel=NAMES.get(column, column.replace("_", " ")))
    axis.set_yscale("log" if 0 < lowest < float("inf") and not (narrow or column.endswith(SHARES)) else "linear")
    if x == "round" and isinstance(locator := axis.xaxis.get_major_locator(), MaxNLocator):  # axes may be the caller's
        locator.set_params(integer=True)
    axis.grid(alpha=0.25)


def by_name(runs: Any) -> dict[str, list[Any]]:
    """Runs by name: as given, or by algorithm and what sets them apart; numbered where nothing does."""
    if isinstance(bounded(runs, "runs"), Mapping):
        named = {str(name): list(those) if isinstance(those, list | tuple) else [those] for name, those in runs.items()}
    else:
        several = listed(runs, "runs", "runs are needed") if isinstance(runs, list | tuple) else [runs]
        named = dict(
            zip(names([getattr(run, "config", {}) for run in several]), ([run] for run in several), strict=True)
        )
    every = [run for those in named.values() for run in those]
    wrong = [run for run in every if not (hasattr(run, "history") and hasattr(run, "config"))]
    if wrong or not every or not all(named.values()):
        given = f"a {type(wrong[0]).__name__} among them" if wrong else "empty"
        refuse("runs", given, "what rs.solve or rs.open hands back, a list or a dictionary of such runs, is needed")
    if not any(len(run.history) for run in every):
        raise InputError("there is nothing to draw: no run has a row in its history")
    return named


def names(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What runs of these settings are called: no two alike."""
    titles = [str(config.get("scheme", {}).get("title", "run")) for config in configs]
    apart = labels(titles, configs)
    return [f"{name} {apart[: k + 1].count(name)}" if apart.count(name) > 1 else name for k, name in enumerate(apart)]


def _algorithm(run: Any) -> str:
    return str(run.config.get("scheme", {}).get("algorithm", ""))


def columns_shown(frames: Sequence[Any], every: bool = False) -> list[str]:
    """What there is to see: the gap where it is known, else the value, and metrics on held-out data: two, or all."""
    first = "gap" if any("gap" in f and f["gap"].notna().any() for f in frames) else "value"
    there = dict.fromkeys(str(column) for frame in frames for column in frame)
    held_out = [c for c in there if c.startswith(("validation_", "test_")) and (every or c.endswith(HELD_OUT))]
    return [first, *(held_out if every else held_out[:2])]


def _asked(named: Mapping[str, Any], frames: Sequence[Any]) -> list[str]:
    """Columns of metrics that the runs were asked for by name."""
    given = [(getattr(run, "_arguments", None) or {}).get("metrics") or () for those in named.values() for run in those]
    asked = dict.fromkeys(key for metrics in given for key in ([metrics] if isinstance(metrics, str) else metrics))
    columns = [f"{name}_{key}" for name in ("validation", "test") for key in asked]
    return [column for column in columns if any(column in frame for frame in frames)]


def _axes(panels: int, ax: Any) -> tuple[Figure, Sequence[Any]]:
    if bounded(ax, "ax") is not None:
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


def png(runs: Any) -> bytes | None:
    """A picture of a run, or of what else `plot` takes; None where it has no rows, or where nothing draws."""
    try:
        figure = plot(runs)
    except InputError:
        return None
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS)
    return file.getvalue()


def html(run: Any) -> str:
    """What a notebook shows of a run: how it ended, and its curves."""
    return f"<div><code>{markup.escape(repr(run))}</code>{image(run, 'curves of the run')}</div>"


def image(runs: Any, words: str) -> str:
    """The picture as a tag of HTML, with these words for who cannot see it; nothing where there is none."""
    if (picture := png(runs)) is None:
        return ""
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return f'<br><img alt="{words}" width="640" src="{source}">'


def table(runs: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """One row per name: mean and standard deviation over its runs of what the last rows of their histories say."""
    import pandas as pd

    frames = {name: [with_bytes(reported(run.history)) for run in those] for name, those in runs.items()}
    columns = columns_shown([frame for those in frames.values() for frame in those], every=True)
    columns += ["bytes", "seconds"]
    rows = {}
    for name, those in frames.items():
        last = pd.DataFrame([dict(frame.iloc[-1]) if len(frame) else {} for frame in those])
        last = last.reindex(columns=columns).astype(float)
        spread = {"mean": last.mean(skipna=False), "std": last.std(skipna=False)}
        row = {(column, kind): spread[kind][column] for column in columns for kind in spread}
        rows[name] = {("seeds", ""): len(those), **row, ("status", ""): _status([run.status for run in runs[name]])}
    return pd.DataFrame.from_dict(rows, orient="index")


def compared_html(compared: Any) -> str:
    """What a notebook shows of a comparison: its table, and its curves."""
    numbers = compared.table.to_html(float_format="{:.3g}".format, border=0)
    return f"<div>{numbers}{image(compared.runs, 'curves of the runs')}</div>"


def _status(ended: Sequence[str]) -> str:
    """How runs ended: "finished", or "2 finished, 1 diverged"."""
    counted = {status: ended.count(status) for status in ended}
    return ended[0] if len(counted) == 1 else ", ".join(f"{many} {status}" for status, many in counted.items())
