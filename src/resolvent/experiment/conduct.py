"""Running an experiment on disk: from its beginning, from where it was left, or from the state of another run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config, problem_sections
from resolvent.config.sections import ALL_REDUCE
from resolvent.errors import InputError, ResolventWarning, refuse, whole
from resolvent.experiment.build import Experiment, build
from resolvent.experiment.driving import Outcome, about, described, drive
from resolvent.iteration import checkpoint
from resolvent.iteration.engine import Engine
from resolvent.iteration.parts import Parts
from resolvent.iteration.privacy import as_privacy
from resolvent.iteration.state import State, adapt
from resolvent.iteration.state import begin as begin_state
from resolvent.iteration.tuning import Automatic, Scheduled
from resolvent.runs import durable, lock, regular, trust
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.folder import Folder, damaged, reading
from resolvent.runs.open_run import OpenRun
from resolvent.solving.private import check_budget, check_start
from resolvent.solving.seeds import side_by_side


def begin(experiment: Experiment, out: Path, progress: bool | None = None) -> Outcome:
    """Run an experiment in a new folder under `out`."""
    with _new(experiment, out) as run:
        return drive(run, experiment, progress)


def resume(folder: Folder, progress: bool | None = None, trusted: bool = False, rounds: int | None = None) -> Outcome:
    """Resume a run where it was left. One that has ended is verified and left alone, unless it is to get more `rounds`.

    Code that a configuration names is called only if this user made the run, or has `trusted` it.
    """
    check_made_here(folder)
    with OpenRun.resume(folder) as run:
        if rounds is not None:
            _extend(folder, rounds)
        if folder.end is not None:
            return ended(folder)
        trust.consent(folder, trusted)
        experiment = build(configs.read(folder.config))
        _check_alone(experiment)
        return drive(run, experiment, progress)


def fork(folder: Folder, config: Config, out: Path, progress: bool | None = None, trusted: bool = False) -> Outcome:
    """Go on from a run's state with another configuration, in a folder of its own. The run itself is left alone."""
    if isinstance(config.problem, problem_sections.OwnSection) and config.problem.name == folder.code:
        trust.consent(folder, trusted)
    if wrong := folder.damage():
        raise damaged(folder, wrong)
    newest, complaints = folder.newest()
    if newest is None:
        why = f" ({complaints[0]})" if complaints else ""
        raise InputError(f"run {folder.id} has no state to go on from{why}; `resolvent run` begins anew")
    experiment = build(config)
    if config.run.rounds <= newest.round:
        refuse("run.rounds", config.run.rounds, f"run {folder.id} has done {newest.round}: give more with --rounds")
    privacy = as_privacy(experiment.parts.get("privacy"))
    with reading(folder):
        check_start(privacy, newest.state)
        check_budget(privacy, newest.state.parts.meet, config.run.rounds - newest.round)
        tensors, numbers = checkpoint.pack(_fitting(newest.state, experiment))
    with _new(experiment, out, folder, Checkpoint(newest.round, tensors, {"state": numbers, "metrics": 0})) as run:
        outcome = drive(run, experiment, progress)
    return replace(outcome, messages=(*complaints, *outcome.messages))


def begin_or_resume(experiment: Experiment, out: Path, progress: bool | None = None) -> Outcome | None:
    """What remains to do of an experiment under `out`: it is begun, resumed, or done already.

    None while another process runs it. Processes that share `out` look and begin one at a time, so that no
    experiment is begun twice.
    """
    with ExitStack() as stack:
        with lock.claiming(out):
            stored = find(experiment.fingerprint, out)
            if stored is not None and stored.end is not None:
                return ended(stored)
            try:
                run = stack.enter_context(_new(experiment, out) if stored is None else OpenRun.resume(stored))
            except lock.Held:
                return None
        if run.folder.end is not None:  # it was ended between the look and the lock
            return ended(run.folder)
        _check_alone(experiment)
        return drive(run, experiment, progress)


def but_for_seed(config: Config) -> Hashable:
    """What configurations that `run_together` may run together have in common."""
    return replace(config, run=replace(config.run, seed=0))


def run_together(experiments: Sequence[Experiment], out: Path, progress: bool | None = None) -> list[Outcome | None]:
    """What `begin_or_resume` gives for each of some experiments that differ in their seed alone: networks share
    their gradients, see `resolvent.solving.seeds`."""

    def one(experiment: Experiment, shown: bool | None, engine: Engine | str) -> Outcome | None:
        own = experiment if isinstance(engine, str) else replace(experiment, engine=engine)
        return begin_or_resume(own, out, shown)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # in threads filters cannot be set one by one
        work: list[Callable[[Engine | str], Outcome | None]] = [
            partial(one, experiment, progress if k == 0 else False) for k, experiment in enumerate(experiments)
        ]
        problems = [experiment.task.problem for experiment in experiments]
        return side_by_side(problems, [experiment.scheme for experiment in experiments], work)


def find(fingerprint: str, out: Path) -> Folder | None:
    """A sound run under `out` that computes this: one that has ended, else one that runs, else one that can go on."""
    alike = [run for run in runs.folders(out) if _fingerprint(run) == fingerprint and not run.damage()]
    ranked = sorted(alike, key=lambda run: (run.end is None, run.status != "running"))
    return next(iter(ranked), None)


def check_made_here(folder: Folder) -> None:
    """Refuse to go on with a run whose problem only Python has."""
    if folder.from_python:
        raise InputError(
            f"run {folder.id} was saved from Python, where its problem is; go on with it there: "
            "rs.open(folder).resume(problem, scheme, rounds=...)"
        )


def ended(folder: Folder) -> Outcome:
    """A run that has ended, once it is seen to be what was written."""
    end = folder.end or {}
    if wrong := folder.verify():
        raise damaged(folder, wrong)
    message = f"run {folder.id} has {end['kind']} already, verified by its checksums"
    return Outcome(folder, end["kind"], end.get("reason", ""), (message,))


# --- what they are made of -------------------------------------------------------------------------------------------


def _new(experiment: Experiment, out: Path, source: Folder | None = None, start: Checkpoint | None = None) -> OpenRun:
    """A new run, ready for the first round; a fork goes on from the `start` that it has of its `source`."""
    _check_alone(experiment)
    description = about(experiment)
    if source is not None and start is not None:
        description["forked"] = {"run": source.about["id"], "round": start.round}
        description["fingerprint"] += f"+{source.about['id']}-{start.round}"  # not what a run from the start computes
    fixed = described(experiment.task).fixed
    return OpenRun.begin(out, experiment.name, experiment.config, description, start, fixed)


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
        begun: str | None = run.about.get("fingerprint")
        if begun is None or run.config == run.written:
            return begun
        before, plus, fork = begun.partition("+")
        return f"{before.rpartition('-')[0]}-{configs.fingerprint_of(run.config)}{plus}{fork}"
    except (OSError, *regular.UNFIT):
        return None


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
    newest, _ = folder.newest()
    if newest is not None:
        privacy = dict(configs.read(folder.config).parts).get("privacy")
        check_budget(privacy, newest.state.parts.meet, asked - newest.round)
    with durable.storing(folder.path, "make it writable to go on"):
        folder.note("extended", rounds=asked)
    folder.forget()
