"""A run's history: one row per round, held as tensors until somebody reads it; many models are measured at a time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.iteration.certificates import Certificates, Evidence, certificates
from resolvent.iteration.engine import Engine, Traffic
from resolvent.iteration.rounds import Round
from resolvent.iteration.state import State
from resolvent.solving.evaluating import Evaluations

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 64
"""Models measured together; fewer where they are large."""
BLOCK_BYTES = 1 << 24


FIRST = ("round", "eta", "value", "gap", "residual", "consensus", "stationarity", "average_value", "average_gap")
LAST = ("participants", "bytes_up", "bytes_down", "clock", "seconds")


class History:
    """Records rounds, one list per column. Nothing is read back before a block is full, or `row` or `frame` asks."""

    def __init__(self, engine: Engine, averaging: bool, evaluations: Evaluations) -> None:
        self._engine = engine
        self._averaging = averaging
        self._evaluations = evaluations
        self._more = list(evaluations.columns)
        self.evaluated = False
        """Whether the last row has metrics on held-out data."""
        self._inspected = False
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._waiting: list[tuple[Tensor, Tensor, Evidence | None]] = []
        self._dim = engine.facts.dim
        self._bytes = self._dim * torch.finfo(engine.facts.dtype).bits // 8
        self._moved = Traffic(0, 0)
        self._block = max(1, min(BLOCK, BLOCK_BYTES // self._bytes))

    def record(self, happened: Round, seconds: float, evaluate: bool = True) -> None:
        """Take note of a round; what is measured on held-out data is NaN unless it is to `evaluate`."""
        columns, users, state = self._columns, happened.participants, happened.state
        columns["round"].append(state.round)
        columns["eta"].append(happened.eta)
        columns["participants"].append(users)
        up, down = self._traffic(happened)
        columns["bytes_up"].append(up)
        columns["bytes_down"].append(down)
        if happened.clock is not None:
            columns["clock"].append(happened.clock)
        columns["seconds"].append(seconds)
        average = state.w if state.average is None else state.average.model
        found = self.figures(state, evaluate)
        self._inspected, self.evaluated = "value" in found, evaluate
        for name in ("value", "gap"):
            if name in found:
                columns[name].append(found.pop(name))
        self._add(found, len(columns["round"]) - 1)
        self._waiting.append((state.w, average, happened.evidence()))
        if len(self._waiting) >= self._block:
            self.flush()

    def figures(self, state: State, evaluate: bool = True) -> dict[str, float]:
        """What users say of the round's models, and metrics on held-out data of the model that would be handed back."""
        look, inspect = self._evaluations.look(evaluate), self._engine.inspect
        more = (state.w, state.p, state.memory) if look is None else (state.w, state.p, state.memory, look)
        found = dict(inspect(*more) or {})
        model = state.w if state.average is None else state.average.model
        return found | (self._evaluations(model[0]) if evaluate else {})

    def evaluate(self, happened: Round) -> None:
        """Fill in what is measured on held-out data in the last row."""
        found = self.figures(happened.state)
        self._more += [name for name in found if name not in (*self._more, "value", "gap")]
        rows = len(self._columns["round"])
        for name in self._more:
            column = self._columns[name]
            column.extend([math.nan] * (rows - len(column)))
            column[-1] = found.get(name, column[-1])
        self.evaluated = True

    def _add(self, found: Mapping[str, float], before: int) -> None:
        """One more entry of every further column, NaN where there is nothing, also `before` it was first seen."""
        self._more += [name for name in found if name not in self._more]
        for name in self._more:
            column = self._columns[name]
            column.extend([math.nan] * (before - len(column)))
            column.append(found.get(name, math.nan))

    def _traffic(self, happened: Round) -> Traffic:
        """Bytes of this row: those that really moved since the last one, or what a network would carry in the round."""
        total = self._engine.traffic
        if total is not None:
            since, self._moved = Traffic(total.up - self._moved.up, total.down - self._moved.down), total
            return since
        # Where curvature was asked for at a model, a gradient and half of a symmetric Hessian come back; of a long
        # model, a gradient and products with the Hessian, one after the other.
        users, asked = happened.participants, happened.curvature
        if getattr(self._engine.facts, "matrix_free", False):
            many = (users + asked * (1 + happened.products)) * self._bytes
            return Traffic(many, many)
        return Traffic((users + asked * (self._dim + 3) // 2) * self._bytes, (users + asked) * self._bytes)

    @property
    def settled(self) -> bool:
        """Whether every row is complete."""
        return not self._waiting

    def flush(self) -> None:
        """Complete every row."""
        if not self._waiting:
            return
        models, averages, evidence = zip(*self._waiting, strict=True)
        measured = {} if self._inspected else self._engine.measure(torch.cat(models))
        if self._averaging:
            averaged = self._engine.measure(torch.cat(averages))
            measured = measured | {f"average_{name}": values for name, values in averaged.items()}
        complete: dict[str, Any] = {name: values.tolist() for name, values in measured.items()}
        complete |= dict(zip(Certificates._fields, zip(*certificates(evidence), strict=True), strict=True))
        first = len(self._columns["round"]) - len(self._waiting)
        for name, found in complete.items():
            self._columns[name][first:] = found  # in place: an interrupt here must not make them twice
        self._waiting.clear()

    def row(self) -> dict[str, Any]:
        """The last round's row, read now."""
        self.flush()
        return {name: self._columns[name][-1] for name in self._names()}

    def scores(self, rows: int) -> tuple[list[float], list[float]]:
        """Values and residuals of the last rows; the values are those of the average where one is handed back."""
        self.flush()
        values, residuals = (self._columns[name] for name in (("value", "average_value")[self._averaging], "residual"))
        return values[len(values) - rows :], residuals[len(residuals) - rows :]

    def forget(self) -> None:
        """Leave the last row out, once it has been read."""
        for values in self._columns.values():
            values.pop()

    def frame(self) -> pd.DataFrame:
        """All rows, as a DataFrame."""
        import pandas as pd

        self.flush()
        return pd.DataFrame({name: self._columns[name] for name in self._names()})

    def user_frame(self) -> pd.DataFrame | None:
        """Each user's metrics on held-out data, one row per user, of the last evaluation; None where there are none."""
        import pandas as pd

        own = self._evaluations.own
        if not own:
            return None
        return pd.DataFrame({name: pd.Series(values, index=list(users)) for name, (users, values) in own.items()})

    def so_far(self) -> pd.DataFrame:
        """All rows, or where measuring the last ones fails or was interrupted, those that are complete."""
        import pandas as pd

        try:
            return self.frame()
        except Exception:
            names = self._names()
            rows = min(len(self._columns[name]) for name in names)
            return pd.DataFrame({name: self._columns[name][:rows] for name in names})

    def _names(self) -> list[str]:
        """The columns in the order that people read."""
        more = [name for name in self._columns if name not in FIRST + LAST]
        sometimes = ("average_value", "average_gap", "clock")
        return [name for name in (*FIRST, *more, *LAST) if name in self._columns or name not in sometimes]
