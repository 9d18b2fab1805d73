"""What small demonstrations share: problems, runs in memory, and curves of their own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resolvent import config as configs
from resolvent.errors import ResolventWarning
from resolvent.experiment.tasks import task
from resolvent.paper.figure import Settings
from resolvent.paper.results import Results
from resolvent.solving.run import Run
from resolvent.solving.solve import solve

CURVES = "curves"
"""The fact that has curves to draw: values by round 1, 2, ..., by label."""


def problem_of(settings: Settings) -> Any:
    """The problem that settings describe, of the first seed."""
    return task(configs.read(configs.with_values({}, settings.items())).problem, 0).problem


def quietly(problem: Any, scheme: Any, rounds: int, **more: Any) -> Run:
    """A run in memory, without warnings: what they warn of is what is shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)
        return solve(problem, scheme, rounds=rounds, progress=False, **more)


def path(problem: Any, scheme: Any, rounds: int, **more: Any) -> list[Any]:
    """The models of a run, round by round, as tensors (d,)."""
    models: list[Any] = []
    quietly(problem, scheme, rounds, callback=lambda round: models.append(round.model[0].clone()), **more)
    return models


def gaps(problem: Any, scheme: Any, rounds: int, column: str = "gap", **more: Any) -> list[float]:
    """The gaps of a run, round by round."""
    return [float(gap) for gap in quietly(problem, scheme, rounds, **more).history[column]]


def draw_curves(
    ylabel: str, *colours: str, logx: bool = True, ylim: tuple[float, float] | None = None
) -> Callable[[Any, Results], None]:
    """How a panel draws the fact "curves": on logarithmic axes; what is zero or below is left out."""

    def draw(axis: Any, results: Results) -> None:
        curves: Mapping[str, Sequence[float]] = results.facts[CURVES]
        for k, (label, values) in enumerate(curves.items()):
            floor = results.panel.bottom
            points = [(n, max(value, floor or 0)) for n, value in enumerate(values, 1) if math.isfinite(value)]
            points = [(n, value) for n, value in points if value > 0]
            style = "o-" if len(points) < 70 else "-"
            axis.plot(*zip(*points, strict=True), style, ms=2.5, lw=1.5, label=label, color=colours[k % len(colours)])
        axis.set(xlabel="round", ylabel=ylabel, yscale="log", xscale="log" if logx else "linear", ylim=ylim)

    return draw


def last_values(results: Results) -> dict[str, float]:
    """The ends of the fact "curves"."""
    return {label: values[-1] for label, values in results.facts[CURVES].items()}
