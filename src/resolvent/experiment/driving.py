"""The rounds of an experiment, as a recorder stores them, and how they end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from resolvent.config import Config
from resolvent.errors import BadAnswer, InputError, RankLost, ResolventWarning, RoundFailed, StorageError
from resolvent.experiment.build import Experiment
from resolvent.iteration.state import State
from resolvent.runs import durable
from resolvent.runs.folder import Folder
from resolvent.runs.ranks import RankRecorder
from resolvent.runs.recorder import Recorder
from resolvent.solving.recording import Recorder as Recording
from resolvent.solving.run import Run
from resolvent.solving.solve import solve


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for now. `messages` are what a person should know of how it was resumed."""

    run: Folder
    status: str
    reason: str
    messages: tuple[str, ...] = ()


def drive(folder: Folder, experiment: Experiment, recorder: Recorder, progress: bool | None) -> Outcome:
    """Run what is left of an experiment. The lock is held."""
    torch.set_num_threads(experiment.config.run.threads or torch.get_num_threads())
    with failing(folder, recorder):
        status, reason = rounds(experiment, recorder, progress)
    recorder.end(status, reason)
    return Outcome(folder, status, reason, tuple(recorder.complaints))


@contextmanager
def failing(folder: Folder, recorder: Recorder) -> Iterator[None]:
    """What a round raises: noted, everything before it stored, and handed on with what can be done."""
    try:
        yield
    except StorageError:
        raise
    except (Exception, SystemExit) as error:
        recorder.flush()
        what = str(error) if isinstance(error, BadAnswer | InputError) else f"{type(error).__name__}: {error}"
        with durable.storing(folder.path, f"and round {recorder.done + 1} failed with {what}"):
            folder.note("failed", reason=what, round=recorder.done)
        if isinstance(error, InputError | RankLost):
            raise
        raise RoundFailed(
            f"round {recorder.done + 1} of run {folder.id} failed ({what}); everything before it is stored: "
            f"`resolvent resume {folder.id}` tries again, `resolvent fork {folder.id}` goes on with corrected code"
        ) from error


def rounds(
    experiment: Experiment, recorder: Recorder | RankRecorder, progress: bool | None, engine: Any = None
) -> tuple[str, str]:
    """Run the rounds that are left, as a recorder stores them: the status and the reason."""
    config, left = experiment.config.run, experiment.config.run.rounds - recorder.done
    if recorder.ending is not None and (left <= 0 or recorder.ending.status != "finished"):
        return recorder.ending
    if left <= 0:
        return "finished", f"{config.rounds} rounds"
    where = engine or experiment.engine or config.engine
    run = solved(experiment, left, recorder.state, recorder, experiment.task.problem, where, progress)
    recorder.flush()
    return run.status, run.reason


def solved(
    experiment: Experiment,
    left: int,
    start: State | None,
    recorder: Recording,
    problem: Any,
    engine: Any,
    progress: bool | None,
) -> Run:
    """The rounds that are left of an experiment, from where it was left; problem: None where the engine has users."""
    config = experiment.config.run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # the explanation says the same, and is shown or stored
        return solve(
            problem,
            experiment.scheme,
            rounds=left,
            anderson=experiment.anderson,
            participation=experiment.participation,
            engine=engine,
            seed=config.seed,
            start=start,
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
        )


def check_sink(config: Config) -> None:
    """Refuse TensorBoard where it is not installed, before anything is made."""
    if config.store.tensorboard:
        from resolvent.runs import tensorboard

        tensorboard.needed()


def sink(folder: Folder, config: Config) -> Any:
    """Where rows go besides the run's folder, if anywhere."""
    if not config.store.tensorboard:
        return None
    from resolvent.runs import tensorboard

    return tensorboard.sink(folder.path / "tensorboard")
