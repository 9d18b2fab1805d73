"""One rank of a group: runs the jobs that it is told to, and writes what came of each into a file.

It is forked from a process that has imported torch. A job that fails has a sentence as its result.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def outcome(job: str) -> Any:
    """What a job returns, or what it raises."""
    from engines import rank_jobs

    name, _, given = job.partition(":")
    try:
        return {"ok": getattr(rank_jobs, name)(*([given] if given else []))}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def main(group: Mapping[str, str], seconds: int, folder: str, *jobs: str) -> None:
    """The whole process, which ends after that many seconds at the latest, also where the tests were killed."""
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(seconds)
    os.environ |= group
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        run(Path(folder) / f"{group['RANK']}.json", jobs)
    finally:
        atexit._run_exitfuncs()  # a forked process ends without


def run(file: Path, jobs: Sequence[str]) -> None:
    """Job after job, until one fails: the ranks may then no longer be at the same place."""
    results = {}
    for job in jobs:
        results[job] = outcome(job)
        file.write_text(json.dumps(results))
        if "error" in results[job]:
            return
