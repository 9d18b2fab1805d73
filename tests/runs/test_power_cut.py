"""After a power cut a run is whole or was never there, no round that was done is lost, and it ends with the same bits.

The disk is simulated: every fsync is recorded, and what would be left is written out after each of them.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from disk import Disk, Site
from resolvent import config, experiment
from resolvent.runs import folders
from resolvent.runs.recorder import Recorder

SMALL = {"problem": {"name": "least-squares", "users": 3, "dim": 4, "rows": 8}, "scheme": {"eta": 0.02}}
TREE = SMALL | {"run": {"rounds": 4}, "participation": {"probability": 0.6}}
DIVERGING = SMALL | {"scheme": {"algorithm": "fedavg", "eta": 1.0}, "run": {"rounds": 40}}


class Lost(BaseException):
    """Something that must survive is gone. Nothing in the program may catch it."""


def campaign(
    tmp_path: Path, lost: Site | None = None, resume: bool = False, tree: dict[str, Any] = TREE
) -> tuple[Disk, int]:
    """Begin a run, and cut the power after every fsync; what survives is checked by both models. How many cuts."""
    root = tmp_path / "disk"
    root.mkdir()
    disk, cuts, promised = Disk(root, lost), 0, 0
    built = experiment.build(config.read(tree))

    def cut(done: str | None = None) -> None:
        nonlocal cuts
        for model in ("strict", "ext4"):
            left = disk.restore(tmp_path / f"left-{cuts}-{model}", model)
            check(left / "runs", promised, done)
            if resume and cuts % 5 == 0:
                for run in folders(left / "runs"):
                    survivors.append(run)
            else:
                shutil.rmtree(left)
        cuts += 1

    survivors: list[Any] = []
    keep = Recorder.__call__

    def keeping(recorder: Any, happened: Any, *rest: Any) -> Any:
        nonlocal promised
        keep(recorder, happened, *rest)
        promised = recorder.done
        cut()

    with pytest.MonkeyPatch.context() as patch:
        disk.record(patch)
        disk.after = cut
        patch.setattr(Recorder, "__call__", keeping)
        outcome = experiment.begin(built, root / "runs", progress=False)
        disk.after = None
        cut(done=outcome.status)
    for run in survivors:
        assert experiment.resume(run, progress=False).status == "finished"
        assert rows(run) == rows(folders(root / "runs")[0])
    return disk, cuts


def check(out: Path, promised: int, done: str | None) -> None:
    found = folders(out)
    if out.is_dir() and {path for path in out.iterdir() if path.name[0] != "."} != {run.path for run in found}:
        raise Lost("there is a folder that is no run")
    if not found:
        if promised or done:
            raise Lost("the run is gone")
        return
    (run,) = found
    if wrong := run.damage():
        raise Lost(f"the run is damaged: {wrong}")
    if run.log[1]:
        raise Lost(f"events are damaged: {run.log[1]}")
    newest, complaints = run.newest()
    if complaints:
        raise Lost(f"checkpoints are damaged: {complaints}")
    if newest is not None and newest.extent.differs(run.metrics):
        raise Lost("a checkpoint is ahead of the metrics")
    state = newest and newest.state
    diverged = newest is not None and (newest.numbers["verdict"] or ["finished"])[0] == "diverged"
    if not diverged and (0 if state is None else state.round) < promised:  # a run that diverged goes back to its best
        raise Lost(f"round {promised} was done")
    if state is not None and len(run.history()) < state.round:
        raise Lost("rows of the metrics are gone")
    if done and (run.status != done or run.verify()):
        raise Lost("the run had finished")


def rows(run: Any) -> Any:
    return run.history().drop(columns="seconds").to_csv(), run.model().numpy().tobytes()


def test_whenever_the_power_is_cut_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    disk, cuts = campaign(tmp_path, resume=True)
    assert cuts > 20
    assert len(disk.sites) >= 8


def test_every_fsync_is_needed(tmp_path: Path) -> None:
    needed: set[Site] = set()
    sites: set[Site] = set()
    for name, tree in (("plain", TREE), ("diverging", DIVERGING)):
        (tmp_path / name).mkdir()
        found = campaign(tmp_path / name, tree=tree)[0].sites
        sites |= found.keys()
        for k, site in enumerate(site for site in found if site not in needed):
            (tmp_path / f"{name}-{k}").mkdir()
            try:
                campaign(tmp_path / f"{name}-{k}", lost=site, tree=tree)
            except Lost:
                needed.add(site)
    assert sites - needed == set()


def test_the_folder_of_runs_itself_is_durable(tmp_path: Path) -> None:
    """Folders above, made on the way, are synced too."""
    synced = []
    original = os.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "fsync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), original(handle))
        )
        experiment.begin(experiment.build(config.read(TREE)), tmp_path / "a" / "b", progress=False)
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(synced)
