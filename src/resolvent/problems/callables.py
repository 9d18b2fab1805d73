"""Functions given by the caller, evaluated on every row of W and checked: one for all rows, or one per user."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.iteration.called import Called, Function, called_as
from resolvent.problems.inputs import as_tensor, refuse_shape, same_length


@dataclass(frozen=True)
class AllRows:
    """One callable over the rows of all users at once; only the answers of the users `who` are returned (None: all)."""

    name: str
    call: Function
    users: int
    shape: tuple[int, ...]
    who: Tensor | None = None

    def __call__(self, W: Tensor, *args: float) -> Tensor:
        if self.who is None:
            return self._answers(W, *args)
        # The callable needs a row for every user: the others get a copy of a valid row.
        everybody = W[:1].repeat(self.users, 1)
        everybody[self.who] = W
        return self._answers(everybody, *args)[self.who]

    def _answers(self, W: Tensor, *args: float) -> Tensor:
        out = as_tensor(self.call(W, *args), f"what {self.name} gives").to(W)
        if out.shape != (self.users, *self.shape):
            wanted = (self.users, *self.shape)
            refuse_shape(f"what {self.name} gives", out, f"{wanted}, a row for each user, is needed")
        return out

    def take(self, who: Tensor) -> AllRows:
        chosen = who if self.who is None else self.who[who]
        if len(chosen.unique()) < len(chosen):
            refuse("who", "a list with a user named twice", f"{self.name} gives each user one answer: name users once")
        return AllRows(self.name, self.call, self.users, self.shape, chosen)


@dataclass(frozen=True)
class PerUser:
    """One callable per user, each on that user's vector of length d."""

    name: str
    calls: tuple[Function, ...]
    shape: tuple[int, ...]

    def __call__(self, W: Tensor, *args: float) -> Tensor:
        return torch.stack([self.answer(user, w, *args) for user, w in enumerate(W)])

    def answer(self, user: int, w: Tensor, *args: float) -> Tensor:
        out = as_tensor(self.calls[user](w, *args), f"what {self.name}[{user}] gives").to(w)
        if out.shape != self.shape:
            refuse_shape(f"what {self.name}[{user}] gives", out, f"{self.shape} is needed")
        return out

    def take(self, who: Tensor) -> PerUser:
        return PerUser(self.name, tuple(self.calls[i] for i in who.tolist()), self.shape)


@dataclass(frozen=True)
class Differentiated:
    """The gradient of value. Row i of value depends on row i of W only, so one backward pass serves every user."""

    value: RowFunction

    def __call__(self, W: Tensor) -> Tensor:
        # A run may be under no_grad or inference_mode; leaving the latter turns gradients on as well.
        with torch.inference_mode(False):
            X = W.detach().clone().requires_grad_()
            # X.clone(), since a function may work in place, which torch does not allow on a leaf.
            (slope,) = torch.autograd.grad(self.value(X.clone()).sum(), X)
        return slope

    def take(self, who: Tensor) -> Differentiated:
        return Differentiated(self.value.take(who))

    def works(self, origin: Tensor) -> bool:
        """Whether value is made of torch operations. A detour through float() would silently lose a part of the
        gradient, except for a warning that torch gives once per process. Here it is made an error every time.
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


@dataclass(frozen=True)
class DifferentiatedTwice:
    """The Hessian of value, one backward pass per coordinate for all users at once."""

    value: RowFunction

    def __call__(self, W: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            X = W.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.value(X.clone()).sum(), X, create_graph=True)
            if not slope.requires_grad:  # value is linear
                return X.new_zeros(*X.shape, X.shape[1])
            rows = [torch.autograd.grad(s.sum(), X, retain_graph=True, allow_unused=True)[0] for s in slope.unbind(1)]
            return torch.stack([torch.zeros_like(X) if row is None else row for row in rows], 1)

    def take(self, who: Tensor) -> DifferentiatedTwice:
        return DifferentiatedTwice(self.value.take(who))


RowFunction = AllRows | PerUser | Differentiated | DifferentiatedTwice


def _checked(name: str, function: Any) -> Called:
    """A function that takes as many arguments as it will be given."""
    wanted = called_as(name)
    try:
        inspect.signature(function).bind(*range(wanted.count(",") + 1))
    except TypeError as error:
        raise InputError(f"{name} does not take what it is given ({error}), but is called as {wanted}") from error
    except ValueError:  # a builtin without a signature
        pass
    return Called(name, function)


def as_row_function(name: str, f: Function | Sequence[Function], users: int, shape: tuple[int, ...]) -> RowFunction:
    """What the caller gave, as one function over rows."""
    if isinstance(f, RowFunction):  # taken from another Custom
        return f
    if callable(f):
        return AllRows(name, _checked(name, f), users, shape)
    same_length(name, f, users)
    for user, each in enumerate(f):
        if not callable(each):
            refuse(f"{name}[{user}]", f"of type {type(each).__name__}", "a function is needed")
    return PerUser(name, tuple(_checked(f"{name}[{user}]", each) for user, each in enumerate(f)), shape)


def answer_shape(name: str, dim: int) -> tuple[int, ...]:
    """The shape of one user's answer."""
    return {"value": (), "grad": (dim,), "prox": (dim,), "hessian": (dim, dim)}[name]
