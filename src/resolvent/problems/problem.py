"""What a problem is: m users, each with a private f_i on R^d, and weights lambda_i that sum to one.

Everything is stacked: W has shape (users, d) and row i belongs to user i. A single row (1, d) stands for
users who agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError, refuse

FLOAT = torch.float64


@runtime_checkable
class Problem(Protocol):
    """The questions a problem answers. `offers` names the optional ones it can answer as well:

    "prox"      `prox(U, eta)`, (users, d): argmin_x f_i(x) + |x - u_i|^2 / (2 eta), to round-off
    "hessian"   `hessian(W)`, (users, d, d)
    "batches"   `sizes` and `batch_grad(W, rows, mask)`: unbiased gradients from some of each user's rows
    "spectrum"  `filtered(psi)`: every f_i is quadratic, so operators are filters of its eigenvalues
    """

    @property
    def users(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def weights(self) -> Tensor:
        """lambda, (users,), nonnegative, summing to one."""
        ...

    @property
    def offers(self) -> frozenset[str]: ...
    @property
    def convex(self) -> bool:
        """Whether every f_i is convex."""
        ...

    @property
    def closed_form(self) -> bool:
        """Whether `prox` is a formula rather than an iteration."""
        ...

    def value(self, W: Tensor) -> Tensor:
        """f_i(w_i), (users,)."""
        ...

    def grad(self, W: Tensor) -> Tensor:
        """A (sub)gradient of f_i at w_i, (users, d)."""
        ...

    def take(self, who: Tensor) -> Problem:
        """The same problem for these users only, in this order, with their weights made to sum to one."""
        ...

    @property
    def lipschitz(self) -> Tensor | None:
        """L_i, the Lipschitz constants of grad f_i, (users,); None where unknown or infinite."""
        ...

    @property
    def convexity(self) -> Tensor | None:
        """mu_i, the strong convexity constants, (users,); None where unknown."""
        ...

    @property
    def minimiser(self) -> Tensor | None:
        """A minimiser of f = sum_i lambda_i f_i, (d,); None where unknown."""
        ...

    @property
    def fstar(self) -> float | None:
        """min f; None where unknown."""
        ...

    def gap(self, W: Tensor) -> Tensor | None:
        """f(w) - f* for each row w of W, (rows,), without cancellation where possible; None if f* is unknown."""
        ...


def as_tensor(data: Any, argument: str) -> Tensor:
    """Numbers of any kind as a float tensor, sharing memory where that is possible.

    Integers and NumPy's or torch's float16 become float64; float32 and float64 stay.
    """
    try:
        tensor = data if isinstance(data, Tensor) else torch.as_tensor(np.asarray(data))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{argument} cannot be read as an array of numbers ({error}), "
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


def objective(problem: Problem, w: Tensor) -> Tensor:
    """f(w) = sum_i lambda_i f_i(w) for each row of w, (rows,)."""
    return torch.stack([problem.weights @ problem.value(row.unsqueeze(0)) for row in w])


def select(weights: Tensor, who: Tensor) -> Tensor:
    """The weights of some users, made to sum to one (equal if all of theirs are zero)."""
    chosen = weights[who]
    total = chosen.sum()
    return chosen / total if float(total) > 0 else torch.full_like(chosen, 1.0 / max(len(chosen), 1))


def same_length(name: str, items: Sequence[Any], users: int) -> None:
    """Refuse a per-user list of the wrong length."""
    if len(items) != users:
        refuse(name, f"a list of {len(items)}", f"one entry for each of the {users} users is needed")
