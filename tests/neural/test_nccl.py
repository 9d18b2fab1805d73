"""All-reduce on a GPU: one rank, whose sums go through NCCL, is the run in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RANK = """
import torch
from torch import nn
import resolvent as rs

torch.cuda.set_device(0)
torch.manual_seed(0)
data = [(torch.randn(40 + k, 1, 8, 8), torch.randint(0, 3, (40 + k,))) for k in range(4)]
model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3))
schemes = rs.fedrp(1.0, local=rs.GradientProx(3, lr=0.05)), rs.fedavg(0.05, steps=2), rs.fedavg(
    0.05, local=rs.GradientSteps(1, batch=16)
)
for scheme in schemes:
    alone = rs.solve(rs.Neural(model, data, device="cuda", test=data), scheme, rounds=4, progress=False)
    ranks = rs.solve(
        rs.Neural(model, data, device="cuda", test=data), scheme, rounds=4, engine=rs.AllReduce(), progress=False
    )
    assert torch.equal(alone.model, ranks.model), scheme
    assert alone.history["value"].equals(ranks.history["value"]), scheme
assert "nccl" in str(torch.distributed.get_backend_config())
print("all equal")
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_one_rank_is_the_run_in_one_process(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [*command, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"},
    )
    assert "all equal" in done.stdout, done.stderr[-3000:]
