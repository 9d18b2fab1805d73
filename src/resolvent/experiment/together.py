"""Configurations that differ in their seed alone, run on disk as one batch: see `resolvent.solving.seeds`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from resolvent.config import Config
from resolvent.errors import ResolventWarning
from resolvent.experiment.build import Experiment
from resolvent.experiment.conduct import begin_or_resume
from resolvent.experiment.driving import Outcome
from resolvent.iteration.engine import Engine
from resolvent.solving.seeds import side_by_side


def but_for_seed(config: Config) -> Hashable:
    """What configurations of one batch have in common."""
    return replace(config, run=replace(config.run, seed=0))


def run_together(experiments: Sequence[Experiment], out: Path, progress: bool | None = None) -> list[Outcome | None]:
    """What `begin_or_resume` gives for each of them; None where another process runs one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # in threads filters cannot be set one by one
        work: list[Callable[[Engine | str], Outcome | None]] = [
            partial(_one, experiment, out, progress if k == 0 else False) for k, experiment in enumerate(experiments)
        ]
        problems = [experiment.task.problem for experiment in experiments]
        return side_by_side(problems, [experiment.scheme for experiment in experiments], work)


def _one(experiment: Experiment, out: Path, progress: bool | None, engine: Engine | str) -> Outcome | None:
    mine = experiment if isinstance(engine, str) else replace(experiment, engine=engine)
    return begin_or_resume(mine, out, progress)
