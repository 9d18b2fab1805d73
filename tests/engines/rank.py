"""One rank of a group: runs the jobs that it is told to, and writes what came of each into a file.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python rank.py FOLDER JOB ...

Importing torch takes seconds, so many jobs share the processes. A job that fails has a sentence as its result.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

RANK = int(os.environ["RANK"])


def outcome(job: str) -> Any:
    """What a job returns, or what it raises."""
    from engines import rank_jobs

    name, _, given = job.partition(":")
    try:
        return {"ok": getattr(rank_jobs, name)(*([given] if given else []))}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def main() -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder, *jobs = sys.argv[1:]
    results = {}
    for job in jobs:
        results[job] = outcome(job)
        (Path(folder) / f"{RANK}.json").write_text(json.dumps(results))
        if "error" in results[job]:  # the ranks may no longer be at the same place
            return


if __name__ == "__main__":
    main()
