"""What problems over users' rows have in common: sizes, intercepts, a ridge, and the minimum."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.errors import flag
from resolvent.problems.inputs import as_reg, as_weights, finite, points
from resolvent.problems.problem import ProblemDefaults, select
from resolvent.problems.reference import Minimum, Pool, Unknown, minimum
from resolvent.problems.rows import Rows


class WithMinimum(ProblemDefaults):
    """A problem whose minimum is looked for by `reference`, once, when somebody asks for it."""

    def pool(self) -> Pool | Unknown:
        """All rows with their losses, in float64 whatever the data are in; with a penalty, f + g."""
        raise NotImplementedError

    @cached_property
    def minimum(self) -> Minimum | Unknown:
        """Of f, or of f + g with a penalty: certified, or why it is not known."""
        return minimum(self.pool())

    @property
    def minimiser(self) -> Tensor | None:
        """Certified; None where none was established, and `minimum.why` says why."""
        least = self.minimum
        return torch.from_numpy(least.w).to(self.weights) if isinstance(least, Minimum) else None

    @property
    def fstar(self) -> float | None:
        """The least value; None where it is not certified."""
        return self.minimum.value if isinstance(self.minimum, Minimum) else None

    @property
    def without_minimum(self) -> str | None:
        """Why no minimiser is known; None where one is, or where there is one for sure."""
        return self.minimum.why if isinstance(self.minimum, Unknown) else None

    def gaps(self, least: Minimum) -> Callable[[Tensor], Tensor]:
        """The function that has f(w) - f* for each row w of a tensor, given the minimum."""
        raise NotImplementedError

    @cached_property
    def _gaps(self) -> Callable[[Tensor], Tensor] | None:
        return self.gaps(self.minimum) if isinstance(self.minimum, Minimum) else None

    def __getstate__(self) -> dict[str, Any]:
        """Without the functions for gaps, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_gaps"}

    def gap(self, W: Tensor) -> Tensor | None:
        """f(w) - f*, of f + g with a penalty, to many digits also where it is tiny; None where f* is not known."""
        if self._gaps is None:
            return None
        own: Any = self
        rows = W if isinstance(W, Tensor) and W.ndim == 2 else points(W, own)  # as precise as it is
        return self._gaps(rows).to(self.weights)


class OverRows(WithMinimum):
    """Users' rows, with an intercept as the coefficient of a last feature that is 1."""

    rows: Rows
    weights: Tensor
    intercept: bool
    convex = True

    @property
    def scores(self) -> int:
        """Numbers that a model makes of one row."""
        return 1

    @property
    def users(self) -> int:
        return self.rows.users

    @property
    def dim(self) -> int:
        return self.scores * self.rows.dim

    @property
    def balanced_classes(self) -> bool:
        """Whether rows' weights depend on how common classes are among all users' rows."""
        return self.rows.balanced

    @property
    def sizes(self) -> Tensor:
        return self.rows.sizes

    @property
    def intercepts(self) -> Tensor:
        """The indices of the parameters that are neither regularised nor penalised: the last, one per score."""
        return torch.arange(self.dim - self.scores * self.intercept, self.dim, device=self.weights.device)


class Ridged(OverRows):
    """The same with reg_i/2 |w|^2 in every f_i, intercepts left alone."""

    reg: Tensor
    same: tuple[str, ...] = ("intercept", "penalty")
    """The attributes that do not depend on which users there are."""

    def __init__(self, rows: Rows, reg: Any, weights: Any, intercept: bool, penalty: Any) -> None:
        finite(rows.gather([bucket.total() for bucket in rows.buckets]), "A")
        finite(rows.gather([bucket.b.sum(1) for bucket in rows.buckets]), "b")
        self.intercept, self.penalty = flag(intercept, "intercept"), penalty
        self.rows = rows.with_ones() if self.intercept else rows
        like = self.rows.buckets[0].b
        self.weights = as_weights(weights, self.users, like, self.rows.mass)
        self.reg = as_reg(reg, self.users, self.rows.mass, like)

    @cached_property
    def ridge(self) -> Tensor:
        """reg of each parameter: (users, 1), or (users, d) with intercepts."""
        if not self.intercept:
            return self.reg.unsqueeze(1)
        ridge = self.reg.unsqueeze(1).repeat(1, self.dim)
        ridge[:, self.intercepts] = 0
        return ridge

    @property
    def convexity(self) -> Tensor:
        return torch.zeros_like(self.reg) if self.intercept else self.reg

    def take(self, who: Tensor) -> Self:
        return self.over(self.rows.take(who), select(self.weights, who), self.reg[who])

    def over(self, rows: Rows, weights: Tensor, reg: Tensor) -> Self:
        """The same over other rows."""
        part = object.__new__(type(self))
        part.rows, part.weights, part.reg = rows, weights, reg
        for name in self.same:
            setattr(part, name, getattr(self, name))
        return part
