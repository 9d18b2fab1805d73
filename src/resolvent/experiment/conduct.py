"""Running an experiment on disk, from its beginning or from where it was left."""

from __future__ import annotations

import math
import shutil
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config, problem_sections
from resolvent.errors import InputError, refuse, whole
from resolvent.experiment.admission import check_alone, check_made_here, consent, ended, find, lock_sound
from resolvent.experiment.build import Experiment, build
from resolvent.experiment.driving import Outcome, check_sink, drive, sink
from resolvent.experiment.tasks import Task
from resolvent.iteration import checkpoint
from resolvent.iteration.parts import Parts
from resolvent.iteration.state import State, adapt
from resolvent.iteration.state import begin as begin_state
from resolvent.iteration.tuning import Automatic, Scheduled
from resolvent.runs import durable, lock
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.environment import environment
from resolvent.runs.folder import Folder, damaged
from resolvent.runs.recorder import Recorder
from resolvent.solving.description import Description, describe


def begin(
    experiment: Experiment, out: Path, progress: bool | None = None, fork: tuple[Folder, Checkpoint] | None = None
) -> Outcome:
    """Run an experiment in a new folder under `out`; a fork goes on from the state of another run."""
    with ExitStack() as stack:
        folder, recorder = _new(experiment, out, stack, fork)
        return drive(folder, experiment, recorder, progress)


def resume(folder: Folder, progress: bool | None = None, trusted: bool = False, rounds: int | None = None) -> Outcome:
    """Resume a run where it was left. One that has ended is verified and left alone, unless it is to get more `rounds`.

    Code that a configuration names is called only if this user made the run, or has `trusted` it.
    """
    check_made_here(folder)
    with ExitStack() as stack:
        lock_sound(folder, stack)
        if rounds is not None:
            _extend(folder, rounds)
        if folder.end is not None:
            return ended(folder)
        consent(folder, trusted)
        return _resumed(folder, build(configs.read(folder.config)), stack, progress)


def fork(folder: Folder, config: Config, out: Path, progress: bool | None = None, trusted: bool = False) -> Outcome:
    """Go on from a run's state with another configuration, in a folder of its own. The run itself is left alone."""
    if isinstance(config.problem, problem_sections.OwnSection) and config.problem.name == folder.code:
        consent(folder, trusted)
    if wrong := folder.damage():
        raise damaged(folder, wrong)
    held, complaints = folder.newest()
    if held is None:
        raise InputError(f"run {folder.id} has no state to go on from; `resolvent run` begins anew")
    experiment = build(config)
    if config.run.rounds <= held.round:
        refuse("run.rounds", config.run.rounds, f"run {folder.id} has done {held.round}: give more with --rounds")
    tensors, numbers = checkpoint.pack(_fitting(held.state, experiment))
    start = Checkpoint(held.round, tensors, {"state": numbers, "metrics": 0})
    outcome = begin(experiment, out, progress, (folder, start))
    return replace(outcome, messages=(*complaints, *outcome.messages))


def begin_or_resume(experiment: Experiment, out: Path, progress: bool | None = None) -> Outcome | None:
    """What is left to do of an experiment under `out`: it is begun, resumed, or done already.

    None while another process runs it. Processes that share `out` look and begin one at a time, so that no
    experiment is begun twice.
    """
    with ExitStack() as stack:
        with lock.claiming(out):
            left = find(experiment.fingerprint, out)
            if left is not None and left.end is not None:
                return ended(left)
            try:
                if left is None:
                    folder, recorder = _new(experiment, out, stack)
                else:
                    lock_sound(left, stack)
            except lock.Held:
                return None
        if left is None:
            return drive(folder, experiment, recorder, progress)
        if left.end is not None:  # it was ended between the look and the lock
            return ended(left)
        return _resumed(left, experiment, stack, progress)


def about(experiment: Experiment) -> dict[str, Any]:
    """What a run says about itself beside its configuration."""
    problem, explanation = experiment.task.problem, experiment.explanation
    return {
        "fingerprint": experiment.fingerprint,
        "title": experiment.scheme.name,
        "problem": {
            "users": problem.users,
            "dim": problem.dim,
            "minimum": problem.fstar,
            "partition": experiment.task.partition,
        },
        "model": described(experiment.task).as_dict(),
        "explanation": explanation.facts | {"words": str(explanation)},
        "environment": environment(),
    }


def described(task: Task) -> Description:
    """What a task's model needs to predict; a network of the package is named, so that it can be made again."""
    told = describe(task.problem)
    if told.network is not None and task.factory is not None:
        told = replace(told, network=told.network | {"factory": task.factory})
    return told


# --- where a run begins or is resumed --------------------------------------------------------------------------------


def _new(
    experiment: Experiment, out: Path, stack: ExitStack, fork: tuple[Folder, Checkpoint] | None = None
) -> tuple[Folder, Recorder]:
    """A new folder, its lock held, ready for the first round; where that fails, no folder is left behind."""
    check_alone(experiment)
    check_sink(experiment.config)
    told = about(experiment)
    if fork is not None:
        told["forked"] = {"run": fork[0].about["id"], "round": fork[1].round}
        told["fingerprint"] += f"+{fork[0].about['id']}-{fork[1].round}"  # not what a run from the start computes
    start = None if fork is None else fork[1]
    code = isinstance(experiment.config.problem, problem_sections.OwnSection)
    fixed = described(experiment.task).fixed
    folder = runs.create(out, experiment.name, configs.dumps(experiment.config), told, start, code, fixed)
    with ExitStack() as inner:
        try:
            inner.enter_context(lock.held(folder.path))
            with durable.storing(folder.path, "name another folder with --out, or make room there"):
                recorder = inner.enter_context(closing(_recorder(folder, experiment.config)))
        except lock.Held:  # another process resumed it first
            raise
        except BaseException:
            inner.close()
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        stack.push(inner.pop_all())
    return folder, recorder


def _fitting(state: State, experiment: Experiment) -> State:
    """A state as this experiment can go on from it, at the same round."""
    problem, scheme, participation = experiment.task.problem, experiment.scheme, experiment.participation
    rows, dim = state.u.shape
    if dim != problem.dim or rows not in (1, problem.users):
        refuse("the state", f"of shape {(rows, dim)}", f"({problem.users}, {problem.dim}) is what the problem needs")
    step_size = Automatic(1.0 if math.isnan(state.eta) else state.eta) if scheme.auto else Scheduled()
    parts = Parts(participation, accelerate=experiment.anderson, eta=step_size)
    if adapt(state, problem.users, scheme, parts) is not None:
        return state
    u = state.u if state.next is None else state.next  # users must part: only the point carries over
    return replace(begin_state(u, u, problem.users, scheme, parts), round=state.round)


def _extend(folder: Folder, rounds: int) -> None:
    """Let a run have more rounds than it was begun with. How many is an event: its configuration stays as written."""
    asked, end = whole(rounds, "rounds"), folder.end
    if asked == folder.config["run"]["rounds"]:
        return
    if asked < folder.config["run"]["rounds"]:
        refuse("--rounds", rounds, f"run {folder.id} has {folder.config['run']['rounds']}: give more")
    if end is not None and end["kind"] != "finished":
        how = f"it {end['kind']} ({end.get('reason', '')})"
        raise InputError(f"run {folder.id} cannot have more rounds, since {how}; `resolvent fork` changes its settings")
    if end is not None and (wrong := folder.verify()):
        raise damaged(folder, wrong)
    with durable.storing(folder.path, "make it writable to go on"):
        folder.note("extended", rounds=asked)
    folder.forget()


def _resumed(folder: Folder, experiment: Experiment, stack: ExitStack, progress: bool | None) -> Outcome:
    """Go on with a run whose lock is held."""
    check_alone(experiment)
    check_sink(experiment.config)
    with durable.storing(folder.path, "make it writable to go on"):
        recorder = stack.enter_context(closing(_recorder(folder, experiment.config)))
        folder.note("resumed")
        for words in recorder.complaints:
            folder.note("damage", words=words)
    return drive(folder, experiment, recorder, progress)


def _recorder(folder: Folder, config: Config) -> Recorder:
    return Recorder(folder, config.run.rounds, config.store.checkpoint, sink(folder, config))


def create(experiment: Experiment, out: Path, stack: ExitStack, more: dict[str, Any]) -> Folder:
    """A new folder of a run on several ranks, its lock held."""
    check_sink(experiment.config)
    code = isinstance(experiment.config.problem, problem_sections.OwnSection)
    told = about(experiment) | more
    folder = runs.create(out, experiment.name, configs.dumps(experiment.config), told, None, code)
    stack.enter_context(lock.held(folder.path))
    return folder
