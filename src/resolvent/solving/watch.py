"""Watching a run from outside the loop: what is recorded, when it stops, and what is handed back at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from resolvent.errors import BlewUp, refuse
from resolvent.iteration.checkpoint import moved, pack
from resolvent.iteration.engine import Engine
from resolvent.iteration.rounds import Round
from resolvent.iteration.state import State
from resolvent.solving.history import History
from resolvent.solving.monitor import Monitor, Score

CHECK = 10
"""Rounds between two looks for divergence, where nobody keeps every round."""
ROOM = 1 << 24
"""Bytes of states that may wait until their values are known."""


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
    """What is remembered of a run beside its states: the seconds spent, and the score of the best state."""

    seconds: float = 0.0
    value: float = math.nan
    residual: float = math.nan


class Verdict(NamedTuple):
    """Why a run ends: "finished", "stopped" or "diverged", and the reason in words."""

    status: str
    reason: str


class Keeper(Protocol):
    """Takes every round before the next one begins, so that a run can outlive its process."""

    @property
    def pulse(self) -> Pulse:
        """What was remembered when the run was left."""
        ...

    @property
    def best(self) -> State | None:
        """The best state when the run was left."""
        ...

    def __call__(
        self, happened: Round, row: dict[str, Any] | None, pulse: Pulse, verdict: Verdict | None, best: State | None
    ) -> None:
        """A round, its row where it has one, the verdict where it is the last, and the best state if another is."""
        ...

    def give_up(self, row: dict[str, Any] | None, best: State, pulse: Pulse, verdict: Verdict) -> None:
        """The run has diverged: the best state is what remains of it, and this row the last one."""
        ...


class Watch:
    """Looks at every round: records it, notices divergence, and knows the `state` to hand back."""

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
        pulse = Pulse() if keep is None else keep.pulse
        best = None if keep is None or keep.best is None else moved(keep.best, engine.device)
        score = None if math.isnan(pulse.value) else Score(pulse.value, pulse.residual)
        self.history = History(engine, average)
        self._monitor = Monitor(engine, scheme, begun, best, score)
        self._every, self._stop, self._keep = every, stop, keep
        self._seconds, self._last = pulse.seconds, begun
        self._earlier = 0 if keep is not None else begun.round
        self._moved: Round | None = None
        self._waiting: list[State] = []
        self._room = 0
        self.remarks: tuple[str, ...] = ()
        """What must be said of the end of a run that did not diverge."""

    @property
    def state(self) -> State:
        """The last state, or the best one of a run that diverged, with what the run is judged against."""
        return replace(self._last, yardstick=self._monitor.yardstick)

    def marked(self, happened: Round) -> Round:
        """A round whose state says what the run is judged against."""
        return happened._replace(state=replace(happened.state, yardstick=self._monitor.yardstick))

    def words(self) -> str:
        """What a progress bar says."""
        return f"residual {self._monitor.residual:.2e}"

    def look(self, happened: Round, seconds: float, last: bool) -> Verdict | None:
        """What ends the run with this round, if anything does; `seconds` is what it took."""
        self._seconds += seconds
        self._last, number = happened.state, happened.number
        recorded = last or number % self._every == 0
        noted = recorded or isinstance(self._stop, Stop)
        if noted:
            self._record(happened)
        elif number & (number - 1) == 0:  # seldom recorded: some states must be known, should the run diverge
            self._monitor.measure(happened)
        how = self._diverges(happened, last)
        verdict = self._ends(happened, last) if how is None else None
        ended = how is not None or verdict is not None
        if ended and not noted:
            self._record(happened)  # to be seen, whatever the cadence
        row = self.history.row() if ended or (recorded and self._keep is not None) else None
        if self.history.settled:
            self._consider()
        if noted and not (recorded or ended):
            self.history.forget()
        if verdict is not None and row is not None:
            how, verdict = self._close(happened, row, verdict)
        if how is not None:
            verdict = self._diverged(number, how)
        if self._keep is not None:
            self._tell(self._keep, happened, row, verdict)
        return verdict

    def blew_up(self, error: BlewUp) -> Verdict:
        """What is said when a user's answer was not finite."""
        self._consider()
        verdict = self._diverged(self._last.round + 1, str(error))
        if self._keep is not None:
            self._keep.give_up(None, self.state, self._pulse, verdict)
        return verdict

    # --- what it consists of -----------------------------------------------------------------------------------------

    def _record(self, happened: Round) -> None:
        """A row of the history; the state waits until its value is known."""
        self.history.record(happened, self._seconds)
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
            self._monitor.consider(self._waiting[k], values[k], residuals[k])
        self._waiting.clear()

    def _diverges(self, happened: Round, last: bool) -> str | None:
        """In what way the run has diverged, if it has. Where nobody came, the last round that moved is looked at."""
        came = happened.step is not None
        if came:
            self._moved = happened
        often = last or happened.number % CHECK == 0 or self._keep is not None
        if self._moved is None or not (often or (came and self._monitor.yardstick.open)):
            return None
        return self._monitor.look(self._moved, happened.participants)

    def _ends(self, happened: Round, last: bool) -> Verdict | None:
        reason = None
        if isinstance(self._stop, Stop):
            reason = self._stop.reason(self.history.row())
        elif self._stop is not None and self._stop(happened):
            reason = "as the function `stop` said"
        if reason is not None:
            return Verdict("stopped", reason)
        return Verdict("finished", f"{happened.number - self._earlier} rounds") if last else None

    def _close(self, happened: Round, row: dict[str, Any], verdict: Verdict) -> tuple[str | None, Verdict]:
        """A verdict with what must be said of the end; or how the end shows that the run has diverged after all."""
        value = row.get("average_value", row["value"])
        if self._monitor.overflowed(value):
            return f"the value rose from {self._monitor.first:.3g} to {value}", verdict
        self.remarks = tuple(self._monitor.remarks(happened.state, value))
        return None, Verdict(verdict.status, "; ".join([verdict.reason, *self.remarks]))

    def _diverged(self, number: int, how: str) -> Verdict:
        self._last = self._monitor.best
        return Verdict("diverged", self._monitor.words(number, how))

    @property
    def _pulse(self) -> Pulse:
        return Pulse(self._seconds, *self._monitor.score)

    def _tell(self, keep: Keeper, happened: Round, row: dict[str, Any] | None, verdict: Verdict | None) -> None:
        best, pulse = self._monitor.best, self._pulse
        if verdict is not None and verdict.status == "diverged":
            keep.give_up(row, self.state, pulse, verdict)
            return
        other = None if best is happened.state else best
        keep(self.marked(happened), row, pulse, verdict, other)


def _bytes(state: State) -> int:
    """About how much memory a state takes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pack(state)[0].values())
