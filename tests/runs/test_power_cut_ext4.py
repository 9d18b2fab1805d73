"""The same on a real file system: an image of ext4, copied while a run writes to it, is what a power cut leaves."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import beside, model, rows
from resolvent import experiment
from resolvent.runs import Folder, folders

pytestmark = pytest.mark.slow
RUN = ("run", "least-squares", "--users", 3, "--dim", 4, "--rows", 8, "--eta", 0.02, "--rounds", 250, "--quiet")


@contextlib.contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True, capture_output=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True, capture_output=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("only root may mount, and mkfs.ext4 is needed")
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.truncate(48 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", path], check=True)
    try:
        with mounted(path, tmp_path / "try"):
            pass
    except subprocess.CalledProcessError:
        pytest.skip("mounting is not permitted here")
    return path


def newest(run: Folder) -> int:
    return max((int(path.name[:8]) for path in run.checkpoints.glob("[0-9]*")), default=0)


def test_what_a_power_cut_leaves_on_ext4(image: Path, tmp_path: Path) -> None:
    cuts: list[tuple[Path, int]] = []
    with mounted(image, tmp_path / "disk") as disk:
        process = subprocess.Popen(beside(*RUN, "--out", disk / "runs"), stdout=subprocess.DEVNULL)
        while not (folders(disk / "runs") and newest(folders(disk / "runs")[0])):
            assert process.poll() is None
            time.sleep(0.01)
        for k in range(3):
            process.send_signal(signal.SIGSTOP)  # nothing is written while the image is copied
            cut = tmp_path / f"cut-{k}.img"
            done = newest(folders(disk / "runs")[0])
            shutil.copy(image, cut)
            process.send_signal(signal.SIGCONT)
            cuts.append((cut, done))
            time.sleep(0.3)
        assert process.wait(300) == 0
        shutil.copytree(disk / "runs", tmp_path / "whole")
    (whole,) = folders(tmp_path / "whole")
    for cut, done in cuts:
        with mounted(cut, tmp_path / "left") as left:
            (run,) = folders(left / "runs")
            assert run.damage() == []
            assert run.log[1] == []
            assert run.state().round >= done - 1  # the folder may name what is still being written
            assert experiment.resume(run, progress=False).status == "finished"
            assert rows(run) == rows(whole)
            assert model(run) == model(whole)
