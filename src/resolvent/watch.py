"""Watching a run from outside the loop: what is recorded, when it stops, and when it has diverged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from resolvent.errors import refuse
from resolvent.history import History
from resolvent.rounds import Engine, Round
from resolvent.state import State

CHECK = 5
"""Rounds between two looks for divergence, where nobody keeps every round."""
BLOWN_UP = 1e4
"""Times the first residual that count as divergence."""
FLUNG = 1e4
"""Times the length of all steps so far that count as being thrown out, by an acceleration without safeguards, say."""


@dataclass(frozen=True)
class Stop:
    """When to stop before `rounds`: as soon as one of these is met. `certificates` is met by both of them together."""

    gap: float | None = None
    residual: float | None = None
    certificates: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("gap", "residual", "certificates", "seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit >= 0:
                refuse(f"stop.{name}", limit, "a number >= 0 is needed")

    def reason(self, row: dict[str, Any]) -> str | None:
        """Why this row of the history is the last, or None."""
        if self.gap is not None and row["gap"] <= self.gap:
            return f"gap {row['gap']:.3g} <= {self.gap:g}"
        if self.residual is not None and row["residual"] <= self.residual:
            return f"residual {row['residual']:.3g} <= {self.residual:g}"
        if self.certificates is not None and max(row["stationarity"], row["consensus"]) <= self.certificates:
            return f"stationarity and consensus <= {self.certificates:g}"
        if self.seconds is not None and row["seconds"] >= self.seconds:
            return f"{row['seconds']:.3g} seconds >= {self.seconds:g}"
        return None


class Pulse(NamedTuple):
    """What the watch itself remembers: seconds spent, the first pull and size, and the longest step."""

    seconds: float = 0.0
    first: float = math.nan
    start: float = math.nan
    most: float = 0.0


class Verdict(NamedTuple):
    """Why a run ends: "stopped" or "diverged", and the reason in words."""

    status: str
    reason: str


class Keeper(Protocol):
    """Takes every round before the next one begins, so that a run can outlive its process."""

    @property
    def pulse(self) -> Pulse:
        """Where the watch stood when the run was left."""
        ...

    def __call__(self, happened: Round, row: dict[str, Any] | None, pulse: Pulse, verdict: Verdict | None) -> None:
        """A round, its row of the history where it has one, and the verdict where it is the last."""
        ...


class Watch:
    """Looks at every round: records it, notices divergence, and knows the last good `state`."""

    def __init__(
        self,
        engine: Engine,
        scheme: str,
        every: int,
        average: bool,
        stop: Stop | Callable[[Round], bool] | None,
        keep: Keeper | None,
        begun: State,
    ) -> None:
        self.history = History(engine, average)
        self.state = begun
        self.pulse = Pulse() if keep is None else keep.pulse
        self._scheme, self._every, self._stop, self._keep = scheme, every, stop, keep
        self._good = begun
        self._residual = math.nan

    def words(self) -> str:
        """What a progress bar says."""
        return f"residual {self._residual:.2e}"

    def look(self, happened: Round, seconds: float, last: bool) -> Verdict | None:
        """What ends the run with this round, if anything does; `seconds` is what it took."""
        self.pulse = self.pulse._replace(seconds=self.pulse.seconds + seconds)
        self.state = happened.state
        recorded = last or happened.number % self._every == 0
        stop, kept = self._stop, self._keep is not None
        if recorded or isinstance(stop, Stop):
            self.history.record(happened, self.pulse.seconds)
        verdict = None
        if happened.step is not None and (kept or happened.number % CHECK == 0 or math.isnan(self.pulse.first)):
            verdict = self._diverged(happened)
        if verdict is not None:
            if not recorded and not isinstance(stop, Stop):
                self.history.record(happened, self.pulse.seconds)  # to be seen, whatever the cadence
            recorded = True
        elif stop is not None:
            verdict = self._stopped(happened, stop)
            recorded = recorded or (verdict is not None and isinstance(stop, Stop))
        if not recorded and isinstance(stop, Stop):
            self.history.forget()
        if self._keep is not None:
            self._keep(happened, self.history.row() if recorded else None, self.pulse, verdict)
        return verdict

    def _stopped(self, happened: Round, stop: Stop | Callable[[Round], bool]) -> Verdict | None:
        if isinstance(stop, Stop):
            reason = stop.reason(self.history.row())
            return Verdict("stopped", reason) if reason else None
        return Verdict("stopped", "as the function `stop` said") if stop(happened) else None

    def _diverged(self, happened: Round) -> Verdict | None:
        """Residuals over eta are gradients in disguise: for a convex problem they never grow, whatever eta does."""
        self._residual = happened.residual
        pull, size = self._residual / happened.eta, float(happened.model.norm())
        _, first, start, most = self.pulse
        if math.isnan(first) and math.isfinite(pull):
            first, start = pull, size
        most = max(most, self._residual)
        self.pulse = Pulse(self.pulse.seconds, first, start, most)
        noise = 1e-8 * (1 + size) / happened.eta
        reach = FLUNG * (1 + start + happened.number * most)  # steps this long cannot have led further
        if pull <= BLOWN_UP * max(first, noise) and size <= reach:
            self._good = happened.state
            return None
        self.state = self._good
        kept = f"the state after round {self.state.round} is kept" if self.state.round else "nothing was kept"
        return Verdict(
            "diverged",
            f"{self._scheme} diverged by round {happened.number}: |Tu - u| / eta is {pull:.3g}, "
            f"in the first round it was {first:.3g}, and the model's norm is {size:.3g}; {kept}; "
            "take a smaller eta, or what rs.explain advises",
        )
