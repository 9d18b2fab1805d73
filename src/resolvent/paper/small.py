"""What small demonstrations share: sections of settings as problems, runs in memory, and curves of their own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resolvent import config as configs
from resolvent.errors import ResolventWarning
from resolvent.paper.figure import Settings
from resolvent.paper.results import Results
from resolvent.solving.run import Run
from resolvent.solving.solve import solve

if TYPE_CHECKING:
    from resolvent.config.problem_sections import ProblemSection

CURVES = "curves"
"""The fact that holds curves to draw: values by round 1, 2, ..., by label."""


def section(settings: Settings) -> ProblemSection:
    """The problem that settings describe, as a section of a configuration."""
    return configs.read(configs.with_values({}, settings.items())).problem


def quietly(problem: Any, scheme: Any, rounds: int, **more: Any) -> Run:
    """A run in memory, without warnings: what they warn of is what is shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)
        return solve(problem, scheme, rounds=rounds, progress=False, **more)


def path(problem: Any, scheme: Any, rounds: int, **more: Any) -> list[Any]:
    """The models of a run, round by round, as tensors (d,)."""
    models: list[Any] = []
    quietly(problem, scheme, rounds, callback=lambda happened: models.append(happened.model[0].clone()), **more)
    return models


def gaps(problem: Any, scheme: Any, rounds: int, column: str = "gap", **more: Any) -> list[float]:
    """The gaps of a run, round by round."""
    return [float(gap) for gap in quietly(problem, scheme, rounds, **more).history[column]]


def draw_curves(axis: Any, results: Results, ylabel: str, logx: bool = True, colours: Sequence[str] = ()) -> None:
    """The fact "curves", on logarithmic axes; what is zero or below is left out."""
    curves: Mapping[str, Sequence[float]] = results.facts[CURVES]
    for k, (label, values) in enumerate(curves.items()):
        floor = results.panel.bottom
        points = [(n, max(value, floor or 0)) for n, value in enumerate(values, 1) if math.isfinite(value)]
        points = [(n, value) for n, value in points if value > 0]
        colour = {"color": colours[k % len(colours)]} if colours else {}
        axis.plot(*zip(*points, strict=True), "o-" if len(points) < 70 else "-", ms=2.5, lw=1.5, label=label, **colour)
    axis.set(xlabel="round", ylabel=ylabel, yscale="log", xscale="log" if logx else "linear")
    axis.grid(alpha=0.25)
