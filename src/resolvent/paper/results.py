"""The histories behind a panel, the questions that checks ask of them, and checks that many claims share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from resolvent.paper.figure import ClaimVerdict, Panel, PanelLine

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 1e-6
"""A line counts as settled within this share of its first distance to the limit."""


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

    def algorithm(self, label: str) -> str:
        return str(self.lines[label].settings["scheme.algorithm"])

    def seeds(self, label: str) -> pd.DataFrame:
        """A line's values by round, one column per seed."""
        import pandas as pd

        return pd.concat([frame.set_index("round")[self.column(label)] for frame in self[label]], axis=1)

    def series(self, label: str) -> pd.Series[float]:
        """A line's values by round, in the median over the seeds; a run that ended early counts as infinite after."""
        return self.seeds(label).fillna(math.inf).median(axis=1)

    def final(self, label: str) -> float:
        """The last value of a line; infinite where it diverged."""
        if self.diverged(label):
            return math.inf
        value = float(self.series(label).iloc[-1])
        return value if math.isfinite(value) else math.inf

    def finals(self, *labels: str) -> dict[str, float]:
        """The last values of these lines, or of all that are drawn."""
        return {label: self.final(label) for label in labels or (line.label for line in self.shown())}

    def numbers(self, *labels: str) -> str:
        """Final values as a phrase, with how many seeds diverged where some did and others did not."""
        return ", ".join(f"{label}: {self._described(label)}" for label in labels)

    def _described(self, label: str) -> str:
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

    def floors(self) -> dict[str, float]:
        """Where the solid lines have settled."""
        return {line.label: self.floor(line.label) for line in self.shown("-")}

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
        return _stays_below(self.series(label), level)

    def rounds_to_limit(self, label: str, limit: float, rows: int = 1) -> float:
        """The first round from which on a line stays close to a limit, for at least so many rows of its history."""
        distance = (self.series(label) - limit).abs()
        return _stays_below(distance, CLOSE * distance.iloc[0], rows)

    def slope(self, label: str) -> float:
        """d log value / d log round over the second half: -2 falls like 1/t^2, 0 stands still."""
        values = self.series(label)
        late = values[values.index >= values.index[-1] / 2]
        if not (late.iloc[0] > 0 and late.iloc[-1] > 0):
            return math.nan
        return math.log(late.iloc[-1] / late.iloc[0]) / math.log(late.index[-1] / late.index[0])

    def shown(self, style: str | None = None) -> list[PanelLine]:
        """The lines that are drawn, of a style."""
        return [line for line in self.panel.lines if not line.hidden and style in (None, line.style)]


def _stays_below(values: pd.Series[float], level: float, rows: int = 1) -> float:
    above = values.index[~(values <= level)]
    below = values.index[values.index > above[-1]] if len(above) else values.index
    return float(below[0]) if len(below) >= rows else math.inf


def short(value: float) -> str:
    """A number as one says it."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "diverged" if value > 0 else "-inf"
    if value != 0 and not 1e-2 <= abs(value) < 1e4:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.3g}"


def listed(values: Mapping[Any, float], form: str = "{name}: {short}") -> str:
    """Numbers as a phrase; `form` may ask for the name, the number in short, and its value."""
    return ", ".join(form.format(name=name, short=short(value), value=value) for name, value in values.items())


def each(
    values: Mapping[str, float], holds: Callable[[float], bool], text: str = "{}", form: str = "{name}: {short}"
) -> ClaimVerdict:
    """The verdict on a claim about each of several numbers; `text` says what they are."""
    return ClaimVerdict.share({name: holds(value) for name, value in values.items()}, text.format(listed(values, form)))


def fact(name: str, holds: Callable[[Any], bool], text: str) -> Callable[[Results], ClaimVerdict]:
    """A check of one number among the facts; `text` shows it as {value} or {short}."""

    def check(results: Results) -> ClaimVerdict:
        value = results.facts[name]
        return ClaimVerdict.of(holds(value), text.format(value=value, short=short(value)))

    return check
