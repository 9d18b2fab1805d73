"""The life of a run on disk: what is noted, stored and removed, however the `with` block is left."""

from pathlib import Path

import pytest

from resolvent import config, experiment
from resolvent.errors import InputError, RoundFailed, StorageError
from resolvent.experiment.driving import about, rounds
from resolvent.runs import Folder, lock
from resolvent.runs.open_run import OpenRun

BUILT = experiment.build(config.read({"problem": {"users": 3, "dim": 3, "rows": 6}, "run": {"rounds": 4}}))


def begin(out: Path) -> OpenRun:
    return OpenRun.begin(out, BUILT.name, BUILT.config, about(BUILT))


def kinds(run: Folder) -> list[str]:
    return [event["kind"] for event in run.events]


def test_a_run_that_ends_is_noted_and_its_lock_released(tmp_path: Path) -> None:
    with begin(tmp_path) as run:
        assert run.folder.status == "running"
        run.end(*rounds(BUILT, run.record(BUILT.config), False))
    assert not lock.is_held(run.folder.path)
    assert (kinds(run.folder), run.folder.verify()) == (["started", "finished"], [])


@pytest.mark.parametrize("error", [InputError("no"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_a_new_run_that_was_never_recorded_leaves_no_folder(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(error)), begin(tmp_path):
        raise error
    assert list(tmp_path.iterdir()) == []


def leave_by(error: BaseException, run: OpenRun, noted: str | None = None) -> None:
    run.record(BUILT.config)
    if noted is not None:
        run.leave("interrupted", noted)
    raise error


class PowerCut(BaseException):
    """Neither an error nor an interrupt: nothing is tidied up."""


@pytest.mark.parametrize(
    ("error", "raised", "status"),
    [
        (ZeroDivisionError("by zero"), RoundFailed, "failed"),
        (SystemExit(3), RoundFailed, "failed"),
        (InputError("not this"), InputError, "failed"),
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted"),
        (StorageError("full"), StorageError, "killed"),
        (PowerCut(), PowerCut, "killed"),
    ],
    ids=lambda each: getattr(each, "__name__", None) or repr(each),
)
def test_what_leaves_the_block_is_noted(
    error: BaseException, raised: type[BaseException], status: str, tmp_path: Path
) -> None:
    run = begin(tmp_path)
    with pytest.raises(raised), run:
        leave_by(error, run)
    assert not lock.is_held(run.folder.path)
    assert run.folder.status == status
    with OpenRun.resume(Folder(run.folder.path)) as again:
        again.end(*rounds(BUILT, again.record(BUILT.config), False))
    assert kinds(again.folder)[-2:] == ["resumed", "finished"]


def test_what_was_noted_is_not_noted_again(tmp_path: Path) -> None:
    run = begin(tmp_path)
    with pytest.raises(SystemExit), run:
        leave_by(SystemExit(), run, "it was stopped from outside")
    assert kinds(run.folder) == ["started", "interrupted"]


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    with begin(tmp_path) as run, pytest.raises(lock.Held, match="is being written by process"):
        OpenRun.resume(Folder(run.folder.path))
