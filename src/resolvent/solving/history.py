"""A run's history: one row a round, kept as tensors until somebody reads it, measured many models at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.iteration.certificates import Reading, Signs, read
from resolvent.iteration.engine import Engine
from resolvent.iteration.rounds import Round
from resolvent.iteration.state import personal

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 64
"""Models measured together; fewer where they are large."""
BLOCK_BYTES = 1 << 24


FIRST = ("round", "eta", "value", "gap", "residual", "consensus", "stationarity", "average_value", "average_gap")
LAST = ("participants", "bytes_up", "bytes_down", "seconds")


class History:
    """Records rounds, a list a column. Nothing is read back before a block is full, or `row` or `frame` asks."""

    def __init__(self, engine: Engine, averaging: bool) -> None:
        self._engine = engine
        self._averaging = averaging
        self._inspected = False
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._waiting: list[tuple[Tensor, Tensor, Signs | None]] = []
        self._bytes = engine.dim * torch.finfo(engine.dtype).bits // 8
        self._block = max(1, min(BLOCK, BLOCK_BYTES // self._bytes))

    def record(self, happened: Round, seconds: float) -> None:
        """Take note of a round."""
        columns, users, state = self._columns, happened.participants, happened.state
        columns["round"].append(state.round)
        columns["eta"].append(happened.eta)
        columns["participants"].append(users)
        # Where curvature was asked for at a model, a gradient and half of a symmetric Hessian come back.
        columns["bytes_up"].append((users + happened.curvature * (self._engine.dim + 3) // 2) * self._bytes)
        columns["bytes_down"].append((users + happened.curvature) * self._bytes)
        columns["seconds"].append(seconds)
        average = state.w if state.average is None else state.average.model
        more = self._engine.inspect(state.w, personal(state), state.memory)
        for name, value in (more or {}).items():
            columns[name].append(value)
        self._inspected = more is not None
        self._waiting.append((state.w, average, happened.signs()))
        if len(self._waiting) >= self._block:
            self.flush()

    @property
    def settled(self) -> bool:
        """Whether every row is complete."""
        return not self._waiting

    def flush(self) -> None:
        """Complete every row."""
        if not self._waiting:
            return
        models, averages, signs = zip(*self._waiting, strict=True)
        measured = {} if self._inspected else self._engine.measure(torch.cat(models))
        if self._averaging:
            averaged = self._engine.measure(torch.cat(averages))
            measured = measured | {f"average_{name}": values for name, values in averaged.items()}
        for name, values in measured.items():
            self._columns[name].extend(values.tolist())
        for name, readings in zip(Reading._fields, zip(*read(signs), strict=True), strict=True):
            self._columns[name].extend(readings)
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

    def so_far(self) -> pd.DataFrame:
        """All rows, or where measuring the last ones fails, those that were measured."""
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
        return [name for name in (*FIRST, *more, *LAST) if name in self._columns or not name.startswith("average")]
