"""The histories behind a panel, and the questions that checks ask of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from resolvent.paper.figure import Panel, PanelLine

if TYPE_CHECKING:
    import pandas as pd


class Results(Mapping[str, "list[pd.DataFrame]"]):
    """Histories by line, one per seed, and `facts`, which were computed beside them."""

    def __init__(
        self, panel: Panel, frames: dict[str, list[pd.DataFrame]], facts: dict[str, Any] | None = None
    ) -> None:
        self.panel, self.facts = panel, facts or {}
        self._frames = frames
        self.lines = {line.label: line for line in panel.lines}

    def __getitem__(self, label: str) -> list[pd.DataFrame]:
        return self._frames[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    def column(self, label: str) -> str:
        return self.lines[label].column or self.panel.column

    def series(self, label: str, column: str | None = None) -> pd.Series[float]:
        """A line's values by round, in the median over the seeds; a run that ended early counts as infinite after."""
        import pandas as pd

        name = column or self.column(label)
        table = pd.concat([frame.set_index("round")[name] for frame in self[label]], axis=1)
        return table.fillna(math.inf).median(axis=1)

    def final(self, label: str, column: str | None = None) -> float:
        """The last value of a line; infinite where it diverged."""
        if self.diverged(label):
            return math.inf
        value = float(self.series(label, column).iloc[-1])
        return value if math.isfinite(value) else math.inf

    def told(self, label: str) -> str:
        """The last value in words, and how many seeds diverged where some did and others did not."""
        gone, seeds = sum(self._gone(frame) for frame in self[label]), len(self[label])
        final = self.final(label)
        if not 0 < gone < seeds:
            return short(final)
        some = f"{gone} of {seeds} seeds"
        return f"{short(final)} ({some} diverged)" if math.isfinite(final) else f"diverged with {some}"

    def floor(self, label: str) -> float:
        """Where a noisy line has settled: the median over its last quarter; infinite where it diverged."""
        values = self.series(label)
        return math.inf if self.diverged(label) else float(values.iloc[-max(1, len(values) // 4) :].median())

    def spread(self, label: str) -> float:
        """How far seeds are apart at the end: most less least."""
        values = [float(frame[self.column(label)].iloc[-1]) for frame in self[label]]
        return max(values) - min(values)

    def diverged(self, label: str) -> bool:
        """Whether most of its runs diverged."""
        return statistics.median(self._gone(frame) for frame in self[label]) > 0.5

    def surviving(self, label: str) -> list[pd.DataFrame]:
        """Its runs that did not diverge."""
        return [frame for frame in self[label] if not self._gone(frame)]

    @staticmethod
    def _gone(frame: pd.DataFrame) -> bool:
        return frame.attrs.get("status") == "diverged"

    def at(self, label: str, n: int) -> float:
        """The value of a line in round n, or the next that was recorded."""
        values = self.series(label)
        return float(values[values.index >= n].iloc[0])

    def rounds_to(self, label: str, level: float) -> float:
        """The first round from which on a line stays at or below a level; infinite if it never does."""
        values = self.series(label)
        above = values.index[~(values <= level)]
        if not len(above):
            return float(values.index[0])
        after = values.index[values.index > above[-1]]
        return float(after[0]) if len(after) else math.inf

    def slope(self, label: str, column: str | None = None) -> float:
        """d log value / d log round over the second half: -2 falls like 1/t^2, 0 stands still."""
        values = self.series(label, column)
        late = values[values.index >= values.index[-1] / 2]
        if not (late.iloc[0] > 0 and late.iloc[-1] > 0):
            return math.nan
        return math.log(late.iloc[-1] / late.iloc[0]) / math.log(late.index[-1] / late.index[0])

    def shown(self, style: str | None = None, ours: bool | None = None) -> list[PanelLine]:
        """The lines that are drawn, of a style."""
        lines = [line for line in self.panel.lines if not line.hidden]
        return [x for x in lines if style in (None, x.style) and ours in (None, x.ours)]

    def numbers(self, *labels: str) -> str:
        """Final values, as a phrase."""
        return ", ".join(f"{label}: {self.told(label)}" for label in labels or self)


def short(value: float) -> str:
    """A number as one says it."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "diverged" if value > 0 else "-inf"
    if value != 0 and not 1e-2 <= abs(value) < 1e4:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.3g}"
