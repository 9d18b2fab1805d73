"""What a monitor tells whoever stores a run, and what is remembered of it between two processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from resolvent.errors import file_path, quoted, refuse
from resolvent.iteration.engine import Traffic
from resolvent.iteration.state import State
from resolvent.solving.stopping import Best, Ending

if TYPE_CHECKING:
    import pandas as pd


Log = Callable[[dict[str, Any]], Any]
"""Is given every row of the history as it comes."""


def as_log(given: Any) -> Log | None:
    """A function of rows; of a folder, one that writes TensorBoard's events there."""
    if given is None or callable(given):
        return given  # type: ignore[no-any-return]
    if not isinstance(given, str | Path):
        refuse("log", quoted(given), "a folder for TensorBoard, or a function of a row, is needed")
    return resolve_name("resolvent.runs.open_run:tensorboard_sink")(file_path(given, "log"))  # type: ignore[no-any-return]


class MonitorState(NamedTuple):
    """What the monitor of a run remembers beside its states: the seconds spent, the score of the best state, how many
    evaluations in a row were not better than the best one, and the bytes of rounds since the last row."""

    seconds: float = 0.0
    value: float = math.nan
    residual: float = math.nan
    waited: int = 0
    up: int = 0
    down: int = 0

    @property
    def unreported(self) -> Traffic:
        """Bytes that no row has yet."""
        return Traffic(self.up, self.down)


class Continued(NamedTuple):
    """What a run goes on with after its first part, where nobody stores it."""

    remembered: MonitorState
    kept: Best | None
    columns: tuple[str, ...]
    best: State | None = None


class Entry(NamedTuple):
    """A state as it is recorded: its row where it has one, the ending where it is the last, the best state where that
    is another, the best model by a metric, and at the end each user's metrics on held-out data."""

    state: State
    row: dict[str, Any] | None
    remembered: MonitorState
    ending: Ending | None = None
    best: State | None = None
    kept: Best | None = None
    users: pd.DataFrame | None = None

    @property
    def number(self) -> int:
        """Of the round: 1, 2, ..."""
        return self.state.round


class Recorder(Protocol):
    """Takes every round before the next one begins, so that a run can outlive its process."""

    @property
    def remembered(self) -> MonitorState:
        """What was remembered when the run was left."""

    @property
    def best(self) -> State | None:
        """The best state when the run was left."""

    @property
    def kept(self) -> Best | None:
        """The best model by a metric when the run was left."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows that are stored; none where there are no rows yet."""

    def __call__(self, entry: Entry) -> None:
        """A round."""

    def give_up(self, entry: Entry) -> None:
        """The run has diverged: this state, the best one, is what remains of it, and this row is the last one."""
