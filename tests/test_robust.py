"""Robust meetings: their laws as functions of rows and weights, and runs with a user who sends garbage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from bench.robust import GARBAGE, OneSendsGarbage, distances, squares
from bench.robust import MEETINGS as DRAWN
from resolvent.iteration.meeting import Gathering
from resolvent.iteration.robust import RobustMeeting, weighted_median

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
MEETINGS = [rs.TrimmedMean(0.2), rs.CoordinateMedian(), rs.GeometricMedian()]
every = pytest.mark.parametrize("meet", MEETINGS, ids=lambda meet: type(meet).__name__)
seeds = pytest.mark.parametrize("seed", range(6))


def rows(seed: int, users: int = 9, dim: int = 4) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    weights = torch.rand(users, generator=rng, dtype=torch.float64) + 0.5
    return torch.randn(users, dim, generator=rng, dtype=torch.float64), weights / weights.sum()


def close(one: Tensor, other: Tensor, tol: float = 1e-7) -> None:
    torch.testing.assert_close(one, other, rtol=tol, atol=tol)


# --- laws of the points ----------------------------------------------------------------------------------------------


@every
@seeds
def test_symmetries(meet: RobustMeeting, seed: int) -> None:
    """Order does not matter, shifts and scales carry over, and users who agree meet where they are."""
    z, weights = rows(seed)
    at = meet.point(z, weights)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
    close(meet.point(z[order], weights[order]), at)
    close(meet.point(-3 * z + 7, weights), -3 * at + 7)
    close(meet.point(z[:1].expand(5, -1), torch.full((5,), 0.2, dtype=z.dtype)), z[0], 1e-14)


@every
@seeds
def test_a_user_of_twice_the_weight_is_two_users(meet: RobustMeeting, seed: int) -> None:
    z, _ = rows(seed)
    twice = torch.tensor([2.0] + [1.0] * 8, dtype=z.dtype) / 10
    close(meet.point(z, twice), meet.point(torch.cat([z[:1], z]), torch.full((10,), 0.1, dtype=z.dtype)))


@seeds
def test_against_plain_definitions(seed: int) -> None:
    z, weights = rows(seed, users=10)
    equal = torch.full((10,), 0.1, dtype=z.dtype)
    close(rs.TrimmedMean(0.2).point(z, equal), z.sort(0).values[2:-2].mean(0), 1e-12)
    close(weighted_median(z, equal), torch.from_numpy(np.median(z.numpy(), axis=0)), 1e-12)
    median = weighted_median(z, weights)
    for side in (z < median, z > median):
        assert bool(((weights.unsqueeze(1) * side).sum(0) <= 0.5 + 1e-12).all())
    y = rs.GeometricMedian().point(z, weights)
    pulls = torch.nn.functional.normalize(z - y, dim=1)
    assert float((weights @ pulls).norm()) < 1e-6  # optimality: unit pulls cancel


@seeds
def test_a_user_s_row_can_be_the_geometric_median(seed: int) -> None:
    """Whoever has more than half of the weight is it; so is a row amid others on both sides of it."""
    z, _ = rows(seed)
    heavy = torch.tensor([0.6] + [0.05] * 8, dtype=z.dtype)
    assert torch.equal(rs.GeometricMedian().point(z, heavy), z[0])
    line = torch.cat([z[:4], -z[:4], torch.zeros(1, 4, dtype=z.dtype)])
    assert float(rs.GeometricMedian().point(line, torch.full((9,), 1 / 9, dtype=z.dtype)).norm()) < 1e-9


def test_the_geometric_median_near_a_row_and_between_two() -> None:
    """Where Weiszfeld's iteration is slow: rows whose distances to each other are most unlike."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        some, weights = rng.standard_normal((4, 2)), torch.full((4,), 0.25, dtype=torch.float64)
        z = torch.from_numpy(some[0] + 10.0 ** rng.uniform(-4, 0, (4, 1)) * (some - some[0]))
        y = rs.GeometricMedian().point(z, weights)
        if not bool((z == y).all(1).any()):
            assert float((weights @ torch.nn.functional.normalize(z - y, dim=1)).norm()) < 1e-6


@seeds
@pytest.mark.parametrize("far", [GARBAGE, -GARBAGE, float("inf")])
def test_breakdown(seed: int, far: float) -> None:
    """Bad users below the trimmed share, or one half, leave the point amid the honest ones; the mean follows them."""
    z, weights = rows(seed)
    bad = z.clone()
    for meet, count in ((rs.TrimmedMean(0.3), 1), (rs.CoordinateMedian(), 3), (rs.GeometricMedian(), 3)):
        bad[:count] = far
        honest = z[count:]
        if not np.isfinite(far) and isinstance(meet, rs.GeometricMedian):
            continue
        at = meet.point(bad, weights)
        share, centre = float(weights[:count].sum()), honest.mean(0)
        assert share < 0.5
        if isinstance(meet, rs.GeometricMedian):
            reach = 2 * (1 - share) / (1 - 2 * share) * float((honest - centre).norm(dim=1).max())
            assert float((at - centre).norm()) <= reach
        else:
            assert bool((at >= honest.min(0).values).all())
            assert bool((at <= honest.max(0).values).all())
        assert not float((weights @ bad).norm()) < 1e4


@every
def test_of_two_users_nobody_can_say_which_is_the_bad_one(meet: Any) -> None:
    """The meeting point stays where it was; weights of zero do not count."""
    z = torch.tensor([[0.0, 1.0], [2.0, 5.0], [GARBAGE, GARBAGE], [1.0, 3.0]], dtype=torch.float64)
    start = torch.full((4, 2), 7.0, dtype=torch.float64)

    def met(weights: list[int], who: list[int] | None) -> Tensor:
        rows = None if who is None else torch.tensor(who)
        at = Gathering(z, rows, lambda z, who: z, torch.tensor(weights, dtype=torch.float64), 0.1)
        return meet(at, meet.begin(start))[0].w[0]

    for weights, who in (([1, 1, 1, 1], [0, 2]), ([1, 1, 0, 0], None), ([0, 0, 1, 1], [0, 1]), ([1, 1, 1, 1], [2])):
        close(met(weights, who), start[0])
    close(met([1, 1, 0, 1], None), z[3])


# --- runs ------------------------------------------------------------------------------------------------------------


@every
@seeds
@pytest.mark.parametrize("row", ["fedprox", "fedpi"])
def test_one_who_sends_garbage_does_not_carry_the_model_away(meet: Any, seed: int, row: str) -> None:
    problem = squares(seed)
    given: dict[str, Any] = {"rounds": 60, "every": 20, "progress": False}
    honest = rs.solve(problem.take(torch.arange(1, 9)), rs.TABLE[row].scheme(0.05), **given).model
    scheme = rs.TABLE[row].scheme(0.05, OneSendsGarbage())
    kept = rs.solve(problem, scheme, meet=meet, **given).model
    assert float((kept - honest).norm()) < 0.5 * float(honest.norm())
    lost = rs.solve(problem, rs.fedprox(0.05, local=OneSendsGarbage()), **given).model
    assert float((lost - honest).norm()) > 100 * float(honest.norm())


def test_the_picture_says_so() -> None:
    """One user takes the mean away, and no robust meeting; without it, these cost far less than the model's length."""
    found = distances()
    assert len(found) == 2 * len(DRAWN)
    assert found["the mean", True][-1] > 1e3
    assert found["the mean", False][-1] < 1e-6
    for name, (meet, _) in DRAWN.items():
        if meet is not None:
            assert found[name, True][-1] < 0.5
            assert 1e-6 < found[name, False][-1] < 0.5


@every
def test_every_engine_that_has_all_rows_agrees(meet: Any) -> None:
    pytest.importorskip("flwr")
    from engines.fake_grid import engine_over

    problem = squares(0, users=5)
    given: dict[str, Any] = {"rounds": 6, "meet": meet, "participation": rs.FixedSize(4)}
    here = rs.solve(problem, rs.fedpi(0.05), progress=False, **given)
    slow = rs.solve(problem, rs.fedpi(0.05), engine="debug", progress=False, **given)
    there = rs.solve(None, rs.fedpi(0.05), engine=engine_over(problem, rs.ExactProx()), progress=False, **given)
    close(slow.model, here.model, 1e-10)
    close(there.model, here.model, 1e-8)


@every
def test_with_a_penalty_a_compressor_and_in_single_precision(meet: Any) -> None:
    problem = squares(1, dtype=np.float32)
    given: dict[str, Any] = {"rounds": 200, "every": 50, "progress": False, "meet": meet}
    sparse = rs.solve(problem, rs.fedpi(0.05), penalty=rs.L1(1e4), **given)
    assert not bool(sparse.model.any())
    both = rs.solve(problem, rs.fedpi(0.05), send=rs.TopK(0.5), **given).model
    assert both.dtype == torch.float32
    close(both, rs.solve(problem, rs.fedpi(0.05), **given).model, 1e-2)


@every
def test_where_users_are_alike_nothing_is_lost(meet: Any) -> None:
    A, b = (np.repeat(x[None], 5, 0) for x in (np.eye(3) + 0.1, np.arange(3.0)))
    problem = rs.LeastSquares(A, b)
    close(rs.solve(problem, rs.fedpi(1.0), rounds=80, meet=meet, progress=False).model, problem.minimiser)


@every
def test_explain(meet: Any) -> None:
    said = rs.explain(rs.fedpi("auto"), squares(0), anderson=3, meet=meet)
    assert said.solves == "neither"
    assert said.theorem is None
    sentences = " ".join(map(str, said.findings))
    assert f"users meet at {meet.name}, which is not the mean unless users agree" in sentences
    assert "leave meet out if every user can be trusted" in sentences
    assert "a bad one can set eta" in sentences
    assert "come from sums over all users" in sentences


def solving(meet: Any, users: int = 9, **more: Any) -> Any:
    return lambda: rs.solve(squares(0, users), rs.fedpi(0.05), rounds=2, progress=False, meet=meet, **more)


FEW = rs.FixedSize(2, absent="paper")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rs.TrimmedMean(0.5), r"share is 0.5, but a share of the weight in \(0, 1/2\) is needed"),
        (lambda: rs.TrimmedMean(0), "share is 0, but"),
        (lambda: rs.GeometricMedian(0), "tol is 0, but"),
        (solving(rs.TrimmedMean(0.1)), "share is 0.1, but it trims nobody: the lightest of 9 users .* weight 0.111"),
        (solving(rs.TrimmedMean(0.2), participation=rs.FixedSize(4, absent="paper")), "the lightest of 4 users"),
        (solving(rs.CoordinateMedian(), participation=FEW), "needs 3 users who meet, and at most 2 do"),
        (solving(rs.GeometricMedian(), users=2), "the geometric median needs 3 users who meet, and at most 2 do"),
        (solving(rs.TrimmedMean(0.4), participation=rs.Trace([[1] * 2 + [0] * 7], absent="paper")), "at most 2 do"),
    ],
)
def test_bad_input(make: Any, sentence: str) -> None:
    with pytest.raises(rs.InputError, match=sentence):
        make()


@every
@pytest.mark.parametrize(
    "who", [rs.FixedSize(1), rs.FixedSize(2), rs.Bernoulli(0.2, absent="paper"), rs.Bernoulli(0.3)], ids=str
)
def test_rounds_in_which_few_come(meet: Any, who: Any) -> None:
    """Also where the one who sends garbage is alone, or among the first to come."""
    for seed in range(4):
        problem = squares(seed)
        honest = problem.take(torch.arange(1, 9)).minimiser
        given: dict[str, Any] = {
            "rounds": 60,
            "every": 60,
            "meet": meet,
            "participation": who,
            "seed": seed,
            "progress": False,
        }
        kept = rs.solve(problem, rs.fedpi(0.05, OneSendsGarbage()), **given).model
        assert float((kept - honest).norm()) < 0.5 * float(honest.norm())


@dataclass(frozen=True)
class TiltedGarbage(rs.TiltedSteps):
    """SCAFFOLD's steps; but user 0 answers garbage."""

    def _descend(self, part: Any, ask: Any, u: Tensor) -> Tensor:
        p = super()._descend(part, ask, u).clone()
        users = range(len(p)) if ask.names is None else ask.names.tolist()
        p[[i for i, user in enumerate(users) if user == 0]] = GARBAGE
        return p


@every
@pytest.mark.parametrize("who", [None, rs.FixedSize(5)], ids=str)
@pytest.mark.parametrize("penalty", [None, rs.L1(1e-3)], ids=str)
def test_scaffolds_centre_is_robust_too(meet: Any, who: Any, penalty: Any) -> None:
    """Its steps start from mean(u) with any other meeting, which follows what one user has sent."""
    given: dict[str, Any] = {"rounds": 120, "every": 20, "participation": who, "penalty": penalty, "progress": False}
    for seed in range(2):
        problem = squares(seed)
        honest = rs.solve(problem, rs.scaffold(0.005, 5), meet=meet, **given).model
        scheme = rs.TABLE["scaffold"].scheme(0.025, TiltedGarbage(5, 0.005))
        kept = rs.solve(problem, scheme, meet=meet, **given).model
        assert float((kept - honest).norm()) < 0.5 * float(honest.norm())
