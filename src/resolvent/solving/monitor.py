"""The monitor of a run, outside the loop: what is recorded, when the run stops, and what is handed back at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from resolvent.errors import BlewUp
from resolvent.iteration.checkpoint import moved, pack
from resolvent.iteration.engine import Engine, peers
from resolvent.iteration.rounds import Round
from resolvent.iteration.state import State
from resolvent.solving.divergence import Divergence, Score
from resolvent.solving.history import History
from resolvent.solving.stopping import Ending, Stop

CHECK = 10
"""Rounds between two checks for divergence, where nobody records every round."""
ROOM = 1 << 24
"""Bytes of states that may wait until their values are known."""


class MonitorState(NamedTuple):
    """What the monitor of a run remembers beside its states: the seconds spent, and the score of the best state."""

    seconds: float = 0.0
    value: float = math.nan
    residual: float = math.nan


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

    def __call__(
        self,
        happened: Round,
        row: dict[str, Any] | None,
        remembered: MonitorState,
        ending: Ending | None,
        best: State | None,
    ) -> None:
        """A round, its row where it has one, the ending where it is the last, and the best state if another is."""
        ...

    def give_up(self, row: dict[str, Any] | None, best: State, remembered: MonitorState, ending: Ending) -> None:
        """The run has diverged: the best state is what remains of it, and this row the last one."""
        ...


class Monitor:
    """Sees every round: records it, notices divergence, and knows the `state` to hand back."""

    def __init__(
        self,
        engine: Engine,
        scheme: str,
        every: int,
        average: bool,
        stop: Stop | Callable[[Round], bool] | None,
        recorder: Recorder | None,
        begun: State,
    ) -> None:
        remembered = MonitorState() if recorder is None else recorder.remembered
        best = None if recorder is None or recorder.best is None else moved(recorder.best, engine.facts.device)
        score = None if math.isnan(remembered.value) else Score(remembered.value, remembered.residual)
        self.history = History(engine, average)
        self._divergence = Divergence(engine, scheme, begun, best, score)
        self._every, self._stop, self._recorder, self._agree = every, stop, recorder, peers(engine).agree
        self._seconds, self._last = remembered.seconds, begun
        self._earlier = 0 if recorder is not None else begun.round
        self._moved: Round | None = None
        self._waiting: list[State] = []
        self._room = 0
        self.remarks: tuple[str, ...] = ()
        """What must be said of the end of a run that did not diverge."""

    @property
    def state(self) -> State:
        """The last state, or the best one of a run that diverged, with what the run is judged against."""
        return replace(self._last, yardstick=self._divergence.yardstick)

    def marked(self, happened: Round) -> Round:
        """A round whose state says what the run is judged against."""
        return happened._replace(state=replace(happened.state, yardstick=self._divergence.yardstick))

    def words(self) -> str:
        """What a progress bar says."""
        return f"residual {self._divergence.residual:.2e}"

    def observe(self, happened: Round, seconds: float, last: bool) -> Ending | None:
        """What ends the run with this round, if anything does; `seconds` is what it took."""
        self._seconds += seconds
        self._last, number = happened.state, happened.number
        recorded = last or number % self._every == 0
        noted = recorded or isinstance(self._stop, Stop)
        if noted:
            self._record(happened)
        elif number & (number - 1) == 0:  # seldom recorded: some states must be known, should the run diverge
            self._divergence.measure(happened)
        how, ending = self._decided(happened, last)
        ended = how is not None or ending is not None
        if ended and not noted:
            self._record(happened)  # to be seen, whatever the cadence
        row = self.history.row() if ended or (recorded and self._recorder is not None) else None
        if self.history.settled:
            self._consider()
        if noted and not (recorded or ended):
            self.history.forget()
        if ending is not None and row is not None:
            how, ending = self._close(happened, row, ending)
        if how is not None:
            ending = self._diverged(number, how)
        if self._recorder is not None:
            self._tell(self._recorder, happened, row, ending)
        return ending

    def blew_up(self, error: BlewUp) -> Ending:
        """What is said when a user's answer was not finite."""
        self._consider()
        ending = self._diverged(self._last.round + 1, str(error))
        if self._recorder is not None:
            self._recorder.give_up(None, self.state, self._own, ending)
        return ending

    # --- what it consists of -----------------------------------------------------------------------------------------

    def _record(self, happened: Round) -> None:
        """A row of the history; the state waits until its value is known."""
        self.history.record(happened, self._seconds)
        self._waiting.append(happened.state)
        self._room = self._room or max(1, ROOM // _bytes(happened.state))
        if len(self._waiting) >= self._room:
            self.history.flush()

    def _consider(self) -> None:
        """Tell the monitor of the states that wait: of the best one where values are known, else of them all."""
        values, residuals = self.history.scores(len(self._waiting))
        rows: Iterable[int] = range(len(values))
        if values and math.isfinite(sum(values)):
            rows = (min(rows, key=values.__getitem__),)
        for k in rows:
            self._divergence.consider(self._waiting[k], values[k], residuals[k])
        self._waiting.clear()

    def _diverges(self, happened: Round, last: bool) -> str | None:
        """In what way the run has diverged, if it has. Where nobody came, the last round that moved is looked at."""
        came = happened.step is not None
        if came:
            self._moved = happened
        often = last or happened.number % CHECK == 0 or self._recorder is not None
        if self._moved is None or not (often or (came and self._divergence.yardstick.open)):
            return None
        return self._divergence.check(self._moved, happened.participants)

    def _decided(self, happened: Round, last: bool) -> tuple[str | None, Ending | None]:
        """How this round shows that the run has diverged, or what ends the run with it: all who run the loop agree."""
        how = self._diverges(happened, last)
        ending = self._ends(happened, last) if how is None else None
        agreed = self._agree(None if how is None and ending is None else (how, ending))
        if agreed is None:
            return None, None
        how, ending = agreed
        return how, None if ending is None else Ending(*ending)

    def _ends(self, happened: Round, last: bool) -> Ending | None:
        reason = None
        if isinstance(self._stop, Stop):
            reason = self._stop.reason(self.history.row())
        elif self._stop is not None and self._stop(happened):
            reason = "as the function `stop` said"
        if reason is not None:
            return Ending("stopped", reason)
        return Ending("finished", f"{happened.number - self._earlier} rounds") if last else None

    def _close(self, happened: Round, row: dict[str, Any], ending: Ending) -> tuple[str | None, Ending]:
        """A ending with what must be said of the end; or how the end shows that the run has diverged after all."""
        value = row.get("average_value", row["value"])
        if self._divergence.overflowed(value):
            return f"the value rose from {self._divergence.first:.3g} to {value}", ending
        self.remarks = tuple(self._divergence.remarks(happened.state, value))
        return None, Ending(ending.status, "; ".join([ending.reason, *self.remarks]))

    def _diverged(self, number: int, how: str) -> Ending:
        self._last = self._divergence.best
        return Ending("diverged", self._divergence.describe(number, how))

    @property
    def _own(self) -> MonitorState:
        return MonitorState(self._seconds, *self._divergence.score)

    def _tell(self, recorder: Recorder, happened: Round, row: dict[str, Any] | None, ending: Ending | None) -> None:
        best, remembered = self._divergence.best, self._own
        if ending is not None and ending.status == "diverged":
            recorder.give_up(row, self.state, remembered, ending)
            return
        other = None if best is happened.state else best
        recorder(self.marked(happened), row, remembered, ending, other)


def _bytes(state: State) -> int:
    """About how much memory a state takes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pack(state)[0].values())
