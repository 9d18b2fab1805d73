"""What happens to a round once it is done, outside the loop: small generators, one around the other.

    for step in shown(called(stored(halted(watched(recorded(timed(rounds)))))))

A `Step` passes through all of them, and none looks into another. Whoever is not there (no callback, no bar) has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from resolvent.errors import BlewUp, InputError
from resolvent.iteration.facts import ALONE, Peers
from resolvent.iteration.metric_names import of_reported
from resolvent.iteration.round import Round
from resolvent.iteration.state import State
from resolvent.solving.divergence import Divergence
from resolvent.solving.history import History
from resolvent.solving.private import charged
from resolvent.solving.progress import Bar
from resolvent.solving.recording import Entry, Log, MonitorState, Recorder
from resolvent.solving.stopping import STOP, Best, Ending, Patience, Stop

CHECK = 10
"""Rounds between two checks for divergence, where nobody records every round."""


@dataclass(slots=True)
class Step:
    """A round on its way through the generators, each of which adds what it found out."""

    round: Round
    seconds: float
    """Spent on rounds so far."""
    last: bool
    """Whether it is the last one that was asked for."""
    recorded: bool = False
    """Whether it has a row of the history for good."""
    noted: bool = False
    """Whether it has a row for now, since a limit is compared with it."""
    due: bool = False
    """Whether its row has metrics on held-out data."""
    diverged: str | None = None
    """In what way it shows that the run has diverged."""
    ending: Ending | None = None
    """Why the run ends with it."""
    remarks: tuple[str, ...] = ()
    """What must be said of the end of a run that did not diverge."""


@dataclass
class Ledger:
    """The books of a run: its history, its best state and model, and whoever stores it."""

    history: History
    divergence: Divergence
    patience: Patience | None
    recorder: Recorder | None
    latest: State
    """The state of the last round that was done; of a run that diverged, the best one."""
    seconds: float = 0.0
    log: Log | None = None

    @property
    def kept(self) -> Best | None:
        """The best model by the metric of `stop`."""
        return None if self.patience is None else self.patience.best

    @property
    def state(self) -> State:
        """The state to hand back, with what the run is judged against."""
        return replace(self.latest, yardstick=self.divergence.yardstick)

    @property
    def remembered(self) -> MonitorState:
        """What a run that goes on needs beside its states."""
        waited = 0 if self.patience is None else self.patience.waited
        return MonitorState(self.seconds, *self.divergence.score, waited, *self.history.bytes.unreported)

    def marked(self, happened: Round) -> Round:
        """A round whose state says what the run is judged against, and whose metrics are those of the run."""
        state = replace(happened.state, yardstick=self.divergence.yardstick)
        return happened._replace(state=state, look=self.history.metrics)

    def improves(self, happened: Round, due: bool = True) -> str | None:
        """Why the run stops with its last row, where that is not better than the best one for long enough."""
        if self.patience is None:
            return None
        return self.patience.compare(of_reported(self.history.row()), happened, due)

    def consider(self) -> None:
        """Compare the states whose values are known now with the best one."""
        for state, value, residual in self.history.measured_states():
            self.divergence.consider(state, value, residual)
        self.history.thin()

    def complete(self, step: Step) -> None:
        """The row of the last round is there, and has metrics, whatever the cadence."""
        if not step.noted:
            self.history.record(step.round, step.seconds)
        elif not self.history.evaluated:
            self.history.evaluate(step.round)
        else:
            return
        self.improves(step.round)

    def conclude(self, step: Step, row: dict[str, Any]) -> None:
        """Add to a step that ends the run what must be said of the end; or how the end shows divergence."""
        assert step.ending is not None
        value = of_reported(row)["value"]
        if self.divergence.overflowed(value):
            step.diverged = f"the value rose from {self.divergence.first:.3g} to {value}"
            return
        model = step.round.state.reported[0] if self.kept is None else self.kept.model
        step.remarks = (*self.divergence.remarks(step.round.state, value), *self.history.remarks(model))
        step.ending = Ending(step.ending.status, "; ".join([step.ending.reason, *step.remarks]))

    def store(self, step: Step, row: dict[str, Any] | None, new: bool = True) -> None:
        """Tell the recorder of a round and how the run ends, if it does; `new`: its row was not told before."""
        happened, divergence = step.round, self.divergence
        if step.ending is not None and row is not None and step.diverged is None:
            self.conclude(step, row)
        if step.diverged is not None:
            step.ending = self.diverge(happened.number, step.diverged, row if new else None)
        elif self.recorder is not None:
            other = None if divergence.best is happened.state else divergence.best
            own = None if step.ending is None else self.history.user_frame()
            entry = Entry(self.marked(happened).state, row if new else None, self.remembered, step.ending)
            self.recorder(entry._replace(best=other, kept=self.kept, users=own))

    def diverge(self, number: int, how: str, row: dict[str, Any] | None = None) -> Ending:
        """The run has diverged by this round: the best state is handed back."""
        self.latest = charged(self.divergence.best, self.latest)
        ending = Ending("diverged", self.divergence.describe(number, how))
        if self.recorder is not None:
            self.recorder.give_up(Entry(self.state, row, self.remembered, ending, kept=self.kept))
        return ending

    def blew_up(self, error: BlewUp) -> Ending:
        """A user's answer was not finite."""
        self.consider()
        return self.diverge(self.latest.round + 1, str(error))


@dataclass(frozen=True)
class Cadence:
    """Which rounds have a row of the history, and which rows have metrics on held-out data."""

    every: int
    validate_every: int

    def validates(self, number: int) -> bool:
        """Whether the metrics of this round are computed even if it is not the last one."""
        return number % self.validate_every == 0


# --- the generators --------------------------------------------------------------------------------------------------


def timed(loop: Iterator[Round], rounds: int, ledger: Ledger) -> Iterator[Step]:
    """So many rounds, and the seconds that they take."""
    for k in range(rounds):
        began = time.perf_counter()
        happened = next(loop)
        ledger.seconds += time.perf_counter() - began
        ledger.latest = happened.state
        yield Step(happened, ledger.seconds, last=k == rounds - 1)


def recorded(steps: Iterator[Step], ledger: Ledger, cadence: Cadence, stop: Any, begun: bool) -> Iterator[Step]:
    """Rows of the history. begun: whether there are rows of an earlier part of the run."""
    limits = isinstance(stop, Stop) and stop.limits
    history = ledger.history
    for step in steps:
        happened = step.round
        number = happened.state.round
        history.bytes.count(happened)
        step.due = step.last or cadence.validates(number)
        step.recorded = step.due or number % cadence.every == 0
        step.noted = step.recorded or limits
        if step.noted:
            step.due, begun = step.due or (step.recorded and not begun), begun or step.recorded
            history.record(happened, step.seconds, step.due)
        elif number & (number - 1) == 0:  # seldom recorded: some states must be known, should the run diverge
            ledger.divergence.measure(happened)
        yield step


def watched(steps: Iterator[Step], divergence: Divergence, often: bool) -> Iterator[Step]:
    """Whether the run has diverged."""
    for step in steps:
        happened = step.round
        came = happened.step is not None
        scheduled = often or happened.number % CHECK == 0 or (came and divergence.yardstick.open)
        divergence.yardstick = divergence.yardstick.reached(happened.eta)
        if scheduled or step.last:
            step.diverged = divergence.check(happened, scheduled)
        yield step


def halted(
    steps: Iterator[Step], ledger: Ledger, stop: Any, cadence: Cadence, earlier: int, peers: Peers
) -> Iterator[Step]:
    """What ends the run, if anything does: all who run the loop agree. earlier: rounds that are not counted."""
    for step in steps:
        if step.diverged is None:
            step.ending = _ending(step, ledger, stop, cadence, earlier)
        agreed = peers.agree((step.diverged, step.ending) if step.diverged or step.ending else None)
        if agreed is not None:
            step.diverged, ending = agreed
            step.ending = None if ending is None else Ending(*ending)
        yield step


def _ending(step: Step, ledger: Ledger, stop: Any, cadence: Cadence, earlier: int) -> Ending | None:
    happened, reason = step.round, None
    if isinstance(stop, Stop):
        if step.due:
            reason = ledger.improves(happened, due=not step.last or cadence.validates(happened.number))
        if step.noted and stop.limits:
            reason = stop.reason(of_reported(ledger.history.row())) or reason
    elif stop is not None and stop(happened):
        reason = "as the function `stop` said"
    if reason is not None:
        return Ending("stopped", reason)
    return Ending("finished", f"{happened.number - earlier} rounds") if step.last else None


def stored(steps: Iterator[Step], ledger: Ledger) -> Iterator[Step]:
    """Whoever stores the run is told of every round, before the next begins."""
    history, recorder = ledger.history, ledger.recorder
    for step in steps:
        ends = step.diverged is not None or step.ending is not None
        if ends:
            ledger.complete(step)
        told = recorder is not None or ledger.log is not None
        row = history.row() if ends or (step.recorded and told) else None
        if row is not None and ledger.log is not None:
            ledger.log(row)
        if history.settled:
            ledger.consider()
        if step.noted and not (step.recorded or ends):
            history.forget()
        step.recorded = step.recorded or ends
        if ends or recorder is not None:
            ledger.store(step, row)
        yield step


def called(steps: Iterator[Step], ledger: Ledger, callback: Callable[[Round], Any], peers: Peers) -> Iterator[Step]:
    """The caller's own function sees every round, and may end the run."""
    for step in steps:
        if callback(ledger.marked(step.round)) is STOP and step.ending is None:
            if peers is not ALONE:
                raise InputError(
                    "the callback has ended the run on this rank alone; say so by stop=, on which all ranks agree"
                )
            new, step.noted = not step.recorded, step.recorded
            ledger.complete(step)
            row = ledger.history.row()
            ledger.consider()
            step.ending = Ending("stopped", "as the callback said")
            ledger.store(step, row, new)
        yield step


def shown(steps: Iterator[Step], bar: Bar, divergence: Divergence, problem: Any = None) -> Iterator[Step]:
    """A progress bar, which also says for how long a network was compiled."""

    def words() -> str:
        seconds = getattr(problem, "compiling", 0.0)
        return f"residual {divergence.residual:.2e}" + (f", {seconds:.0f} s of compiling" if seconds >= 1 else "")

    for step in steps:
        bar.advance(time.perf_counter(), words)
        yield step
