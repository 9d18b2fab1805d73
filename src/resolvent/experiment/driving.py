"""The rounds of an experiment, as a recorder stores them, and what its run says about itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from resolvent.config.sections import FLOWER
from resolvent.errors import ResolventWarning
from resolvent.experiment.build import Experiment
from resolvent.experiment.tasks import Task
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.state import State
from resolvent.runs.environment import environment
from resolvent.runs.folder import Folder
from resolvent.runs.open_run import OpenRun
from resolvent.solving.description import Description, describe
from resolvent.solving.prepare import prepare
from resolvent.solving.recording import Recorder
from resolvent.solving.stopping import Ending


class Resumable(Recorder, Protocol):
    """A recorder that knows where its run was left: the state, the rounds done, and how it ended if it did."""

    state: State | None
    done: int
    ending: Ending | None

    def flush(self) -> None:
        """Write the checkpoint that waits."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for now. `messages` are what a person should know of how it was resumed."""

    run: Folder
    status: str
    reason: str
    messages: tuple[str, ...] = ()


def drive(
    run: OpenRun,
    experiment: Experiment,
    progress: bool | None,
    engine: Any = None,
    at: int | None = None,
    due: Callable[[], bool] | None = None,
) -> Outcome:
    """Run what remains of an experiment, in its open run."""
    torch.set_num_threads(experiment.config.run.threads or 1)
    recorder = run.record(experiment.config, at, due)
    status, reason = rounds(experiment, recorder, progress, engine)
    run.end(status, reason)
    return Outcome(run.folder, status, reason, tuple(recorder.complaints))


def rounds(
    experiment: Experiment,
    recorder: Resumable,
    progress: bool | None,
    engine: Any = None,
    scheme: Scheme | None = None,
) -> tuple[str, str]:
    """Run the rounds that remain, as a recorder stores them: the status and the reason. The one call of `solve`.

    scheme: what the loop sees of the experiment's, where users keep a part of it to themselves.
    """
    config, remaining = experiment.config.run, experiment.config.run.rounds - recorder.done
    if recorder.ending is not None and (remaining <= 0 or recorder.ending.status != "finished"):
        return recorder.ending
    if remaining <= 0:
        return "finished", f"{config.rounds} rounds"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # the explanation says the same, and is shown or stored
        run = prepare(
            None if config.engine == FLOWER else experiment.task.problem,  # users of a federation are the engine's
            scheme or experiment.scheme,
            rounds=remaining,
            anderson=experiment.anderson,
            participation=experiment.participation,
            engine=engine or experiment.engine or config.engine,
            seed=config.seed,
            start=recorder.state,
            stop=experiment.stop,
            average=config.average,
            every=config.every,
            validate_every=config.validate_every,
            metrics=config.metrics,
            progress=progress,
            test=experiment.task.test,
            recorder=recorder,
            explanation=experiment.explanation,
            **experiment.parts,
        ).run()
    recorder.flush()
    return run.status, run.reason


def about(experiment: Experiment) -> dict[str, Any]:
    """What a run says about itself beside its configuration."""
    problem, explanation = experiment.task.problem, experiment.explanation
    private = experiment.private
    return {
        "fingerprint": experiment.fingerprint,
        "title": experiment.scheme.name,
        "problem": {
            "users": problem.users,
            "dim": problem.dim,
            "minimum": None if private else problem.fstar,
            "partition": {} if private else experiment.task.partition,
        },
        "model": described(experiment.task).as_dict(),
        "explanation": explanation.facts | {"words": str(explanation)},
        "environment": environment(),
    }


def described(task: Task) -> Description:
    """What a task's model needs to predict; a network of the package is named, so that it can be made again."""
    description = describe(task.problem)
    if description.network is not None and task.factory is not None:
        description = replace(description, network=description.network | {"factory": task.factory})
    return description
