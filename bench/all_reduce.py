"""All-reduce: two ranks on two cores against one process with one thread, and what a round costs beside it.

    python -m bench.all_reduce [--turns N]

Every turn runs one process and two ranks one after the other, so that both see the same machine. A shared machine
slows two ranks down more than one process, which waits for nobody: wall-clock ratios are lower bounds, and the ratio of
processor time, the work of one process over that of the busier rank, is what a quiet machine would give but for the
time on the wire.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

CASES = {"mnist cnn": 3, "least squares": 300}
"""Rounds of each."""


def problem(name: str) -> Any:
    """The MNIST CNN on images of noise, 8 users with 64 each, 4 local steps; or the paper's least squares."""
    import torch

    import resolvent as rs

    if name == "least squares":
        return rs.make_least_squares(seed=0), rs.fedpi(1e-5)
    generator = torch.Generator().manual_seed(0)
    users = [
        (torch.randn(64, 1, 28, 28, generator=generator), torch.randint(10, (64,), generator=generator))
        for _ in range(8)
    ]
    torch.manual_seed(0)
    return rs.Neural(rs.models.mnist_cnn(), users), rs.fedavg(0.01, steps=4)


def rank() -> None:
    """Measure every case here, alone or as one of several ranks: seconds and processor seconds per round."""
    import torch

    import resolvent as rs

    torch.set_num_threads(1)
    found = {}
    for name, rounds in CASES.items():
        whole, scheme = problem(name)
        engine: Any = rs.AllReduce(whole=True) if "RANK" in os.environ else "in_process"
        more: dict[str, Any] = {"engine": engine, "progress": False, "every": 10**6}
        rs.solve(whole, scheme, rounds=1, **more)  # compiles, and warms up
        before, began = time.process_time(), time.perf_counter()
        rs.solve(whole, scheme, rounds=rounds, **more)
        found[name] = [(time.perf_counter() - began) / rounds, (time.process_time() - before) / rounds]
    print(json.dumps(found), flush=True)


def turn(ranks: int) -> list[dict[str, list[float]]]:
    """What each rank measured; one rank is a process without a group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = [os.environ | {"OMP_NUM_THREADS": "1"} | (group | {"RANK": str(k)} if ranks > 1 else {})
                   for k in range(ranks)]  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "bench.all_reduce", "--rank"]
    started = [subprocess.Popen(command, env=each, stdout=subprocess.PIPE, text=True) for each in environment]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rank", action="store_true")
    given = parser.parse_args()
    if given.rank:
        return rank()
    turns = [(turn(1)[0], turn(2)) for _ in range(given.turns)]
    for name in CASES:
        wall = [alone[name][0] / max(r[name][0] for r in two) for alone, two in turns]
        work = [alone[name][1] / max(r[name][1] for r in two) for alone, two in turns]
        alone = statistics.median(one[name][0] for one, _ in turns)
        both = statistics.median(max(r[name][0] for r in two) for _, two in turns)
        print(f"{name}: {alone * 1e3:.3g} ms per round in one process, {both * 1e3:.3g} ms on two ranks")
        print(f"  one process over two ranks: wall clock {_three(wall)}, processor time {_three(work)}")
    return None


def _three(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
