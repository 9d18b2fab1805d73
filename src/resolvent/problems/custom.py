"""A user's own functions as a problem."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import refuse, whole
from resolvent.problems.inputs import FLOAT, as_rows, as_tensor, as_weights, finite, points, same_length
from resolvent.problems.problem import objective, select, weighted

Function = Callable[..., Any]


@dataclass(frozen=True)
class Together:
    """One callable over all users' rows at once, of which the answers of some users, `who`, are wanted."""

    name: str
    call: Function
    users: int
    shape: tuple[int, ...]
    who: Tensor | None = None

    def __call__(self, W: Tensor, *args: float) -> Tensor:
        if self.who is None:
            return self._answers(W, *args)
        # The callable wants a row for every user: the others get a row that is certainly of the right kind.
        everybody = W[:1].repeat(self.users, 1)
        everybody[self.who] = W
        return self._answers(everybody, *args)[self.who]

    def _answers(self, W: Tensor, *args: float) -> Tensor:
        out = as_tensor(self.call(W, *args), f"what {self.name} gives").to(W)
        if out.shape != (self.users, *self.shape):
            wanted = (self.users, *self.shape)
            refuse(
                f"what {self.name} gives", f"of shape {tuple(out.shape)}", f"{wanted}, a row for each user, is needed"
            )
        return out

    def take(self, who: Tensor) -> Together:
        chosen = who if self.who is None else self.who[who]
        if len(chosen.unique()) < len(chosen):
            refuse("who", "a list with a user named twice", f"{self.name} gives each user one answer: name users once")
        return Together(self.name, self.call, self.users, self.shape, chosen)


@dataclass(frozen=True)
class Apart:
    """One callable a user, each on that user's vector of length d."""

    name: str
    calls: tuple[Function, ...]
    shape: tuple[int, ...]

    def __call__(self, W: Tensor, *args: float) -> Tensor:
        return torch.stack([self.answer(user, w, *args) for user, w in enumerate(W)])

    def answer(self, user: int, w: Tensor, *args: float) -> Tensor:
        out = as_tensor(self.calls[user](w, *args), f"what {self.name}[{user}] gives").to(w)
        if out.shape != self.shape:
            refuse(f"what {self.name}[{user}] gives", f"of shape {tuple(out.shape)}", f"{self.shape} is needed")
        return out

    def take(self, who: Tensor) -> Apart:
        return Apart(self.name, tuple(self.calls[i] for i in who.tolist()), self.shape)


@dataclass(frozen=True)
class Derived:
    """The gradient of value. Row i of value depends on row i of W only, so one backward pass serves every user."""

    value: Answers

    def __call__(self, W: Tensor) -> Tensor:
        # A run may be under no_grad or inference_mode; leaving the latter turns gradients on as well.
        with torch.inference_mode(False):
            X = W.detach().clone().requires_grad_()
            # X.clone(), since a function may work in place and a leaf may not be worked on.
            (slope,) = torch.autograd.grad(self.value(X.clone()).sum(), X)
        return slope

    def take(self, who: Tensor) -> Derived:
        return Derived(self.value.take(who))

    def works(self, origin: Tensor) -> bool:
        """Whether value is made of torch operations. A detour through float() would lose a part of the gradient without
        a word, but for a warning that torch gives once in a process: here it is asked for every time.
        """
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Converting a tensor with requires_grad")
                self(origin)
        except (RuntimeError, UserWarning):  # RuntimeError: a result without a graph, or a detour through NumPy
            return False
        finally:
            torch.set_warn_always(always)
        return True


Answers = Together | Apart | Derived


class Custom:
    """f_i given by functions, each one callable over stacked rows or a list of one callable a user on (d,) vectors:

    value(W) -> (users,)     grad(W) -> (users, d)     prox(U, eta) -> (users, d)     hessian(W) -> (users, d, d)
    value_i(w) -> ()         grad_i(w) -> (d,)         prox_i(u, eta) -> (d,)         hessian_i(w) -> (d, d)

    Row i of an answer may depend on row i of the argument only. Where `value` is given and `grad` is not, the gradient
    is had by automatic differentiation if value is made of torch operations: it is tried once, at the origin, to see.
    `lipschitz` and `convexity` are numbers, or one a user. f* = f(minimiser).

    Before a run begins, the functions and claims are compared with each other at a few random points, and refused where
    they contradict each other (`resolvent.problems.verify`). `check=False` takes all of them on trust.
    """

    def __init__(
        self,
        users: int,
        dim: int,
        value: Function | Sequence[Function] | None = None,
        grad: Function | Sequence[Function] | None = None,
        prox: Function | Sequence[Function] | None = None,
        hessian: Function | Sequence[Function] | None = None,
        weights: Any = None,
        minimiser: Any = None,
        convex: bool = True,
        lipschitz: Any = None,
        convexity: Any = None,
        dtype: torch.dtype = FLOAT,
        check: bool = True,
    ) -> None:
        self.users, self.dim = whole(users, "users"), whole(dim, "dim")
        if dtype not in (torch.float32, torch.float64):
            refuse("dtype", dtype, "torch.float32 or torch.float64 is needed")
        self.convex, self.check = convex, check
        self.weights = as_weights(weights, users, torch.empty(0, dtype=dtype))
        self.lipschitz = self._constants(lipschitz, "lipschitz")
        self.convexity = self._constants(convexity, "convexity")
        self.minimiser = self._point(minimiser)
        given = {"value": value, "grad": grad, "prox": prox, "hessian": hessian}
        self._answers: dict[str, Answers] = {}
        for name, f in given.items():
            if f is not None:
                self._answers[name] = _answers(name, f, users, _shape(name, dim))
        if grad is None and "value" in self._answers:
            slope = Derived(self._answers["value"])
            if slope.works(self.weights.new_zeros(users, dim)):
                self._answers["grad"] = slope
        if not self.offers & {"grad", "prox"}:
            came = "not given" if value is None else "not given, and value cannot be differentiated by torch"
            refuse("grad", came, "at least one of grad, prox and a value made of torch operations is needed")

    def _constants(self, numbers: Any, argument: str) -> Tensor | None:
        if numbers is None:
            return None
        each = as_tensor(numbers, argument).to(self.weights)
        if each.shape not in ((), (self.users,)):
            refuse(
                argument,
                f"of shape {tuple(each.shape)}",
                f"one number, or one for each of the {self.users} users, is needed",
            )
        each = finite(each.expand(self.users), argument)
        if bool((each < 0).any()):
            refuse(argument, f"negative for user {int((each < 0).nonzero()[0])}", "numbers >= 0 are needed")
        return each

    def _point(self, minimiser: Any) -> Tensor | None:
        if minimiser is None:
            return None
        w = torch.atleast_1d(as_tensor(minimiser, "minimiser").to(self.weights))
        if w.shape != (self.dim,):
            refuse("minimiser", f"of shape {tuple(w.shape)}", f"one point of length {self.dim} is needed")
        return finite(w, "minimiser", of="coordinate")

    @property
    def offers(self) -> frozenset[str]:
        return frozenset(self._answers)

    @property
    def apart(self) -> bool:
        """Whether users have functions of their own."""
        return any(isinstance(answers, Apart) for answers in self._answers.values())

    @property
    def stacked(self) -> frozenset[str]:
        """The given functions that are one callable over all users' rows."""
        return frozenset(name for name, answers in self._answers.items() if isinstance(answers, Together))

    @property
    def closed_form(self) -> bool:
        return "prox" in self._answers

    def _ask(self, name: str, W: Tensor, *args: float) -> Tensor:
        if name not in self._answers:
            refuse(name, "not given to this Custom problem", f"Custom(..., {name}=...) is needed to answer this")
        # A copy: a function that works in place must not write into the state of a run.
        return self._answers[name](as_rows(W, self).expand(self.users, -1).clone(), *args)

    def attempt(self, name: str, W: Tensor, *args: float) -> Tensor:
        """What a function gives where it may fail: NaN for users whose function raises an error."""
        rows, answers = as_rows(W, self).expand(self.users, -1), self._answers[name]
        nothing = rows.new_full((self.users, *_shape(name, self.dim)), torch.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(answers, Apart):
                return torch.stack([_or(nothing[i], answers.answer, i, w.clone(), *args) for i, w in enumerate(rows)])
            return _or(nothing, answers, rows.clone(), *args)

    def value(self, W: Tensor) -> Tensor:
        return self._ask("value", W)

    def grad(self, W: Tensor) -> Tensor:
        return self._ask("grad", W)

    def prox(self, U: Tensor, eta: float) -> Tensor:
        return self._ask("prox", U, eta)

    def hessian(self, W: Tensor) -> Tensor:
        return self._ask("hessian", W)

    def take(self, who: Tensor) -> Custom:
        """The minimiser is forgotten: that of some users is another."""
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
        )

    @cached_property
    def fstar(self) -> float | None:
        if self.minimiser is None or "value" not in self._answers:
            return None
        return float(weighted(self.weights, self.value(self.minimiser)))

    def gap(self, W: Tensor) -> Tensor | None:
        """f(w) - f*; below zero where `minimiser` was none."""
        return None if self.fstar is None else objective(self, points(W, self)) - self.fstar


def _shape(name: str, dim: int) -> tuple[int, ...]:
    """Of one user's answer."""
    return {"value": (), "grad": (dim,), "prox": (dim,), "hessian": (dim, dim)}[name]


def _or(nothing: Tensor, function: Function, *args: Any) -> Tensor:
    try:
        answer: Tensor = function(*args)
    except Exception:  # whatever a user's function may raise: it is asked here for what it cannot be expected to know
        return nothing
    return answer.detach()


def _answers(name: str, f: Function | Sequence[Function], users: int, shape: tuple[int, ...]) -> Answers:
    if isinstance(f, Together | Apart | Derived):  # taken from another Custom
        return f
    if callable(f):
        return Together(name, f, users, shape)
    same_length(name, f, users)
    for user, each in enumerate(f):
        if not callable(each):
            refuse(f"{name}[{user}]", f"of type {type(each).__name__}", "a function is needed")
    return Apart(name, tuple(f), shape)
