"""From arguments to a run: `prepare` checks and explains them and builds the engine, `Prepared.run` runs the rounds."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from numpy.typing import ArrayLike
from torch import Tensor

from resolvent import engines
from resolvent.data.held_out import HeldOut
from resolvent.engines.delayed import delayed
from resolvent.engines.private import Private
from resolvent.errors import BlewUp, DivergenceWarning, DoubtfulResult, InputError
from resolvent.iteration.acceleration import Acceleration
from resolvent.iteration.averaging import Averaging
from resolvent.iteration.checkpoint import moved
from resolvent.iteration.engine import Engine, Joining
from resolvent.iteration.facts import Facts, is_problem
from resolvent.iteration.meeting import Meet, as_meet
from resolvent.iteration.metric_choice import MetricChoice, as_metric
from resolvent.iteration.participation import Participation, as_participation
from resolvent.iteration.parts import Parts
from resolvent.iteration.penalties import Penalty
from resolvent.iteration.privacy import Privacy, UserPrivacy, as_privacy
from resolvent.iteration.round import Round
from resolvent.iteration.rounds import rounds as the_rounds
from resolvent.iteration.scheme import Number, Scheme
from resolvent.iteration.sending import Send, as_send
from resolvent.iteration.state import State
from resolvent.iteration.table import as_scheme
from resolvent.local import choice
from resolvent.problems.one_thread import one_thread
from resolvent.problems.problem import Problem
from resolvent.solving import steps
from resolvent.solving.beginning import beginning, drawn_start, meeting, step_size, with_penalty
from resolvent.solving.checking import (
    check,
    check_hooks,
    described,
    known_users,
    one_acceleration,
    verify_functions,
    warn_of_stop,
)
from resolvent.solving.description import describe, settings
from resolvent.solving.divergence import Divergence, Score
from resolvent.solving.evaluating import Evaluations, evaluations
from resolvent.solving.history import History
from resolvent.solving.objective import Objective
from resolvent.solving.private import chance, check_ending, check_private, check_start, private_mean
from resolvent.solving.progress import Bar, wanted
from resolvent.solving.recording import Continued, Log, MonitorState, Recorder, as_log
from resolvent.solving.run import Run
from resolvent.solving.steps import Cadence, Ledger
from resolvent.solving.stopping import Ending, Stop, patience
from resolvent.theory.explain import Explanation, explain

SHORT = 1 << 22
"""Numbers in all users' rows up to which rounds take one thread. It reads them in a few milliseconds: two threads save
less than they lose where one of them must wait for another program to leave its core."""


class PartKeywords(TypedDict, total=False):
    """What a round consists of, as keywords of `solve`."""

    anderson: Acceleration | int | None
    accelerate: Acceleration | int | None
    participation: Participation | float | None
    send: Send | None
    down: Send | None
    meet: Meet | None
    metric: MetricChoice | ArrayLike | str | None
    privacy: Privacy | None
    penalty: Penalty | None
    average: str | None


def check_keywords(given: Mapping[str, Any]) -> None:
    """Refuse a keyword that names no part."""
    for name in given:
        if name in ("recorder", "explanation"):
            raise InputError(f"{name} belongs to resolvent.solving.prepare.prepare, not to solve")
        if name == "absent":
            raise InputError(
                'solve has no keyword absent; it is one of a participation: rs.Bernoulli(0.5, absent="paper")'
            )
        if name not in PartKeywords.__annotations__:
            near = difflib.get_close_matches(name, KEYWORDS, n=1)
            meant = f"did you mean {near[0]}?" if near else f"the parts are {', '.join(PartKeywords.__annotations__)}"
            raise InputError(f"solve has no keyword {name}; {meant}")


@cache  # the same class every time, so that a warning is shown once per line
def one_category(categories: tuple[type[Warning], ...]) -> type[Warning]:
    """A category of warnings that is all of these."""
    least = [one for one in categories if not any(one in other.__mro__[1:] for other in categories)]
    return least[0] if len(least) == 1 else type(least[0].__name__, tuple(least), {"__module__": least[0].__module__})


@dataclass(frozen=True, eq=False)
class Prepared:
    """A configuration, checked and explained, with its engine: all that a run needs."""

    engine: Engine
    facts: Facts
    scheme: Scheme
    parts: Parts
    explanation: Explanation
    evaluations: Evaluations
    rounds: int
    seed: int
    start: ArrayLike | Tensor | State | None
    stop: Stop | Callable[[Round], bool] | None
    cadence: Cadence
    callback: Callable[[Round], Any] | None
    progress: bool | None
    log: Log | None
    recorder: Recorder | Continued | None
    problem: Any
    arguments: Mapping[str, Any]
    """What `solve` was given, for a run that goes on."""

    def run(self) -> Run:
        """Run the rounds, from the start to the end."""
        with self.engine, _threads(self.facts):
            self.facts.peers.same(self._described)
            state = beginning(self.engine, self.scheme, self.parts, self.start)
            verify_functions(self.problem, self.scheme, state)
            ledger = self._ledger(state)
            try:
                ending, remarks = self._drive(state, ledger)
            except (Exception, SystemExit) as error:
                self.facts.peers.leave(error)
                failed = Ending("failed", repr(error))
                with suppress(AttributeError):  # some exceptions take no attributes
                    error.run = Run(  # type: ignore[union-attr]
                        ledger.state, ledger.history.so_far(), *failed, self.explanation, self.engine, self.seed
                    )
                raise
            rows = ledger.history  # an interrupt may have come in the middle of one
            history, own = rows.so_far() if ending.status == "interrupted" else rows.frame(), rows.user_frame()
        self._warn(ending, remarks, ledger.state)
        return Run(
            ledger.state,
            history,
            *ending,
            self.explanation,
            self.engine,
            self.seed,
            own,
            ledger.kept,
            describe(self.facts),
            settings(self.facts, self.scheme, self._given, ledger.state.round, self.seed),
            dict(self.arguments),
            remembered=ledger.remembered,
        )

    def _drive(self, state: State, ledger: Ledger) -> tuple[Ending, tuple[str, ...]]:
        """Run the rounds until one of them ends the run: how it ended, and what must be said of that."""
        goes_on, peers = self.recorder is not None, self.facts.peers
        bar = Bar(self.scheme.name, self.rounds, wanted(self.progress))
        loop = the_rounds(self.engine, self.scheme, state, self.parts, self.seed)
        timed = steps.timed(loop, self.rounds, ledger)
        rows = steps.recorded(timed, ledger, self.cadence, self.stop, goes_on and bool(self.recorder.columns))  # type: ignore[union-attr]
        watched = steps.watched(rows, ledger.divergence, often=ledger.recorder is not None)
        earlier = 0 if goes_on else state.round
        halted = steps.halted(watched, ledger, self.stop, self.cadence, earlier, peers)
        chain = steps.stored(halted, ledger)
        if self.callback is not None:
            chain = steps.called(chain, ledger, self.callback, peers)
        if bar.shown:
            chain = steps.shown(chain, bar, ledger.divergence, self.facts.problem)
        try:
            for step in chain:
                if step.ending is not None:
                    break
        except BlewUp as error:
            return ledger.blew_up(error), ()
        except KeyboardInterrupt:
            return Ending("interrupted", f"interrupted after {ledger.state.round} rounds"), ()
        finally:
            bar.close()
        assert step.ending is not None
        return step.ending, step.remarks

    def _ledger(self, state: State) -> Ledger:
        """The books of the run, as an earlier part of it has left them."""
        earlier, device = self.recorder, self.facts.device
        remembered = MonitorState() if earlier is None else earlier.remembered
        best = None if earlier is None or earlier.best is None else moved(earlier.best, device)
        score = None if math.isnan(remembered.value) else Score(remembered.value, remembered.residual)
        objective, averages = Objective(self.engine, self.facts), self.parts.average.kind is not None
        return Ledger(
            History(
                objective,
                averages,
                self.evaluations,
                self.parts.cost(self.facts),
                remembered.unreported,
                self.parts.eta.curved,
                self.parts if self.parts.meet.releases else None,
            ),
            Divergence(objective, self.scheme.name, state, best, score),
            patience(self.stop, None if earlier is None else earlier.kept, remembered.waited, device),
            None if isinstance(earlier, Continued) else earlier,
            state,
            remembered.seconds,
            log=self.log,
        )

    @property
    def _given(self) -> dict[str, Any]:
        """The parts that were chosen, by kind; without those that a problem or an engine brings along."""
        chosen = {name: getattr(self.parts, name) for name in ("participation", "send", "down", "accelerate")}
        asked = self.arguments
        chosen |= {"meet": as_meet(asked.get("meet")), "metric": as_metric(asked.get("metric"))}
        return chosen | {"privacy": as_privacy(asked.get("privacy"))}

    def _described(self) -> dict[str, Any]:
        """What processes that run one loop together must have in common."""
        given = self._given | {"scheme": self.scheme, "stop": self.stop, "penalty": self.facts.penalty}
        plain: dict[str, Any] = {"rounds": self.rounds, "seed": self.seed, "every": self.cadence.every}
        plain |= {"average": self.parts.average.kind}
        return described(given, plain, self.start)

    def _warn(self, ending: Ending, remarks: tuple[str, ...], state: State) -> None:
        if ending.status == "diverged":
            warnings.warn(ending.reason, DivergenceWarning, stacklevel=4)
        for remark in remarks:
            ended = f"{self.scheme.name} {ending.status} after {state.round} rounds"
            warnings.warn(f"{ended}: {remark}", DoubtfulResult, stacklevel=4)


def _threads(facts: Facts) -> AbstractContextManager[Any]:
    """torch's kernels on one thread where products are short; a network divides its users among threads by itself."""
    rows = facts.sizes is not None and facts.convex and facts.device.type == "cpu"
    return one_thread() if rows and int(facts.sizes.sum()) * facts.dim <= SHORT else nullcontext()  # type: ignore[union-attr]


def prepare(
    problem: Problem | Facts | None,
    scheme: Scheme | str,
    rounds: int = 100,
    *,
    engine: str | Engine | Joining = "in_process",
    seed: int = 0,
    start: ArrayLike | Tensor | State | str | None = None,
    stop: Stop | Callable[[Round], bool] | None = None,
    every: int = 1,
    callback: Callable[[Round], Any] | None = None,
    progress: bool | None = None,
    log: str | Path | Callable[[dict[str, Any]], Any] | None = None,
    eta: Number | str | None = None,
    test: HeldOut | None = None,
    validation: HeldOut | None = None,
    metrics: Mapping[str, Callable[[Any, Any], float]] | Iterable[str] | None = None,
    validate_every: int | None = None,
    recorder: Recorder | Continued | None = None,
    explanation: Explanation | None = None,
    **parts: Unpack[PartKeywords],
) -> Prepared:
    """What `solve` runs: its arguments checked and explained, and the engine built.

    recorder: is given every round before the next begins; `resolvent.runs.Recorder` stores them on disk.
    explanation: where arguments were checked and explained already, what was said; neither is then done again.
    """
    check_keywords(parts)
    arguments: dict[str, Any] = {"engine": engine, "stop": stop, "every": every, "validation": validation, "test": test}
    arguments |= {"metrics": metrics, "validate_every": validate_every} | parts
    scheme, participation = as_scheme(scheme, eta), as_participation(parts.get("participation"))
    accelerate = one_acceleration(parts.get("anderson"), parts.get("accelerate"))
    send, down = as_send(parts.get("send")), as_send(parts.get("down"), "down")
    meet, privacy = as_meet(parts.get("meet")), as_privacy(parts.get("privacy"))
    metric = as_metric(parts.get("metric"))
    problem, beside = with_penalty(problem, engine, parts.get("penalty"))
    check_hooks(stop, callback, progress)
    ready: Any = engine
    if is_problem(problem):
        local = partial(choice.local_operator, scheme, problem)
        ready, problem = engines.joined(engine, problem, local, scheme.steady)
    facts, scheme = known_users(problem, ready, scheme)
    facts = facts.withholding() if privacy.asked else facts
    scheme = choice.settled(scheme, facts)
    facts = facts if beside is None else replace(facts, penalty=beside, counted=False)
    average = parts.get("average")
    if explanation is None:
        check(facts, scheme, participation, rounds, every, average, seed, send, meet, metric, down)
        others = {"send": send, "down": down, "accelerate": accelerate}
        check_private(privacy, facts, scheme, participation, meet, others)
        explanation = explain(
            scheme, facts, participation, accelerate, send=send, down=down, meet=meet, metric=metric, privacy=privacy
        )
        if explanation.findings:
            about = one_category(tuple(dict.fromkeys(finding.about for finding in explanation.findings)))
            warnings.warn(" Also: ".join(map(str, explanation.findings)), about, stacklevel=3)
    warn_of_stop(stop, facts, choice.local_operator(scheme, facts), send)
    start = drawn_start(facts, start, seed)
    check_ending(privacy, stop, {"validation": validation, "test": test})
    check_start(privacy, start)
    if isinstance(privacy, UserPrivacy):
        meet = private_mean(privacy, facts, chance(participation, scheme), rounds, start)
    measured = evaluations(facts, validation, test, metrics, validate_every)
    operator = choice.local_operator(scheme, facts)
    where = delayed(engines.build(ready, problem, operator, scheme.steady), participation)
    where = Private(where, privacy.held_out == "public") if isinstance(privacy, UserPrivacy) else where
    facts = replace(where.facts, penalty=facts.penalty, counted=where.facts.counted if beside is None else False)
    return Prepared(
        engine=where,
        facts=facts,
        scheme=scheme,
        parts=Parts(
            participation,
            send,
            meeting(facts, operator, meet),
            accelerate,
            step_size(facts, scheme, operator, metric),
            Averaging(average),
            down,
        ),
        explanation=explanation,
        evaluations=measured,
        rounds=rounds,
        seed=seed,
        start=start,
        stop=stop,
        cadence=Cadence(every, every if validate_every is None else validate_every),
        callback=callback,
        progress=progress,
        log=as_log(log),
        recorder=recorder,
        problem=problem,
        arguments=arguments | {"problem": problem, "scheme": scheme, "penalty": beside},
    )


KEYWORDS = (
    *PartKeywords.__annotations__,
    *prepare.__annotations__.keys() - {"parts", "return", "recorder", "explanation"},
)
"""All that `solve` takes by name."""
