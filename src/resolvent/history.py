"""A run's history: one row a round, kept as tensors until somebody reads it, measured many models at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.rounds import Engine, Round
from resolvent.signs import Signs, read

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 64
"""Models measured together; fewer where they are large."""
BLOCK_BYTES = 1 << 24


class History:
    """Records rounds. Nothing is read back before a block is full, or `row` or `frame` asks."""

    def __init__(self, engine: Engine, averaging: bool) -> None:
        self._engine = engine
        self._rows: list[dict[str, Any]] = []
        self._waiting: list[tuple[Tensor, Tensor, Signs | None]] = []
        self._averaging = averaging
        self._bytes = engine.dim * torch.finfo(engine.dtype).bits // 8
        self._block = max(1, min(BLOCK, BLOCK_BYTES // self._bytes))

    def record(self, happened: Round, seconds: float) -> None:
        """Take note of a round."""
        traffic = happened.participants * self._bytes
        self._rows.append(
            {
                "round": happened.number,
                "eta": happened.eta,
                "participants": happened.participants,
                "bytes_up": traffic,
                "bytes_down": traffic,
                "seconds": seconds,
            }
        )
        average = happened.state.average
        self._waiting.append((happened.model, happened.model if average is None else average.model, happened.signs()))
        if len(self._waiting) >= self._block:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        models, averages, signs = zip(*self._waiting, strict=True)
        columns = {name: values.tolist() for name, values in self._engine.measure(torch.cat(models)).items()}
        if self._averaging:
            measured = self._engine.measure(torch.cat(averages))
            columns |= {f"average_{name}": values.tolist() for name, values in measured.items()}
        readings = read(signs)
        for k, row in enumerate(self._rows[-len(self._waiting) :]):
            row |= {name: values[k] for name, values in columns.items()} | readings[k]._asdict()
        self._waiting.clear()

    def row(self) -> dict[str, Any]:
        """The last round's row, read now."""
        self._flush()
        return self._rows[-1]

    def forget(self) -> None:
        """Leave the last row out, once it has been read."""
        self._rows.pop()

    def frame(self) -> pd.DataFrame:
        """All rows, as a DataFrame."""
        import pandas as pd

        self._flush()
        first = ["round", "eta", "value", "gap", "residual", "consensus", "stationarity"]
        last = ["participants", "bytes_up", "bytes_down", "seconds"]
        averages = ["average_value", "average_gap"] if self._averaging else []
        named = [*first, *averages, *last]
        more = [name for name in (self._rows[0] if self._rows else {}) if name not in named]
        return pd.DataFrame(self._rows, columns=[*first, *averages, *more, *last])
