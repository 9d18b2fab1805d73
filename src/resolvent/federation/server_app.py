"""The server's side of a run: the loop, over the Grid that Flower hands in, into the run store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config
from resolvent.config.sections import FLOWER
from resolvent.engines.flower.claims import show_weights
from resolvent.engines.flower.engine import FlowerEngine
from resolvent.engines.flower.evaluation import NO_VALUE
from resolvent.engines.flower.facts import gather
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.plausibility import left_out
from resolvent.errors import BadAnswer, InputError
from resolvent.experiment.build import Experiment, build
from resolvent.experiment.conduct import about
from resolvent.experiment.driving import solved
from resolvent.experiment.tasks import Task
from resolvent.federation import keys, settings
from resolvent.federation.project import Project, opened
from resolvent.federation.recording import OneBehind
from resolvent.iteration.facts import Facts
from resolvent.iteration.participation import Everyone, Participation
from resolvent.iteration.state import State
from resolvent.local.choice import local_operator
from resolvent.runs import Folder, lock
from resolvent.runs.recorder import Recorder
from resolvent.theory import closed_forms

SMALL = 0.1
"""The eta of FedPi and FedSplit on networks, unless one is given."""


@dataclass(frozen=True)
class Asked(Participation):
    """Everybody is asked in every round; whoever has not answered when it closes holds its pair (u_i, p_i)."""

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return None

    def __str__(self) -> str:
        return "everyone is asked, and whoever has not answered when a round closes holds"


def main(grid: Any, told: Mapping[str, Any]) -> None:
    """What Flower calls. How it went is written into a file, for whoever began the run."""
    ticket = Path(str(told["ticket"])) if told.get("ticket") else None
    try:
        folder = conduct(grid, opened(Path(str(told["project"]))), Path(str(told["out"])), str(told["resume"]), ticket)
    except BaseException as error:
        if isinstance(error, Exception) or not (ticket and ticket.exists()):  # else the run itself says that it stopped
            _write(ticket, {"failed": why(error)})
        raise
    end = folder.end or {}
    _write(ticket, {"run": str(folder.path), "status": folder.end and end["kind"], "reason": end.get("reason")})


def conduct(
    grid: Any, project: Project, out: Path, resume: str = "", ticket: Path | None = None, simulated: bool = False
) -> Folder:
    """Run, or go on with, a federation's run. Simulated nodes have no keys: all of them are users."""
    post = Post(grid, None if simulated else keys.public_keys(project))
    with ExitStack() as stack:
        if resume:
            folder = runs.find(resume, out)
            config = configs.read(folder.config)
            names = tuple(folder.about["problem"]["names"])
        else:
            config, names = project.config(), None
        section: Any = config.problem
        weights = settings.weights_of(section)
        most = settings.limits_of(section).weight
        facts = gather(post, "joining", section.users, weights, section.join, names=names, max_weight=most)
        facts = replace(facts, penalty=settings.penalty_of(section))
        if resume:  # what its users say of themselves now does not change the weights of a run that has begun
            agreed = torch.tensor(folder.about["problem"]["weights"], dtype=facts.dtype)
            facts = replace(facts, weights=agreed)
        experiment = prepared(config, facts)
        if not resume:
            told = about(experiment)
            told["problem"] |= {"names": list(facts.names), "weights": facts.weights.tolist(), "kind": facts.kind}
            folder = runs.create(out, experiment.name, configs.dumps(experiment.config), told)
            show_weights(facts.names, facts.weights, facts.sizes, folder.note)
        elif folder.end is not None:
            return folder
        stack.enter_context(lock.held(folder.path))
        recorder = stack.enter_context(closing(Recorder(folder, config.run.rounds, config.store.checkpoint)))
        if resume:
            folder.note("resumed")
        for words in recorder.complaints:
            folder.note("damage", words=words)
        _write(ticket, {"run": str(folder.path)})
        _rounds(folder, experiment, facts, post, recorder)
    return folder


def prepared(config: Config, facts: Facts) -> Experiment:
    """What the configuration describes, for these users."""
    section: Any = config.problem
    L = closed_forms.curvatures(facts)[1] if facts.convex else 0.0
    eta = 1 / L if 0 < L < float("inf") else None
    users: Any = facts  # all that is asked of a problem before its first round
    made = Task(users, section, eta=eta if facts.convex else 100.0, small=None if facts.convex else SMALL)
    experiment = build(replace(config, run=replace(config.run, engine=FLOWER)), made)
    if isinstance(experiment.participation, Everyone):
        experiment = replace(experiment, participation=Asked())
    return experiment


def engine_of(experiment: Experiment, facts: Facts, post: Post, folder: Folder) -> FlowerEngine:
    """The engine of a run, whose events go into its folder."""
    section: Any = experiment.config.problem
    return FlowerEngine(
        post,
        facts,
        local_operator(experiment.scheme, facts),
        folder.about["id"],
        steady=experiment.scheme.steady,
        rule=settings.rule_of(section),
        limits=settings.limits_of(section),
        ride=True,
        curvature=section.curvature,
        note=folder.note,
    )


def _rounds(folder: Folder, experiment: Experiment, facts: Facts, post: Post, recorder: Recorder) -> None:
    config, left = experiment.config.run, experiment.config.run.rounds - recorder.done
    if left <= 0:
        recorder.end(
            "finished", "; ".join([f"{config.rounds} rounds", *missing(facts, recorder.state), *without_value(folder)])
        )
        return
    engine = engine_of(experiment, facts, post, folder)
    recording = OneBehind(recorder, engine)
    try:
        run = solved(experiment, left, recorder.state, recording, None, engine, progress=False)
    except BaseException as error:
        recorder.flush()
        kind = "failed" if isinstance(error, Exception) else "interrupted"
        folder.note(kind, reason=why(error), round=recorder.done)
        raise
    recorder.end(
        run.status, "; ".join([run.reason, *missing(facts, run.state), *without_value(folder), *recording.remarks])
    )


def why(error: BaseException) -> str:
    """What ended a run, in words. Flower ends the process of a run that was stopped by SystemExit, whose text is 0."""
    if not isinstance(error, Exception):
        return "it was stopped from outside"
    return str(error) if isinstance(error, InputError | BadAnswer) else f"{type(error).__name__}: {error}"


def missing(facts: Facts, state: State | None) -> Iterator[str]:
    """What must be said of a run in which not everybody has ever answered, or somebody's answers were implausible."""
    out = set() if state is None else left_out(state.memory)
    seen = None if state is None or state.complete else state.parts.participation.seen
    if unheard := [name for i, name in enumerate(facts.names) if seen is not None and not seen[i] and i not in out]:
        yield f"{', '.join(unheard)} never answered, so the model is that of the others alone"
    if out:
        names = ", ".join(facts.names[i] for i in sorted(out))
        yield (
            f"without {names}, whose answers led too far away (see the events): the model is that of the others, and "
            "of what it sent before"
        )


def without_value(folder: Folder) -> Iterator[str]:
    """What must be said of a run in which somebody reported no finite value, before it was resumed or after."""
    if names := sorted({event["user"] for event in folder.events if event["kind"] == NO_VALUE}):
        yield f"{', '.join(names)} reported no finite value (see the events), so whether the value fell is not known"


def _write(ticket: Path | None, told: dict[str, Any]) -> None:
    if ticket is not None:
        part = ticket.with_suffix(".part")
        part.write_text(json.dumps(told))
        part.replace(ticket)
