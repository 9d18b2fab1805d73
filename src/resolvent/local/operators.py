"""Local operators: what a user computes in a round. A prox, exact or not, or gradient steps (FedAvg's forward map).

An operator is a frozen description; `bind` joins it to a problem that offers what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.errors import InputError, refuse, whole
from resolvent.iteration.engine import Ask
from resolvent.local.bound import Bound, Plain
from resolvent.local.descent import accelerated, descend, gradients, optimise
from resolvent.local.newton import Newton
from resolvent.local.quadratic import Filter
from resolvent.local.training import Trained
from resolvent.problems.newton.inverses import by_rows, check_room
from resolvent.problems.problem import Problem
from resolvent.problems.quadratic.affine import prox_share, steps_share


class Operator(Protocol):
    """A description of what users compute. `certifies` is where (u - p) / eta is a subgradient: "p", "u" or None."""

    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def forward(self) -> bool: ...
    @property
    def certifies(self) -> str | None: ...
    def bind(self, problem: Any, steady: bool) -> Bound: ...


def check(operator: Operator, problem: Problem) -> None:
    """Refuse what is no operator, or one that the problem cannot serve."""
    if not hasattr(operator, "bind"):
        refuse("local", repr(operator), "rs.ExactProx, rs.NewtonProx, rs.GradientProx or rs.GradientSteps is needed")
    missing = operator.needs - problem.offers
    if missing:
        raise InputError(
            f"local is {operator}, which needs {', '.join(sorted(missing))} of the problem, but "
            f"{type(problem).__name__} offers {', '.join(sorted(problem.offers))}; {_advice(problem)}"
        )


def _advice(problem: Problem) -> str:
    if "prox" in problem.offers:
        return "take rs.ExactProx() (a prox scheme)"
    return "take rs.GradientProx(steps, lr) or rs.GradientSteps(steps)"


def best(problem: Problem) -> Operator:
    """The best prox a problem offers: a formula, else Newton's method, else gradient steps."""
    if "prox" in problem.offers and problem.closed_form:
        return ExactProx()
    if "hessian" in problem.offers:
        return NewtonProx()
    return ExactProx() if "prox" in problem.offers else GradientProx()


@dataclass(frozen=True)
class ExactProx:
    """prox_eta f_i(u_i), as the problem gives it."""

    needs = frozenset({"prox"})
    forward = False
    certifies = "p"

    def bind(self, problem: Any, steady: bool) -> Bound:
        if "spectrum" in problem.offers:
            return Filter(problem, lambda eta, s: prox_share(eta * s), steady)
        return Plain(problem, lambda part, ask, u: part.prox(u, ask.eta))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class NewtonProx:
    """prox_eta f_i(u_i) by Newton's method from the last answer, until |p - prox| <= tol (1 + |u|) or round-off.

    Round-off is that of the gradient: eta times the unit in the last place of its terms. An answer that it may leave
    with an error above 1e-8 (1 + |u|) is computed again with a line search and a certificate of its error; one that
    cannot be had to 1e-8 (1 + |u| + |p|) even so raises BadAnswer, as do a hessian that is none and an f that is not
    convex, where they show. A run's State has the bound on each user's error in memory["error"].
    """

    tol: float = 5e-13
    needs = frozenset({"grad", "hessian"})
    forward = False
    certifies = "p"

    def __post_init__(self) -> None:
        if not 0 <= self.tol < 1:
            refuse("tol", self.tol, "a relative tolerance in [0, 1) is needed")

    def bind(self, problem: Any, steady: bool) -> Bound:
        if not by_rows(problem):
            check_room(problem)
        return Newton(problem, self.tol)


@dataclass(frozen=True)
class GradientProx:
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
    forward = False
    certifies = None

    def __post_init__(self) -> None:
        _check_descent(self.steps, self.batch, self.momentum)
        if self.lr is not None and not self.lr > 0:
            refuse("lr", self.lr, "a number > 0 is needed, or None for 1 / (L + 1/eta)")
        whole(self.anderson, "anderson", least=0)
        if self.anderson and (self.batch or self.momentum):
            refuse("anderson", self.anderson, "inside a prox it needs full gradients: leave out batch and momentum")
        if self.optimiser is not None:
            _check_optimiser(self.optimiser, self.momentum, self.anderson)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"grad"}) if self.batch is None else frozenset({"grad", "batches"})

    def rate(self, problem: Problem, eta: float) -> Tensor | float:
        """lr, or what stands for it: a column, one a user."""
        if self.lr is not None:
            return self.lr
        L = problem.lipschitz
        return 0.01 if L is None else 1 / (L + 1 / eta).unsqueeze(1)

    def bind(self, problem: Any, steady: bool) -> Bound:
        plain = self.batch is None and not self.momentum and not self.anderson and self.optimiser is None
        if "spectrum" in problem.offers and plain:
            return Filter(problem, lambda eta, s: self._share(problem, eta, s), steady)
        return _stepping(problem, self._descend, steady and self.batch is None and self.optimiser is None)

    def _share(self, problem: Problem, eta: float, s: Tensor) -> Tensor:
        """On a quadratic the distance to the prox shrinks by 1 - lr (s + 1/eta) per step."""
        return prox_share(eta * s) * steps_share(self.rate(problem, eta) * (s + 1 / eta), self.steps)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        lr = self.rate(part, ask.eta)
        if self.anderson:
            return accelerated(lambda x: x - lr * (part.grad(x) + (x - u) / ask.eta), u, self.steps, self.anderson)
        steps = gradients(part, self.steps, self.batch, ask.seed, ask.t, ask.names)
        if self.optimiser is not None:
            rate = {} if self.lr is None else {"lr": self.lr}
            return optimise(u, partial(self.optimiser, **rate), steps, pull=lambda x: (x - u) / ask.eta)
        return descend(u, lr, self.momentum, steps, pull=lambda x: (x - u) / ask.eta)


@dataclass(frozen=True)
class GradientSteps:
    """k gradient steps of size eta on f_i, from u_i: G^k (eq:FB). With `batch`, k shuffled passes over the rows."""

    steps: int = 1
    batch: int | None = None
    momentum: float = 0.0
    forward = True

    def __post_init__(self) -> None:
        _check_descent(self.steps, self.batch, self.momentum)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"grad"}) if self.batch is None else frozenset({"grad", "batches"})

    @property
    def certifies(self) -> str | None:
        return "u" if self.steps == 1 and self.batch is None else None

    def bind(self, problem: Any, steady: bool) -> Bound:
        if "spectrum" in problem.offers and self.batch is None and not self.momentum:
            return Filter(problem, lambda eta, s: steps_share(eta * s, self.steps), steady)
        return _stepping(problem, self._descend, steady and self.batch is None)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        return descend(u, ask.eta, self.momentum, gradients(part, self.steps, self.batch, ask.seed, ask.t, ask.names))


def _check_optimiser(optimiser: Any, momentum: float, anderson: int) -> None:
    if not callable(optimiser):
        refuse("optimiser", repr(optimiser), "torch.optim.Adam or another function of a list of parameters is needed")
    if optimiser is torch.optim.LBFGS:
        refuse("optimiser", "LBFGS", "it asks for the loss again and again: one that takes a step a gradient is needed")
    if momentum or anderson:
        refuse("optimiser", optimiser, "it takes the steps by itself: leave out momentum and anderson")


def _stepping(problem: Any, answer: Any, repeats: bool) -> Bound:
    """Gradient steps, on networks with what those keep between rounds."""
    return Trained(problem, answer, repeats) if "training" in problem.offers else Plain(problem, answer)


def _check_descent(steps: int, batch: int | None, momentum: float) -> None:
    whole(steps, "steps")
    if batch is not None:
        whole(batch, "batch")
    if not 0 <= momentum < 1:
        refuse("momentum", momentum, "a number in [0, 1) is needed")
