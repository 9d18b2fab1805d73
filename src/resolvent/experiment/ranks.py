"""Running an experiment on several ranks, which torchrun has started: all of them build it, and rank 0 speaks for them.

Rank 0 writes the run's folder; every other rank writes its own checkpoints, in a folder inside. On machines that share
no disk, that folder lies alone under the run's name. After a fault, ranks may be a round apart: each retains its last
two checkpoints, and all go on from the newest round that every rank has. A group that torchrun has started again goes
on with the run that it began.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config
from resolvent.config.sections import ALL_REDUCE
from resolvent.engines import process_group
from resolvent.engines.all_reduce import AllReduce
from resolvent.engines.process_group import Group
from resolvent.engines.process_group import started as started  # whether torchrun started this process
from resolvent.errors import BadAnswer, InputError, RankLost
from resolvent.experiment import conduct, driving
from resolvent.experiment.build import Experiment, build
from resolvent.experiment.driving import Outcome
from resolvent.experiment.tasks import task
from resolvent.runs import checkpoints, durable, lock, trust
from resolvent.runs.collection import NO_ROOM
from resolvent.runs.folder import Folder
from resolvent.runs.open_run import OpenRun
from resolvent.runs.recorder import CheckpointRecorder

T = TypeVar("T")


class Silent(InputError):
    """Refused on every rank: rank 0 says why."""


def begin(config: Config, out: Path, shown: Callable[[Experiment], None], progress: bool | None = None) -> Outcome:
    """Run an experiment in a new folder under `out`; after a restart by torchrun, go on with the one it began."""
    with _joined() as group, ExitStack() as stack:
        experiment = _built(config, group)
        if group.rank == 0:
            shown(experiment)
        launch = {"ranks": group.size, "launch": os.environ.get("TORCHELASTIC_RUN_ID", "")}
        again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

        def opened() -> OpenRun:
            if again and (begun := _launched({"fingerprint": experiment.fingerprint} | launch, out)) is not None:
                return stack.enter_context(OpenRun.resume(begun))
            about = driving.about(experiment) | launch
            return stack.enter_context(OpenRun.begin(out, experiment.name, experiment.config, about))

        return _run(_on_first(group, opened), experiment, out, group, stack, progress)


def resume(name: str, out: Path, progress: bool | None = None, trusted: bool = False) -> Outcome:
    """Resume a run of all-reduce where it was left, with as many ranks as it had."""
    with _joined() as group, ExitStack() as stack:

        def opened() -> OpenRun:
            run = stack.enter_context(OpenRun.resume(runs.find(name, out)))
            folder = run.folder
            if folder.config["run"].get("engine") != ALL_REDUCE:
                raise InputError(f"run {folder.id} was made by one process; resume it without torchrun")
            if folder.about.get("ranks") != group.size:
                whose = f"run {folder.id} was made by {folder.about.get('ranks')} ranks"
                raise InputError(f"{whose}, and {group.size} were started; start as many")
            trust.consent(folder, trusted)
            return run

        run = _on_first(group, opened)
        config = configs.read(group.gathered(None if run is None else run.folder.config)[0])
        return _run(run, _built(config, group), out, group, stack, progress)


def common(rounds: Sequence[Sequence[int]]) -> int:
    """The newest round that every rank has stored."""
    return max(set(rounds[0]).intersection(*rounds[1:]))


# --- what they are made of -------------------------------------------------------------------------------------------


@contextmanager
def _joined() -> Iterator[Group]:
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
    result: T | None = None
    refusal: str | None = None
    try:
        result = make()
    except InputError as error:
        refusal = str(error)
    refusals = group.gathered(refusal)
    for rank, sentence in enumerate(refusals):
        if sentence is not None:
            raise Silent(sentence if refusals[0] == sentence else f"on rank {rank}: {sentence}")
    assert result is not None
    return result


def _on_first(group: Group, make: Callable[[], T]) -> T | None:
    """What rank 0 makes, and None on the others."""
    return _everywhere(group, lambda: (make() if group.rank == 0 else None,))[0]


def _built(config: Config, group: Group) -> Experiment:
    """The experiment, the same on every rank."""

    def make() -> Experiment:
        ready = task(config.problem, config.run.seed, config.run.threads)
        threads = config.run.threads or max(1, ready.threads // int(os.environ.get("LOCAL_WORLD_SIZE", group.size)))
        return build(replace(config, run=replace(config.run, threads=threads)), ready)

    built = _everywhere(group, make)
    first, *others = group.gathered([built.fingerprint, *configs.dumps(built.config).splitlines()])
    for rank, other in enumerate(others, 1):
        if other[0] != first[0]:
            differs = next(((a, b) for a, b in zip(first[1:], other[1:], strict=False) if a != b), (first[0], other[0]))
            raise Silent(f"rank 0 has {differs[0]} and rank {rank} has {differs[1]}, but all ranks must run the same")
    return built


def _launched(signs: dict[str, object], out: Path) -> Folder | None:
    """The run that this launch of torchrun began, if it came that far."""
    for run in reversed(runs.folders(out)):
        if not run.damage() and signs.items() <= {key: run.about.get(key) for key in signs}.items():
            return run
    return None


def _run(
    run: OpenRun | None, experiment: Experiment, out: Path, group: Group, stack: ExitStack, progress: bool | None
) -> Outcome:
    """Go on with a run, which rank 0 has open."""
    facts = None if run is None else [run.folder.about["id"], run.folder.id, run.folder.end is not None]
    run_id, name, over = group.gathered(facts)[0]
    folder = Folder(out / name) if run is None else run.folder
    if over:
        return conduct.ended(folder) if run is not None else Outcome(folder, "finished", "")
    own = folder.checkpoints if run is not None else folder.path / f"rank-{group.rank}"
    stored = checkpoints.sound(own, run_id)[0] if own.is_dir() else []
    at = common(group.gathered([0, *(each.round for each in stored)]))
    if own.is_dir():
        checkpoints.forget_after(own, at)
    engine, due = AllReduce(whole=True), _clock(group, experiment.config.store.checkpoint)
    if run is not None:
        return driving.drive(run, experiment, progress, engine, at, due)
    torch.set_num_threads(experiment.config.run.threads or 1)
    with durable.storing(own, NO_ROOM):
        durable.make(own)
    stack.enter_context(lock.held(own))
    last = next((each for each in stored if each.round == at), None)
    recorder = CheckpointRecorder(own, run_id, experiment.config.run.rounds, last, due)
    try:
        return Outcome(folder, *driving.rounds(experiment, recorder, False, engine))
    except BadAnswer as error:  # another rank has failed: this one leaves without a traceback
        raise RankLost(str(error)) from error
    finally:
        recorder.flush()


def _clock(group: Group, seconds: float) -> Callable[[], bool]:
    """Whether a checkpoint is due, by the clock of rank 0, so that all ranks store the same rounds."""
    last = [time.monotonic()]

    def due() -> bool:
        if seconds <= 0:
            return True
        now = bool(group.spread(torch.tensor(time.monotonic() - last[0] >= seconds)))
        if now:
            last[0] = time.monotonic()
        return now

    return due
