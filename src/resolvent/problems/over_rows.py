"""What problems over users' rows have in common: sizes, intercepts, a ridge, the minimum, and the prox by Newton."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.errors import flag
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.inputs import as_reg, as_rows, as_weights, finite, points
from resolvent.problems.newton.matrix_free import MAX_DENSE_DIM, grouped_prox
from resolvent.problems.newton.prox import newton_prox
from resolvent.problems.problem import ProblemDefaults, select, weighted
from resolvent.problems.reference import Minimum, Pool, Unknown, minimum
from resolvent.problems.reference.gaps import Gaps
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


class Curved(Ridged):
    """The same with Hessians: its prox is found by Newton's method."""

    offers = frozenset({"value", "grad", "prox", "hessian", "batches"})
    closed_form = False

    def grad(self, W: Tensor) -> Tensor:
        """(users, d)."""
        raise NotImplementedError

    def hessian(self, W: Tensor) -> Tensor:
        """(users, d, d)."""
        raise NotImplementedError

    @property
    def matrix_free(self) -> bool:
        return self.dim > MAX_DENSE_DIM

    @cached_property
    def groups(self) -> list[tuple[Tensor | None, Self]]:
        """Users who are solved for together, by index (None: everyone), without a copy of their rows."""
        if self.users == 1 or not self.rows.large:
            return [(None, self)]
        one = self.weights.new_ones(1)
        return [
            (torch.tensor([i], device=one.device), self.over(self.rows.alone(i), one, self.reg[i : i + 1]))
            for i in range(self.users)
        ]

    def prox(self, U: Tensor, eta: float) -> Tensor:
        """By Newton's method from u, to round-off; NewtonProx does the same warm-started."""
        U = as_rows(U, self).expand(self.users, -1)
        if self.matrix_free:
            return grouped_prox(self, U, eta)
        solved = newton_prox(self, U, eta)
        solved.demand(eta)
        return solved.x

    def take(self, who: Tensor) -> Self:
        part = super().take(who)
        if "frobenius" in self.__dict__:  # it takes a pass over the data, as much as a gradient
            part.__dict__["frobenius"] = self.frobenius[who]
        return part

    def double(self) -> Self:
        """The same in float64."""
        return self.over(self.rows.double(), self.weights.double(), self.reg.double())

    def value(self, W: Tensor) -> Tensor:
        """f_i(w_i), (users,)."""
        raise NotImplementedError

    def divergence(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """From w (1, d): the function e -> f_i(w + e) - f_i(w) - <grad f_i(w), e>, (users,), without cancellation."""
        raise NotImplementedError

    @property
    def without_minimum(self) -> str | None:
        """The same; with a regulariser of all parameters there is a minimiser."""
        sure = self.penalty is None and not self.intercept and float(self.weights @ self.reg) > 0
        return None if sure else super().without_minimum

    def gaps(self, least: Minimum) -> Callable[[Tensor], Tensor]:
        same = self.double()
        star = torch.from_numpy(least.w).to(same.weights)
        beside = same.divergence(star.unsqueeze(0))
        return Gaps.around(
            least,
            penalty_of(self),
            star,
            value=same._sharp_value() if least.sharp else lambda w: weighted(same.weights, same.value(w)),
            divergence=lambda w: weighted(same.weights, beside((w - star).unsqueeze(0))),
        )

    def _sharp_value(self) -> Callable[[Tensor], Tensor]:
        """f at one model, with predictors as if in twice the precision."""
        raise NotImplementedError

    @cached_property
    def frobenius(self) -> Tensor:
        """|A_i|^2, the sum of all squares, rows weighted."""
        return self.rows.gather([bucket.squares() for bucket in self.rows.absorbed(0.5).buckets])
