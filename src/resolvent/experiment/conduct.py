"""Running an experiment on disk, from its beginning or from where it was left."""

from __future__ import annotations

import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config
from resolvent.errors import ResolventWarning
from resolvent.experiment.build import Experiment, build
from resolvent.runs import durable, lock
from resolvent.runs.environment import environment
from resolvent.runs.folder import ENDED, Folder
from resolvent.runs.recorder import Recorder
from resolvent.solve import solve


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for now. `messages` are what a person should know of how it was taken up."""

    run: Folder
    status: str
    reason: str
    messages: tuple[str, ...] = ()


def begin(experiment: Experiment, out: Path, progress: bool | None = None) -> Outcome:
    """Run an experiment in a new folder under `out`."""
    folder = runs.create(out, experiment.name, configs.dumps(experiment.config), about(experiment))
    with lock.held(folder.path):
        folder.note("started")
        return _drive(folder, experiment, progress)


def go_on(folder: Folder, progress: bool | None = None) -> Outcome:
    """Take a run up where it was left. One that has ended is left alone."""
    with durable.storing(folder.path, "make it writable to go on"), lock.held(folder.path):
        last = folder.events[-1] if folder.events else {"kind": "started"}
        if last["kind"] in ENDED:
            return Outcome(folder, last["kind"], last["reason"], (f"run {folder.id} has {last['kind']} already",))
        experiment = build(configs.read(folder.config))
        folder.note("resumed")
        return _drive(folder, experiment, progress)


def find(fingerprint: str, out: Path) -> Folder | None:
    """A run under `out` that computes this: one that has ended, else one that can go on."""
    alike = [folder for folder in runs.folders(out) if folder.about.get("fingerprint") == fingerprint]
    ended = [folder for folder in alike if folder.status in ENDED]
    return next(iter(ended or alike), None)


def about(experiment: Experiment) -> dict[str, Any]:
    """What a run says about itself beside its configuration."""
    problem, explanation = experiment.task.problem, experiment.explanation
    said = {key: getattr(explanation, key) for key in ("solves", "eta_eff", "exactly", "theorem", "personal")}
    return {
        "fingerprint": experiment.fingerprint,
        "title": experiment.scheme.name,
        "problem": {
            "users": problem.users,
            "dim": problem.dim,
            "minimum": problem.fstar,
            "partition": experiment.task.partition,
        },
        "explanation": said | {"words": str(explanation), "findings": [str(f) for f in explanation.findings]},
        "environment": environment(),
    }


def _drive(folder: Folder, experiment: Experiment, progress: bool | None) -> Outcome:
    """Run what is left of an experiment. The lock is held."""
    config = experiment.config
    torch.set_num_threads(config.run.threads or torch.get_num_threads())
    with durable.storing(folder.path, f"what was done is kept: make room, then `resolvent resume {folder.id}`"):
        recorder = Recorder(folder, config.run.rounds, config.store.checkpoint, _sink(folder, config))
        with closing(recorder):
            for words in recorder.complaints:
                folder.note("damage", words=words)
            status, reason = _rounds(experiment, recorder, progress)
            folder.note(status, reason=reason, round=recorder.done)
    return Outcome(folder, status, reason, tuple(recorder.complaints))


def _rounds(experiment: Experiment, recorder: Recorder, progress: bool | None) -> tuple[str, str]:
    config, left = experiment.config.run, experiment.config.run.rounds - recorder.done
    if recorder.verdict is not None and (left <= 0 or recorder.verdict.status != "finished"):
        return recorder.verdict
    if left <= 0:
        return "finished", f"{config.rounds} rounds"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # the explanation says the same, and is shown
        run = solve(
            experiment.task.problem,
            experiment.scheme,
            rounds=left,
            anderson=experiment.anderson,
            participation=experiment.participation,
            engine=config.engine,
            seed=config.seed,
            start=recorder.state,
            stop=experiment.stop,
            average=config.average,
            every=config.every,
            progress=progress,
            keep=recorder,
        )
    recorder.flush()
    return run.status, run.reason


def _sink(folder: Folder, config: Config) -> Any:
    if not config.store.tensorboard:
        return None
    from resolvent.runs.tensorboard import sink

    return sink(folder.path / "tensorboard")
