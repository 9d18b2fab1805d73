"""What a run's model costs each user: f_i at the model of the last checkpoint, where the problem is made by a seed."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from resolvent import config as configs
from resolvent.config import sections
from resolvent.experiment.tasks import task
from resolvent.runs import Folder
from resolvent.runs.folder import model_of
from resolvent.ui.curves import plain

LARGEST = 20_000_000
"""Numbers in the data of a problem that is made again for this, at most."""
ONE_AT_A_TIME = threading.Lock()


def losses(run: Folder) -> dict[str, Any]:
    """The loss of each user at the model, or why it is not known. Files are not read for it, and no code is called."""
    section = configs.read(run.config).problem
    if not isinstance(section, sections.LeastSquaresSection | sections.LogisticSection):
        return {"losses": [], "round": 0, "words": "Known for problems that are made by a seed."}
    if section.users * section.rows * section.dim > LARGEST:
        return {"losses": [], "round": 0, "words": "The data of this problem are too large to be made again for it."}
    held, _ = run.newest()
    if held is None:
        return {"losses": [], "round": 0, "words": "Known after the first checkpoint."}
    with ONE_AT_A_TIME:
        problem = _problem(section, int(run.config["run"]["seed"]))
        values = problem.value(model_of(held.state).unsqueeze(0))
    return {"losses": plain(values.numpy()), "round": held.round, "words": ""}


@lru_cache(maxsize=2)
def _problem(section: Any, seed: int) -> Any:
    return task(section, seed).problem
