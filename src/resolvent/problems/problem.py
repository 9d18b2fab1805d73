"""What a problem is: m users, each with a private f_i on R^d, and weights lambda_i that sum to one.

Everything is stacked: W has shape (users, d) and row i belongs to user i. A single row (1, d) stands for
users who share a point.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from resolvent.errors import titled


@runtime_checkable
class Problem(Protocol):
    """The questions a problem answers. `offers` names the optional ones it can answer as well:

    "prox"      `prox(U, eta)`, (users, d): argmin_x f_i(x) + |x - u_i|^2 / (2 eta), to round-off
    "hessian"   `hessian(W)`, (users, d, d)
    "batches"   `sizes` and `batch_grad(W, rows, mask)`: unbiased gradients from some of each user's rows
    "spectrum"  `filtered(share)`: every f_i is quadratic, so operators are functions of its eigenvalues
    "quadratic" every f_i is, but its eigenvalues stay with the user (said of users on other machines)
    "training"  `remembering(memory, seeds)`, a copy to train with, which takes the next of the seeds where a gradient
                is given none, and its `memory()` afterwards, in the context `working()`
    "inspect"   `inspect(w, personal, memory)`: more metrics of a round's models
    """

    @property
    def users(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def weights(self) -> Tensor:
        """lambda, (users,), nonnegative, summing to one."""

    @property
    def offers(self) -> frozenset[str]: ...
    @property
    def convex(self) -> bool:
        """Whether every f_i is convex."""

    @property
    def closed_form(self) -> bool:
        """Whether `prox` is a formula rather than an iteration."""

    def value(self, W: Tensor) -> Tensor:
        """f_i(w_i), (users,)."""

    def grad(self, W: Tensor) -> Tensor:
        """A (sub)gradient of f_i at w_i, (users, d)."""

    def take(self, who: Tensor) -> Problem:
        """The same problem for these users only, in this order, with their weights made to sum to one."""

    @property
    def lipschitz(self) -> Tensor | None:
        """L_i, the Lipschitz constants of grad f_i, (users,); None where unknown or infinite."""

    @property
    def convexity(self) -> Tensor | None:
        """mu_i, the strong convexity constants, (users,); None where unknown."""

    @property
    def minimiser(self) -> Tensor | None:
        """A minimiser of f = sum_i lambda_i f_i, (d,); None where unknown."""

    @property
    def fstar(self) -> float | None:
        """min f; None where unknown."""

    def gap(self, W: Tensor) -> Tensor | None:
        """f(w) - f* for each row w of W, (rows,), without cancellation where possible; None if f* is unknown."""


class ProblemDefaults:
    """What a problem of this package says where it knows nothing more: the answers to optional questions.

    Classes of your own need none of this.
    """

    penalty: Any = None
    """g, which the meeting applies."""
    gap_includes_penalty = True
    """Whether `gap` and `fstar` are those of f + g, or None, where there is a penalty."""
    intercept: bool = False
    """Whether the last parameters are intercepts."""
    intercepts: Any = None
    """The indices of parameters that neither reg nor a penalty touches."""
    sizes: Any = None
    """The number of rows of each user."""
    start: Any = None
    """Where runs begin, (d,); None: at the origin."""
    typical_eta: Any = 1.0
    """Where automatic steps begin."""
    matrix_free: Any = False
    """Whether a matrix of d x d numbers per user would be large."""
    predictor: Any = None
    """What says how a model of this problem predicts."""
    without_minimum: Any = None
    """Why no minimiser is known, where that is worth a warning."""
    lipschitz: Any = None
    minimiser: Any = None
    fstar: Any = None

    weights: Tensor

    def __repr__(self) -> str:
        """In one line: the kind, how many users and parameters, and what it carries."""
        more = [] if self.sizes is None else [f"{int(self.sizes.sum())} rows"]
        more += ["intercept"] * self.intercept
        more += [] if self.penalty is None else [f"penalty {titled(self.penalty)}"]
        own: Any = self  # users and dim are attributes or properties
        users = "1 user" if own.users == 1 else f"{own.users} users"
        return f"{type(self).__name__}({', '.join([users, f'd = {own.dim}', *more])})"

    @property
    def convexity(self) -> Tensor | None:
        """mu_i, the strong convexity constants, (users,): none."""
        return torch.zeros_like(self.weights)


def objective(problem: Problem, w: Tensor) -> Tensor:
    """f(w) = sum_i lambda_i f_i(w) for each row of w, (rows,)."""
    return torch.stack([weighted(problem.weights, problem.value(row.unsqueeze(0))) for row in w])


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """sum_i lambda_i v_i, where users of weight zero do not count: 0 times infinity or NaN is 0."""
    return weights @ values.masked_fill(weights == 0, 0)


def select(weights: Tensor, who: Tensor) -> Tensor:
    """The weights of some users, made to sum to one (equal if all of theirs are zero)."""
    chosen = weights[who]
    total = chosen.sum()
    return chosen / total if float(total) > 0 else torch.full_like(chosen, 1.0 / max(len(chosen), 1))
