"""A local operator of one's own is one class in one file: on convex problems and on networks, from `local=`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.iteration.engine import Ask
from resolvent.local.bound import Bound, Plain
from resolvent.local.descent import gradients
from resolvent.local.law import UNKNOWN, Law, Target, UserFacts
from resolvent.local.training import stepping

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


@dataclass(frozen=True)
class DecayingSteps:
    """k gradient steps of sizes lr, lr/2, lr/3, ... with momentum; with `batch`, k shuffled passes."""

    steps: int = 3
    lr: float = 0.1
    batch: int | None = None
    momentum: float = 0.0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"grad"} if self.batch is None else {"grad", "batches"})

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        return Law(Target(UNKNOWN, why="its steps become shorter"), exact=False, steps=(self.steps,))

    def bind(self, problem: Any, steady: bool) -> Bound:
        return stepping(problem, self._answer)

    def _answer(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        x, v = u, torch.zeros_like(u)
        for k, (gradient, moves) in enumerate(gradients(part, ask, self.steps, self.batch)):
            faster = self.momentum * v + gradient(x)
            moved = x - self.lr / (k + 1) * faster
            x, v = (moved, faster) if moves is None else (torch.where(moves, moved, x), torch.where(moves, faster, v))
        return x


def network(users: int = 3, buffers: bool = True) -> rs.Neural:
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(6)] if buffers else []
    model = nn.Sequential(nn.Linear(4, 6), *norm, nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))
    rows = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (8, 12, 8)[:users]]
    return rs.Neural(model, rows, test=(torch.randn(9, 4), torch.randint(0, 3, (9,))))


def test_on_a_convex_problem_its_answers_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(1)
    rows, targets = rng.standard_normal((4, 10, 3)), rng.standard_normal((4, 10))
    problem = rs.LeastSquares(rows, targets)
    local = DecayingSteps(3, 0.05, momentum=0.5)
    run = rs.solve(problem, rs.Scheme(1, 0, 1, 0.1, local=local), rounds=1, start=torch.ones(4, 3), progress=False)
    for A, b, p in zip(rows, targets, run.personal, strict=True):
        x, v = np.ones(3), np.zeros(3)
        for k in range(3):
            v = 0.5 * v + A.T @ (A @ x - b)
            x = x - 0.05 / (k + 1) * v
        np.testing.assert_allclose(p, x, rtol=1e-10)


def test_fedpi_runs_with_it_and_is_explained_by_its_law() -> None:
    problem = rs.make_logistic(users=4, dim=3, rows=30, seed=0)
    scheme = rs.fedpi(0.5, local=DecayingSteps(20, 0.5))
    run = rs.solve(problem, scheme, rounds=30, progress=False)
    assert run.history["value"].iloc[-1] < run.history["value"].iloc[0]
    assert rs.explain(scheme, problem).solves == UNKNOWN


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("participation", [None, 0.6])
def test_on_a_network_with_minibatches_momentum_and_buffers(batch: int | None, participation: float | None) -> None:
    problem = network()
    scheme = rs.fedpi(0.2, local=DecayingSteps(2, 0.1, batch, 0.5))
    run = rs.solve(problem, scheme, rounds=4, seed=1, participation=participation, progress=False)
    again = rs.solve(problem, scheme, rounds=2, seed=1, participation=participation, progress=False)
    resumed = rs.solve(
        problem, scheme, rounds=2, seed=1, participation=participation, start=again.state, progress=False
    )
    assert torch.equal(resumed.model, run.model)
    means = run.state.memory["buffer.1.running_mean"]
    assert means.shape == (3, 6)
    assert len(means.unique(dim=0)) == 3  # each user has its own
    assert run.history["test_accuracy"].notna().all()


def test_a_constant_rate_gives_the_bits_of_gradient_steps() -> None:
    problem, eta = network(), 0.1

    @dataclass(frozen=True)
    class Steps(DecayingSteps):
        def _answer(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
            for gradient, moves in gradients(part, ask, self.steps, self.batch):
                moved = u - ask.eta * gradient(u)
                u = moved if moves is None else torch.where(moves, moved, u)
            return u

    ours = rs.solve(problem, rs.Scheme(1, 1, 1, eta, local=Steps(3, batch=4)), rounds=3, progress=False)
    theirs = rs.solve(problem, rs.fedavg(eta, local=rs.GradientSteps(3, batch=4)), rounds=3, progress=False)
    assert torch.equal(ours.model, theirs.model)


def test_what_it_needs_is_asked_for_before_the_first_round() -> None:
    deviations = rs.AbsoluteDeviations(np.ones((3, 2)), np.zeros(3))
    with pytest.raises(rs.InputError, match="needs batches of the problem"):
        rs.solve(deviations, rs.fedpi(0.1, local=DecayingSteps(batch=2)), rounds=1)


def test_an_answer_of_another_shape_is_refused_before_it_is_broadcast() -> None:
    @dataclass(frozen=True)
    class OneRow:
        needs = frozenset({"prox"})

        def bind(self, problem: Any, steady: bool) -> Bound:
            def first_row(part: Any, ask: Ask, u: Tensor) -> Tensor:
                return part.prox(u, ask.eta)[0]

            return Plain(problem, first_row)

    problem = rs.make_least_squares(users=5, dim=3, rows=20)
    with pytest.raises(rs.InputError, match=r"the answer of local is of shape \(3,\), but \(5, 3\)"):
        rs.solve(problem, rs.fedpi(0.05, local=OneRow()), rounds=3)


@dataclass(frozen=True)
class Plainly:
    """GradientSteps or GradientProx as one would write them, with the gradient of the part that it is given."""

    steps: int
    forward = False
    certifies = None
    needs = frozenset({"grad"})

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        return Law(Target(UNKNOWN, why="nothing is claimed"), exact=False, steps=(self.steps,))

    join: Any = stepping

    def bind(self, problem: Any, steady: bool) -> Bound:
        return self.join(problem, self._answer)

    def _answer(self, part: Any, ask: Ask, u: Tensor) -> Tensor:
        x = u
        for _ in range(self.steps):
            x = x - ask.eta * part.grad(x)
        return x


@pytest.mark.parametrize("join", [stepping, Plain])
@pytest.mark.parametrize("participation", [None, 0.5])
def test_gradients_that_are_given_no_seeds_are_of_training_as_those_of_built_in_steps(
    participation: float | None, join: Any
) -> None:
    local = Plainly(3, join)
    ours = rs.solve(network(), rs.Scheme(1, 1, 1, 0.2, local=local), rounds=4, participation=participation)
    theirs = rs.solve(network(), rs.fedavg(0.2, steps=3), rounds=4, participation=participation)
    assert torch.equal(ours.model, theirs.model)


def test_users_who_are_taken_from_those_that_train_keep_their_seeds() -> None:
    problem, words, who = network(buffers=False), np.array([3, 5, 7], np.uint64), torch.tensor([2, 0])
    W = problem.start.expand(3, -1)
    whole = problem.remembering({}, iter([words])).grad(W)
    taken = problem.remembering({}, iter([words])).take(who).grad(W[who])
    torch.testing.assert_close(taken, whole[who], rtol=1e-5, atol=1e-6)  # float32, in another company
    assert (whole - problem.grad(W)).norm() > 1e-2  # something is dropped


def test_anderson_inside_a_prox_drops_out_too() -> None:
    """Its first step is that of plain gradient steps."""
    local = [rs.GradientProx(1, 0.1, anderson=memory) for memory in (2, 0)]
    models = [rs.solve(network(), rs.fedprox(0.5, local=each), rounds=1).model for each in local]
    torch.testing.assert_close(models[0], models[1], rtol=1e-5, atol=1e-6)  # float32, another order of operations


def test_a_class_in_place_of_an_operator_is_refused() -> None:
    with pytest.raises(
        rs.InputError, match=r"local is the class GradientSteps, but an operator is needed: GradientSteps\("
    ):
        rs.fedavg(0.1, local=rs.GradientSteps)
