"""Runs on several ranks on disk: torchrun starts them, one is killed, and the run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from guarded import guarded, outcomes
from resolvent import runs
from resolvent.experiment import ranks
from resolvent.runs import checkpoints
from resolvent.runs.folder import Folder

SOURCE = Path(__file__).resolve().parents[2] / "src"
Start = Callable[..., subprocess.Popen[str]]
EXPERIMENT = ("run", "logistic", "--engine", "all-reduce", "--eta", "0.01", "--participation", "0.5", "--anderson", "2")


@pytest.fixture
def torchrun() -> Iterator[Start]:
    """Starts ranks; they end with the test."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ExitStack() as stack:

        def start(*command: str, ranks: int = 2, restarts: int = 0) -> subprocess.Popen[str]:
            starter = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", str(restarts)]
            given = [*starter, "--nproc-per-node", str(ranks), "-m", "resolvent", *command]
            return stack.enter_context(guarded(given, each=[own], **pipes))[0]

        yield start


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    ((out, err, code),) = outcomes([process], 200.0)
    return code, out, err


def run_of(out: Path) -> Folder:
    (found,) = runs.folders(out)
    return found


def wait_for(out: Path, rows: int) -> Path:
    """The folder of a run once its history has so many rows."""
    for _ in range(4000):
        for metrics in out.glob("*/metrics.csv"):
            if metrics.read_bytes().count(b"\n") > rows:
                return metrics.parent
        time.sleep(0.05)
    raise AssertionError("the run did not come that far")


def assert_same_run(one: Folder, other: Folder) -> None:
    """The history but for what was measured by clocks and counters, and every tensor of every rank's last state."""
    first, second = (run.history().drop(columns=["seconds", "bytes_up", "bytes_down"]) for run in (one, other))
    assert first.equals(second)
    for place in ("checkpoints", "rank-1"):
        a, b = (checkpoints.newest(run.path / place)[0] for run in (one, other))
        assert a is not None
        assert b is not None
        assert (a.round, a.tensors.keys()) == (b.round, b.tensors.keys())
        assert all(a.tensors[name].equal(b.tensors[name]) or _nan(a, b, name) for name in a.tensors)


def _nan(a: Any, b: Any, name: str) -> bool:
    return torch.equal(a.tensors[name].nan_to_num(), b.tensors[name].nan_to_num())


def test_ranks_go_on_from_the_newest_round_that_all_have() -> None:
    assert ranks.common([[0, 7, 6], [0, 6, 5], [0, 7, 6]]) == 6
    assert ranks.common([[0, 1], [0]]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_changes_no_bit(torchrun: Start, tmp_path: Path, victim: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = (*EXPERIMENT, "--rounds", "300")
    assert finished(torchrun(*command, "--out", str(whole)))[0] == 0
    process = torchrun(*command, "--out", str(broken), restarts=2)
    folder = wait_for(broken, 60)
    holder = (folder / "rank-1" if victim else folder) / "holder.json"
    os.kill(json.loads(holder.read_text())["pid"], signal.SIGKILL)
    code, _, words = finished(process)
    assert code == 0, words
    assert "resumed" in [event["kind"] for event in run_of(broken).events]
    assert_same_run(run_of(whole), run_of(broken))


@pytest.mark.slow
def test_an_interrupted_run_is_resumed_by_torchrun(torchrun: Start, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = (*EXPERIMENT, "--rounds", "300")
    code, out, _ = finished(torchrun(*command, "--out", str(whole), "--format", "json"))
    assert (code, json.loads(out)["status"]) == (0, "finished")  # rank 0 alone prints
    process = torchrun(*command, "--out", str(broken))
    folder = wait_for(broken, 60)
    process.send_signal(signal.SIGINT)
    assert finished(process)[0] != 0
    assert run_of(broken).status == "interrupted"
    code, _, words = finished(torchrun("resume", folder.name, "--out", str(broken), ranks=3))
    assert code != 0
    assert "was made by 2 ranks, and 3 were started; start as many" in words
    code, _, words = finished(torchrun("resume", folder.name, "--out", str(broken)))
    assert code == 0, words
    assert_same_run(run_of(whole), run_of(broken))
