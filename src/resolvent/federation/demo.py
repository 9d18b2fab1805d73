"""A whole federation in one command: three nodes, TLS, keys, logistic regression with FedPi, and no process left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import resolvent as rs
from resolvent.federation import running, template
from resolvent.federation.up import Federation
from resolvent.runs import Folder

NODES = ("site-0", "site-1", "site-2")
ROWS, FEATURES, REG = (60, 80, 100), 4, 0.1

USER = """\
from resolvent.federation.demo import user


def problem(node_config):
    return user(node_config["number"])
"""


def rows(number: int) -> tuple[Any, Any]:
    """A node's rows: its features lie elsewhere than the others'."""
    rng = np.random.default_rng(number)
    X = rng.standard_normal((ROWS[number], FEATURES)) + 0.5 * number
    return X, np.where(X @ np.array([1.0, -1.0, 0.5, 0.2]) + rng.standard_normal(ROWS[number]) > 0, 1.0, -1.0)


def user(number: int) -> Any:
    """A node's problem."""
    X, y = rows(number)
    return rs.Logistic([X], [y], reg=REG)


def pooled() -> Any:
    """What the federation solves, as nobody in it could write it down: all nodes' data together."""
    X, y = zip(*(rows(number) for number in range(len(NODES))), strict=True)
    return rs.Logistic(list(X), list(y), reg=REG)


def gap_of(model: torch.Tensor) -> float:
    """f(w) - f* on the pooled data."""
    return float(pooled().gap(model.reshape(1, -1))[0])


def demo(rounds: int, out: Path, say: Callable[[str], None]) -> tuple[Folder, float]:
    """Run it: the folder of the run under `out`, and the gap of its model."""
    folder = Path(tempfile.mkdtemp(prefix="federation-"))
    try:
        project = template.write(folder / "project", users=len(NODES))
        (project.path / "user.py").write_text(USER)
        template.fix(project, eta=0.25, rounds=rounds)
        say(f"three nodes, a server, TLS and keys in {project.path}")
        with Federation(project, NODES) as federation:
            say(f"the server listens at 127.0.0.1:{federation.server.port}; {len(NODES)} nodes are up")
            run = running.begin(project, out)
            seen = Progress(say)
            try:
                done = run.wait(seen, federation.check)
            except BaseException:
                run.stop()
                raise
            seen(done)
        model = done.model()
        assert model is not None
        return done, gap_of(model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


SAID = {
    "resumed": "goes on from round {next}",
    "units": "note: {reason}",
    "gone": "{user} is gone; its last answer is held",
    "back": "{user} is back",
    "refused": "an answer of {user} was refused: {reason}",
    "implausible": "an answer of {user} was withheld: {reason}",
    "left_out": "{user} is left out: {reason}",
}
"""The events of a run that are said while it lasts."""


class Progress:
    """Says how far a run has come, and what has happened to whom."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._round, self._seconds, self._events = say, 0, 0.0, 0

    def __call__(self, run: Folder) -> None:
        events, history = run.events, run.history()
        resumed = [k for k, event in enumerate(events) if event["kind"] == "resumed"]
        seen = self._events or max(resumed, default=0)  # what was done before is not said again
        self._events = len(events)
        for event in events[seen:]:
            if event["kind"] == "resumed" and event.get("round"):
                self._round = event["round"]
                self._seconds = float(history["seconds"][history["round"] <= self._round].max())
            if event["kind"] in SAID:
                about = {"user": "a node", "reason": "see the events", "next": self._round + 1} | event
                self._say(SAID[event["kind"]].format_map(about))
        for _, row in history[history["round"] > self._round].iterrows():
            self._round, before = int(row["round"]), self._seconds
            self._seconds = float(row["seconds"])
            took, value = f"{self._seconds - before:.1f} s", f"{row['value']:.9g}"
            known = "unknown" if value == "nan" else value  # not everybody has reported it
            self._say(f"round {self._round}: {int(row['participants'])} answers, f {known}, {took}")
