"""How a run's model serves each user: a metric on rows held out, else f_i where a seed makes the problem."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from resolvent import config as configs
from resolvent.config import problem_sections
from resolvent.experiment.tasks import task
from resolvent.runs import Folder, metrics
from resolvent.runs.folder import model_of
from resolvent.ui.curves import plain

MAX_NUMBERS = 20_000_000
"""Numbers in the data of a problem that is made again for this, at most."""
SHOWN = ("log_loss", "rmse", "loss", "accuracy", "auc")
"""Which metric is shown where a run has several: the first of these that it has."""
ONE_AT_A_TIME = threading.Lock()


def losses(run: Folder) -> dict[str, Any]:
    """What is known of each user, or why nothing is. Nothing outside of the run is read, and no code is called."""
    return _held_out(run) or _made_again(run)


def _held_out(run: Folder) -> dict[str, Any] | None:
    """By the metrics that a run stores of each user when it ends; None where there are none."""
    try:
        table = None if (run.path / metrics.USERS).is_symlink() else metrics.read_users(run.path)
    except (LookupError, ValueError):
        return None  # damaged, as the page says elsewhere
    if table is None or run.end is None or not len(table.columns):
        return None
    name = next((column for best in SHOWN for column in table.columns if column.endswith(best)), table.columns[0])
    return _row(plain(table[name].to_numpy()), list(map(str, table.index)), run.end["round"], name.replace("_", " "))


def _made_again(run: Folder) -> dict[str, Any]:
    section = None if run.from_python else configs.read(run.config).problem
    if not isinstance(section, problem_sections.LeastSquaresSection | problem_sections.LogisticSection):
        return _unknown(
            "Known for problems that are made by a seed, and at the end of runs with held-out rows (--test)."
        )
    if section.users * section.rows * section.dim > MAX_NUMBERS:
        return _unknown("The data of this problem are too large to be made again for it.")
    checkpoint, _ = run.newest()
    if checkpoint is None:
        return _unknown("Known after the first checkpoint.")
    with ONE_AT_A_TIME:
        problem = _problem(section, int(run.config["run"]["seed"]))
        values = problem.value(model_of(checkpoint.state).unsqueeze(0))
    return _row(plain(values.numpy()), list(map(str, range(problem.users))), checkpoint.round, "f_i")


def _row(values: list[Any], names: list[str], number: int, what: str) -> dict[str, Any]:
    return {"losses": values, "names": names, "round": number, "what": what, "words": ""}


def _unknown(reason: str) -> dict[str, Any]:
    return _row([], [], 0, "") | {"words": reason}


@lru_cache(maxsize=2)
def _problem(section: Any, seed: int) -> Any:
    return task(section, seed).problem
