"""The monitor of a run, outside the loop: what is recorded, when the run stops, and what is handed back at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from resolvent.errors import BlewUp, InputError
from resolvent.iteration.checkpoint import moved, pack
from resolvent.iteration.facts import ALONE
from resolvent.iteration.metric_names import LAST
from resolvent.iteration.rounds import Round
from resolvent.iteration.state import State
from resolvent.solving.divergence import Divergence, Score
from resolvent.solving.evaluating import Evaluations
from resolvent.solving.history import History
from resolvent.solving.history_columns import of_reported
from resolvent.solving.objective import Objective
from resolvent.solving.patience import patience
from resolvent.solving.recording import Continued, Entry, MonitorState, Recorder
from resolvent.solving.stopping import Best, Ending, Stop

CHECK = 10
"""Rounds between two checks for divergence, where nobody records every round."""
PLAIN = ("round", "eta", "residual", "consensus", "stationarity", *LAST)
"""Columns that are no metrics of a model."""
ROOM = 1 << 24
"""Bytes of states that may wait until their values are known."""


class Monitor:
    """Sees every round: records it, notices divergence, and knows the `state` to hand back."""

    def __init__(
        self,
        objective: Objective,
        scheme: str,
        every: int,
        average: bool,
        stop: Stop | Callable[[Round], bool] | None,
        recorder: Recorder | Continued | None,
        begun: State,
        evaluations: Evaluations,
        validate_every: int | None = None,
    ) -> None:
        engine = objective.engine
        remembered = MonitorState() if recorder is None else recorder.remembered
        best = None if recorder is None or recorder.best is None else moved(recorder.best, engine.facts.device)
        score = None if math.isnan(remembered.value) else Score(remembered.value, remembered.residual)
        self.history = History(objective, average, evaluations, remembered.unreported)
        self._divergence = Divergence(objective, scheme, begun, best, score)
        self._every, self._stop, self._peers = every, stop, engine.facts.peers
        self._recorder = None if isinstance(recorder, Continued) else recorder
        self._validate_every = every if validate_every is None else validate_every
        self._seconds, self._last = remembered.seconds, begun
        self._known = recorder is not None and bool(recorder.columns)
        self._recorded = False
        self._figures: tuple[int, dict[str, float]] | None = None
        left = None if recorder is None else recorder.kept
        self._patience = patience(stop, left, remembered.waited, engine.facts.device)
        self._earlier = 0 if recorder is not None else begun.round
        self._moved: Round | None = None
        self._waiting: list[State] = []
        self._room = 0
        self.remarks: tuple[str, ...] = ()
        """What must be said of the end of a run that did not diverge."""

    @property
    def kept(self) -> Best | None:
        """The best model by the metric of `stop`."""
        return None if self._patience is None else self._patience.best

    @property
    def state(self) -> State:
        """The last state, or the best one of a run that diverged, with what the run is judged against."""
        return replace(self._last, yardstick=self._divergence.yardstick)

    def marked(self, happened: Round) -> Round:
        """A round whose state says what the run is judged against, and whose metrics are those of the run."""
        state = replace(happened.state, yardstick=self._divergence.yardstick)
        return happened._replace(state=state, look=self._metrics)

    def _metrics(self, happened: Round) -> dict[str, float]:
        """A round's figures: from its row where it has one, else computed, once."""
        if self._recorded and self.history.evaluated and self._last.round == happened.number:
            row = self.history.row()
            return {name: row[name] for name in row if name not in PLAIN}
        if self._figures is None or self._figures[0] != happened.number:
            found = self.history.figures(happened.state)
            if "value" not in found:
                measured = self.history.measured(happened.state.w, happened.state.reported)
                found = {name: float(values[0]) for name, values in measured.items()} | found
            self._figures = happened.number, found
        return dict(self._figures[1])

    def words(self) -> str:
        """What a progress bar says."""
        return f"residual {self._divergence.residual:.2e}"

    def observe(self, happened: Round, seconds: float, last: bool) -> Ending | None:
        """What ends the run with this round, if anything does; `seconds` is what it took."""
        self._seconds += seconds
        self.history.bytes.count(happened)
        self._last, number = happened.state, happened.number
        due = last or self._regular(number)
        recorded = due or number % self._every == 0
        noted = recorded or (isinstance(self._stop, Stop) and self._stop.limits)
        if noted:
            due, self._known = due or (recorded and not self._known), self._known or recorded
            self._record(happened, due)
        elif number & (number - 1) == 0:  # seldom recorded: some states must be known, should the run diverge
            self._divergence.measure(happened)
        how, ending = self._decided(happened, last, noted, due)
        ended = how is not None or ending is not None
        if ended:
            self._complete(happened, noted)
        row = self.history.row() if ended or (recorded and self._recorder is not None) else None
        if self.history.settled:
            self._consider()
        self._recorded = recorded or ended
        if noted and not self._recorded:
            self.history.forget()
        return self._told(happened, row, how, ending)

    def stop(self, happened: Round, reason: str) -> Ending:
        """End the run with the round that was observed last."""
        if self._peers is not ALONE:
            raise InputError(
                "the callback has ended the run on this rank alone; say so by stop=, on which all ranks agree"
            )
        new = not self._recorded
        self._complete(happened, self._recorded)
        row = self.history.row()
        self._consider()
        ending = self._told(happened, row, None, Ending("stopped", reason), new)
        assert ending is not None
        return ending

    def blew_up(self, error: BlewUp) -> Ending:
        """What is said when a user's answer was not finite."""
        self._consider()
        ending = self._diverged(self._last.round + 1, str(error))
        if self._recorder is not None:
            self._recorder.give_up(Entry(self.state, None, self.remembered, ending, kept=self.kept))
        return ending

    # --- what it consists of -----------------------------------------------------------------------------------------

    def _complete(self, happened: Round, noted: bool) -> None:
        """The row of the last round is seen, and has metrics, whatever the cadence."""
        if not noted:
            self._record(happened)
        elif not self.history.evaluated:
            self.history.evaluate(happened)
        else:
            return
        self._improves(happened)

    def _told(
        self, happened: Round, row: dict[str, Any] | None, how: str | None, ending: Ending | None, new: bool = True
    ) -> Ending | None:
        """How the run ends, if it does, once the recorder has been told; `new`: the row has not been told before."""
        if ending is not None and row is not None:
            how, ending = self._close(happened, row, ending)
        if how is not None:
            ending = self._diverged(happened.number, how)
        if self._recorder is not None:
            self._tell(self._recorder, happened, row if new else None, ending)
        return ending

    def _record(self, happened: Round, evaluate: bool = True) -> None:
        """A row of the history; the state waits until its value is known."""
        self.history.record(happened, self._seconds, evaluate)
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
        self.history.thin()

    def _diverges(self, happened: Round, last: bool) -> str | None:
        """In what way the run has diverged, if it has. Where nobody came, the last round that moved is looked at."""
        came = happened.step is not None
        if came:
            self._moved = happened
        often = last or happened.number % CHECK == 0 or self._recorder is not None
        if self._moved is None or not (often or (came and self._divergence.yardstick.open)):
            return None
        return self._divergence.check(self._moved, happened.participants)

    def _decided(self, happened: Round, last: bool, noted: bool, due: bool) -> tuple[str | None, Ending | None]:
        """How this round shows that the run has diverged, or what ends the run with it: all who run the loop agree."""
        how = self._diverges(happened, last)
        ending = self._ends(happened, last, noted, due) if how is None else None
        agreed = self._peers.agree(None if how is None and ending is None else (how, ending))
        if agreed is None:
            return None, None
        how, ending = agreed
        return how, None if ending is None else Ending(*ending)

    def _ends(self, happened: Round, last: bool, noted: bool, due: bool) -> Ending | None:
        reason = None
        if isinstance(self._stop, Stop):
            if due:
                reason = self._improves(happened, due=not last or self._regular(happened.number))
            if noted and self._stop.limits:
                reason = self._stop.reason(of_reported(self.history.row())) or reason
        elif self._stop is not None and self._stop(happened):
            reason = "as the function `stop` said"
        if reason is not None:
            return Ending("stopped", reason)
        return Ending("finished", f"{happened.number - self._earlier} rounds") if last else None

    def _regular(self, number: int) -> bool:
        """Whether the metrics of this round are computed even if it is not the last one."""
        return number % self._validate_every == 0

    def _improves(self, happened: Round, due: bool = True) -> str | None:
        """Why the run stops with its last row, where that is not better than the best one for long enough."""
        if self._patience is None:
            return None
        return self._patience.compare(of_reported(self.history.row()), happened, due)

    def _close(self, happened: Round, row: dict[str, Any], ending: Ending) -> tuple[str | None, Ending]:
        """A ending with what must be said of the end; or how the end shows that the run has diverged after all."""
        value = of_reported(row)["value"]
        if self._divergence.overflowed(value):
            return f"the value rose from {self._divergence.first:.3g} to {value}", ending
        self.remarks = tuple(self._divergence.remarks(happened.state, value))
        return None, Ending(ending.status, "; ".join([ending.reason, *self.remarks]))

    def _diverged(self, number: int, how: str) -> Ending:
        self._last = self._divergence.best
        return Ending("diverged", self._divergence.describe(number, how))

    @property
    def remembered(self) -> MonitorState:
        waited = 0 if self._patience is None else self._patience.waited
        return MonitorState(self._seconds, *self._divergence.score, waited, *self.history.bytes.unreported)

    def _tell(self, recorder: Recorder, happened: Round, row: dict[str, Any] | None, ending: Ending | None) -> None:
        best, remembered = self._divergence.best, self.remembered
        if ending is not None and ending.status == "diverged":
            recorder.give_up(Entry(self.state, row, remembered, ending, kept=self.kept))
            return
        other = None if best is happened.state else best
        own = None if ending is None else self.history.user_frame()
        recorder(Entry(self.marked(happened).state, row, remembered, ending, other, self.kept, own))


def _bytes(state: State) -> int:
    """About how much memory a state takes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pack(state)[0].values())
