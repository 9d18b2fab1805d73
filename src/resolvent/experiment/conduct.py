"""Running an experiment on disk, from its beginning or from where it was left."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config, sections
from resolvent.config.sections import ALL_REDUCE
from resolvent.errors import (
    BadAnswer,
    InputError,
    RankLost,
    ResolventWarning,
    RoundFailed,
    StorageError,
    refuse,
    whole,
)
from resolvent.experiment.build import Experiment, build
from resolvent.experiment.tasks import Task
from resolvent.iteration import checkpoint
from resolvent.iteration.state import State, adapt
from resolvent.iteration.state import begin as begin_state
from resolvent.runs import durable, lock, trust
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.environment import environment
from resolvent.runs.folder import Folder, damaged
from resolvent.runs.ranks import RankRecorder
from resolvent.runs.recorder import Recorder
from resolvent.solving.description import Description, describe
from resolvent.solving.solve import solve


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for now. `messages` are what a person should know of how it was resumed."""

    run: Folder
    status: str
    reason: str
    messages: tuple[str, ...] = ()


def begin(
    experiment: Experiment, out: Path, progress: bool | None = None, fork: tuple[Folder, Checkpoint] | None = None
) -> Outcome:
    """Run an experiment in a new folder under `out`; a fork goes on from the state of another run."""
    with ExitStack() as stack:
        folder, recorder = _new(experiment, out, stack, fork)
        return _drive(folder, experiment, recorder, progress)


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
    if isinstance(config.problem, sections.OwnSection) and config.problem.name == folder.code:
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


def check_made_here(folder: Folder) -> None:
    """Refuse to go on with a run whose problem only Python has."""
    if folder.about.get("made") == "python":
        raise InputError(
            f"run {folder.id} was saved from Python, where its problem is; go on with it there: "
            "rs.open(folder).resume(problem, scheme, rounds=...)"
        )


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
            return _drive(folder, experiment, recorder, progress)
        if left.end is not None:  # it was ended between the look and the lock
            return ended(left)
        return _resumed(left, experiment, stack, progress)


def find(fingerprint: str, out: Path) -> Folder | None:
    """A sound run under `out` that computes this: one that has ended, else one that runs, else one that can go on."""
    alike = [run for run in runs.folders(out) if _fingerprint(run) == fingerprint and not run.damage()]
    ranked = sorted(alike, key=lambda run: (run.end is None, run.status != "running"))
    return next(iter(ranked), None)


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
    _check_alone(experiment)
    sink = _sink(experiment.config)
    told = about(experiment)
    if fork is not None:
        told["forked"] = {"run": fork[0].about["id"], "round": fork[1].round}
        told["fingerprint"] += f"+{fork[0].about['id']}-{fork[1].round}"  # not what a run from the start computes
    start = None if fork is None else fork[1]
    code = isinstance(experiment.config.problem, sections.OwnSection)
    fixed = described(experiment.task).fixed
    folder = runs.create(out, experiment.name, configs.dumps(experiment.config), told, start, code, fixed)
    with ExitStack() as inner:
        try:
            inner.enter_context(lock.held(folder.path))
            with durable.storing(folder.path, "name another folder with --out, or make room there"):
                recorder = inner.enter_context(closing(_recorder(folder, experiment.config, sink)))
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
    eta = 1.0 if math.isnan(state.eta) else state.eta
    if adapt(state, problem.users, scheme, participation, experiment.anderson, eta) is not None:
        return state
    u = state.u if state.next is None else state.next  # users must part: only the point carries over
    return replace(begin_state(u, u, problem.users, scheme, participation, experiment.anderson, eta), round=state.round)


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


def lock_sound(folder: Folder, stack: ExitStack) -> None:
    """Hold a sound run's lock."""
    if wrong := folder.damage():
        raise damaged(folder, wrong)
    stack.enter_context(lock.held(folder.path))


def consent(folder: Folder, trusted: bool) -> None:
    """Refuse to call code that a folder from elsewhere names."""
    if folder.code and not trusted and not trust.sealed(folder.path):
        raise InputError(
            f"run {folder.id} calls code, {folder.code}, and was not made by this user on this machine; "
            f"read that file first, then say so with --trust"
        )


def ended(folder: Folder) -> Outcome:
    """A run that has ended, once it is seen to be what was written."""
    end = folder.end or {}
    if wrong := folder.verify():
        raise damaged(folder, wrong)
    how = "verified by its checksums" if folder.verified else "made before there were checksums, unverified"
    return Outcome(folder, end["kind"], end.get("reason", ""), (f"run {folder.id} has {end['kind']} already, {how}",))


def _resumed(folder: Folder, experiment: Experiment, stack: ExitStack, progress: bool | None) -> Outcome:
    """Go on with a run whose lock is held."""
    _check_alone(experiment)
    sink = _sink(experiment.config)
    with durable.storing(folder.path, "make it writable to go on"):
        recorder = stack.enter_context(closing(_recorder(folder, experiment.config, sink)))
        folder.note("resumed")
        for words in recorder.complaints:
            folder.note("damage", words=words)
    return _drive(folder, experiment, recorder, progress)


def _recorder(folder: Folder, config: Config, sink: Any) -> Recorder:
    return Recorder(folder, config.run.rounds, config.store.checkpoint, sink and sink(folder.path / "tensorboard"))


def sink(folder: Folder, config: Config) -> Any:
    """Where rows go besides the run's folder, if anywhere."""
    made = _sink(config)
    return made and made(folder.path / "tensorboard")


def create(experiment: Experiment, out: Path, stack: ExitStack, more: dict[str, Any]) -> Folder:
    """A new folder of a run on several ranks, its lock held."""
    _sink(experiment.config)
    code = isinstance(experiment.config.problem, sections.OwnSection)
    told = about(experiment) | more
    folder = runs.create(out, experiment.name, configs.dumps(experiment.config), told, None, code)
    stack.enter_context(lock.held(folder.path))
    return folder


def _check_alone(experiment: Experiment) -> None:
    """Refuse what several processes must run together."""
    if experiment.config.run.engine == ALL_REDUCE:
        raise InputError(
            "run.engine is all-reduce, which several processes run together; start `resolvent run` or `resolvent "
            "resume` with torchrun, as in `torchrun --nproc-per-node 2 -m resolvent run ... --engine all-reduce`"
        )


def _fingerprint(run: Folder) -> str | None:
    """Of what the run computes: one with more rounds than it was begun with computes something else."""
    try:
        known: str | None = run.about.get("fingerprint")
        if known is None or run.config == run.written:
            return known
        before, plus, fork = known.partition("+")
        return f"{before.rpartition('-')[0]}-{configs.fingerprints(run.config)[0]}{plus}{fork}"
    except InputError:
        return None


# --- rounds ----------------------------------------------------------------------------------------------------------


def _drive(folder: Folder, experiment: Experiment, recorder: Recorder, progress: bool | None) -> Outcome:
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # the explanation says the same, and is shown
        run = solve(
            experiment.task.problem,
            experiment.scheme,
            rounds=left,
            anderson=experiment.anderson,
            participation=experiment.participation,
            engine=engine or experiment.engine or config.engine,
            seed=config.seed,
            start=recorder.state,
            stop=experiment.stop,
            average=config.average,
            every=config.every,
            validate_every=config.validate_every,
            progress=progress,
            test=experiment.task.test,
            recorder=recorder,
            explanation=experiment.explanation,
        )
    recorder.flush()
    return run.status, run.reason


def _sink(config: Config) -> Any:
    """What makes a sink in a folder, where one was asked for; refused before anything is made."""
    if not config.store.tensorboard:
        return None
    from resolvent.runs import tensorboard

    tensorboard.needed()
    return tensorboard.sink
