"""The front door: `solve` runs a scheme on a problem and hands back a Run."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent import averaging, engines, local, theory
from resolvent.anderson import Anderson, as_anderson
from resolvent.errors import DivergenceWarning, InputError, refuse, whole
from resolvent.explain import Explanation, explain, operator_of
from resolvent.history import History
from resolvent.participation import Participation, as_participation
from resolvent.problems.inputs import as_tensor
from resolvent.problems.problem import Problem
from resolvent.progress import Bar, wanted
from resolvent.rounds import Engine, Round
from resolvent.rounds import rounds as the_rounds
from resolvent.run import Run
from resolvent.scheme import Number, Scheme, as_scheme
from resolvent.state import State, adapt, begin

CHECK = 5
"""Rounds between two looks for divergence."""
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


def solve(
    problem: Problem,
    scheme: Scheme | str,
    rounds: int = 100,
    anderson: Anderson | int | None = None,
    participation: Participation | float | None = None,
    engine: str | Engine = "inprocess",
    seed: int = 0,
    start: Tensor | State | None = None,
    stop: Stop | Callable[[Round], bool] | None = None,
    average: str | None = None,
    every: int = 1,
    callback: Callable[[Round], None] | None = None,
    progress: bool | None = None,
    eta: Number | str | None = None,
) -> Run:
    """Run `rounds` rounds of a scheme, from `start`: a vector, rows (users, d), or the State of an earlier run.

    scheme: a row of Table 1 such as rs.fedpi(eta=1e-2), an rs.Scheme, or a name with `eta` ("fedpi" finds its own).
    anderson: a memory such as 2, or rs.Anderson. participation: a probability, rs.Bernoulli, rs.FixedSize, rs.Trace.
    stop: rs.Stop(gap=1e-10, ...) or a function of the round. average: "ergodic" (the paper's) or "suffix".
    every: rounds between two rows of the history. callback: called with every Round.

    Warns when the configuration does not solve the original problem or may not converge, in the words of rs.explain.
    Divergence and Ctrl-C end the run early, with a State to go on from; Run.status says so.
    """
    if not hasattr(problem, "offers"):
        refuse(
            "problem",
            f"of type {type(problem).__name__}",
            "rs.LeastSquares, rs.Logistic, rs.Custom or another problem is needed",
        )
    scheme, accelerate, taking_part = as_scheme(scheme, eta), as_anderson(anderson), as_participation(participation)
    operator = operator_of(scheme, problem)
    _check(problem, scheme, operator, taking_part)
    _check_policy(rounds, every, average, seed, stop, callback)
    explanation = explain(scheme, problem, taking_part, accelerate)
    _warn(explanation)
    where = engines.build(engine, problem, operator, scheme.steady)
    state = _begin(where, problem, scheme, taking_part, accelerate, start)
    loop = the_rounds(
        where, scheme, state, participation=taking_part, accelerate=accelerate, seed=seed, average=average
    )
    watch = _Watch(where, scheme, average is not None)
    bar = Bar(scheme.name, rounds, wanted(progress))
    status, reason, seconds = "finished", f"{rounds} rounds", 0.0
    try:
        for k in range(rounds):
            began = time.perf_counter()
            happened = next(loop)
            now = time.perf_counter()
            seconds += now - began
            reason_to_stop = watch.look(happened, seconds, stop, k % every == every - 1 or k == rounds - 1)
            if callback is not None:
                callback(happened)
            bar.advance(now, watch.words)
            if reason_to_stop is not None:
                status, reason = reason_to_stop
                break
    except KeyboardInterrupt:
        status, reason = "interrupted", f"interrupted after {watch.state(state).round} rounds"
    finally:
        bar.close()
    if status == "diverged":
        warnings.warn(reason, DivergenceWarning, stacklevel=2)
    return Run(watch.state(state), watch.history.frame(), status, reason, explanation, where, seed)


def _check(problem: Problem, scheme: Scheme, operator: local.Operator, participation: Participation) -> None:
    participation.check(problem.users)
    local.check(operator, problem)
    if scheme.auto and not participation.full and participation.absent == "paper":
        raise InputError(
            'eta is "auto", but absent="paper" lets answers grow stale; take absent="hold" or a number for eta'
        )


def _check_policy(rounds: int, every: int, average: str | None, seed: int, stop: object, callback: object) -> None:
    whole(rounds, "rounds")
    whole(every, "every")
    averaging.check(average)
    if whole(seed, "seed", least=0) >= 2**63:
        refuse("seed", seed, "a whole number below 2^63 is needed")
    if stop is not None and not isinstance(stop, Stop) and not callable(stop):
        refuse("stop", repr(stop), "rs.Stop(...) or a function of the round is needed")
    if callback is not None and not callable(callback):
        refuse("callback", repr(callback), "a function of the round is needed")


def _warn(explanation: Explanation) -> None:
    for finding in explanation.findings:
        warnings.warn(str(finding), finding.about, stacklevel=3)


def _begin(
    engine: Engine,
    problem: Problem,
    scheme: Scheme,
    participation: Participation,
    accelerate: Anderson,
    start: Tensor | State | None,
) -> State:
    eta0 = _eta0(problem) if scheme.auto else 1.0
    if isinstance(start, State):
        if start.u.shape[1] != engine.dim or start.u.shape[0] not in (1, engine.users):
            came = f"a State of shape {tuple(start.u.shape)}"
            refuse("start", came, f"({engine.users}, {engine.dim}) is what fits here")
        adapted = adapt(start, scheme, participation, accelerate, eta0)
        if adapted is not None:
            return adapted
        start = start.u if start.next is None else start.next  # users must part: only the point carries over
    if start is None:
        u0 = torch.zeros((1, engine.dim), dtype=engine.dtype, device=engine.device)
    else:
        u0 = as_tensor(start, "start").to(dtype=engine.dtype, device=engine.device)
        u0 = u0.unsqueeze(0) if u0.ndim == 1 else u0
        if u0.ndim != 2 or u0.shape[1] != engine.dim or u0.shape[0] not in (1, engine.users):
            refuse(
                "start", f"of shape {tuple(u0.shape)}", f"({engine.dim},) or ({engine.users}, {engine.dim}) is needed"
            )
        if not bool(torch.isfinite(u0).all()):
            refuse("start", "partly NaN or infinite", "finite numbers are needed")
    w0 = u0 if u0.shape[0] == 1 else engine.mean(u0)
    return begin(u0, w0, engine.users, scheme, participation, eta0)


def _eta0(problem: Problem) -> float:
    """Where an automatic eta starts: 1/L where L is known."""
    _, L = theory.curvatures(problem)
    return 1 / L if 0 < L < float("inf") else 1.0


class _Watch:
    """Looks at every round: records it, notices divergence, and knows the last good state."""

    def __init__(self, engine: Engine, scheme: Scheme, average: bool) -> None:
        self.history = History(engine, average)
        self._scheme = scheme
        self._good: State | None = None
        self._latest: State | None = None
        self._first = self._start = math.nan
        self._residual, self._most = math.nan, 0.0

    def state(self, otherwise: State) -> State:
        """The newest state that is good."""
        return self._latest or otherwise

    def words(self) -> str:
        """What a progress bar says."""
        return f"residual {self._residual:.2e}"

    def look(
        self, happened: Round, seconds: float, stop: Stop | Callable[[Round], bool] | None, record: bool
    ) -> tuple[str, str] | None:
        """(status, reason) if this round is the last."""
        self._latest = happened.state
        if record or isinstance(stop, Stop):
            self.history.record(happened, seconds)
        if happened.step is not None and (happened.number % CHECK == 0 or math.isnan(self._first)):
            diverged = self._diverged(happened)
            if diverged:
                if not record and not isinstance(stop, Stop):
                    self.history.record(happened, seconds)  # to be seen, whatever the cadence
                return "diverged", diverged
        if stop is None:
            return None
        if isinstance(stop, Stop):
            reason = stop.reason(self.history.row())
            if not record and not reason:
                self.history.forget()
        else:
            reason = "as the function `stop` said" if stop(happened) else None
        return ("stopped", reason) if reason else None

    def _diverged(self, happened: Round) -> str | None:
        """Residuals over eta are gradients in disguise: for a convex problem they never grow, whatever eta does."""
        self._residual = happened.residual
        pull, size = self._residual / happened.eta, float(happened.model.norm())
        if math.isnan(self._first) and math.isfinite(pull):
            self._first, self._start = pull, size
        self._most = max(self._most, self._residual)
        noise = 1e-8 * (1 + size) / happened.eta
        reach = FLUNG * (1 + self._start + happened.number * self._most)  # steps this long cannot have led further
        if pull <= BLOWN_UP * max(self._first, noise) and size <= reach:
            self._good = happened.state
            return None
        self._latest = self._good
        kept = "nothing was kept" if self._good is None else f"the state after round {self._good.round} is kept"
        return (
            f"{self._scheme.name} diverged by round {happened.number}: |Tu - u| / eta is {pull:.3g}, "
            f"in the first round it was {self._first:.3g}, and the model's norm is {size:.3g}; {kept}; "
            "take a smaller eta, or what rs.explain advises"
        )
