"""Running an experiment on several ranks, which torchrun has started: all of them build it, and rank 0 speaks for them.

Rank 0 makes the run's folder and writes its history; every rank writes its own checkpoints. A group that torchrun has
started again goes on with the run that it began.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config
from resolvent.config.sections import ALL_REDUCE
from resolvent.engines import process_group
from resolvent.engines.all_reduce import AllReduce
from resolvent.engines.process_group import Group
from resolvent.errors import BadAnswer, InputError, RankLost
from resolvent.experiment import admission, conduct, driving
from resolvent.experiment.build import Experiment, build
from resolvent.experiment.driving import Outcome
from resolvent.experiment.tasks import task
from resolvent.runs import checkpoints, durable, lock
from resolvent.runs import ranks as stores
from resolvent.runs.folder import Folder, damaged
from resolvent.runs.recorder import Recorder

T = TypeVar("T")


class Silent(InputError):
    """Refused on every rank: rank 0 says why."""


def started() -> bool:
    """Whether torchrun started this process."""
    return process_group.started()


def begin(config: Config, out: Path, told: Callable[[Experiment], None], progress: bool | None = None) -> Outcome:
    """Run an experiment in a new folder under `out`; after a restart by torchrun, go on with the one it began."""
    with _joined() as group, ExitStack() as stack:
        experiment = _built(config, group)
        if group.rank == 0:
            told(experiment)
        launch = os.environ.get("TORCHELASTIC_RUN_ID", "")
        again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

        def folder() -> Folder:
            left = _launched(experiment, out, launch, group.size) if again else None
            if left is not None:
                admission.lock_sound(left, stack)
                return left
            return conduct.create(experiment, out, stack, {"ranks": group.size, "launch": launch})

        return _run(_on_first(group, folder), experiment, out, group, stack, progress)


def resume(name: str, out: Path, progress: bool | None = None, trusted: bool = False) -> Outcome:
    """Resume a run of all-reduce where it was left, with as many ranks as it had."""
    with _joined() as group, ExitStack() as stack:

        def folder() -> Folder:
            found = runs.find(name, out)
            if wrong := found.damage():
                raise damaged(found, wrong)
            if found.config["run"].get("engine") != ALL_REDUCE:
                raise InputError(f"run {found.id} was made by one process; resume it without torchrun")
            if found.about.get("ranks") != group.size:
                made = f"run {found.id} was made by {found.about.get('ranks')} ranks"
                raise InputError(f"{made}, and {group.size} were started; start as many")
            admission.lock_sound(found, stack)
            admission.consent(found, trusted)
            return found

        found = _on_first(group, folder)
        config = configs.read(group.words(None if found is None else found.config)[0])
        return _run(found, _built(config, group), out, group, stack, progress)


# --- what they are made of -------------------------------------------------------------------------------------------


@contextmanager
def _joined() -> Any:
    """The group of all ranks; a rank that fails before or after the rounds tells the others."""
    group = process_group.join()
    try:
        yield group
    except (Silent, RankLost):
        raise
    except BaseException as error:
        group.leave(f"{type(error).__name__}: {error}")
        raise


def _everywhere(group: Group, make: Callable[[], T]) -> T:
    """What every rank makes; where one of them cannot, rank 0 says why, and all are refused."""
    made: T | None = None
    words: str | None = None
    try:
        made = make()
    except InputError as error:
        words = str(error)
    said = group.words(words)
    for rank, sentence in enumerate(said):
        if sentence is not None:
            raise Silent(sentence if said[0] == sentence else f"on rank {rank}: {sentence}")
    assert made is not None
    return made


def _on_first(group: Group, make: Callable[[], T]) -> T | None:
    """What rank 0 makes, and None on the others."""
    return _everywhere(group, lambda: (make() if group.rank == 0 else None,))[0]


def _built(config: Config, group: Group) -> Experiment:
    """The experiment, the same on every rank."""

    def make() -> Experiment:
        made = task(config.problem, config.run.seed, config.run.threads)
        threads = config.run.threads or max(1, made.threads // int(os.environ.get("LOCAL_WORLD_SIZE", group.size)))
        return build(replace(config, run=replace(config.run, threads=threads)), made)

    built = _everywhere(group, make)
    first, *others = group.words([built.fingerprint, *configs.dumps(built.config).splitlines()])
    for rank, other in enumerate(others, 1):
        if other[0] != first[0]:
            differs = next(((a, b) for a, b in zip(first[1:], other[1:], strict=False) if a != b), (first[0], other[0]))
            raise Silent(f"rank 0 has {differs[0]} and rank {rank} has {differs[1]}, but all ranks must run the same")
    return built


def _launched(experiment: Experiment, out: Path, launch: str, ranks: int) -> Folder | None:
    """The run that this launch of torchrun began, if it came that far."""
    for run in reversed(runs.folders(out)):
        about = {} if run.damage() else run.about
        if (about.get("fingerprint"), about.get("launch"), about.get("ranks")) == (
            experiment.fingerprint,
            launch,
            ranks,
        ):
            return run
    return None


def _run(
    folder: Folder | None,
    experiment: Experiment,
    out: Path,
    group: Group,
    stack: ExitStack,
    progress: bool | None,
) -> Outcome:
    """Go on with a run, whose folder rank 0 has and has locked."""
    name = group.words(None if folder is None else [folder.about["id"], folder.id, folder.end is not None])[0]
    run, place, over = name
    if over:
        return admission.ended(folder) if folder is not None else Outcome(Folder(out / place), "finished", "")
    own = folder.checkpoints if folder is not None else stores.place(out, place, group.rank)
    at = stores.common(group.words(stores.stored(own, run)))
    if own.is_dir():
        checkpoints.forget_after(own, at)
    recorder = _recorder(folder, own, run, at, experiment, group, stack)
    torch.set_num_threads(experiment.config.run.threads or 1)
    engine = AllReduce(whole=True)
    if folder is None:
        status, reason = _elsewhere(experiment, recorder, engine)
        return Outcome(Folder(out / place), status, reason)
    with driving.failing(folder, recorder):
        status, reason = driving.rounds(experiment, recorder, progress, engine)
    recorder.end(status, reason)
    return Outcome(folder, status, reason, tuple(recorder.complaints))


def _elsewhere(experiment: Experiment, recorder: Any, engine: AllReduce) -> tuple[str, str]:
    """The rounds on a rank other than 0. Where another rank has failed, this one leaves without a traceback."""
    try:
        return driving.rounds(experiment, recorder, False, engine)
    except BadAnswer as error:
        raise RankLost(str(error)) from error
    finally:
        recorder.flush()


def _recorder(
    folder: Folder | None, own: Path, run: str, at: int, experiment: Experiment, group: Group, stack: ExitStack
) -> Any:
    config, seconds = experiment.config, experiment.config.store.checkpoint
    last = [time.monotonic()]

    def due() -> bool:
        """By the clock of rank 0, so that all ranks store the same rounds."""
        if seconds <= 0:
            return True
        now = bool(group.spread(torch.tensor(time.monotonic() - last[0] >= seconds)))
        if now:
            last[0] = time.monotonic()
        return now

    if folder is None:
        with durable.storing(own, "name another folder with --out, or make room there"):
            durable.make(own)
        stack.enter_context(lock.held(own))
        return stores.RankRecorder(own, run, config.run.rounds, at, due)
    with durable.storing(folder.path, "make it writable to go on"):
        recorder = stack.enter_context(
            closing(Recorder(folder, config.run.rounds, seconds, driving.sink(folder, config), at, due))
        )
        if at or len(folder.events) > 1:
            folder.note("resumed")
        for words in recorder.complaints:
            folder.note("damage", words=words)
    return recorder
