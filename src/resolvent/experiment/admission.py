"""What must hold before a run goes on: it is whole, nobody else runs it, and its code is trusted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from resolvent import config as configs
from resolvent import runs
from resolvent.config.sections import ALL_REDUCE
from resolvent.errors import InputError
from resolvent.experiment.build import Experiment
from resolvent.experiment.driving import Outcome
from resolvent.runs import lock, trust
from resolvent.runs.folder import Folder, damaged


def find(fingerprint: str, out: Path) -> Folder | None:
    """A sound run under `out` that computes this: one that has ended, else one that runs, else one that can go on."""
    alike = [run for run in runs.folders(out) if _fingerprint(run) == fingerprint and not run.damage()]
    ranked = sorted(alike, key=lambda run: (run.end is None, run.status != "running"))
    return next(iter(ranked), None)


def _fingerprint(run: Folder) -> str | None:
    """Of what the run computes: one with more rounds than it was begun with computes something else."""
    try:
        known: str | None = run.about.get("fingerprint")
        if known is None or run.config == run.written:
            return known
        before, plus, fork = known.partition("+")
        return f"{before.rpartition('-')[0]}-{configs.fingerprint_of(run.config)}{plus}{fork}"
    except InputError:
        return None


def check_made_here(folder: Folder) -> None:
    """Refuse to go on with a run whose problem only Python has."""
    if folder.about.get("made") == "python":
        raise InputError(
            f"run {folder.id} was saved from Python, where its problem is; go on with it there: "
            "rs.open(folder).resume(problem, scheme, rounds=...)"
        )


def check_alone(experiment: Experiment) -> None:
    """Refuse what several processes must run together."""
    if experiment.config.run.engine == ALL_REDUCE:
        raise InputError(
            "run.engine is all-reduce, which several processes run together; start `resolvent run` or `resolvent "
            "resume` with torchrun, as in `torchrun --nproc-per-node 2 -m resolvent run ... --engine all-reduce`"
        )


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
