"""All users in this process, batched into tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.facts import AllHere
from resolvent.iteration.engine import PERSONAL, Answers, Ask, Look, MeanAnswer, Memory
from resolvent.iteration.penalties import penalty_of
from resolvent.local.operators import Operator
from resolvent.local.training import Trained
from resolvent.problems.newton.krylov import krylov
from resolvent.problems.problem import Problem, objective, select

WIDE = 1000
"""The longest model whose mean Hessian is asked for: it has d^2 numbers, and its eigenvalues take d^3 operations."""
NUMBERS = 1 << 24
"""In the Hessians that are held at a time."""


class InProcess(AllHere):
    """The default engine: every verb is a few tensor calls over all users."""

    def __init__(self, problem: Problem, operator: Operator, steady: bool = True) -> None:
        super().__init__(problem, operator)
        self._bound = operator.bind(problem, steady)
        self._lam = problem.weights.unsqueeze(0)
        self._root = problem.weights.sqrt().unsqueeze(1)

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

    def every(self, flags: Tensor) -> bool:
        return bool(flags.all())

    def mean(self, z: Tensor, who: Tensor | None = None) -> Tensor:
        if z.shape[0] == 1:
            return z
        return self._lam @ z if who is None else select(self._lam[0], who).unsqueeze(0) @ z[who]

    def gram(self, rows: Tensor) -> Tensor:
        if rows.shape[1] > 1:
            rows = rows * self._root
        flat = rows.flatten(1)
        return flat @ flat.T

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        return curvature(self.problem, w)

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        return measure(self.problem, w)

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        return inspect(self.problem, w, p, memory, look)


def curvature(problem: Any, w: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """The gradient (d,) and the Hessian (d, d) of f at w (1, d); of long models in coordinates of a Krylov space.

    With `weights`, (users,), of that weighted sum; a Krylov space of some users is not that of all: None then.
    """
    if not (problem.convex and {"grad", "hessian"} <= problem.offers):
        return None
    if getattr(problem, "matrix_free", False):
        return krylov(problem, w) if weights is None else None
    lam = problem.weights if weights is None else weights
    return None if problem.dim > WIDE else (lam @ problem.grad(w), _mean_hessian(problem, w, lam))


def _mean_hessian(problem: Any, w: Tensor, lam: Tensor) -> Tensor:
    """Some users at a time, so that memory does not grow with their number."""
    if "spectrum" in problem.offers:
        weighted: Tensor = problem.spectrum.weighted(problem.spectrum.s, lam)
        return weighted
    together = max(1, NUMBERS // problem.dim**2)
    total = w.new_zeros((problem.dim, problem.dim))
    for who in torch.arange(problem.users, device=w.device).split(together):
        part = problem if len(who) == problem.users else problem.take(who)
        total += torch.tensordot(lam[who], part.hessian(w), 1)
    return total


def inspect(problem: Any, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
    """What the problem says of models beside f, if it says more."""
    if "inspect" not in problem.offers:
        return None
    found: dict[str, float] = problem.inspect(w, memory.get(PERSONAL, p), memory, look)
    return found


def measure(problem: Problem, w: Tensor) -> dict[str, Tensor]:
    """f and f - f* of models w (k, d), of f + g where the problem has a penalty; NaN where unknown."""
    g = penalty_of(problem)
    gap = problem.gap(w) if g is None or getattr(problem, "gap_includes_penalty", False) else None
    if gap is not None and problem.fstar is not None:
        return {"value": gap + problem.fstar, "gap": gap}
    nothing = w.new_full((len(w),), torch.nan)
    value = objective(problem, w) if "value" in problem.offers else nothing
    return {"value": value if g is None else value + g.value(w), "gap": nothing}
