"""What Newton's method makes of the points of earlier rounds. That its answers are exact: laws/test_operators.py."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.problems.newton.inverses import DenseInverses
from resolvent.problems.newton.prox import corrected, retained_points

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

USERS, DIM = 3, 6


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def crude() -> DenseInverses:
    """B = I, which is wrong: what is right comes from the pairs."""
    inverses = DenseInverses.empty(USERS, DIM, drawn(1))
    inverses.inverse += torch.eye(DIM, dtype=torch.float64)
    return inverses


@pytest.fixture
def M() -> Tensor:
    """I + eta H."""
    A = drawn(USERS, DIM, DIM)
    return torch.eye(DIM, dtype=torch.float64) + A @ A.mT


def seen(M: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    return s, s @ M


def test_d_pairs_say_everything(M: Tensor) -> None:
    e = drawn(USERS, DIM, seed=1)
    step = corrected(crude(), e, *seen(M, drawn(USERS, DIM, DIM, seed=2)))
    torch.testing.assert_close(step, torch.linalg.solve(M, e), rtol=1e-9, atol=1e-9)


def test_what_pairs_say_is_used_and_the_rest_is_left_to_the_factorisation(M: Tensor) -> None:
    s, y = seen(M, drawn(USERS, 2, DIM, seed=2))
    along = 3 * y[:, 0] - y[:, 1]
    other = drawn(USERS, DIM, seed=3)
    q = torch.linalg.qr(y.mT)[0]
    across = other - (q @ (q.mT @ other.unsqueeze(2))).squeeze(2)
    step = corrected(crude(), along + across, s, y)
    torch.testing.assert_close(step, 3 * s[:, 0] - s[:, 1] + across, rtol=1e-10, atol=1e-10)


def test_pairs_that_hardly_differ_still_say_how(M: Tensor) -> None:
    """Rounds that move in one direction, but for a millionth, which is all that matters here."""
    first, second = drawn(2, USERS, DIM, seed=2)
    s, y = seen(M, torch.stack([first, first + 1e-6 * second], 1))
    e = (second.unsqueeze(1) @ M).squeeze(1)
    torch.testing.assert_close(corrected(crude(), e, s, y), second, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_pairs_without_news_count_for_nothing(M: Tensor, kind: torch.dtype) -> None:
    s, y = (pair.to(kind) for pair in seen(M, drawn(USERS, 1, DIM, seed=2)))
    e, inverses = drawn(USERS, DIM, seed=1).to(kind), crude()
    inverses.inverse = inverses.inverse.to(kind)
    nothing = torch.zeros_like(s)
    assert torch.equal(corrected(inverses, e, nothing, nothing), e)
    once = corrected(inverses, e, s, y)
    for more in ((s, y), (2 * s, 2 * y), (nothing, nothing)):
        again = corrected(inverses, e, torch.cat([s, more[0]], 1), torch.cat([y, more[1]], 1))
        torch.testing.assert_close(again, once, rtol=1e-5, atol=1e-5)


class Counted:
    """A problem that counts its gradients."""

    def __init__(self, problem: Any) -> None:
        self.problem, self.count = problem, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def grad(self, W: Tensor) -> Tensor:
        self.count += 1
        return self.problem.grad(W)


def counts(scheme: rs.Scheme, rounds: int) -> list[int]:
    """Gradients in each round."""
    problem = Counted(rs.make_logistic(users=4, rows=60, dim=12))
    totals: list[int] = []
    rs.solve(problem, scheme, rounds=rounds, callback=lambda r: totals.append(problem.count))
    return [after - before for before, after in pairwise(totals)]


@pytest.mark.parametrize(
    "scheme",
    [rs.fedpi(0.01), rs.fedprox(0.01), rs.fedprox(rs.schedules.harmonic(0.1))],
    ids=["rows", "one_u", "eta_changes"],
)
def test_a_settled_round_takes_one_gradient(scheme: rs.Scheme) -> None:
    per_round = counts(scheme, 300)
    assert max(per_round[-50:]) <= 1
    assert sum(per_round) < 2 * len(per_round)


@pytest.mark.parametrize("dim", [1, 2, 30])
def test_no_more_points_are_kept_than_say_something(dim: int) -> None:
    run = rs.solve(rs.make_logistic(users=3, rows=20, dim=dim), rs.fedpi(0.1), rounds=3)
    assert run.state.memory["x"].shape == run.state.memory["g"].shape == (3, retained_points(dim), dim)
    assert retained_points(dim) <= dim + 1
