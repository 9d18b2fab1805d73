"""All users in this process, batched into tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.iteration.engine import PERSONAL, Answers, Ask, Curvature, Look, MeanAnswer, Present, Traffic
from resolvent.iteration.facts import Facts, Memory, facts_of
from resolvent.iteration.metric_choice import MAX_HESSIAN_DIM
from resolvent.local.metric_bound import bind
from resolvent.local.operators import Operator
from resolvent.local.training import Trained
from resolvent.problems.newton.krylov import krylov
from resolvent.problems.problem import Problem, objective, select


class CentralSums:
    """The verbs that need no users: sums over rows that are all here. There is nothing to open, and nothing moves."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._lam, self._root = facts.weights.unsqueeze(0), facts.weights.sqrt().unsqueeze(1)
        self._everyone = Present(None, facts.users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def traffic(self) -> Traffic | None:
        return None

    def present(self, who: Tensor | None) -> Present:
        return self._everyone if who is None else Present(who.to(self.facts.device), len(who))

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        if z.shape[0] == 1:
            return z
        return self._lam @ z if who is None else select(self._lam[0], who).unsqueeze(0) @ z[who]

    def gram(self, rows: Tensor) -> Tensor:
        if rows.shape[1] > 1:
            rows = rows * self._root
        flat = rows.flatten(1)
        return flat @ flat.T

    def every(self, flags: Tensor) -> bool:
        return bool(flags.all())

    def curvature(self, w: Tensor) -> Curvature | None:
        return None

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        return None


MAX_HESSIAN_NUMBERS = 1 << 24
"""In the Hessians that are held at a time."""


class HoldsProblem(CentralSums):
    """What engines know that hold the problem of all users."""

    def __init__(self, problem: Problem, operator: Operator) -> None:
        super().__init__(facts_of(problem, operator))

    def curvature(self, w: Tensor) -> Curvature | None:
        return curvature(self.facts, w)

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        return measure(self.facts, w)

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        if "inspect" not in self.facts.offers:
            return None
        return self.facts.problem.inspect(w, memory.get(PERSONAL, p), memory, look)  # type: ignore[no-any-return]


class InProcess(HoldsProblem):
    """The default engine: every verb is a few tensor calls over all users."""

    def __init__(self, problem: Problem, operator: Operator, steady: bool = True) -> None:
        super().__init__(problem, operator)
        self._bound = bind(operator, problem, steady)

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        p, memory = self._bound.rows(ask, u, memory)
        return Answers(ask.who, u, p, memory, memory.get("error"))

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        p, spread, memory = self._bound.mean(ask, u, memory)
        return MeanAnswer(p, spread, memory, memory.get("error"))

    def ask_elsewhere(self, answer: Callable[[Ask, Tensor, Memory], tuple[Tensor, Memory]]) -> None:
        """Let something else compute what all users of a network answer."""
        assert isinstance(self._bound, Trained)
        self._bound.elsewhere = answer

    def compute(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """What all users of a network answer, computed here."""
        assert isinstance(self._bound, Trained)
        return self._bound.compute(ask, u, memory)


def curvature(facts: Facts, w: Tensor, weights: Tensor | None = None) -> Curvature | None:
    """The gradient (d,) and the Hessian (d, d) of f at w (1, d); of long models in coordinates of a Krylov space.

    With `weights`, (users,), of that weighted sum; a Krylov space of some users is not that of all: None then.
    """
    if not (facts.convex and {"grad", "hessian"} <= facts.offers):
        return None
    problem: Any = facts.problem
    if facts.matrix_free:
        return Curvature(*krylov(problem, w)) if weights is None else None
    lam = facts.weights if weights is None else weights
    return None if facts.dim > MAX_HESSIAN_DIM else Curvature(lam @ problem.grad(w), _mean_hessian(problem, w, lam))


def _mean_hessian(problem: Any, w: Tensor, lam: Tensor) -> Tensor:
    """Some users at a time, so that memory does not grow with their number."""
    if "spectrum" in problem.offers:
        weighted: Tensor = problem.spectrum.weighted(problem.spectrum.s, lam)
        return weighted
    together = max(1, MAX_HESSIAN_NUMBERS // problem.dim**2)
    total = w.new_zeros((problem.dim, problem.dim))
    for who in torch.arange(problem.users, device=w.device).split(together):
        part = problem if len(who) == problem.users else problem.take(who)
        total += torch.tensordot(lam[who], part.hessian(w), 1)
    return total


def measure(facts: Facts, w: Tensor) -> dict[str, Tensor]:
    """f and f - f* of models w (k, d), of f + g where the problem has a penalty; NaN where unknown."""
    problem: Any = facts.problem
    g = facts.g
    gap = problem.gap(w) if g is None or facts.lookup("gap_includes_penalty") else None
    if gap is not None and facts.fstar is not None:
        return {"value": gap + facts.fstar, "gap": gap}
    unknown = w.new_full((len(w),), torch.nan)
    value = objective(problem, w) if "value" in facts.offers else unknown
    return {"value": value if g is None else value + g.value(w), "gap": unknown}
