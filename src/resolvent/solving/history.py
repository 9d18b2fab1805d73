"""A run's history: one row per round, held as tensors until somebody reads it; many models are measured at a time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from resolvent.iteration.certificates import Certificates, Evidence, certificates
from resolvent.iteration.checkpoint import pack
from resolvent.iteration.engine import Look, Traffic
from resolvent.iteration.metric_names import AVERAGED, COUNTS, FIRST, LAST, checked, with_average
from resolvent.iteration.part import Cost
from resolvent.iteration.parts import Parts
from resolvent.iteration.round import Round
from resolvent.iteration.state import State
from resolvent.solving.evaluating import Evaluations
from resolvent.solving.objective import Bytes, Objective
from resolvent.solving.private import spent_by

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 64
"""Models measured together; fewer where they are large."""
BLOCK_BYTES = 1 << 24
MOST_ROWS = 1 << 17
"""Rows in memory; of a longer history every second, fourth, ... row is retained. On disk are all of them."""
MAX_WAITING_BYTES = 1 << 24
"""Of states that may wait until their values are known."""
PLAIN = ("round", "eta", "residual", "consensus", "stationarity", *LAST)
"""Columns that are no metrics of a model."""


class Columns(dict[str, "array[Any]"]):
    """Numbers by column, eight bytes each."""

    def __missing__(self, name: str) -> array[Any]:
        self[name] = column = array("q" if name in COUNTS else "d")
        return column


VALUES = Look(held_out=False)
OF_MODELS = (*AVERAGED, *AVERAGED.values())
"""Columns of every history that users may tell."""


class History:
    """Records rounds, column by column. Nothing is read back before a block is full, or `row` or `frame` asks."""

    def __init__(
        self,
        objective: Objective,
        averaging: bool,
        evaluations: Evaluations,
        cost: Cost,
        unreported: Traffic,
        curved: bool = False,
        private: Parts | None = None,
    ) -> None:
        """cost: numbers per user and round. unreported: bytes of rounds since the last row, where a run goes on.
        curved: whether there is a metric to tell of. private: the parts of a private run, which spends epsilon."""
        self._objective, engine = objective, objective.engine
        self._averaging, self._curved, self._private = averaging, curved, private
        self._evaluations = evaluations
        self._more = list(evaluations.columns)
        self.evaluated = False
        """Whether the last row has metrics on held-out data."""
        self._inspected = False
        self._columns = Columns()
        self._numbers = array("q")
        """Of each row: how many were recorded before it."""
        self._recorded, self._step = 0, 1
        self._waiting: list[tuple[Tensor, Tensor, Evidence | None]] = []
        self._states: list[State] = []
        """Those of the last rows, until their values are known."""
        self._most_states = 0
        self._last_metrics: tuple[int, dict[str, float]] | None = None
        self.bytes = Bytes(engine, cost, unreported)
        self._block = max(1, min(BLOCK, BLOCK_BYTES // (engine.facts.dim * engine.facts.dtype.itemsize)))

    def record(self, happened: Round, seconds: float, evaluate: bool = True) -> None:
        """Take note of a round; what is measured on held-out data is NaN unless it is to `evaluate`."""
        columns, users, state = self._columns, happened.participants, happened.state
        columns["round"].append(state.round)
        self._numbers.append(self._recorded)
        self._recorded += 1
        columns["eta"].append(happened.eta)
        columns["participants"].append(users)
        up, down = self.bytes.report()
        columns["bytes_up"].append(up)
        columns["bytes_down"].append(down)
        if self._curved:
            columns["metric"].append(0 if state.metric is None else state.metric.since + 1)
        if self._private is not None:
            columns["epsilon"].append(spent_by(state, self._private))
        if happened.clock is not None:
            columns["clock"].append(happened.clock)
        columns["seconds"].append(seconds)
        metrics = self.inspected(state, evaluate)
        self._inspected, self.evaluated = "value" in metrics, evaluate
        if metrics or self._more:
            for name in OF_MODELS:
                if name in metrics:
                    columns[name].append(metrics.pop(name))
            self._add(metrics, len(columns["round"]) - 1)
        self._waiting.append((state.w, state.reported, happened.evidence()))
        self._states.append(state)
        self._most_states = self._most_states or max(1, MAX_WAITING_BYTES // _bytes(state))
        if len(self._waiting) >= self._block or len(self._states) >= self._most_states:
            self.flush()

    def inspected(self, state: State, evaluate: bool = True) -> dict[str, float]:
        """What users say of the model that would be handed back, with metrics on held-out data. Of the round's own
        model, where that is another, the value and gap are there as well."""
        inspect, own = self._objective.inspect, (state.p, state.memory)
        metrics = inspect(state.reported, *own, self._evaluations.look(evaluate)) or {}
        if metrics:
            for name in metrics.keys() & set(AVERAGED.values()):
                checked(name)
            if self._averaging:
                last = metrics if state.parts.average is None else inspect(state.w, *own, VALUES)
                metrics = with_average(last or {}, metrics)
        return metrics | self._evaluations(state.reported) if evaluate else metrics

    def measured(self, models: Tensor, averages: Tensor) -> dict[str, Tensor]:
        """Figures of models (k, d), where users say no more than that of each, and of the averages beside them."""
        metrics = self._objective.measure(models)
        return with_average(metrics, self._objective.measure(averages)) if self._averaging else metrics

    def evaluate(self, happened: Round) -> None:
        """Fill in what is measured on held-out data in the last row."""
        metrics = self.inspected(happened.state)
        self._more += [checked(name) for name in metrics if name not in (*self._more, *OF_MODELS)]
        rows = len(self._columns["round"])
        for name in self._more:
            column = self._columns[name]
            column.extend([math.nan] * (rows - len(column)))
            column[-1] = metrics.get(name, column[-1])
        self.evaluated = True

    def _add(self, metrics: Mapping[str, float], before: int) -> None:
        """One more entry of every further column, NaN where there is nothing, also `before` it was first seen."""
        self._more += [checked(name) for name in metrics if name not in self._more]
        for name in self._more:
            column = self._columns[name]
            column.extend([math.nan] * (before - len(column)))
            column.append(metrics.get(name, math.nan))

    @property
    def settled(self) -> bool:
        """Whether every row is complete."""
        return not self._waiting

    def flush(self) -> None:
        """Complete every row."""
        if not self._waiting:
            return
        models, averages, evidence = zip(*self._waiting, strict=True)
        measured = {} if self._inspected else self.measured(torch.cat(models), torch.cat(averages))
        complete: dict[str, Any] = {name: values.tolist() for name, values in measured.items()}
        complete |= dict(zip(Certificates._fields, zip(*certificates(evidence), strict=True), strict=True))
        first = len(self._columns["round"]) - len(self._waiting)
        for name, values in complete.items():
            if name not in self._columns and name not in FIRST:
                checked(name)
            column = self._columns[name]
            column[first:] = array(column.typecode, values)  # in place: an interrupt here must not make them twice
        self._waiting.clear()

    def thin(self) -> None:
        """Leave rows out where there are too many; for whoever has seen all of them."""
        if len(self._numbers) <= MOST_ROWS:
            return
        self._columns, self._numbers = self._thinned()
        if len(self._numbers) > 3 * MOST_ROWS // 4:  # else the next time would come soon
            self._step *= 2
            self._columns, self._numbers = self._thinned()

    def _thinned(self) -> tuple[Columns, array[Any]]:
        """Every step-th row, and the last one; the bytes of a row are those of all rounds since the row before it."""
        numbers = np.array(self._numbers)
        rows = np.unique([*np.flatnonzero(numbers % self._step == 0), len(numbers) - 1])
        since = np.append(0, rows[:-1] + 1)

        def chosen(values: array[Any], summed: bool = False) -> array[Any]:
            kept = np.add.reduceat(np.array(values), since) if summed else np.array(values)[rows[rows < len(values)]]
            return array(values.typecode, kept.tolist())

        columns = {name: chosen(values, name in ("bytes_up", "bytes_down")) for name, values in self._columns.items()}
        return Columns(columns), chosen(self._numbers)

    def row(self) -> dict[str, Any]:
        """The last round's row, read now."""
        self.flush()
        return {name: self._columns[name][-1] for name in self._names()}

    def measured_states(self) -> list[tuple[State, float, float]]:
        """States with values and residuals that nobody has asked for yet: the best one where all values are known,
        else all of them. The values are those of the average where one is handed back."""
        self.flush()
        rows = len(self._states)
        value = AVERAGED["value"] if self._averaging else "value"
        values, residuals = (self._columns[name][len(self._columns[name]) - rows :] for name in (value, "residual"))
        measured = list(zip(self._states, values, residuals, strict=True))
        self._states = []
        if measured and math.isfinite(sum(values)):
            return [min(measured, key=lambda each: each[1])]
        return measured

    def metrics(self, happened: Round) -> dict[str, float]:
        """A round's metrics: from its row where it is the last one and complete, else computed, once."""
        rounds = self._columns["round"]
        if rounds and rounds[-1] == happened.number and self.evaluated:
            row = self.row()
            return {name: row[name] for name in row if name not in PLAIN}
        if self._last_metrics is None or self._last_metrics[0] != happened.number:
            computed = self.inspected(happened.state)
            if "value" not in computed:
                measured = self.measured(happened.state.w, happened.state.reported)
                computed = {name: float(values[0]) for name, values in measured.items()} | computed
            self._last_metrics = happened.number, computed
        return dict(self._last_metrics[1])

    def forget(self) -> None:
        """Leave the last row out, once it has been read; its bytes are those of the next one."""
        self.bytes.withdraw(self._columns["bytes_up"][-1], self._columns["bytes_down"][-1])
        for values in (*self._columns.values(), self._numbers):
            values.pop()
        self._recorded -= 1

    def frame(self) -> pd.DataFrame:
        """All rows, as a DataFrame."""
        import pandas as pd

        self.flush()
        columns = self._columns if self._step == 1 else self._thinned()[0]
        return pd.DataFrame({name: np.array(columns[name]) for name in self._names()})

    def user_frame(self) -> pd.DataFrame | None:
        """Each user's metrics on held-out data, one row per user, of the last evaluation; None where there are none."""
        import pandas as pd

        own = self._evaluations.own
        if not own:
            return None
        return pd.DataFrame({name: pd.Series(values, index=list(users)) for name, (users, values) in own.items()})

    def remarks(self, model: Tensor) -> list[str]:
        """What must be said of the model (d,) that is handed back, by held-out data."""
        return self._evaluations.remarks(model)

    def so_far(self) -> pd.DataFrame:
        """All rows, or where measuring the last ones fails or was interrupted, those that are complete."""
        import pandas as pd

        try:
            return self.frame()
        except Exception:
            names = self._names()
            rows = min(len(self._columns[name]) for name in names)
            return pd.DataFrame({name: np.array(self._columns[name][:rows]) for name in names})

    def _names(self) -> list[str]:
        """The columns in the order that people read."""
        more = [name for name in self._columns if name not in FIRST + LAST]
        sometimes = (*AVERAGED.values(), "clock", "metric", "epsilon")
        return [name for name in (*FIRST, *more, *LAST) if name in self._columns or name not in sometimes]


def _bytes(state: State) -> int:
    """About how much memory a state takes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pack(state)[0].values())
