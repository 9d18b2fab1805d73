"""Data and numbers given by the caller, as checked tensors. Each refusal is one sentence that names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.problems.problem import Problem

FLOAT = torch.float64


def as_tensor(data: Any, argument: str) -> Tensor:
    """Numbers of any kind as a float tensor, sharing memory where that is possible.

    Integers and NumPy's or torch's float16 become float64; float32 and float64 stay.
    """
    try:
        tensor = data if isinstance(data, Tensor) else torch.as_tensor(np.asarray(data))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{argument} cannot be read as an array of numbers, "
            "but a NumPy array, a torch tensor or nested lists of equal lengths are needed"
        ) from error
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(FLOAT)


def as_weights(weights: Any, users: int, like: Tensor) -> Tensor:
    """lambda: equal where not given, else checked and made to sum to one."""
    if weights is None:
        return like.new_full((users,), 1.0 / users)
    lam = as_tensor(weights, "weights").to(like)
    if lam.shape != (users,):
        refuse("weights", f"of shape {tuple(lam.shape)}", f"one number for each of the {users} users is needed")
    if not bool(torch.isfinite(lam).all()) or bool((lam < 0).any()):
        refuse("weights", "partly negative or not finite", "every weight must be a finite number >= 0")
    if float(lam.sum()) <= 0:
        refuse("weights", "zero for every user", "at least one must be positive")
    return lam / lam.sum()


def as_rows(W: Any, problem: Problem) -> Tensor:
    """W as stacked rows of the problem's kind: (users, d), or one row (1, d) which all users share."""
    lam = problem.weights
    rows = W if isinstance(W, Tensor) and W.dtype == lam.dtype else as_tensor(W, "W").to(lam)
    if rows.ndim == 1:
        rows = rows.unsqueeze(0)
    if rows.ndim != 2 or rows.shape[1] != problem.dim or rows.shape[0] not in (1, problem.users):
        refuse(
            "W",
            f"of shape {tuple(rows.shape)}",
            f"stacked rows of shape ({problem.users}, {problem.dim}), or one row of length {problem.dim}, are needed",
        )
    return rows


def points(W: Any, problem: Problem) -> Tensor:
    """W as any number of points of the problem's space, (rows, d)."""
    rows: Tensor = torch.atleast_2d(as_tensor(W, "W").to(problem.weights))
    if rows.ndim != 2 or rows.shape[1] != problem.dim:
        refuse("W", f"of shape {tuple(rows.shape)}", f"points of length {problem.dim}, stacked in rows, are needed")
    return rows


def finite(X: Tensor, argument: str, of: str = "user") -> Tensor:
    """X itself, refused where it is empty or not finite; `of` says what an index of its first axis stands for."""
    if X.numel() == 0 or X.ndim == 0:
        refuse(argument, f"of shape {tuple(X.shape)}", f"at least one {of} is needed")
    bad = ~torch.isfinite(X).reshape(len(X), -1).all(1)
    if bool(bad.any()):
        refuse(argument, f"NaN or infinite for {of} {int(bad.nonzero()[0])}", "finite numbers are needed")
    return X


def same_length(name: str, items: Sequence[Any], users: int) -> None:
    """Refuse a per-user list of the wrong length."""
    if len(items) != users:
        refuse(name, f"a list of {len(items)}", f"one entry for each of the {users} users is needed")
