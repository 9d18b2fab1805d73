"""Local operators: what a user computes in a round. A prox, exact or not, or gradient steps (FedAvg's forward map).

An operator is a frozen description; `bind` joins it to a problem that offers what it needs. One of your own is one
class, in a file of your own: see `Operator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import BadAnswer, number, quoted, real, refuse, whole
from resolvent.iteration.engine import Ask
from resolvent.iteration.facts import Facts
from resolvent.iteration.registry import part
from resolvent.local import law as laws
from resolvent.local.bound import Bound, Filter, Plain
from resolvent.local.descent import Pull, accelerated, descend, gradients, optimise
from resolvent.local.law import Law, Target, UserFacts
from resolvent.local.newton import MatrixFreeNewton, Newton
from resolvent.local.training import stepping
from resolvent.problems.newton.inverses import by_rows, check_room
from resolvent.problems.problem import Problem
from resolvent.problems.quadratic.affine import prox_share, steps_share

EXACT_TOL = 1e-8
"""The tolerance up to which Newton's prox counts as exact."""


class Operator:
    """What users compute, as a description. `needs` and `bind` are required; the rest has defaults.

    needs      what the problem must offer, such as "grad", "batches" or "prox"
    bind       joins it to a problem; `training.stepping` does that for whatever asks for gradients only, on networks
               too; `steady`: eta stays the same, so that work may be done once
    forward    whether it is like gradient steps of size eta, rather than like a prox
    certifies  where (u - p) / eta is a subgradient: "p", "u" or None
    law        what the fixed points of a scheme solve when users apply it: `explain` asks
    own_eta    the step size that eta="auto" stands for, where the operator says it; None: it is found while running
    settled    the same operator, with what depends on all users filled in
    """

    needs: frozenset[str] = frozenset({"grad"})
    forward: bool = False
    certifies: str | None = None

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        """Of an operator that states none, what its certificates show."""
        return laws.unstated(type(self).__name__, self.forward, self.certifies is not None, alpha, beta, eta)

    def own_eta(self, facts: Facts | None) -> float | None:
        """Most operators have none."""
        return None

    def settled(self, facts: Facts) -> Operator:
        """Most operators depend on nobody else."""
        return self

    def bind(self, problem: Any, steady: bool) -> Bound:
        raise NotImplementedError

    def __str__(self) -> str:
        """Without the fields that have their defaults."""
        every: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        chosen = [f.name for f in every if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in chosen)})"


def as_operator(given: Any) -> Operator:
    """What a user hands in as `local`, with the defaults of `Operator` for whatever it leaves out."""
    if isinstance(given, Operator):
        return given
    if not hasattr(given, "bind"):
        needed = (
            "rs.ExactProx(), rs.NewtonProx(), rs.GradientProx(...), rs.GradientSteps(...) or an operator of your own"
        )
        refuse("local", quoted(given), f"{needed}, a class with needs and bind, is needed")
    completed = copy(given)
    for name in ("needs", "forward", "certifies"):
        if not hasattr(given, name):
            object.__setattr__(completed, name, getattr(Operator, name))
    for name in ("law", "own_eta", "settled"):
        if getattr(given, name, None) is None:
            object.__setattr__(completed, name, partial(getattr(Operator, name), completed))
    return completed  # type: ignore[no-any-return]


@part("local", "exact")
@dataclass(frozen=True)
class ExactProx(Operator):
    """prox_eta f_i(u_i), as the problem gives it."""

    needs = frozenset({"prox"})
    certifies = "p"

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        return laws.of_prox(alpha, beta, eta, exact=True)

    def bind(self, problem: Any, steady: bool) -> Bound:
        if "spectrum" in problem.offers:
            return Filter(problem, lambda eta, s: prox_share(eta * s), steady)
        return Plain(problem, _prox_of_each)


def _prox_of_each(part: Any, ask: Ask, u: Tensor) -> Tensor:
    """NaN for whom it is not found, where nobody may learn of that."""
    try:
        return part.prox(u, ask.eta)  # type: ignore[no-any-return]
    except BadAnswer:
        if ask.finite:
            raise
        if part.users == 1:
            return torch.full_like(u, torch.nan)
    alone = torch.arange(part.users).split(1)
    return torch.cat([_prox_of_each(part.take(who), ask, u[who]) for who in alone])


@part("local", "newton")
@dataclass(frozen=True)
class NewtonProx(Operator):
    """prox_eta f_i(u_i) by Newton's method from the last answer, until |p - prox| <= tol (1 + |u|) or round-off.

    Round-off is that of the gradient: eta times the unit in the last place of its terms. An answer that it may leave
    with an error above 1e-8 (1 + |u|) is computed again with a line search and a certificate of its error; one that
    cannot be had to 1e-8 (1 + |u| + |p|) even so raises BadAnswer, as do a hessian that is none and an f that is not
    convex, where they show. A run's State has the bounds on the users' errors in `error`.

    Models of many parameters (softmax, sparse rows) are solved by conjugate gradients, without d x d matrices. A prox
    is then as precise as 1e-2 of the way that its u has gone since the last round, or tol: it becomes exact as a run
    settles.
    """

    tol: float = 5e-13
    """The relative error of Newton's prox."""
    needs = frozenset({"grad", "hessian"})
    certifies = "p"

    def __post_init__(self) -> None:
        tol = real(self.tol, "tol", lambda x: 0 <= x < 1, "a relative tolerance in [0, 1) is needed")
        object.__setattr__(self, "tol", tol)

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        return laws.of_prox(alpha, beta, eta, exact=self.tol <= EXACT_TOL)

    def bind(self, problem: Any, steady: bool) -> Bound:
        if getattr(problem, "matrix_free", False):
            return MatrixFreeNewton(problem, self.tol)
        if not by_rows(problem):
            check_room(problem)
        return Newton(problem, self.tol)


class StepsOperator(Operator):
    """An operator made of gradient steps: full ones, or over batches of so many rows."""

    batch: int | None

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"grad"}) if self.batch is None else frozenset({"grad", "batches"})


@part("local", "gradient-prox")
@dataclass(frozen=True)
class GradientProx(StepsOperator):
    """k gradient steps on f_i + |x - u_i|^2 / (2 eta), from u_i. With `batch`, k shuffled passes over batches of rows.

    lr=None takes 1 / (L_i + 1/eta) where the problem knows L_i, else 0.01. `anderson` is the memory of an Anderson
    acceleration inside each user's own prox (the paper's remark at the end of its section 4). `optimiser` takes the
    steps instead: torch.optim.Adam, say, or any function of a list of parameters that returns one; it begins anew in
    every round.
    """

    steps: int = 20
    lr: float | None = None
    batch: int | None = None
    momentum: float = 0.0
    anderson: int = 0
    optimiser: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_descent(self.steps, self.batch, self.momentum)
        if self.lr is not None:
            lr = real(self.lr, "lr", lambda x: x > 0, "a number > 0 is needed, or None for 1 / (L + 1/eta)")
            object.__setattr__(self, "lr", lr)
        whole(self.anderson, "anderson", least=0)
        if self.anderson and (self.batch or self.momentum):
            refuse("anderson", self.anderson, "inside a prox it needs full gradients: leave out batch and momentum")
        if self.optimiser is not None:
            self._check_optimiser(self.optimiser)

    def _check_optimiser(self, optimiser: Any) -> None:
        if not callable(optimiser):
            needed = "torch.optim.Adam or another function of a list of parameters is needed"
            refuse("optimiser", quoted(optimiser), needed)
        if optimiser is torch.optim.LBFGS:
            needed = "it evaluates the loss several times: one that takes one step per gradient is needed"
            refuse("optimiser", "LBFGS", needed)
        if self.momentum or self.anderson:
            refuse("optimiser", optimiser, "it takes the steps by itself: leave out momentum and anderson")

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        """A prox, as closely as its steps come to it."""
        batch = rows_of_batch(self.batch, users)
        steps = steps_of(self.steps, batch, users)
        plain = batch is None and self.optimiser is None

        def remaining(s: laws.Floats, steep: float, k: int) -> laws.Floats:
            prox, lr = 1 / (1 + eta * s), 1 / (steep + 1 / eta) if self.lr is None else self.lr
            return prox + laws.left_after(s + 1 / eta, lr, k, self.momentum) * (1 - prox)

        if eta == 0 and (self.lr is not None or users.curvatures is None):
            aim = Target(laws.NEITHER, why="lr stays while eta vanishes, so that in the end the prox's steps diverge")
        else:
            eta_eff = laws.prox_eta(alpha, beta, eta)
            error = math.nan
            if not self.anderson and self.optimiser is None:
                error = pulls_error(alpha, beta, eta, eta_eff, batch, steps, users, remaining)
            aim = laws.settled(eta_eff, False, error)
        return Law(aim, False, steps, self.momentum, self.lr, minimises=plain)

    def rate(self, problem: Problem, eta: float) -> Tensor | float:
        """lr, or what stands for it: a column with one entry per user."""
        if self.lr is not None:
            return self.lr
        L = problem.lipschitz
        return 0.01 if L is None else 1 / (L + 1 / eta).unsqueeze(1)

    def bind(self, problem: Any, steady: bool) -> Bound:
        plain = self.batch is None and not self.momentum and not self.anderson and self.optimiser is None
        if "spectrum" in problem.offers and plain:
            return Filter(problem, lambda eta, s: self._share(problem, eta, s), steady)
        return stepping(problem, self._descend, steady and self.batch is None and self.optimiser is None)

    def _share(self, problem: Problem, eta: float, s: Tensor) -> Tensor:
        """On a quadratic the distance to the prox shrinks by 1 - lr (s + 1/eta) per step."""
        return prox_share(eta * s) * steps_share(self.rate(problem, eta) * (s + 1 / eta), self.steps)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        lr = self.rate(part, ask.eta)
        if self.anderson:
            return accelerated(lambda x: x - lr * (part.grad(x) + (x - u) / ask.eta), u, self.steps, self.anderson)
        steps = gradients(part, ask, self.steps, self.batch)
        if self.optimiser is not None:
            rate = {} if self.lr is None else {"lr": self.lr}
            return optimise(u, partial(self.optimiser, **rate), steps, Pull(u, ask.eta))
        return descend(part, u, lr, self.momentum, steps, Pull(u, ask.eta))


@part("local", "gradient-steps")
@dataclass(frozen=True)
class GradientSteps(StepsOperator):
    """k gradient steps of size eta on f_i, from u_i: G^k (eq:FB). With `batch`, k shuffled passes over the rows."""

    steps: int = 1
    batch: int | None = None
    momentum: float = 0.0
    forward = True

    def __post_init__(self) -> None:
        check_descent(self.steps, self.batch, self.momentum)

    @property
    def certifies(self) -> str | None:  # type: ignore[override]
        return "u" if self.steps == 1 and self.batch is None else None

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        """One step has a law of its own; k of them pull like the prox at eta (k-1)/2, if they are short."""
        batch = rows_of_batch(self.batch, users)
        steps = steps_of(self.steps, batch, users)
        if batch is None and steps == (1,):
            return laws.of_step(alpha, beta, eta)._replace(momentum=self.momentum)

        def remaining(s: laws.Floats, steep: float, k: int) -> laws.Floats:
            return laws.left_after(s, eta, k, self.momentum)

        if len(steps) > 1:
            aim = laws.uneven(steps)
        elif eta == 0:  # every pull tends to that of f_i
            aim = Target(laws.ORIGINAL, 0.0, batch is None, math.nan)
        else:
            total, lag = laws.step_sums(steps[0], self.momentum)
            eta_eff = eta * (lag - laws.offset(alpha, beta) * total)
            error = pulls_error(alpha, beta, eta, eta_eff, batch, steps, users, remaining, total)
            aim = laws.settled(eta_eff, False, error)
        return Law(aim, False, steps, self.momentum, minimises=batch is None)

    def bind(self, problem: Any, steady: bool) -> Bound:
        if "spectrum" in problem.offers and self.batch is None and not self.momentum:
            return Filter(problem, lambda eta, s: steps_share(eta * s, self.steps), steady)
        return stepping(problem, self._descend, steady and self.batch is None)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        steps = gradients(part, ask, self.steps, self.batch)
        return descend(part, u, ask.eta, self.momentum, steps)


def rows_of_batch(batch: int | None, users: UserFacts) -> int | None:
    """Rows of a batch; None where a step takes all of them."""
    return None if batch is not None and users.rows is not None and batch >= users.rows.max(initial=0) else batch


def steps_of(steps: int, batch: int | None, users: UserFacts) -> tuple[int, ...]:
    """The numbers of gradient steps per round that users take: batches make them differ."""
    if batch is None or users.rows is None:
        return (int(steps),)
    return tuple(int(n) * steps for n in np.unique(-(-users.rows // batch)))


def pulls_error(
    alpha: float,
    beta: float,
    eta: float,
    eta_eff: float,
    batch: int | None,
    steps: tuple[int, ...],
    users: UserFacts,
    remaining: Callable[[laws.Floats, float, int], laws.Floats],
    span: float = 1.0,
) -> float:
    """The relative error of users' pulls; NaN where it is not known: no L_i, no number for eta, noise of batches.

    span: how many gradient steps an answer amounts to.
    """
    if users.curvatures is None or not (math.isfinite(eta) and eta > 0 and eta_eff >= 0):
        return math.nan
    unit = span * eta if users.penalised else None
    error = laws.pull_error(laws.offset(alpha, beta), eta_eff, users.curvatures, steps, remaining, unit)
    return math.nan if batch is not None and error <= laws.TOLERANCE else error


def check_descent(steps: int, batch: int | None, momentum: float) -> None:
    whole(steps, "steps")
    if batch is not None:
        whole(batch, "batch")
    if not 0 <= number(momentum) < 1:
        refuse("momentum", quoted(momentum), "a number in [0, 1) is needed")
