"""Data and numbers given by the caller, as checked tensors. Each refusal is one sentence that names the argument."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError, ResolventWarning, bounded, quoted, refuse

FLOAT = torch.float64
WEIGHTS = ("rows", "users")
"""Weights by name."""


class Sized(Protocol):
    """How many users and parameters there are, and in which kind of numbers."""

    @property
    def users(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def weights(self) -> Tensor: ...


def refuse_shape(argument: str, given: Any, needed: str) -> NoReturn:
    refuse(argument, f"of shape {tuple(given.shape)}", needed)


def as_tensor(data: Any, argument: str) -> Tensor:
    """Numbers of any kind as a float tensor, sharing memory where that is possible.

    Integers and NumPy's or torch's float16 become float64; float32 and float64 stay.
    """
    bounded(data, argument)
    try:
        tensor = data if isinstance(data, Tensor) else torch.as_tensor(_writable(np.asarray(data)))
        if tensor.is_meta or tensor.layout is not torch.strided:
            raise TypeError("a tensor without data, or with some of it")
    except Exception as error:  # a class of the caller's may raise anything
        raise InputError(
            f"{argument} cannot be read as an array of numbers, "
            "but a NumPy array, a torch tensor or nested lists of equal lengths are needed"
        ) from error
    if tensor.is_complex():
        refuse(argument, f"of {tensor.dtype}", "real numbers are needed")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(FLOAT)


def _writable(array: Any) -> Any:
    """The array, or a copy of one that others hold as read-only, as polars does: torch cannot promise not to write."""
    return array if array.flags.writeable else array.copy()


def as_weights(weights: Any, users: int, like: Tensor, sizes: Tensor | None = None, mean: bool = False) -> Tensor:
    """lambda: equal where not given, else checked and made to sum to one.

    "rows" makes every row count the same, "users" every user's mean over its rows. What lambda that is depends on
    whether f_i is a sum over its `sizes` rows or, with `mean`, a mean.
    """
    if weights is None:
        return like.new_full((users,), 1.0 / users)
    if isinstance(weights, str):
        return _named_weights(weights, users, like, sizes, mean)
    lam = as_tensor(weights, "weights").detach().to(like)
    if lam.shape != (users,):
        refuse_shape("weights", lam, f"one number for each of the {users} users is needed")
    if not bool(torch.isfinite(lam).all()) or bool((lam < 0).any()):
        refuse("weights", "partly negative or not finite", "every weight must be a finite number >= 0")
    if float(lam.sum()) <= 0:
        refuse("weights", "zero for every user", "at least one must be positive")
    lam = lam / lam.sum()
    if sizes is not None and not mean:
        _warn_of_sizes(lam.double().cpu(), sizes.double().cpu())
    return lam


def _named_weights(name: str, users: int, like: Tensor, sizes: Tensor | None, mean: bool) -> Tensor:
    if name not in WEIGHTS:
        refuse(
            "weights", quoted(name), f"{' or '.join(repr(each) for each in WEIGHTS)}, or one number per user is needed"
        )
    if sizes is None and name == "rows":
        refuse("weights", "'rows'", "the users of this problem have no rows: give one number per user")
    if sizes is None or (name == "users") == mean:
        return like.new_full((users,), 1.0 / users)
    lam = sizes.to(like) if mean else 1 / sizes.to(like)
    return lam / lam.sum()


def _warn_of_sizes(lam: Tensor, sizes: Tensor) -> None:
    """Weights in proportion to the numbers of rows, where f_i is a sum over rows, count each row n_i times."""
    share = sizes / sizes.sum()
    if len(sizes) > 1 and float(sizes.min()) < float(sizes.max()) and bool(((lam - share).abs() <= 1e-6 * share).all()):
        message = (
            "weights are in proportion to the users' numbers of rows, but f_i is a sum over them already: each row of "
            "a user with n rows counts n times. weights='rows' (or None) counts every row once"
        )
        warnings.warn(message, ResolventWarning, stacklevel=4)


def as_reg(reg: Any, users: int, sizes: Tensor, like: Tensor) -> Tensor:
    """The regulariser of each user, (users,): a number, or one per user; without it 1 / (users * rows), the paper's."""
    each = 1 / (users * sizes.to(like)) if reg is None else as_tensor(reg, "reg").detach().to(like)
    if each.shape not in ((), (users,)) or not bool((torch.isfinite(each) & (each >= 0)).all()):
        refuse("reg", reg, f"a number >= 0, or one for each of the {users} users, is needed")
    return each.expand(users)


def as_rows(W: Any, problem: Sized) -> Tensor:
    """W as stacked rows of the problem's kind: (users, d), or one row (1, d) which all users share."""
    lam = problem.weights
    rows = W if isinstance(W, Tensor) and W.dtype == lam.dtype else as_tensor(W, "W").to(lam)
    if rows.ndim == 1:
        rows = rows.unsqueeze(0)
    if rows.ndim != 2 or rows.shape[1] != problem.dim or rows.shape[0] not in (1, problem.users):
        refuse_shape(
            "W",
            rows,
            f"stacked rows of shape ({problem.users}, {problem.dim}), or one row of length {problem.dim}, are needed",
        )
    return rows


def points(W: Any, problem: Sized) -> Tensor:
    """W as any number of points of the problem's space, (rows, d)."""
    rows: Tensor = torch.atleast_2d(as_tensor(W, "W").to(problem.weights))
    if rows.ndim != 2 or rows.shape[1] != problem.dim:
        refuse_shape("W", rows, f"points of length {problem.dim}, stacked in rows, are needed")
    return rows


def finite(X: Tensor, argument: str, of: str = "user") -> Tensor:
    """X itself, refused where it is empty or not finite; `of` says what an index of its first axis stands for."""
    if X.numel() == 0 or X.ndim == 0:
        refuse_shape(argument, X, f"at least one {of} is needed")
    bad = ~torch.isfinite(X).reshape(len(X), -1).all(1)
    if bool(bad.any()):
        refuse(argument, f"NaN or infinite for {of} {int(bad.nonzero()[0])}", "finite numbers are needed")
    return X


def same_length(name: str, items: Any, users: int) -> None:
    """Refuse a per-user list of the wrong length, and what is no list."""
    bounded(items, name)
    try:
        many = len(items)
    except Exception:  # a sparse matrix has a length that it does not tell
        refuse(name, quoted(items), f"one entry for each of the {users} users is needed")
    if many != users:
        refuse(name, f"a list of {many}", f"one entry for each of the {users} users is needed")
