"""What a monitor tells whoever stores a run, and what is remembered of it between two processes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from resolvent.iteration.rounds import Round
from resolvent.iteration.state import State
from resolvent.solving.stopping import Best, Ending


class MonitorState(NamedTuple):
    """What the monitor of a run remembers beside its states: the seconds spent, the score of the best state, and how
    many evaluations in a row were not better than the best one."""

    seconds: float = 0.0
    value: float = math.nan
    residual: float = math.nan
    waited: int = 0


class Recorder(Protocol):
    """Takes every round before the next one begins, so that a run can outlive its process."""

    @property
    def remembered(self) -> MonitorState:
        """What was remembered when the run was left."""
        ...

    @property
    def best(self) -> State | None:
        """The best state when the run was left."""
        ...

    @property
    def kept(self) -> Best | None:
        """The best model by a metric when the run was left."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the rows that are stored; none where there are no rows yet."""
        ...

    def __call__(
        self,
        happened: Round,
        row: dict[str, Any] | None,
        remembered: MonitorState,
        ending: Ending | None,
        best: State | None,
        kept: Best | None,
    ) -> None:
        """A round, its row where it has one, the ending where it is the last, the best state if another is, and the
        best model by a metric."""
        ...

    def give_up(
        self, row: dict[str, Any] | None, best: State, remembered: MonitorState, ending: Ending, kept: Best | None
    ) -> None:
        """The run has diverged: the best state is what remains of it, and this row the last one."""
        ...
