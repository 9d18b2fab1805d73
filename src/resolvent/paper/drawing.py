"""Panels as pictures: log gap against rounds, in the paper's form, or as a panel draws itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.config import Config
from resolvent.paper.figure import Panel, PanelLine
from resolvent.paper.judging import JudgedPanel
from resolvent.paper.results import Results
from resolvent.report.curves import colour_of as algorithm_colour
from resolvent.report.figures import DPI, save, sheet, symbols, width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (6.4, 3.7)
MAX_RISE, MAX_NETWORK_RISE = 1e3, 2.0
"""How far above the start a line that runs away is still shown; of networks' losses."""


def picture(judged: JudgedPanel, folder: Path, dpi: int = DPI, note: str = "") -> Path | None:
    """The panel as a PNG file, with a note under its title; None where there is nothing to draw."""
    panel, results = judged.panel, judged.results
    if results is None or panel.table is not None:
        return None
    figure, (axis,) = sheet(size=SIZE)
    if panel.draw is not None:
        panel.draw(axis, results)
    else:
        curves(axis, panel, results)
    if axis.axison and not axis.images:
        axis.grid(alpha=0.25)
    axis.set_title(f"{panel.title}\n{note}" if note else panel.title, fontsize=10, loc="left")
    handles, labels = _legend(axis, panel)
    if handles:
        names = [symbols(label) for label in labels]
        figure.legend(handles, names, frameon=False, fontsize=8, loc="outside right upper")
    return save(figure, folder / f"{judged.figure.name}-{panel.key}.png", dpi, "name another folder with --out")


def colour_of(line: PanelLine) -> str:
    """The line's colour, or else its algorithm's own."""
    return line.colour or algorithm_colour(line.settings.get("scheme.algorithm", Config().scheme.algorithm))


def curves(axis: Axes, panel: Panel, results: Results) -> None:
    """Values against rounds; seeds as a band from least to most."""
    from matplotlib.ticker import MaxNLocator

    tops = []
    lines = results.shown()
    for place, line in enumerate(lines):
        values = results.series(line.label)
        tops.append(float(values.iloc[0]))
        shown = values[(values > 0) & (values < float("inf"))]
        if panel.bottom is not None:
            shown = shown.clip(lower=panel.bottom)
        style: dict[str, Any] = {"color": colour_of(line), "ls": line.style, "lw": width(place, len(lines))}
        axis.plot(shown.index, shown, label=line.label, **style)
        if panel.bands and len(results[line.label]) > 1:
            seeds = results.seeds(line.label).loc[shown.index]
            axis.fill_between(shown.index, seeds.min(axis=1), seeds.max(axis=1), color=style["color"], alpha=0.2, lw=0)
    axis.set(xlabel="round", ylabel=panel.ylabel, yscale="log", xscale="log" if panel.logx else "linear")
    if not panel.logx:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    low, high = axis.get_ylim()
    lift = MAX_NETWORK_RISE if panel.networks else MAX_RISE
    if tops and high > lift * max(tops):
        axis.set_ylim(low, lift * max(tops))


def _legend(axis: Axes, panel: Panel) -> tuple[list[Any], list[str]]:
    """One entry per line; or, where styles have a meaning, one per colour and one per style."""
    from matplotlib.lines import Line2D

    handles, labels = axis.get_legend_handles_labels()
    if not panel.styles:
        return handles, labels
    entries: dict[str, Any] = {}
    for handle, label in zip(list[Any](handles), labels, strict=True):
        name = str(label).split(" | ")[0]
        entries.setdefault(name, Line2D([], [], color=handle.get_color(), lw=1.8))
    used = {line.style for line in panel.lines if not line.hidden}
    for style, word in panel.styles.items():
        if style in used:
            entries[word] = Line2D([], [], color="#666666", ls=style, lw=1.3)
    return list(entries.values()), list(entries)
