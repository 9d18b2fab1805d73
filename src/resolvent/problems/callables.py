"""Functions given by the caller, evaluated on every row of W and checked: one for all rows, or one per user."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.problems.inputs import as_tensor, refuse_shape, same_length

Function = Callable[..., Any]


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
        out = as_tensor(_called(self.name, self.call, W, *args), f"what {self.name} gives").to(W)
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
        out = as_tensor(
            _called(f"{self.name}[{user}]", self.calls[user], w, *args), f"what {self.name}[{user}] gives"
        ).to(w)
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


RowFunction = AllRows | PerUser | Differentiated


def _called(name: str, function: Function, W: Tensor, *args: float) -> Any:
    """What a function of the user's gives; one that takes a tensor for an array of NumPy is told what it is given."""
    try:
        return function(W, *args)
    except (AttributeError, TypeError) as error:
        if "Tensor" not in str(error) and "invalid combination of arguments" not in str(error):
            raise
        why = str(error).splitlines()[0][:100]
        raise InputError(
            f"{name} failed ({type(error).__name__}: {why}), since it is given torch tensors; begin a function of "
            "NumPy with W = W.numpy(), and give grad or prox beside such a value"
        ) from error


def as_row_function(name: str, f: Function | Sequence[Function], users: int, shape: tuple[int, ...]) -> RowFunction:
    """What the caller gave, as one function over rows."""
    if isinstance(f, AllRows | PerUser | Differentiated):  # taken from another Custom
        return f
    if callable(f):
        return AllRows(name, f, users, shape)
    same_length(name, f, users)
    for user, each in enumerate(f):
        if not callable(each):
            refuse(f"{name}[{user}]", f"of type {type(each).__name__}", "a function is needed")
    return PerUser(name, tuple(f), shape)


def answer_shape(name: str, dim: int) -> tuple[int, ...]:
    """The shape of one user's answer."""
    return {"value": (), "grad": (dim,), "prox": (dim,), "hessian": (dim, dim)}[name]
