"""Recorders of a federation's run: rows that wait one round for their values; private rounds, whose releases count."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resolvent.engines.flower.engine import FlowerEngine
from resolvent.errors import InputError
from resolvent.iteration.metric_names import with_average
from resolvent.iteration.private_mean import Spent
from resolvent.iteration.state import State
from resolvent.runs import durable, events
from resolvent.runs.folder import Folder
from resolvent.runs.recorder import Recorder
from resolvent.solving.objective import Objective
from resolvent.solving.recording import Entry
from resolvent.solving.stopping import Ending

if TYPE_CHECKING:
    import pandas as pd

MEDIAN = "median of the users' values"
RISEN = {"value": 1e-6, "stationarity": 10.0, MEDIAN: 1.0}
"""Times its first size by which a number must have risen for it to be said when a run ends. Of three users, one can
report a value that hides any rise of their mean, and none of the median."""


class OneBehind:
    """Gives every round to a recorder one round later, when the values of its model are known.

    So a run that is killed goes on from one round earlier: nodes find what they remembered then.
    """

    def __init__(self, recorder: Recorder, engine: FlowerEngine) -> None:
        self._recorder, self._engine, self._objective = recorder, engine, Objective(engine, engine.facts)
        self.remembered, self.best, self.kept = recorder.remembered, recorder.best, recorder.kept
        self.state, self.done, self.ending = recorder.state, recorder.done, recorder.ending
        self.flush = recorder.flush
        self._waiting: Entry | None = None
        self._first = dict.fromkeys(RISEN, math.nan)
        self.remarks: list[str] = []
        """What must be said of the end of the run, beside what the loop says: here values are known one round later."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self._recorder.columns

    def __call__(self, entry: Entry) -> None:
        self._pass_on(None)
        self._waiting, self.state = entry, entry.state
        yardstick = entry.state.yardstick  # it has the model before the first round
        if yardstick is not None and math.isnan(self._first["value"]):
            self._first["value"] = float(self._objective.measure(yardstick.origin)["value"][0])
            self._first[MEDIAN] = self._engine.evaluation.middle(yardstick.origin)
        if entry.ending is not None:
            self._engine.settle()
            self._pass_on(entry.ending)

    def give_up(self, entry: Entry) -> None:
        self._pass_on(None)
        self.state = entry.state
        self._recorder.give_up(entry)

    def _pass_on(self, ending: Ending | None) -> None:
        if self._waiting is None:
            return
        entry, self._waiting = self._waiting, None
        row = entry.row and self._complete(entry.state, entry.row)
        if row and math.isnan(self._first["stationarity"]):
            self._first["stationarity"] = row.get("stationarity", math.nan)
        if row and ending is not None:
            last = row | {MEDIAN: self._engine.evaluation.middle(entry.state.w)}
            rises = [(name, first, last.get(name, math.nan)) for name, first in self._first.items()]
            said = {n: f"the {n} rose from {a:.3g} to {b:.3g}" for n, a, b in rises if b - a > RISEN[n] * abs(a)}
            self.remarks = [words for n, words in said.items() if n != MEDIAN or "value" not in said]
        users = None if ending is None else self._users(entry.state)
        self._recorder(entry._replace(row=row, ending=ending, users=users))

    def _users(self, state: State) -> pd.DataFrame | None:
        """Each user's own metrics of the last model."""
        import pandas as pd

        own = self._engine.evaluation.of_users(state.reported)
        return None if own is None else pd.DataFrame(own, index=list(self._engine.facts.names))

    def _complete(self, state: State, row: dict[str, Any]) -> dict[str, Any]:
        """The row with what users have said of its models by now."""
        measured = self._objective.measure(state.w)
        if (average := state.parts.average) is not None:
            measured = with_average(measured, self._objective.measure(average.model))
        return row | {name: float(values[0]) for name, values in measured.items() if name in row}


RELEASED = "released.jsonl"
"""One line per noisy mean, with all that was spent by then; only ever added to."""


class Counted:
    """Stores the rounds of a private run, and what each has spent, before anybody is told of it.

    Noise of a federation is new whenever a round is done again. So where the newest checkpoint is damaged, the run goes
    on from an older one, but with all that was spent.
    """

    def __init__(self, recorder: Recorder, folder: Folder) -> None:
        self._recorder, self._path = recorder, folder.path / RELEASED
        self.remembered, self.best, self.kept = recorder.remembered, recorder.best, recorder.kept
        self.state, self.done, self.ending = recorder.state, recorder.done, recorder.ending
        self.flush = recorder.flush
        told = events.read(self._path)[0]
        spent = (
            tuple((float(noise), float(rate), int(rounds)) for noise, rate, rounds in told[-1]["spent"]) if told else ()
        )
        released = sum(rounds for _, _, rounds in spent)
        if released and self.state is None:
            raise InputError(
                f"run {folder.id} has released {released} noisy means, but has no sound checkpoint to go on from; "
                "epsilon of a new run adds to its own"
            )
        if self.state is not None and released > _spent(self.state).rounds:
            again = released - _spent(self.state).rounds
            folder.note("recounted", reason=f"{again} rounds are done again, and their first releases count as well")
            memory = replace(_spent(self.state), stretches=spent, epsilon=math.nan)  # so that noise is found anew
            self.state = replace(self.state, parts=replace(self.state.parts, meet=memory))

    @property
    def columns(self) -> tuple[str, ...]:
        return self._recorder.columns

    def __call__(self, entry: Entry) -> None:
        self._recorder(entry)
        durable.append(self._path, events.line("released", round=entry.number, spent=_spent(entry.state).stretches))

    def give_up(self, entry: Entry) -> None:
        self._recorder.give_up(entry)


def _spent(state: State) -> Spent:
    memory: Spent = state.parts.meet
    return memory
