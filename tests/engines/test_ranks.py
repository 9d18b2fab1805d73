"""A rank that holds some users' rows only runs the same loop: two of them, in threads, meet in sums over all users."""

from __future__ import annotations

import threading
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.engines.facts import ProblemFacts
from resolvent.iteration.engine import Answers, Ask, MeanAnswer, Memory, Present, Traffic

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

SPLIT = ((0, 1, 2), (3, 4))
"""Which users live on which rank."""


class Sums:
    """All-reduce among threads: what every rank brings is added up, in the order of ranks."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=20)
        self._brought: list[Any] = [None] * ranks

    def __call__(self, rank: int, value: Tensor) -> Tensor:
        self._brought[rank] = value
        self._barrier.wait()
        total = torch.stack(self._brought).sum(0)
        self._barrier.wait()
        return total

    def abort(self) -> None:
        self._barrier.abort()


class RankFacts(ProblemFacts):
    """All users are known, some of them are here."""

    mine: Tensor

    @property
    def here(self) -> int:
        return len(self.mine)


class Rank:
    """An engine that holds the rows of some users; every verb that sums over users is a collective."""

    traffic: Traffic | None = None

    def __init__(self, whole: Any, operator: Any, mine: tuple[int, ...], rank: int, sums: Sums) -> None:
        self.mine = torch.tensor(mine)
        self.facts = RankFacts(whole, operator)
        object.__setattr__(self.facts, "mine", self.mine)
        self._part = whole.take(self.mine)
        self._bound = operator.bind(self._part, steady=True)
        self._lam = whole.weights[self.mine]
        self._sum = lambda value: sums(rank, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def present(self, who: Tensor | None) -> Present:
        if who is None:
            return Present(None, self.facts.users)
        return Present(torch.isin(self.mine, who).nonzero().flatten(), len(who))

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        came = self._came(ask.who)
        if ask.who is not None and not len(ask.who):
            return Answers(ask.who, u, u, memory, came=came)
        p, memory = self._bound.rows(ask._replace(names=self.mine), u, memory)
        return Answers(ask.who, u, p, memory, memory.get("error"), came)

    def _came(self, who: Tensor | None) -> int:
        return int(self._sum(torch.tensor(len(self.mine) if who is None else len(who))))

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        who, _, p, memory, error, came, _ = self.local(ask, u.expand(self._rows(ask.who), -1), memory)
        mean = self.mean(self._all(p, who), who)
        lam = self._lam if who is None else self._lam[who]
        spread = self._sum(lam @ (p - mean).square().sum(1)) / self._sum(lam.sum())
        return MeanAnswer(mean, lambda u: spread.unsqueeze(0), memory, error, None, came)

    def _rows(self, who: Tensor | None) -> int:
        return len(self.mine) if who is None else len(who)

    def _all(self, p: Tensor, who: Tensor | None) -> Tensor:
        return p if who is None else p.new_zeros(len(self.mine), p.shape[1]).index_copy(0, who, p)

    def mean(self, z: Tensor, who: Tensor | None = None) -> Tensor:
        if len(z) == 1 and len(self.mine) > 1:
            return z
        some = slice(None) if who is None else who
        lam = self._lam[some]
        return (self._sum(lam @ z[some]) / self._sum(lam.sum())).unsqueeze(0)

    def gram(self, rows: Tensor) -> Tensor:
        if rows.shape[1] == 1:
            return rows[:, 0] @ rows[:, 0].T
        flat = (rows * self._lam.sqrt().unsqueeze(1)).flatten(1)
        return self._sum(flat @ flat.T)

    def every(self, flags: Tensor) -> bool:
        return int(self._sum((~flags).sum())) == 0

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        both = [self._sum(torch.tensordot(self._lam, part, 1)) for part in (self._part.grad(w), self._part.hessian(w))]
        return both[0], both[1]

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        value = self._sum(torch.stack([self._lam @ self._part.value(row) for row in w.split(1)]))
        return {"value": value, "gap": torch.full_like(value, torch.nan)}

    def inspect(self, w: Tensor, p: Tensor, memory: Memory) -> None:
        return None


def problem() -> rs.Logistic:
    rng = np.random.default_rng(1)
    A = [rng.standard_normal((n, 3)) for n in (8, 9, 20, 12, 8)]
    b = [rng.choice([-1.0, 1.0], len(a)) for a in A]
    return rs.Logistic(A, b, reg=0.1, weights=[1, 2, 3, 1, 0.5])


def on_ranks(scheme: rs.Scheme, **more: Any) -> list[rs.Run]:
    """The same run on every rank."""
    sums, whole = Sums(len(SPLIT)), problem()
    runs: dict[int, rs.Run] = {}
    operator = rs.GradientSteps(scheme.steps) if scheme.forward else rs.NewtonProx()
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            engine = Rank(whole, operator, SPLIT[rank], rank, sums)
            runs[rank] = rs.solve(None, scheme, rounds=25, seed=3, engine=engine, progress=False, **more)
        except BaseException as error:
            failed.append(error)
            sums.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(SPLIT))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [runs[rank] for rank in range(len(SPLIT))]


CASES: dict[str, tuple[rs.Scheme, dict[str, Any]]] = {
    "fedpi": (rs.fedpi(0.3), {}),
    "fedsplit_anderson": (rs.fedsplit(0.3), {"anderson": 2}),
    "fedpi_sampled": (rs.fedpi(0.3), {"participation": rs.FixedSize(1)}),
    "fedpi_auto": (rs.fedpi("auto"), {"participation": rs.Bernoulli(0.5)}),
    "fedprox": (rs.fedprox(0.3), {"anderson": 2}),
    "fedavg": (rs.fedavg(0.02, steps=3), {"average": "suffix"}),
    "fedpi_paper": (rs.fedpi(0.3), {"participation": rs.Bernoulli(0.5, absent="paper")}),
}


@pytest.mark.filterwarnings("ignore")  # the list of filters is shared by the threads, which put it back in turn
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_compute_what_one_process_does(case: str) -> None:
    scheme, more = CASES[case]
    alone = rs.solve(problem(), scheme, rounds=25, seed=3, progress=False, **more)
    ranks = on_ranks(scheme, **more)
    for run, mine in zip(ranks, SPLIT, strict=True):
        rows = alone.state.u if alone.state.together else alone.state.u[list(mine)]
        torch.testing.assert_close(run.state.u, rows, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(run.model, alone.model, rtol=1e-7, atol=1e-9)
        columns = ["round", "eta", "value", "residual", "stationarity", "consensus", "participants"]
        found, expected = (r.history[columns].to_numpy(float) for r in (run, alone))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)
