"""A million users in one process: memory grows with the data only. `make slow` runs it (half a minute, 3 GiB)."""

import json
import subprocess
import sys

import pytest

MILLION = """
import json, resource, warnings
import torch
import resolvent as rs
warnings.simplefilter("ignore")
torch.manual_seed(0)
A = torch.randn(1_000_000, 5, 20, dtype=torch.float64)
b = torch.randn(1_000_000, 5, dtype=torch.float64)
problem = rs.LeastSquares(A, b)
run = rs.solve(problem, rs.fedprox(0.1), rounds=200)
print(json.dumps({
    "shape": list(run.state.u.shape),
    "error": float((run.model - rs.theory.regularised_minimiser(problem, 0.1)).norm()),
    "times_data": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / (A.numel() * 8),
}))
"""


@pytest.mark.slow
def test_a_million_users_need_a_few_times_their_data() -> None:
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen["shape"] == [1, 20]
    assert seen["error"] < 1e-10
    assert seen["times_data"] < 5
