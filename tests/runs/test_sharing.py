"""Processes that share a folder of runs share the work: no configuration is run twice, and none is left out."""

import fcntl
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import resolvent as rs
from command_line import SMALL, Process, resolvent
from resolvent import config, experiment
from resolvent.errors import StorageError
from resolvent.runs import folders, lock

SWEEP = ("sweep", "least-squares", *SMALL, "--grid", "scheme.eta=1e-3,2e-3,3e-3,4e-3,5e-3,6e-3", "--rounds", 60)


def build(eta: float = 0.02) -> experiment.Experiment:
    tree = {"problem": {"users": 3, "dim": 3, "rows": 6}, "run": {"rounds": 3}, "scheme": {"eta": eta}}
    return experiment.build(config.read(tree))


def test_parallel_sweeps_run_nothing_twice(tmp_path: Path) -> None:
    processes = [Process(*SWEEP, "--quiet", "--format", "json", cwd=tmp_path) for _ in range(2)]
    assert [process.wait(300) for process in processes] == [0, 0]
    tables = [json.loads(process.out) for process in processes]
    assert len(folders(tmp_path / "runs")) == 6
    assert [[row["final"] for row in table] for table in tables] == [[row["final"] for row in tables[0]]] * 2
    assert [event["kind"] for run in folders(tmp_path / "runs") for event in run.events] == ["started", "finished"] * 6


def test_what_another_process_is_at_is_left_to_it(tmp_path: Path) -> None:
    assert experiment.begin_or_resume(build(), tmp_path, False).status == "finished"
    (run,) = folders(tmp_path)
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes().splitlines(keepends=True)[0])  # killed, as far as anybody knows
    with lock.held(run.path):
        assert experiment.begin_or_resume(build(), tmp_path, False) is None
        assert experiment.begin_or_resume(build(0.5), tmp_path, False).status == "finished"
    assert experiment.begin_or_resume(build(), tmp_path, False).run.id == run.id
    assert len(folders(tmp_path)) == 2


def test_a_sweep_takes_the_next_one_and_waits_for_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    waits = threading.Event()
    pausing = SimpleNamespace(sleep=lambda seconds: (waits.set(), time.sleep(0.05)))
    monkeypatch.setattr("resolvent.cli.many.time", pausing)
    sweep = ("sweep", "least-squares", *SMALL, "--rounds", 3, "--grid", "scheme.eta=0.01,0.02")
    assert resolvent(*sweep).code == 0
    first = folders(Path("runs"))[0]
    events = first.path / "events.jsonl"
    events.write_bytes(events.read_bytes().splitlines(keepends=True)[0])
    said: list[Any] = []
    with lock.held(first.path):
        thread = threading.Thread(target=lambda: said.append(resolvent(*sweep)))
        thread.start()
        assert waits.wait(120)  # the other one is done
        assert not said
    thread.join(120)
    assert said[0].code == 0
    assert len(folders(Path("runs"))) == 2
    lines = [line.partition("] ")[2] for line in said[0].err.splitlines() if line.startswith("[")]
    assert [line.rpartition(": ")[2] for line in lines][:2] == ["being run", "done already"]


def test_those_who_only_look_are_not_taken_for_the_writer(tmp_path: Path) -> None:
    """A killed run still names its holder. Nobody holds its lock, however many processes ask whether one does."""
    (tmp_path / "holder.json").write_text(json.dumps({"pid": 1, "machine": "elsewhere", "since": ""}))
    with lock.held(tmp_path):
        assert lock.is_held(tmp_path)
    (tmp_path / "holder.json").write_text("{}")
    take, seen = fcntl.flock, list[bool]()

    def met(handle: int, how: int) -> None:
        """Another one looks while this one holds what it looks with."""
        take(handle, how)
        patch.undo()
        seen.append(lock.is_held(tmp_path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", met)
        assert not lock.is_held(tmp_path)
    assert seen == [False]


def test_a_store_whose_lock_is_held_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "MAX_CLAIM_SECONDS", 0.1)
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"), pytest.raises(StorageError, match="is locked by another"):
        experiment.begin_or_resume(build(), tmp_path, False)


def test_what_holds_users_data_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the umask: checkpoints have every u_i and p_i. An exported model is made to be handed on."""
    before = os.umask(0)
    try:
        out = tmp_path / "new" / "runs"
        run = experiment.begin(build(), out, progress=False).run
        rs.open(run.path).save(tmp_path / "saved")
        rs.open(run.path).export(tmp_path / "model.npz")
    finally:
        os.umask(before)
    folders_made = [tmp_path / "new", tmp_path / "saved"]
    paths = [*folders_made, *(path for folder in folders_made for path in folder.rglob("*"))]
    open_to_others = [path.relative_to(tmp_path) for path in paths if path.stat().st_mode & 0o077]
    assert {path.name for path in paths} >= {"checkpoints", "metrics.csv", "about.json", "events.jsonl"}
    assert open_to_others == []
    assert (tmp_path / "model.npz").stat().st_mode & 0o777 == 0o666
