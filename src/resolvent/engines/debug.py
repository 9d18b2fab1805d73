"""One user at a time, every answer checked; when something fails, the message names the user and the round."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.in_process import HoldsProblem
from resolvent.errors import BadAnswer, InputError
from resolvent.iteration.engine import PERSONAL, Answers, Ask, MeanAnswer
from resolvent.iteration.facts import Memory
from resolvent.local.bound import Bound
from resolvent.local.metric_bound import bind
from resolvent.local.operators import Operator
from resolvent.problems.custom import Custom
from resolvent.problems.problem import Problem, select
from resolvent.problems.verify import verify_answer


class Debug(HoldsProblem):
    """Slow and careful: each user is a problem of its own, and sums over users are plain loops."""

    def __init__(self, problem: Problem, operator: Operator, steady: bool = True) -> None:
        super().__init__(problem, operator)
        self.problem: Any = problem
        self.users, self.certifies = problem.users, operator.certifies
        self._alone = [problem.take(torch.tensor([i], device=self.facts.device)) for i in range(self.users)]
        self._bound: list[Bound] = [bind(operator, one, steady) for one in self._alone]

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        who = range(self.users) if ask.who is None else ask.who.tolist()
        u = u.expand(len(who), -1)
        answers: list[Tensor] = []
        for i, row in zip(who, u.split(1), strict=True):
            p, mine = self._answer(i, ask, row, {key: tensor[i : i + 1] for key, tensor in memory.items()})
            answers.append(p)
            for key, tensor in mine.items():
                if key not in memory:
                    memory = {**memory, key: self._begun(key, tensor)}
                memory = {**memory, key: memory[key].index_copy(0, torch.tensor([i], device=tensor.device), tensor)}
        return Answers(ask.who, u, torch.cat(answers), memory, memory.get("error"))

    def _begun(self, key: str, like: Tensor) -> Tensor:
        """What users begin with: a network's own buffers, else NaN for what nobody has yet."""
        begun: Memory = self.problem.remembering({}).memory() if "training" in self.problem.offers else {}
        if key in begun:
            return begun[key]
        nobody = torch.nan if like.dtype.is_floating_point else 0
        return like.new_full((self.users, *like.shape[1:]), nobody)

    def _answer(self, i: int, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        where = f"user {i} in round {ask.t + 1} (eta = {ask.eta:g})"
        if any(bool(tensor.isnan().all()) for tensor in memory.values() if tensor.dtype.is_floating_point):
            memory = {}  # this user's first visit
        try:
            p, memory = self._bound[i].rows(ask._replace(who=None, names=torch.tensor([i])), u, memory)
        except Exception as error:
            raise BadAnswer(f"{where} failed with {type(error).__name__}: {error}") from error
        if p.shape != u.shape:
            raise BadAnswer(f"{where} answered with shape {tuple(p.shape)}, but {tuple(u.shape)} is needed")
        if not bool(torch.isfinite(p).all()):
            raise BadAnswer(f"{where} answered NaN or infinity to a u of norm {float(u.norm()):.3g}")
        if self.certifies == "p" and "value" in self._alone[i].offers:
            self._check_descent(i, ask, u, p, where)
        self._verify(i, ask, u, p, where)
        return p, memory

    def _verify(self, i: int, ask: Ask, u: Tensor, p: Tensor, where: str) -> None:
        """A user's own gradient at u, and its prox, against values around them."""
        alone = self._alone[i]
        if isinstance(alone, Custom) and alone.check:
            try:
                verify_answer(
                    alone, u, p if self.certifies == "p" and ask.metric is None else None, ask.eta, [ask.t, i]
                )
            except InputError as error:
                raise BadAnswer(f"{where} failed: {error}".replace("of user 0 ", "")) from error

    def _check_descent(self, i: int, ask: Ask, u: Tensor, p: Tensor, where: str) -> None:
        """A prox lowers f(x) + |x - u|_M^2 / (2 eta) below its value at u, where u is in the domain of f."""
        way = p - u if ask.metric is None else ask.metric.coordinates(p - u)
        before = float(self._alone[i].value(u)[0])
        after = float(self._alone[i].value(p)[0]) + float(way.square().sum()) / (2 * ask.eta)
        rounding = 1e-9 if u.dtype == torch.float64 else 1e-4
        if not (after <= before + rounding * (1 + abs(before)) or math.isnan(before)):
            raise BadAnswer(
                f"{where} answered a point whose prox objective is {after:.6g}, above {before:.6g} at u itself"
            )

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        _, _, p, memory, error, *_ = self.local(ask, u, memory)
        lam = self.problem.weights if ask.who is None else select(self.problem.weights, ask.who)
        mean = sum((weight * row for weight, row in zip(lam, p.split(1), strict=True)), torch.zeros_like(u))
        spread = (lam @ (p - mean).square().sum(1)).unsqueeze(0)
        if "training" in self.problem.offers:  # a network's personal models are not computed again for the asking
            begun: Tensor = self.problem.start
            before = memory[PERSONAL] if PERSONAL in memory else begun.expand(self.users, -1)
            memory = memory | {PERSONAL: p if ask.who is None else before.index_copy(0, ask.who, p)}
        return MeanAnswer(mean, lambda u: spread, memory, error)

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        if z.shape[0] == 1:
            return z
        who = torch.arange(self.users, device=z.device) if who is None else who
        lam = select(self.problem.weights, who)
        return sum(
            (weight * z[i : i + 1] for weight, i in zip(lam, who.tolist(), strict=True)), torch.zeros_like(z[:1])
        )

    def gram(self, rows: Tensor) -> Tensor:
        lam = self.problem.weights if rows.shape[1] > 1 else rows.new_ones(1)
        return sum((weight * x @ x.T for weight, x in zip(lam, rows.unbind(1), strict=True)), rows.new_zeros(()))
