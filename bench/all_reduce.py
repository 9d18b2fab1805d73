"""All-reduce: two ranks on two cores against one process with one thread, and what a round costs beside it.

    python -m bench.all_reduce [--turns N]

Every turn runs one process, two ranks, and two processes with half of the users each that never talk to each other, one
after the other, so that all see the same machine. The last are what two cores allow: where they gain less than twofold,
the cores share something, and ranks cannot gain it either.
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

CASES = {"mnist cnn": 6, "least squares": 1000}
"""Rounds of each."""


def problem(name: str) -> Any:
    """The MNIST CNN on images of noise, 20 users with 240 each, 5 local steps; or the paper's least squares."""
    import torch

    import resolvent as rs

    if name == "least squares":
        return rs.make_least_squares(seed=0), rs.fedpi(1e-5)
    generator = torch.Generator().manual_seed(0)
    users = [
        (torch.randn(240, 1, 28, 28, generator=generator), torch.randint(10, (240,), generator=generator))
        for _ in range(20)
    ]
    torch.manual_seed(0)
    return rs.Neural(rs.models.mnist_cnn(), users), rs.fedavg(0.01, steps=5)


def rank() -> None:
    """Measure every case here, alone, on half of the users or as one of several ranks: seconds per round."""
    import torch

    import resolvent as rs

    torch.set_num_threads(1)
    seconds = {}
    for name, rounds in CASES.items():
        whole, scheme = problem(name)
        if "HALF" in os.environ:
            half = torch.arange(whole.users).chunk(2)[int(os.environ["HALF"])]
            whole = getattr(whole, "part", whole.take)(half)
        engine: Any = rs.AllReduce(whole=True) if "RANK" in os.environ else "in_process"
        more: dict[str, Any] = {"engine": engine, "progress": False, "every": 10**6}
        rs.solve(whole, scheme, rounds=1, **more)  # compiles, and warms up
        began = time.perf_counter()
        rs.solve(whole, scheme, rounds=rounds, **more)
        seconds[name] = (time.perf_counter() - began) / rounds
    print(json.dumps(seconds), flush=True)


def turn(processes: int, talk: bool) -> dict[str, float]:
    """Seconds per round of the slowest of these processes: ranks of a group, or strangers with a half each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = [group | {"RANK": str(k)} if talk else {"HALF": str(k)} for k in range(processes)] if processes > 1 else [{}]
    command = [sys.executable, "-W", "ignore", "-m", "bench.all_reduce", "--rank"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen(command, env=environment | each, stdout=subprocess.PIPE, text=True) for each in own]
    results = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    return {name: max(each[name] for each in results) for name in CASES}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rank", action="store_true")
    given = parser.parse_args()
    if given.rank:
        return rank()
    turns = [(turn(1, False), turn(2, True), turn(2, False)) for _ in range(given.turns)]
    for name in CASES:
        alone, ranks, halves = ([each[name] for each in way] for way in zip(*turns, strict=True))
        print(
            f"{name}: {_ms(alone)} ms per round in one process, {_ms(ranks)} on two ranks, {_ms(halves)} in two halves"
        )
        print(f"  one process over two ranks {_ratio(alone, ranks)}, over two halves {_ratio(alone, halves)}")
    return None


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.3g}"


def _ratio(above: list[float], below: list[float]) -> str:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
