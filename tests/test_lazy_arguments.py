"""Arguments that are huge and take no memory until they are read: each is refused in a sentence, and at once.

Ranges, tensors that repeat one number, sequences that make their items when asked, iterators without end. They are
given for every argument of every public name, as wrong types are (test_wrong_types.py), in a process whose memory is
limited, so that what reads them all ends there, and whose every call may take a minute at most before it counts as one
that never ends.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.utils.data import Dataset

MANY = 10**12
SPARE = 3 << 30
"""Bytes that a call may take."""
MINUTE = 60
COMMON = ("HeldOut", "Box", "L1", "LeastSquares", "Neural", "Softmax", "Stragglers", "Trace", "solve_seeds")
"""Names whose arguments are tried in every run of the tests; `slow`: all."""


class Long(Sequence[Any]):
    """One item, very often."""

    def __init__(self, item: Any, many: int = MANY) -> None:
        self.item, self.many = item, many

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, i: Any) -> Any:
        return self.item


class Named(Mapping[str, float]):
    def __len__(self) -> int:
        return MANY

    def __iter__(self) -> Iterator[str]:
        return (f"{i}" for i in itertools.count())

    def __getitem__(self, key: str) -> float:
        return 1.0


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return MANY

    def __getitem__(self, i: int) -> Any:
        return torch.ones(2), 0


def repeated(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.ones((1,) * len(shape), dtype=dtype).expand(*shape)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return repeated(MANY, 2, dtype=torch.float32), repeated(MANY, dtype=torch.long)


FEW: dict[str, Callable[[], Any]] = {
    "a range": lambda: range(MANY), "doubles": lambda: repeated(MANY), "users": lambda: repeated(MANY, 3, 2),
    "two columns": lambda: repeated(MANY, 2), "many long": lambda: Long(Long(1.0)), "two long": lambda: [Long(1.0)] * 2,
    "an array": lambda: np.broadcast_to(1.0, (MANY, 2)), "pairs": lambda: [pair(), pair()], "a dict": Named,
}  # fmt: skip
ALL: dict[str, Callable[[], Any]] = FEW | {
    "a range beyond 64 bits": lambda: range(2**70), "floats": lambda: repeated(MANY, dtype=torch.float32),
    "a square": lambda: repeated(10**6, 10**6), "two rows": lambda: repeated(2, MANY),
    "whole numbers": lambda: repeated(MANY, dtype=torch.long), "flags": lambda: repeated(MANY, 2, dtype=torch.bool),
    "labels": lambda: np.broadcast_to(np.int64(1), (2, MANY)), "text": lambda: np.broadcast_to("a", (MANY,)),
    "words": lambda: Long("a"), "matrices": lambda: Long(np.ones((3, 2))), "a pair": pair,
    "users' rows": lambda: Long((torch.ones(3, 2), torch.zeros(3, dtype=torch.long))),
    "two ranges": lambda: [range(MANY)] * 2, "2^62": lambda: Long(1.0, 2**62), "without end": itertools.count,
    "one without end": lambda: itertools.repeat(1.0), "ones without end": lambda: itertools.repeat(1),
    "sparse": lambda: scipy.sparse.csr_array((3, 2**40)), "sparse rows": lambda: scipy.sparse.coo_array((2**40, 2)),
    "a sparse tensor": lambda: torch.zeros(2**40, 2, layout=torch.sparse_coo),
    "data sets": lambda: [Rows(), Rows()],
}  # fmt: skip


def tried(names: Sequence[str], values: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """What each of these arguments ends in that is no sentence of ours. For a process of its own."""
    import resolvent as rs
    from test_wrong_types import PUBLIC, foreign, squares

    rs.solve(squares(), "fedpi", rounds=1, progress=False)  # loads what is loaded when it is first needed
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))
    ends = {}
    for name in names:
        for argument in PUBLIC[name][0]():
            for what, make in values.items():
                case = f"{name}({argument}={what})"
                print(case, file=sys.stderr, flush=True)  # the last one, where this process is ended
                signal.alarm(MINUTE)
                ends[case] = foreign(name, argument, make()) or ""
                signal.alarm(0)
    return {case: end for case, end in ends.items() if end}


def in_a_process(which: str, *names: str) -> dict[str, str]:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, str(Path(__file__)), which, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"ended by {done.returncode} in {done.stderr[-600:]}"
    ends: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return ends


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited by Linux's means")


def test_what_is_common_is_refused_at_once() -> None:
    assert in_a_process("few", *COMMON) == {}


def _public() -> list[str]:
    from test_wrong_types import PUBLIC

    return list(PUBLIC)


@pytest.mark.slow
@pytest.mark.parametrize("name", _public())
def test_everything_is_refused_at_once(name: str) -> None:
    assert in_a_process("all", name) == {}


if __name__ == "__main__":
    print(json.dumps(tried(sys.argv[2:], FEW if sys.argv[1] == "few" else ALL)))
