"""What a page shows of users: who took part in the last rounds, and how the model serves each of them."""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent import config as configs
from resolvent.config import problem_sections
from resolvent.experiment.tasks import task
from resolvent.iteration.participation import Participation, Stragglers
from resolvent.runs import Folder, metrics
from resolvent.runs.folder import model_of
from resolvent.ui.curves import plain

ABSENT, CAME, LATE, AT_WORK = 0, 1, 2, 3
MAX_USERS, MAX_ROUNDS = 60, 400
"""How many of them are shown, at most."""
MAX_SIMULATED = 20_000
"""Rounds of stragglers that are simulated, at most: each depends on those before."""
SIMULATED = ("in-process", "debug")
"""Engines whose users come as the configuration says."""
MAX_NUMBERS = 20_000_000
"""Numbers in the data of a problem that is made again for this, or users times rounds, at most."""
SHOWN = ("log_loss", "rmse", "loss", "accuracy", "auc")
"""Which metric is shown where a run has several: the first of these that it has."""
ONE_AT_A_TIME = threading.Lock()


def presence(run: Folder, rounds: int) -> dict[str, Any]:
    """The last rounds of a run: one string per user, one digit per round (0 absent, 1 came, 2 late, 3 at work)."""
    users = int(run.about["problem"]["users"])
    first = max(0, rounds - MAX_ROUNDS)
    shown = {"users": users, "first": first + 1, "rounds": rounds, "who": []}
    if run.from_python or _private(run):
        return shown | {"kind": "unknown"}
    config = configs.read(run.config)
    taking_part = config.participation
    if taking_part.full or not rounds:
        return shown | {"kind": "everyone"}
    simulated = rounds if isinstance(taking_part, Stragglers) else rounds - first
    if config.run.engine not in SIMULATED or simulated > MAX_SIMULATED or simulated * users > MAX_NUMBERS:
        return shown | {"kind": "unknown"}
    table = states(taking_part, config.run.seed, users, first, rounds)
    kind = "stragglers" if isinstance(taking_part, Stragglers) else "drawn"
    return shown | {"kind": kind, "who": ["".join(map(str, row)) for row in table[:MAX_USERS].tolist()]}


def states(taking_part: Participation, seed: int, users: int, first: int, last: int) -> NDArray[np.int8]:
    """What each user did in rounds first, ..., last - 1, counted from 0: (users, rounds)."""
    if isinstance(taking_part, Stragglers):
        return _delayed(taking_part, seed, users, last)[:, first:]
    table = np.zeros((users, last - first), dtype=np.int8)
    for t in range(first, last):
        who = taking_part.present(seed, t, users)
        table[slice(None) if who is None else who.numpy(), t - first] = CAME
    return table


def _delayed(stragglers: Stragglers, seed: int, users: int, rounds: int) -> NDArray[np.int8]:
    """As the engine with delays counts: a question starts everyone who is idle, a round closes after a share."""
    table = np.zeros((users, rounds), dtype=np.int8)
    due, asked, clock = np.full(users, math.inf), np.zeros(users, dtype=int), 0.0
    closing = max(math.ceil(stragglers.close * users), 1) - 1
    for t in range(rounds):
        idle = np.isinf(due)
        due[idle] = clock + stragglers.seconds(seed, t, users)[idle]
        asked[idle] = t
        clock = np.sort(due)[closing]
        answered = due <= clock
        table[:, t] = np.where(answered, np.where(asked == t, CAME, LATE), AT_WORK)
        due[answered] = math.inf
    return table


def losses(run: Folder) -> dict[str, Any]:
    """What is known of each user, or why nothing is. Nothing outside of the run is read, and no code is called."""
    if _private(run):
        return _unknown("A private run tells nothing of single users.")
    return _held_out(run) or _made_again(run)


def _private(run: Folder) -> bool:
    return bool(run.config.get("privacy", {}).get("kind", "none") != "none")


def _held_out(run: Folder) -> dict[str, Any] | None:
    """By the metrics that a run stores of each user when it ends; None where there are none."""
    try:
        table = metrics.read_users(run.path)
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
