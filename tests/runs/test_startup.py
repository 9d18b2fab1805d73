"""What fails before the first round is one sentence, and leaves no folder behind."""

import errno
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import filelock
import pytest

from command_line import SMALL, resolvent
from resolvent import config, experiment
from resolvent.errors import StorageError
from resolvent.runs import durable, folders

RUN = ("run", "least-squares", *SMALL, "--rounds", 3, "--quiet")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def left() -> list[str]:
    return sorted(path.name for path in Path("runs").rglob("*")) if Path("runs").exists() else []


def build() -> experiment.Experiment:
    return experiment.build(config.read({"problem": {"users": 3, "dim": 3, "rows": 6}, "run": {"rounds": 3}}))


def test_a_full_disk_at_every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write of the start fails, nothing half-made stays; a run that began is sound."""
    built, k = build(), 0
    for k in range(40):
        writes, original = [k], os.write

        def write(handle: Any, content: Any, writes: Any = writes, original: Any = original) -> Any:
            writes[0] -= 1
            if writes[0] == -1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(handle, content)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            try:
                experiment.begin(built, Path("runs"), progress=False)
            except StorageError as error:
                words = str(error)
            else:
                break
        assert "cannot be written (No space left on device); " in words
        assert [path.name for path in Path("runs").glob(".*.part")] == []
        for run in folders(Path("runs")):
            assert run.damage() == []
            assert experiment.resume(run, progress=False).status == "finished"
    assert k > 10


def test_a_full_disk_when_a_run_begins_is_one_sentence() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        said = resolvent(*RUN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert said.code == 2
    assert (
        said.err
        == "resolvent: runs cannot be written (File too large); name another folder with --out, or make room there\n"
    )
    assert left() == []


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError("flock")])
@pytest.mark.parametrize("command", [RUN, ("sweep", *RUN[1:], "--grid", "scheme.eta=0.1")], ids=["run", "sweep"])
def test_missing_locks_are_one_sentence(
    error: Exception, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    said = resolvent(*command)
    assert said.code == 2
    assert said.err.startswith("resolvent: runs")
    assert "cannot be locked (" in said.err
    assert said.err.count("\n") == 1
    assert not folders(Path("runs"))


def test_tensorboard_that_is_not_installed_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.runs.open_run.import_module", lambda name: (_ for _ in ()).throw(ImportError))
    said = resolvent(*RUN, "--tensorboard")
    assert said.code == 2
    assert "TensorBoard is not installed; pip install " in said.err
    assert left() == []


def test_what_a_killed_process_had_half_made_is_removed() -> None:
    old, young = Path("runs/.fedpi-1.part"), Path("runs/.fedpi-2.part")
    for part in (old, young):
        (part / "checkpoints").mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    experiment.begin(build(), Path("runs"), progress=False)
    assert not old.exists()
    assert young.exists()


def test_a_write_that_fails_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(OSError, match="I/O error"):
        durable.write(tmp_path / "file", b"content")
    assert not list(tmp_path.glob(".*"))
