"""The front door: `solve` runs a scheme on a problem and hands back a Run."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from resolvent import engines
from resolvent.data.held_out import HeldOut
from resolvent.engines.delayed import delayed
from resolvent.errors import BlewUp, DivergenceWarning, DoubtfulResult
from resolvent.iteration.acceleration import Accelerate
from resolvent.iteration.engine import Engine, Joining
from resolvent.iteration.facts import is_problem
from resolvent.iteration.participation import Participation, as_participation
from resolvent.iteration.penalties import Penalty
from resolvent.iteration.rounds import Round
from resolvent.iteration.rounds import rounds as the_rounds
from resolvent.iteration.scheme import Number, Scheme
from resolvent.iteration.state import State
from resolvent.iteration.table import as_scheme
from resolvent.local import choice
from resolvent.problems.problem import Problem
from resolvent.solving.agreement import described
from resolvent.solving.beginning import beginning
from resolvent.solving.checking import check, check_hooks, known_users, one_acceleration, verify_functions
from resolvent.solving.description import describe, settings
from resolvent.solving.evaluating import evaluations
from resolvent.solving.monitor import Monitor
from resolvent.solving.objective import Objective
from resolvent.solving.penalties import meeting, with_penalty
from resolvent.solving.progress import Bar, wanted
from resolvent.solving.recording import Continued, Recorder
from resolvent.solving.run import Run
from resolvent.solving.stopping import STOP, Stop
from resolvent.theory.explain import Explanation, explain


def solve(
    problem: Problem | None,
    scheme: Scheme | str,
    rounds: int = 100,
    anderson: Accelerate | int | None = None,
    participation: Participation | float | None = None,
    engine: str | Engine | Joining = "in_process",
    seed: int = 0,
    start: ArrayLike | Tensor | State | None = None,
    stop: Stop | Callable[[Round], bool] | None = None,
    average: str | None = None,
    every: int = 1,
    callback: Callable[[Round], Any] | None = None,
    progress: bool | None = None,
    eta: Number | str | None = None,
    accelerate: Accelerate | int | None = None,
    validation: HeldOut | None = None,
    test: HeldOut | None = None,
    metrics: Mapping[str, Callable[[Any, Any], float]] | Iterable[str] | None = None,
    validate_every: int | None = None,
    penalty: Penalty | None = None,
    recorder: Recorder | Continued | None = None,
    explanation: Explanation | None = None,
) -> Run:
    """Run `rounds` rounds of a scheme, from `start`: a vector, rows (users, d), or the State of an earlier run.

    problem: rs.LeastSquares, rs.Logistic, rs.Neural, ...; None where `engine` is ready-made and has its own users.
    scheme: a row of Table 1 such as rs.fedpi(eta=1e-2), an rs.Scheme, or a name with `eta` ("fedpi" finds its own).
    anderson: a memory such as 2, or rs.Anderson. accelerate: any acceleration, such as rs.Momentum(0.9).
    participation: a probability, rs.Bernoulli, rs.FixedSize, rs.Trace, rs.Stragglers.
    stop: rs.Stop(gap=1e-10, ...) or a function of the round. average: "ergodic" (the paper's) or "suffix".
    every: one row of the history for every round that it divides, and for the last.
    callback: called with every Round, whose `value` and `metrics` are computed when asked for; rs.STOP ends the run.
    validation, test: rs.HeldOut(A, b), rows that no user trains on; their metrics become columns such as test_auc.
    metrics: names ("accuracy", "auc", "log_loss", "rmse") or functions of (truth, scores) by name; of a network, of
    (targets, outputs) as they are.
    validate_every: metrics are computed in the first row, in rounds that it divides and in the last, and are NaN in
    other rows.
    penalty: rs.L1(t), rs.Box(low, high), ..., where the problem has none: the objective is sum_i lambda_i f_i + g.
    recorder: is given every round before the next begins; `resolvent.runs.Recorder` stores them on disk.
    explanation: where arguments were checked and explained already, what was said; neither is then done again.

    Warns when the configuration does not solve the original problem or may not converge, in the words of rs.explain.
    Divergence and Ctrl-C end the run early, with a State to go on from; Run.status says so. What code of yours raises
    in a round comes through, with the Run so far as its attribute `run`.
    """
    arguments: dict[str, Any] = {
        "participation": participation,
        "stop": stop,
        "average": average,
        "every": every,
        "validation": validation,
        "test": test,
        "metrics": metrics,
        "validate_every": validate_every,
        "anderson": anderson,
        "accelerate": accelerate,
    }
    scheme, taking_part = as_scheme(scheme, eta), as_participation(participation)
    accelerating = one_acceleration(anderson, accelerate)
    problem, beside = with_penalty(problem, engine, penalty)
    check_hooks(stop, callback, progress)
    local = partial(choice.local_operator, scheme, problem)
    ready: Any = engine
    if is_problem(problem):
        ready, problem = engines.joined(engine, problem, local, scheme.steady)
    known, scheme = known_users(problem, ready, scheme)
    known = known if beside is None else replace(known, penalty=beside, counted=False)
    if explanation is None:
        check(known, scheme, taking_part, rounds, every, average, seed)
        explanation = explain(scheme, known, taking_part, accelerating)
        _warn(explanation)
    measured = evaluations(known, validation, test, metrics, validate_every)
    operator = choice.local_operator(scheme, known)
    where = delayed(engines.build(ready, problem, operator, scheme.steady), taking_part)
    with where:
        given = {"scheme": scheme, "participation": taking_part, "acceleration": accelerating, "stop": stop}
        given |= {"penalty": known.penalty}
        plain = {"rounds": rounds, "seed": seed, "every": every, "average": average}
        where.facts.peers.same(partial(described, given, plain, start))
        state = beginning(where, scheme, taking_part, accelerating, start)
        verify_functions(problem, scheme, state)
        loop = the_rounds(
            where,
            scheme,
            state,
            participation=taking_part,
            accelerate=accelerating,
            meet=meeting(known, operator),
            seed=seed,
            average=average,
        )
        monitor = Monitor(
            Objective(where, known),
            scheme.name,
            every,
            average is not None,
            stop,
            recorder,
            state,
            measured,
            validate_every,
        )
        try:
            status, reason = _drive(loop, monitor, scheme.name, rounds, callback, progress)
        except (Exception, SystemExit) as error:
            where.facts.peers.leave(error)
            done = monitor.history.so_far()
            _attach(error, Run(monitor.state, done, "failed", repr(error), explanation, where, seed))
            raise
        rows = monitor.history  # an interrupt may have come in the middle of one
        history, own = rows.so_far() if status == "interrupted" else rows.frame(), rows.user_frame()
    if status == "diverged":
        warnings.warn(reason, DivergenceWarning, stacklevel=2)
    for remark in monitor.remarks:
        ended = f"{scheme.name} {status} after {monitor.state.round} rounds"
        warnings.warn(f"{ended}: {remark}", DoubtfulResult, stacklevel=2)
    arguments.update(engine=engine, problem=problem, scheme=scheme)
    return Run(
        monitor.state,
        history,
        status,
        reason,
        explanation,
        where,
        seed,
        own,
        monitor.kept,
        describe(known),
        settings(known, scheme, getattr(accelerating, "memory", 0), monitor.state.round, seed),
        arguments,
        remembered=monitor.remembered,
    )


def _drive(
    loop: Iterator[Round],
    monitor: Monitor,
    name: str,
    rounds: int,
    callback: Callable[[Round], Any] | None,
    progress: bool | None,
) -> tuple[str, str]:
    """Run the rounds until the monitor says that the run has ended: its status and the reason."""
    bar = Bar(name, rounds, wanted(progress))
    try:
        for k in range(rounds):
            began = time.perf_counter()
            happened = next(loop)
            now = time.perf_counter()
            ending = monitor.observe(happened, now - began, last=k == rounds - 1)
            said = None if callback is None else callback(monitor.marked(happened))
            bar.advance(now, monitor.words)
            if ending is None and said is STOP:
                ending = monitor.stop(happened, "as the callback said")
            if ending is not None:
                return ending
    except BlewUp as error:
        return monitor.blew_up(error)
    except KeyboardInterrupt:
        return "interrupted", f"interrupted after {monitor.state.round} rounds"
    finally:
        bar.close()
    return "finished", f"{rounds} rounds"  # not reached: the monitor ends the last round


def _attach(error: BaseException, run: Run) -> None:
    """Put the run so far on what ended it."""
    with contextlib.suppress(AttributeError):  # some exceptions take no attributes
        error.run = run  # type: ignore[attr-defined]


def _warn(explanation: Explanation) -> None:
    for finding in explanation.findings:
        warnings.warn(str(finding), finding.about, stacklevel=3)
