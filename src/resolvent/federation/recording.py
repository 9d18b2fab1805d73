"""Rows that wait for the values of their models, which ride on the next question."""

from __future__ import annotations

import math
from typing import Any

from resolvent.engines.flower.engine import FlowerEngine
from resolvent.iteration.state import State
from resolvent.runs.recorder import Recorder
from resolvent.solving.history_columns import with_average
from resolvent.solving.objective import Objective
from resolvent.solving.recording import Entry, MonitorState
from resolvent.solving.stopping import Best, Ending

RISEN = {"value": 1e-6, "stationarity": 10.0}
"""Times its first size by which a column must have risen for it to be said when a run ends."""


class OneBehind:
    """Gives every round to a recorder one round later, when the values of its model are known.

    So a run that is killed goes on from one round earlier: nodes find what they remembered then.
    """

    def __init__(self, recorder: Recorder, engine: FlowerEngine) -> None:
        self._recorder, self._engine, self._objective = recorder, engine, Objective(engine, engine.facts)
        self._held: Entry | None = None
        self._first = dict.fromkeys(RISEN, math.nan)
        self.remarks: list[str] = []
        """What must be said of the end of the run, beside what the loop says: here values are known one round later."""

    @property
    def remembered(self) -> MonitorState:
        return self._recorder.remembered

    @property
    def best(self) -> State | None:
        return self._recorder.best

    @property
    def kept(self) -> Best | None:
        return self._recorder.kept

    @property
    def columns(self) -> tuple[str, ...]:
        return self._recorder.columns

    def __call__(self, entry: Entry) -> None:
        self._pass_on(None)
        self._held = entry
        yardstick = entry.state.yardstick  # it has the model before the first round
        if yardstick is not None and math.isnan(self._first["value"]):
            self._first["value"] = float(self._objective.measure(yardstick.origin)["value"][0])
        if entry.ending is not None:
            self._engine.settle()
            self._pass_on(entry.ending)

    def give_up(self, entry: Entry) -> None:
        self._pass_on(None)
        self._recorder.give_up(entry)

    def _pass_on(self, ending: Ending | None) -> None:
        if self._held is None:
            return
        held, self._held = self._held, None
        row = held.row and self._complete(held.state, held.row)
        if row and math.isnan(self._first["stationarity"]):
            self._first["stationarity"] = row.get("stationarity", math.nan)
        if row and ending is not None:
            rises = [(name, first, row.get(name, math.nan)) for name, first in self._first.items()]
            self.remarks = [f"the {n} rose from {a:.3g} to {b:.3g}" for n, a, b in rises if b - a > RISEN[n] * abs(a)]
        self._recorder(held._replace(row=row, ending=ending))

    def _complete(self, state: State, row: dict[str, Any]) -> dict[str, Any]:
        """The row with what users have said of its models by now."""
        known = self._objective.measure(state.w)
        if (average := state.parts.average) is not None:
            known = with_average(known, self._objective.measure(average.model))
        return row | {name: float(values[0]) for name, values in known.items() if name in row}
