"""Penalties g at the meeting point: the objective is sum_i lambda_i f_i + g, and the meeting applies the prox of g.

A penalty is anything with the verbs of `Penalty`. The sets of `resolvent.problems.sets` have them too, as constraints:
their g is 0 inside and infinite outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError, bounded, quoted, refuse
from resolvent.iteration.called import Called


@runtime_checkable
class Penalty(Protocol):
    """A closed convex function g on R^d, over points w of shape (..., d), in their dtype and on their device."""

    def value(self, w: Tensor) -> Tensor:
        """g(w), (...)."""

    def prox(self, w: Tensor, step: float) -> Tensor:
        """argmin_x g(x) + |x - w|^2 / (2 step)."""

    def distance(self, w: Tensor, v: Tensor) -> Tensor:
        """The distance of v to the subdifferential of g at w, (...); infinite where g is infinite."""

    def free(self, indices: Any) -> Penalty:
        """The same penalty on the other coordinates, which leaves these alone."""
        return free(self, indices)

    def check(self, dim: int) -> None:
        """Refuse models of a length that this penalty does not fit."""


@dataclass(frozen=True, eq=False, init=False)
class ElasticNet(Penalty):
    """g(w) = sum_j l1_j |w_j| + l2_j/2 w_j^2; l1 and l2 are numbers >= 0, or one per coordinate."""

    l1: Tensor
    l2: Tensor
    separable = True

    def __init__(self, l1: float | Any, l2: float | Any) -> None:
        object.__setattr__(self, "l1", _strength(l1, "l1"))
        object.__setattr__(self, "l2", _strength(l2, "l2"))
        lengths = {len(t) for t in (self.l1, self.l2) if t.ndim}
        if len(lengths) > 1:
            refuse("l2", f"of length {len(self.l2)}", f"l1 has {len(self.l1)}, and the two must agree")

    def value(self, w: Tensor) -> Tensor:
        return (self.l1.to(w) * w.abs() + self.l2.to(w) / 2 * w * w).sum(-1)

    def prox(self, w: Tensor, step: float) -> Tensor:
        shrunk = w - w.clamp(-step * self.l1.to(w), step * self.l1.to(w))  # exactly 0 where |w| <= step l1
        return shrunk / (1 + step * self.l2.to(w))

    def distance(self, w: Tensor, v: Tensor) -> Tensor:
        rest = v - self.l2.to(w) * w
        l1 = self.l1.to(w)
        off = torch.where(w == 0, (rest.abs() - l1).clamp_min(0), (rest - l1 * w.sign()).abs())
        return length(off)

    def held(self, w: Tensor) -> Tensor:
        """Which coordinates lie at a kink."""
        return (w == 0) & (self.l1.to(w) > 0)

    def check(self, dim: int) -> None:
        for name, t in (("l1", self.l1), ("l2", self.l2)):
            if t.ndim and len(t) != dim:
                refuse(f"{name} of the penalty", f"of length {len(t)}", f"one for each of {dim} coordinates is needed")

    def __str__(self) -> str:
        return f"ElasticNet({_words(self.l1)}, {_words(self.l2)})"

    def __repr__(self) -> str:
        return str(self)


class L1(ElasticNet):
    """g(w) = sum_j t_j |w_j|, the lasso's penalty, with exact zeros. t: a number, or one per coordinate."""

    def __init__(self, t: float | Any) -> None:
        super().__init__(_strength(t, "t"), 0.0)

    def __str__(self) -> str:
        return f"L1({_words(self.l1)})"


class L2(ElasticNet):
    """g(w) = sum_j t_j/2 w_j^2: ridge regression's penalty. t: a number, or one per coordinate."""

    def __init__(self, t: float | Any) -> None:
        super().__init__(0.0, _strength(t, "t"))

    def prox(self, w: Tensor, step: float) -> Tensor:
        return w / (1 + step * self.l2.to(w))

    def __str__(self) -> str:
        return f"L2({_words(self.l2)})"


@dataclass(frozen=True, eq=False)
class Own(Penalty):
    """A penalty that has value and prox only, completed. Its subdifferential is not known: no minimum is certified."""

    given: Any

    def value(self, w: Tensor) -> Tensor:
        return _like(w[..., 0], self._value(w), f"value of {self}")

    def prox(self, w: Tensor, step: float) -> Tensor:
        return _like(w, self._prox(w, step), f"prox of {self}")

    @cached_property
    def _value(self) -> Called:
        return Called(f"value of {self}", self.given.value)

    @cached_property
    def _prox(self) -> Called:
        return Called(f"prox of {self}", self.given.prox)

    def distance(self, w: Tensor, v: Tensor) -> Tensor:
        return torch.full_like(w[..., 0], torch.inf)

    def check(self, dim: int) -> None:
        """Refuse a prox after which g(x) + |x - w|^2 / (2 step) is lower close by."""
        away = torch.randn(8, 4, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim))
        for step in (0.5, 2.0):
            w = 3 * away[0]
            p = self.prox(w.clone(), step)

            def height(x: Tensor, w: Tensor = w, step: float = step) -> Tensor:
                return self.value(x) + (x - w).square().sum(-1) / (2 * step)

            for near in [p + 1e-3 * each for each in away] + [torch.lerp(p, w, 1e-3), torch.lerp(p, w, -1e-3)]:
                if bool((height(near) < height(p) - 1e-9 * (1 + height(p).abs())).any()):
                    raise InputError(f"prox of {self} does not minimise g(x) + |x - w|^2 / (2 step) at step = {step:g}"
                                     ", but it must; correct prox or value")  # fmt: skip

    def __str__(self) -> str:
        return type(self.given).__name__


@dataclass(frozen=True, eq=False)
class Free(Penalty):
    """A penalty on all coordinates but these, which it does not see: numbers per coordinate are those of the others."""

    penalty: Penalty
    indices: tuple[int, ...]

    def _others(self, w: Tensor) -> Tensor:
        kept = torch.ones(w.shape[-1], dtype=torch.bool, device=w.device)
        kept[list(self.indices)] = False
        return kept

    def value(self, w: Tensor) -> Tensor:
        return self.penalty.value(w[..., self._others(w)])

    def prox(self, w: Tensor, step: float) -> Tensor:
        others, out = self._others(w), w.clone()
        out[..., others] = self.penalty.prox(w[..., others], step)
        return out

    def distance(self, w: Tensor, v: Tensor) -> Tensor:
        others = self._others(w)
        alone = torch.linalg.vector_norm(v[..., ~others], dim=-1)
        return torch.hypot(self.penalty.distance(w[..., others], v[..., others]), alone)

    def held(self, w: Tensor) -> Tensor:
        inside, own = self._others(w), held(self.penalty)
        out = torch.zeros_like(w, dtype=torch.bool)
        if own is not None:
            out[..., inside] = own(w[..., inside])
        return out

    def free(self, indices: Any) -> Penalty:
        return free(self.penalty, (*self.indices, *_indices(indices)))

    def check(self, dim: int) -> None:
        if self.indices[-1] >= dim:
            refuse("the penalty", f"free at {self.indices[-1]}", f"the model has {dim} coordinates, counted from 0")
        if len(self.indices) == dim:
            raise InputError("the penalty is free at every coordinate, so that nothing is penalised; leave it out")
        self.penalty.check(dim - len(self.indices))

    def __str__(self) -> str:
        few = ", ".join(map(str, self.indices[:5])) + (", ..." if len(self.indices) > 5 else "")
        return f"{self.penalty} but for coordinates {few}" if len(self.indices) > 1 else f"{self.penalty} but for {few}"


def free(penalty: Penalty, indices: Any) -> Penalty:
    """The penalty that leaves these coordinates alone; itself where there are none."""
    some = tuple(sorted(set(_indices(indices))))
    return Free(penalty, some) if some else penalty


def held(penalty: Penalty) -> Callable[[Tensor], Tensor] | None:
    """The function that says which coordinates of a point lie at a kink or a bound, where a penalty has one."""
    found: Callable[[Tensor], Tensor] | None = getattr(penalty, "held", None)
    return found


def separable(penalty: Penalty) -> bool:
    """Whether a penalty is a sum over coordinates, free ones left out, and says so."""
    return bool(getattr(split(penalty)[0], "separable", False))


def split(penalty: Penalty) -> tuple[Penalty, tuple[int, ...]]:
    """The penalty without its free coordinates, and those."""
    return (penalty.penalty, penalty.indices) if isinstance(penalty, Free) else (penalty, ())


def penalty_of(problem: Any) -> Penalty | None:
    """The penalty of a problem over rows as the meeting applies it: intercepts are free."""
    return None if problem.penalty is None else fitting(problem.penalty, problem.dim, problem.intercepts)


def penalised(problem: Any, penalty: Any) -> Any:
    """The same problem with this penalty; what it has computed of its minimum is forgotten."""
    made = copy(problem)
    for name in [name for name in vars(made) if isinstance(getattr(type(made), name, None), cached_property)]:
        del made.__dict__[name]
    made.penalty = penalty
    return made


def fitting(penalty: Any, dim: int, intercepts: Any) -> Penalty:
    """A penalty on models of this length, checked, with these intercepts free."""
    if not isinstance(penalty, Penalty):
        if not all(callable(getattr(penalty, verb, None)) for verb in ("value", "prox")):
            needed = (
                "rs.L1(t), rs.L2(t), rs.ElasticNet(l1, l2), rs.Box, rs.Orthant, rs.Simplex or rs.Ball is needed, or an "
                "object with value(w) and prox(w, step)"
            )
            refuse("penalty", f"of type {type(penalty).__name__}", needed)
        penalty = Own(penalty)
    free_of_intercepts: Penalty = penalty.free(intercepts) if len(intercepts) else penalty
    free_of_intercepts.check(dim)
    return free_of_intercepts


def length(x: Tensor) -> Tensor:
    """The norm of each row."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norms


def _indices(given: Any) -> Sequence[int]:
    bounded(given, "indices")
    listed = np.atleast_1d(given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given, dtype=object))
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) and i >= 0 for i in listed.tolist()):
        refuse("indices", quoted(given), "whole numbers >= 0, those of the coordinates to leave alone, are needed")
    return [int(i) for i in listed.tolist()]


def _like(wanted: Tensor, answer: Any, name: str) -> Tensor:
    answer = torch.as_tensor(answer) if isinstance(answer, np.ndarray | np.generic) else answer
    if not isinstance(answer, Tensor) or answer.shape != wanted.shape:
        came = f"of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
        refuse(name, came, f"a tensor or an array of shape {tuple(wanted.shape)} is needed")
    return answer.to(wanted)


def _strength(given: Any, argument: str) -> Tensor:
    bounded(given, argument)
    try:
        t = torch.as_tensor(given if isinstance(given, Tensor) else np.asarray(given, dtype=np.float64)).double()
        fits = t.ndim <= 1 and t.numel() > 0 and bool((torch.isfinite(t) & (t >= 0)).all())
    except Exception:
        fits = False
    if not fits:
        refuse(argument, quoted(given), "a finite number >= 0, or one per coordinate, is needed")
    return t.detach()


def _words(t: Tensor) -> str:
    return f"{float(t):g}" if t.ndim == 0 else f"{float(t.min()):g}..{float(t.max()):g}"
