"""The front door: `solve` runs a scheme on a problem and hands back a Run."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from resolvent import engines
from resolvent.errors import BlewUp, DivergenceWarning, DoubtfulResult, InputError, refuse, whole
from resolvent.iteration import averaging
from resolvent.iteration.anderson import Anderson, as_anderson
from resolvent.iteration.checkpoint import moved
from resolvent.iteration.engine import Engine
from resolvent.iteration.participation import Participation, as_participation
from resolvent.iteration.rounds import Round
from resolvent.iteration.rounds import rounds as the_rounds
from resolvent.iteration.scheme import Number, Scheme, as_scheme
from resolvent.iteration.state import State, adapt, begin
from resolvent.local import operators
from resolvent.problems.custom import Custom
from resolvent.problems.inputs import as_tensor
from resolvent.problems.problem import Problem
from resolvent.problems.verify import verify
from resolvent.solving.progress import Bar, wanted
from resolvent.solving.run import Run
from resolvent.solving.watch import Keeper, Stop, Watch
from resolvent.theory import closed_forms
from resolvent.theory.explain import Explanation, explain


def solve(
    problem: Problem,
    scheme: Scheme | str,
    rounds: int = 100,
    anderson: Anderson | int | None = None,
    participation: Participation | float | None = None,
    engine: str | Engine = "in_process",
    seed: int = 0,
    start: Tensor | State | None = None,
    stop: Stop | Callable[[Round], bool] | None = None,
    average: str | None = None,
    every: int = 1,
    callback: Callable[[Round], None] | None = None,
    progress: bool | None = None,
    eta: Number | str | None = None,
    keep: Keeper | None = None,
    explanation: Explanation | None = None,
) -> Run:
    """Run `rounds` rounds of a scheme, from `start`: a vector, rows (users, d), or the State of an earlier run.

    scheme: a row of Table 1 such as rs.fedpi(eta=1e-2), an rs.Scheme, or a name with `eta` ("fedpi" finds its own).
    anderson: a memory such as 2, or rs.Anderson. participation: a probability, rs.Bernoulli, rs.FixedSize, rs.Trace.
    stop: rs.Stop(gap=1e-10, ...) or a function of the round. average: "ergodic" (the paper's) or "suffix".
    every: a row of the history for every round that it divides, and for the last. callback: called with every Round.
    keep: takes every round before the next begins; `resolvent.runs` keeps them on disk.
    explanation: where arguments were checked and explained already, what was said; neither is then done again.

    Warns when the configuration does not solve the original problem or may not converge, in the words of rs.explain.
    Divergence and Ctrl-C end the run early, with a State to go on from; Run.status says so. What code of yours raises
    in a round comes through, with the Run so far as its attribute `run`.
    """
    if not hasattr(problem, "offers"):
        refuse(
            "problem",
            f"of type {type(problem).__name__}",
            "rs.LeastSquares, rs.Logistic, rs.Custom or another problem is needed",
        )
    scheme, accelerate, taking_part = as_scheme(scheme, eta), as_anderson(anderson), as_participation(participation)
    _check_hooks(stop, callback)
    if explanation is None:
        check(problem, scheme, taking_part, rounds, every, average, seed)
        explanation = explain(scheme, problem, taking_part, accelerate)
        _warn(explanation)
    operator = operators.local_operator(scheme, problem)
    where = engines.build(engine, problem, operator, scheme.steady)
    state = _begin(where, problem, scheme, taking_part, accelerate, start)
    _verify(problem, scheme, state)
    loop = the_rounds(
        where, scheme, state, participation=taking_part, accelerate=accelerate, seed=seed, average=average
    )
    watch = Watch(where, scheme.name, every, average is not None, stop, keep, state)
    bar = Bar(scheme.name, rounds, wanted(progress))
    status, reason = "finished", f"{rounds} rounds"  # as the watch says of the last round, with its remarks
    try:
        for k in range(rounds):
            began = time.perf_counter()
            happened = next(loop)
            now = time.perf_counter()
            verdict = watch.look(happened, now - began, last=k == rounds - 1)
            if callback is not None:
                callback(watch.marked(happened))
            bar.advance(now, watch.words)
            if verdict is not None:
                status, reason = verdict
                break
    except BlewUp as error:
        status, reason = watch.blew_up(error)
    except KeyboardInterrupt:
        status, reason = "interrupted", f"interrupted after {watch.state.round} rounds"
    except (Exception, SystemExit) as error:
        _attach(error, Run(watch.state, watch.history.so_far(), "failed", repr(error), explanation, where, seed))
        raise
    finally:
        bar.close()
    if status == "diverged":
        warnings.warn(reason, DivergenceWarning, stacklevel=2)
    for remark in watch.remarks:
        warnings.warn(
            f"{scheme.name} {status} after {watch.state.round} rounds: {remark}", DoubtfulResult, stacklevel=2
        )
    return Run(watch.state, watch.history.frame(), status, reason, explanation, where, seed)


def _attach(error: BaseException, run: Run) -> None:
    """Put the run so far on what ended it."""
    with contextlib.suppress(AttributeError):  # some exceptions take no attributes
        error.run = run  # type: ignore[attr-defined]


def check(
    problem: Problem,
    scheme: Scheme,
    participation: Participation,
    rounds: int,
    every: int = 1,
    average: str | None = None,
    seed: int = 0,
) -> operators.Operator:
    """The local operator, once everything that `solve` needs of these arguments is there."""
    operator = operators.local_operator(scheme, problem)
    participation.check(problem.users)
    operators.check(operator, problem)
    if scheme.auto and not participation.full and participation.absent == "paper":
        raise InputError(
            'eta is "auto", but absent="paper" lets answers grow stale; take absent="hold" or a number for eta'
        )
    if scheme.auto and operator.certifies is None and problem.lipschitz is None:
        raise InputError(
            f'eta is "auto", but {operator} computes the prox only roughly and nothing is known of the curvature; '
            "give eta a number"
        )
    whole(rounds, "rounds")
    whole(every, "every")
    averaging.check(average)
    if whole(seed, "seed", least=0) >= 2**63:
        refuse("seed", seed, "a whole number below 2^63 is needed")
    return operator


def _verify(problem: Problem, scheme: Scheme, state: State) -> None:
    """Before the first round, a user's own functions must not contradict each other."""
    if isinstance(problem, Custom) and problem.check and state.round == 0:
        eta = scheme.eta_at(0) if state.tuning is None else state.tuning.eta
        verify(problem, state.u, eta, changes=scheme.changes != "never")


def _check_hooks(stop: object, callback: object) -> None:
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
        if start.u.shape[1] != engine.dim or start.u.shape[0] != (1 if start.together else engine.users):
            came = f"a State of shape {tuple(start.u.shape)}"
            refuse("start", came, f"({engine.users}, {engine.dim}) is what fits here")
        start = moved(start, engine.device)
        adapted = adapt(start, engine.users, scheme, participation, accelerate, eta0)
        if adapted is not None:
            return adapted
        start = start.u if start.next is None else start.next  # users must part: only the point carries over
    if start is None:
        start = getattr(problem, "start", None)  # a network begins where its module stands
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
    """Where an automatic eta starts: 1/L where L is known, else what the problem itself suggests."""
    _, L = closed_forms.curvatures(problem)
    if 0 < L < float("inf"):
        return 1 / L
    return float(getattr(problem, "typical_eta", 1.0))
