"""Local operators: what a user computes in a round. A prox, exact or not, or gradient steps (FedAvg's forward map).

An operator is a frozen description. `bind` joins it to a problem, after checking that the problem can serve it; the
bound operator may keep caches, but what a later round needs from the past travels through `memory`, a dictionary of
(users, ...) tensors that belongs to the run's State.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from resolvent.descent import accelerated, descend, gradients
from resolvent.errors import InputError, refuse, whole
from resolvent.problems.affine import Affine
from resolvent.problems.newton import Kept, cold, newton_prox
from resolvent.problems.problem import Problem, select

Memory = dict[str, Tensor]
Spread = Callable[[Tensor], Tensor]
"""sum lambda |p_i - mean(p)|^2, (k,), of the answers to each row of u (k, d); equal functions may be asked together."""


class Ask(NamedTuple):
    """A question to users: the round, the step size, who is asked (None: everyone) and the run's seed.

    `names` are the users' numbers in the whole federation, which their randomness depends on, where the problem at
    hand holds only some of them.
    """

    t: int
    eta: float
    who: Tensor | None = None
    seed: int = 0
    names: Tensor | None = None

    def among(self, users: int) -> Ask:
        """The same question to those asked alone, with the numbers they have among `users`."""
        names = torch.arange(users) if self.names is None else self.names
        return self._replace(who=None, names=names if self.who is None else names[self.who])


class Bound(Protocol):
    """An operator joined to a problem."""

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The answers p of those asked, a row each; u has their rows, or one row which they share."""
        ...

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        """mean(p), (1, d), of users who share u (1, d), and how far their answers are apart."""
        ...


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


# --- bound operators -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Filter:
    """Any operator on quadratics: a filter psi(eta, s) of the eigenvalues, its maps kept while eta stays."""

    problem: Any
    psi: Callable[[float, Tensor], Tensor]
    steady: bool
    kept: tuple[float, Affine] | None = None

    def maps(self, eta: float) -> Affine:
        if self.kept is None or self.kept[0] != eta:
            self.kept = (eta, self.problem.filtered(lambda s: self.psi(eta, s), self.steady))
        return self.kept[1]

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return self.maps(ask.eta)(u, ask.who), memory

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        if ask.who is not None:
            return mean_of_rows(self, self.problem.weights, ask, u, memory)
        maps = self.maps(ask.eta)
        return maps.mean(u), maps.spread, memory


@dataclass(eq=False)
class Plain:
    """An operator without a past: a function of (problem, ask, u)."""

    problem: Problem
    answer: Callable[[Problem, Ask, Tensor], Tensor]

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        part = self.problem if ask.who is None else self.problem.take(ask.who)
        return self.answer(part, ask.among(self.problem.users), u.expand(part.users, -1)), memory

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        return mean_of_rows(self, self.problem.weights, ask, u, memory)


@dataclass(eq=False)
class Newton:
    """Newton's method, warm-started. Memory: the last answer x and gradient g of each user, the anchor of its kept
    factorisation, and the error of its last answer. The first step of a round needs no gradient: g is known."""

    problem: Any
    tol: float
    kept: Kept | None = None

    def rows(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        m, d = self.problem.users, self.problem.dim
        if not memory:
            blank = u.new_full((m, d), torch.nan)
            memory = {"x": blank, "g": blank, "anchor": u.new_full((m, d + 1), torch.nan), "error": blank[:, 0]}
        kept = self._kept(memory["anchor"])
        part, mine, past = self.problem, kept, memory
        if ask.who is not None:
            part, mine = self.problem.take(ask.who), kept.take(ask.who)
            past = {key: tensor[ask.who] for key, tensor in memory.items()}
        u = u.expand(part.users, -1)
        solved = newton_prox(part, u, ask.eta, self._start(part, u, ask.eta, past), mine, self.tol)
        now = {"x": solved.x, "g": solved.g, "anchor": mine.anchor, "error": solved.error}
        if ask.who is not None:
            now = {key: memory[key].index_copy(0, ask.who, rows) for key, rows in now.items()}
            kept.inverse[ask.who] = mine.inverse
        kept.anchor = now["anchor"]
        return solved.x, now

    def _start(self, part: Any, u: Tensor, eta: float, past: Memory) -> tuple[Tensor, Tensor]:
        fresh = past["x"][:, :1].isnan()
        if not bool(fresh.any()):
            return past["x"], past["g"]
        x, g = cold(part, u, eta)
        return torch.where(fresh, x, past["x"]), torch.where(fresh, g, past["g"])

    def _kept(self, anchor: Tensor) -> Kept:
        """The factorisations at these anchors: those at hand, or made anew after a resume, with the same bits."""
        if self.kept is None or self.kept.anchor is not anchor:
            self.kept = Kept.empty(self.problem.users, self.problem.dim, anchor)
            which = ~anchor[:, 0].isnan()
            if bool(which.any()):
                self.kept.renew(self.problem, which, anchor)
            self.kept.anchor = anchor
        return self.kept

    def mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        return mean_of_rows(self, self.problem.weights, ask, u, memory)


def mean_of_rows(bound: Bound, weights: Tensor, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
    """The mean of the answers where there is no shorter way than asking for all of them."""
    p, memory = bound.rows(ask, u, memory)
    lam = weights if ask.who is None else select(weights, ask.who)
    mean = (lam @ p).unsqueeze(0)
    spread = (lam @ (p - mean).square().sum(1)).unsqueeze(0)
    return mean, lambda u: spread, memory


# --- operators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExactProx:
    """prox_eta f_i(u_i), as the problem gives it."""

    needs = frozenset({"prox"})
    forward = False
    certifies = "p"

    def bind(self, problem: Any, steady: bool) -> Bound:
        if "spectrum" in problem.offers:
            return Filter(problem, lambda eta, s: 1 / (1 + eta * s), steady)
        return Plain(problem, lambda part, ask, u: part.prox(u, ask.eta))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class NewtonProx:
    """prox_eta f_i(u_i) by Newton's method from the last answer, until |p - prox| <= tol (1 + |u|) or round-off."""

    tol: float = 1e-13
    needs = frozenset({"grad", "hessian"})
    forward = False
    certifies = "p"

    def __post_init__(self) -> None:
        if not 0 <= self.tol < 1:
            refuse("tol", self.tol, "a relative tolerance in [0, 1) is needed")

    def bind(self, problem: Any, steady: bool) -> Bound:
        return Newton(problem, self.tol)


@dataclass(frozen=True)
class GradientProx:
    """k gradient steps on f_i + |x - u_i|^2 / (2 eta), from u_i. With `batch`, k shuffled passes over batches of rows.

    lr=None takes 1 / (L_i + 1/eta) where the problem knows L_i, else 0.01. `anderson` is the memory of an Anderson
    acceleration inside each user's own prox (the paper's remark at the end of its section 4).
    """

    steps: int = 20
    lr: float | None = None
    batch: int | None = None
    momentum: float = 0.0
    anderson: int = 0
    forward = False
    certifies = None

    def __post_init__(self) -> None:
        _check_descent(self.steps, self.batch, self.momentum)
        if self.lr is not None and not self.lr > 0:
            refuse("lr", self.lr, "a number > 0 is needed, or None for 1 / (L + 1/eta)")
        whole(self.anderson, "anderson", least=0)
        if self.anderson and (self.batch or self.momentum):
            refuse("anderson", self.anderson, "inside a prox it needs full gradients: leave out batch and momentum")

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
        if "spectrum" in problem.offers and self.batch is None and not self.momentum and not self.anderson:
            return Filter(problem, lambda eta, s: self._psi(problem, eta, s), steady)
        return Plain(problem, self._descend)

    def _psi(self, problem: Problem, eta: float, s: Tensor) -> Tensor:
        """On a quadratic the distance to the prox shrinks by 1 - lr (s + 1/eta) a step."""
        prox = 1 / (1 + eta * s)
        return prox + (1 - self.rate(problem, eta) * (s + 1 / eta)) ** self.steps * (1 - prox)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        lr = self.rate(part, ask.eta)
        if self.anderson:
            return accelerated(lambda x: x - lr * (part.grad(x) + (x - u) / ask.eta), u, self.steps, self.anderson)
        steps = gradients(part, self.steps, self.batch, ask.seed, ask.t, ask.names)
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
            return Filter(problem, lambda eta, s: (1 - eta * s) ** self.steps, steady)
        return Plain(problem, self._descend)

    def _descend(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        return descend(u, ask.eta, self.momentum, gradients(part, self.steps, self.batch, ask.seed, ask.t, ask.names))


def _check_descent(steps: int, batch: int | None, momentum: float) -> None:
    whole(steps, "steps")
    if batch is not None:
        whole(batch, "batch")
    if not 0 <= momentum < 1:
        refuse("momentum", momentum, "a number in [0, 1) is needed")
