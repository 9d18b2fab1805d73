"""Functions given by the caller as a problem."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import flag, quoted, refuse, whole
from resolvent.iteration.called import Function
from resolvent.problems.callables import (
    AllRows,
    Differentiated,
    DifferentiatedTwice,
    PerUser,
    RowFunction,
    answer_shape,
    as_row_function,
)
from resolvent.problems.inputs import FLOAT, as_rows, as_tensor, as_weights, finite, points, refuse_shape
from resolvent.problems.problem import ProblemDefaults, objective, select, weighted


class Custom(ProblemDefaults):
    """f_i given by functions, each one callable over stacked rows or a list with one callable per user on (d,) vectors:

    value(W) -> (users,)     grad(W) -> (users, d)     prox(U, eta) -> (users, d)     hessian(W) -> (users, d, d)
    value_i(w) -> ()         grad_i(w) -> (d,)         prox_i(u, eta) -> (d,)         hessian_i(w) -> (d, d)

    Row i of an answer may depend on row i of the argument only. Where `value` is given and `grad` is not, the gradient
    comes from automatic differentiation, if value is made of torch operations: this is tried once, at the origin.
    hessian=True: so does the Hessian, and proxes are then exact. Functions of NumPy are given NumPy arrays.
    `lipschitz` and `convexity` are numbers, or one per user. f* = f(minimiser).

    Before a run begins, the functions and claims are compared with each other at a few random points, and refused where
    they contradict each other (`resolvent.problems.verify`). `check=False` leaves this out.
    """

    convexity: Tensor | None = None

    def __init__(
        self,
        users: int,
        dim: int,
        value: Function | Sequence[Function] | None = None,
        grad: Function | Sequence[Function] | None = None,
        prox: Function | Sequence[Function] | None = None,
        hessian: Function | Sequence[Function] | bool | None = None,
        weights: Any = None,
        minimiser: Any = None,
        convex: bool = True,
        lipschitz: Any = None,
        convexity: Any = None,
        dtype: torch.dtype = FLOAT,
        check: bool = True,
        *,
        penalty: Any = None,
    ) -> None:
        self.penalty = penalty
        self.users, self.dim = whole(users, "users"), whole(dim, "dim")
        if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
            refuse("dtype", quoted(dtype), "torch.float32 or torch.float64 is needed")
        self.convex, self.check = flag(convex, "convex"), flag(check, "check")
        self.weights = as_weights(weights, users, torch.empty(0, dtype=dtype))
        self.lipschitz = self._constants(lipschitz, "lipschitz")
        self.convexity = self._constants(convexity, "convexity")
        self.minimiser = self._point(minimiser)
        own = None if isinstance(hessian, bool) else hessian
        given = {"value": value, "grad": grad, "prox": prox, "hessian": own}
        self._answers: dict[str, RowFunction] = {}
        for name, f in given.items():
            if f is not None:
                self._answers[name] = as_row_function(name, f, users, answer_shape(name, dim))
        if grad is None and "value" in self._answers:
            slope = Differentiated(self._answers["value"])
            if slope.works(self.weights.new_zeros(users, dim)):
                self._answers["grad"] = slope
        if hessian is True:
            if "value" not in self._answers or not Differentiated(self._answers["value"]).works(
                self.weights.new_zeros(users, dim)
            ):
                refuse("hessian", True, "value made of torch operations is needed for it")
            self._answers["hessian"] = DifferentiatedTwice(self._answers["value"])
        if not self.offers & {"grad", "prox"}:
            received = "not given" if value is None else "not given, and value cannot be differentiated by torch"
            refuse("grad", received, "at least one of grad, prox and a value made of torch operations is needed")

    def _constants(self, numbers: Any, argument: str) -> Tensor | None:
        if numbers is None:
            return None
        each = as_tensor(numbers, argument).to(self.weights)
        if each.shape not in ((), (self.users,)):
            refuse_shape(argument, each, f"one number, or one for each of the {self.users} users, is needed")
        each = finite(each.expand(self.users), argument)
        if bool((each < 0).any()):
            refuse(argument, f"negative for user {int((each < 0).nonzero()[0])}", "numbers >= 0 are needed")
        return each

    def _point(self, minimiser: Any) -> Tensor | None:
        if minimiser is None:
            return None
        w = torch.atleast_1d(as_tensor(minimiser, "minimiser").to(self.weights))
        if w.shape != (self.dim,):
            refuse_shape("minimiser", w, f"one point of length {self.dim} is needed")
        return finite(w, "minimiser", of="coordinate")

    @property
    def offers(self) -> frozenset[str]:
        return frozenset(self._answers)

    @property
    def per_user(self) -> bool:
        """Whether some function is given as one callable per user."""
        return any(isinstance(answers, PerUser) for answers in self._answers.values())

    @property
    def stacked(self) -> frozenset[str]:
        """The given functions that are one callable over all users' rows."""
        return frozenset(name for name, answers in self._answers.items() if isinstance(answers, AllRows))

    @property
    def closed_form(self) -> bool:
        return "prox" in self._answers

    def _ask(self, name: str, W: Tensor, *args: float) -> Tensor:
        if name not in self._answers:
            refuse(name, "not given to this Custom problem", f"Custom(..., {name}=...) is needed to answer this")
        return self._answers[name](as_rows(W, self).expand(self.users, -1), *args)

    def attempt(self, name: str, W: Tensor, *args: float) -> Tensor:
        """The answers of a function that may fail: NaN for users whose function raises an error."""
        rows, answers = as_rows(W, self).expand(self.users, -1), self._answers[name]
        nothing = rows.new_full((self.users, *answer_shape(name, self.dim)), torch.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(answers, PerUser):
                return torch.stack([_or(nothing[i], answers.answer, i, w, *args) for i, w in enumerate(rows)])
            return _or(nothing, answers, rows, *args)

    def value(self, W: Tensor) -> Tensor:
        return self._ask("value", W)

    def grad(self, W: Tensor) -> Tensor:
        return self._ask("grad", W)

    def prox(self, U: Tensor, eta: float) -> Tensor:
        return self._ask("prox", U, eta)

    def hessian(self, W: Tensor) -> Tensor:
        return self._ask("hessian", W)

    def take(self, who: Tensor) -> Custom:
        """Without the minimiser: some users have another one."""
        who = torch.arange(self.users)[who.cpu()]
        return Custom(
            len(who),
            self.dim,
            **{name: answers.take(who) for name, answers in self._answers.items()},
            weights=select(self.weights, who),
            convex=self.convex,
            lipschitz=None if self.lipschitz is None else self.lipschitz[who],
            convexity=None if self.convexity is None else self.convexity[who],
            dtype=self.weights.dtype,
            check=self.check,
            penalty=self.penalty,
        )

    @cached_property
    def fstar(self) -> float | None:
        if self.minimiser is None or "value" not in self._answers or self.penalty is not None:
            return None  # `minimiser` is that of f alone
        return float(weighted(self.weights, self.value(self.minimiser)))

    def gap(self, W: Tensor) -> Tensor | None:
        """f(w) - f*; negative where `minimiser` is not one."""
        return None if self.fstar is None else objective(self, points(W, self)) - self.fstar


def _or(nothing: Tensor, function: Function, *args: Any) -> Tensor:
    try:
        answer: Tensor = function(*args)
    except Exception:  # whatever a user's function may raise: it may be called outside its domain here
        return nothing
    return answer.detach()
