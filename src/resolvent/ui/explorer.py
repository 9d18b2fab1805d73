"""A run recomputed while a slider moves: the curve, the predicted fixed point, and in the plane every step."""

from __future__ import annotations

import math
import threading
import time
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import resolvent as rs
from resolvent.errors import InputError, ResolventWarning
from resolvent.iteration import schedules
from resolvent.iteration.participation import Absent, Bernoulli, Everyone, Participation, Stragglers
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.table import TABLE, Row
from resolvent.local.law import ORIGINAL, REGULARISED
from resolvent.solving.checking import check
from resolvent.solving.prepare import prepare
from resolvent.theory.explain import Explanation, explain
from resolvent.ui.curves import plain
from resolvent.ui.examples import EXAMPLES, Sizes

PERIOD = 20
"""Rounds between two halvings of eta."""
MAX_STEPS_DRAWN = 80
"""Rounds that are drawn in the plane, at most."""
SEARCH_ROUNDS = 400
"""Rounds in which a fixed point without a closed form is looked for."""
MIXING = ("alpha", "beta", "gamma")
SHOWN = ("round", "eta", "value", "gap", "residual", "consensus", "stationarity", "participants", "clock")
ONE_AT_A_TIME = threading.Lock()
"""Runs of the explorer follow each other: side by side each would be slower."""


@dataclass(frozen=True)
class Setup:
    """Where the sliders stand."""

    problem: str = "plane"
    sizes: Sizes = field(default_factory=Sizes)
    alpha: float = 2.0
    beta: float = 2.0
    gamma: float = 0.5
    eta: float = 0.5
    schedule: str = "constant"
    forward: bool = False
    steps: int = 1
    anderson: int = 0
    participation: float = 1.0
    absent: Absent = "hold"
    delays: float = 1.0
    rounds: int = 60
    algorithm: str = ""
    """The row that was chosen last: several may have the same numbers."""

    @property
    def row(self) -> str | None:
        """The row of the table that has these numbers, if one does: the one that was chosen, else one of Table 1."""
        chosen = TABLE.get(self.algorithm)
        if chosen is not None and self._has(chosen):
            return self.algorithm
        return next((name for name, row in TABLE.items() if not row.kin and self._has(row)), None)

    def _has(self, row: Row) -> bool:
        own = {name: getattr(self, name) for name in MIXING}
        numbers = (own[name] > 1 if name in row.free else own[name] == getattr(row, name) for name in MIXING)
        return all(numbers) and self.forward == row.forward

    @property
    def operator(self) -> str | None:
        """The local operator of the row, where it has one of its own."""
        return None if self.row is None else TABLE[self.row].local

    @property
    def free(self) -> dict[str, float]:
        """The numbers that the row leaves open."""
        return {} if self.row is None else {name: getattr(self, name) for name in TABLE[self.row].free}

    @property
    def scheme(self) -> Scheme:
        eta = schedules.by_name(self.schedule, self.eta, PERIOD)
        if self.row is not None:
            return TABLE[self.row].scheme(eta, steps=self.steps, **self.free)
        mixing = self.alpha, self.beta, self.gamma
        beyond = self.gamma > 1
        return Scheme(*mixing, eta, name="custom", forward=self.forward, steps=self.steps, beyond=beyond)

    @property
    def taking_part(self) -> Participation:
        if self.delays > 1:
            return Stragglers(self.delays)
        return Bernoulli(self.participation, self.absent) if self.participation < 1 else Everyone()


@lru_cache(maxsize=8)
def problem_of(name: str, sizes: Sizes) -> Any:
    """A problem of the explorer; the last few are retained with their factorisations."""
    return EXAMPLES[name].make(sizes)


def explore(setup: Setup) -> dict[str, Any]:
    """Run a setup; everything that the page shows of it."""
    if setup.problem not in EXAMPLES:
        raise InputError(f"there is no problem {setup.problem!r}; there are {', '.join(EXAMPLES)}")
    if (setup.forward or setup.operator) and "grad" not in problem_of(setup.problem, setup.sizes).offers:
        raise InputError("indicators of sets have no gradient; choose the prox as what users compute")
    with ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)
        torch.set_num_threads(1)
        began = time.perf_counter()
        shown = _explored(setup)
        return shown | {"seconds": time.perf_counter() - began}


def _explored(setup: Setup) -> dict[str, Any]:
    problem, scheme, taking_part = problem_of(setup.problem, setup.sizes), setup.scheme, setup.taking_part
    check(problem, scheme, taking_part, setup.rounds)
    explanation = explain(scheme, problem, taking_part, setup.anderson)
    drawn = EXAMPLES[setup.problem].picture is not None
    rounds: list[rs.Round] = []
    run = prepare(
        problem, scheme, rounds=setup.rounds, anderson=setup.anderson, participation=taking_part,
        seed=setup.sizes.seed, callback=rounds.append if drawn else None, progress=False, explanation=explanation,
    ).run()  # fmt: skip
    point, exactly = predicted(problem, setup, explanation)
    limit = None if point is None else _measured(problem, point) | {"exactly": exactly}
    history = run.history
    shown: dict[str, Any] = {
        "columns": {name: plain(history[name].to_numpy(dtype=float)) for name in SHOWN if name in history},
        "status": run.status,
        "reason": run.reason,
        "solves": explanation.solves,
        "eta_eff": explanation.eta_eff if math.isfinite(explanation.eta_eff) else None,
        "words": str(explanation),
        "row": setup.row,
        "limit": limit,
    }
    if drawn:
        shown["path"] = [_step(problem, setup, each) for each in rounds[:MAX_STEPS_DRAWN]]
        shown["point"] = None if point is None else _list(point)
        shown["minimiser"] = None if problem.minimiser is None else _list(problem.minimiser)
    return shown


# --- where it should end ---------------------------------------------------------------------------------------------


def predicted(problem: Any, setup: Setup, explanation: Explanation) -> tuple[Tensor | None, bool]:
    """The model at the fixed points, and whether that is exact; None where nothing is known of them."""
    if explanation.solves == ORIGINAL and (explanation.exactly or problem.users == 1):
        return problem.minimiser, True
    steady = setup.schedule == "constant" and setup.beta == 1
    if setup.forward and steady and explanation.solves in (ORIGINAL, REGULARISED):
        return _balanced(problem, lambda s: s * sum((1 - setup.eta * s) ** j for j in range(setup.steps)))
    if explanation.solves != REGULARISED or setup.forward or not math.isfinite(explanation.eta_eff):
        return None, False
    eta = explanation.eta_eff
    point, exactly = _balanced(problem, lambda s: s / (1 + eta * s))
    return (point, exactly) if point is not None else (_searched(setup.problem, setup.sizes, eta), True)


def _balanced(problem: Any, pull: Any) -> tuple[Tensor | None, bool]:
    """w where the users' pulls add up to zero, for quadratics; `pull` is that of a curvature."""
    if getattr(problem, "penalty", None) is not None:
        return None, False
    if "spectrum" in problem.offers:
        return problem.balanced(pull(problem.spectrum.s)), True
    if isinstance(problem, rs.Quadratics):
        weights = problem.weights * pull(problem.curvature)
        return weights @ problem.centre / weights.sum(), True
    return None, False


@lru_cache(maxsize=32)
def _searched(name: str, sizes: Sizes, eta: float) -> Tensor | None:
    """The minimiser of the envelopes by FedProx itself, which is a contraction; None where it does not come to rest."""
    run = rs.solve(problem_of(name, sizes), rs.fedprox(eta), rounds=SEARCH_ROUNDS, anderson=4, progress=False,
                   stop=rs.Stop(residual=1e-12))  # fmt: skip
    return run.model if run.status == "stopped" or run.history["residual"].iloc[-1] < 1e-6 else None


def _measured(problem: Any, point: Tensor) -> dict[str, Any]:
    gap = problem.gap(point.unsqueeze(0))
    value = float(problem.weights @ problem.value(point.unsqueeze(0)))
    penalty = getattr(problem, "penalty", None)
    value += 0.0 if penalty is None else float(penalty.value(point))
    numbers = {"gap": math.nan if gap is None else float(gap[0]), "value": value}
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


# --- every step of it ------------------------------------------------------------------------------------------------


def _step(problem: Any, setup: Setup, happened: rs.Round) -> dict[str, Any]:
    """A round in the plane: where users were, what they answered, where they met and where they go."""
    state, users = happened.state, problem.users
    u = state.u.expand(users, -1)
    p = _answers(problem, setup, u, happened.eta) if state.together and happened.who is None else state.p.expand_as(u)
    z = torch.lerp(u, p, setup.alpha) if state.parts.participation.z is None else state.parts.participation.z
    ahead = (u if state.next is None else state.next).expand(users, -1)
    who = range(users) if happened.who is None else happened.who.tolist()
    named = {"u": u, "p": p, "z": z, "next": ahead}
    return {name: [_list(row) for row in rows] for name, rows in named.items()} | {
        "mean": _list(state.met[0]), "who": list(who) if happened.participants else [],
    }  # fmt: skip


def _answers(problem: Any, setup: Setup, u: Tensor, eta: float) -> Tensor:
    """Each user's own answer, where the run itself carries only their mean."""
    if not setup.forward:
        return problem.prox(u, eta)  # type: ignore[no-any-return]
    for _ in range(setup.steps):
        u = u - eta * problem.grad(u)
    return u


def _list(point: Tensor) -> list[float | None]:
    return plain(np.asarray(point.detach(), dtype=float))
