"""The mechanism itself: what is cut, what noise is added, that it does not pile up, and an audit by an attacker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import resolvent as rs
from resolvent.engines.in_process import InProcess
from resolvent.iteration import accountant, private_mean
from resolvent.iteration.meeting import Gathering
from resolvent.iteration.parts import Parts
from resolvent.iteration.private_mean import PrivateMean, clipped, drawn
from resolvent.iteration.rounds import rounds
from resolvent.iteration.state import begin

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def a_meeting(noise: float, clip: float = 1.0, users: int = 4, rate: float = 1.0, **more: Any) -> PrivateMean:
    return PrivateMean(rs.UserPrivacy(clip, noise=noise, delta=1e-3, **more), noise, rate, users)


def gathering(z: Tensor, t: int = 0, seed: int = 0, who: Tensor | None = None, secret: bool = False) -> Gathering:
    return Gathering(z, who, lambda z, who: z.mean(0, keepdim=True), torch.ones(len(z)), 1.0, t, seed, secret=secret)


# --- what is cut -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_no_contribution_is_longer_than_clip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.standard_normal((8, 5)) * 10 ** rng.uniform(-3, 6, (8, 1)))
    cut, within = clipped(rows, 2.0)
    lengths = rows.norm(dim=1)
    assert bool((cut.norm(dim=1) <= 2.0 * (1 + 1e-15)).all())
    assert torch.equal(within, lengths <= 2.0)
    assert torch.equal(cut[within], rows[within])
    directions = (cut / cut.norm(dim=1, keepdim=True) * rows / lengths.unsqueeze(1)).sum(1)
    torch.testing.assert_close(directions, torch.ones(8, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_contribution_without_a_finite_length_counts_as_zero(bad: float) -> None:
    rows = torch.tensor([[bad, bad], [0.3, 0.4]], dtype=torch.float64)
    cut, within = clipped(rows, 1.0)
    assert cut.tolist() == [[0.0, 0.0], [0.3, 0.4]]
    assert within.tolist() == [False, True]


def test_one_user_more_changes_the_sum_by_no_more_than_clip_whatever_it_sends() -> None:
    """Next to noise of 1e-12, means differ by at most clip / users: the sensitivity that is accounted for."""
    rng = np.random.default_rng(1)
    for t in range(50):
        meet = a_meeting(1e-12, clip=0.7, users=6)
        memory = meet.begin(torch.from_numpy(rng.standard_normal((1, 4))).expand(6, -1))
        z = torch.from_numpy(rng.standard_normal((6, 4))) * 10 ** rng.uniform(-2, 5)
        others = z.clone()
        others[3] = memory.centre  # a contribution of zero
        one, two = (meet(gathering(rows, t), memory)[0].w for rows in (z, others))
        assert float((one - two).norm()) <= 0.7 / 6 * (1 + 1e-10)


def test_who_is_away_contributes_nothing_and_the_divisor_stays() -> None:
    meet = a_meeting(1e-12, clip=100.0, users=4, rate=0.5)
    memory = meet.begin(torch.zeros(4, 2, dtype=torch.float64))
    z = torch.arange(8.0, dtype=torch.float64).reshape(4, 2)
    found = meet(gathering(z, who=torch.tensor([1, 3])), memory)[0].w
    torch.testing.assert_close(found, (z[1] + z[3]).unsqueeze(0) / 2)
    found = meet(gathering(z, who=torch.tensor([2])), memory)[0].w
    torch.testing.assert_close(found, z[2:3] / 2)


def test_a_sum_of_single_precision_is_rounded_once_when_it_is_released() -> None:
    """In single precision 1 and 2^-30 are 1: users who came before would decide how much the last one changes."""
    meet, z = a_meeting(1e-30, clip=10.0, users=3), torch.tensor([[1.0], [2.0**-30], [-1.0]])
    found = meet(gathering(z), meet.begin(torch.zeros(3, 1)))[0].w
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[2.0**-30 / 3]]), rtol=1e-6, atol=0.0)


# --- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [False, True])
def test_noise_is_normal_and_new_in_every_round(secret: bool) -> None:
    at = gathering(torch.zeros(1, 1), secret=secret)
    one, two = drawn(at, 5, 20_000), drawn(at._replace(t=1), 5, 20_000)
    for draws in (one, two):
        assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.04
    assert (drawn(at, 5, 20_000) == one).all() != secret
    assert not (drawn(at, 6, 20_000) == one).any()


@pytest.mark.parametrize("local", [False, True])
def test_the_sum_has_the_noise_that_is_accounted_for(local: bool) -> None:
    """noise * clip in every coordinate; from every user where users add their own, which counts as half."""
    meet, z = a_meeting(2.5, clip=0.4, users=5, local=local), torch.zeros(5, 3000, dtype=torch.float64)
    met, memory = meet(gathering(z), meet.begin(z))
    expected = 2.5 * 0.4 * (5**0.5 if local else 1)
    assert float((5 * met.w).std()) == pytest.approx(expected, rel=0.05)
    assert memory.stretches == ((1.25 if local else 2.5, 1.0, 1),)


def test_clip_follows_the_quantile_and_both_queries_spend_what_one_would() -> None:
    """Lengths are 0.1, 0.2, ..., 10: half of them are within 5. The noises together are one of multiplier `noise`."""
    users, noise = 100, 1.0
    meet = a_meeting(noise, clip=0.5, users=users, quantile=0.5)
    z = torch.zeros(users, 2, dtype=torch.float64)
    z[:, 0] = torch.arange(1, users + 1) / 10
    memory, seen = meet.begin(torch.zeros_like(z)), []
    for t in range(300):
        memory = meet(gathering(z, t), memory)[1]
        seen.append(memory.clip)
    assert np.mean(seen[100:]) == pytest.approx(5, rel=0.1)
    counted = users / private_mean.QUANTILE_SHARE
    spread = private_mean.beside_count(noise, counted)
    assert 1 / spread**2 + (0.5 / counted) ** 2 == pytest.approx(1 / noise**2)
    assert spread > noise
    flat = torch.zeros(users, 20_000, dtype=torch.float64)
    first = meet(gathering(flat), meet.begin(flat))[0].w
    assert float((users * first).std()) == pytest.approx(spread * 0.5, rel=0.03)


# --- noise does not pile up ------------------------------------------------------------------------------------------


def squares(users: int = 8, d: int = 3, seed: int = 0) -> rs.LeastSquares:
    rng = np.random.default_rng(seed)
    return rs.LeastSquares(rng.standard_normal((users, 12, d)), rng.standard_normal((users, 12)))


@pytest.mark.parametrize("scheme", [rs.fedpi(0.1), rs.fedsplit(0.1), rs.scaffold(0.02, 5), rs.fedavg(0.02)], ids=str)
def test_a_noisy_fixed_point_hovers_and_does_not_drift(scheme: rs.Scheme) -> None:
    """Nothing is cut, so that a linear iteration hovers around its fixed point: late as near as early, and on average
    on it. A random walk would be twice as far out."""
    problem, seen = squares(), []
    exact = rs.solve(problem, scheme, rounds=1500).model
    privacy = rs.UserPrivacy(1e3, noise=2e-4, delta=1e-3)
    centres = []

    def see(r: rs.Round) -> None:
        seen.append(r.model[0])
        centres.append(float((r.state.parts.meet.centre - r.state.next.mean(0)).norm()))

    rs.solve(problem, scheme, rounds=2500, privacy=privacy, callback=see, every=2500)
    away = torch.stack(seen) - exact
    early, late = away[50:750].square().mean().sqrt(), away[-700:].square().mean().sqrt()
    assert 0.8 < float(late / early) < 1.25
    assert float(away[50:].mean(0).norm()) < 0.25 * float(late)
    sigma = 1e3 * 2e-4 / problem.users
    assert max(centres) < 8 * sigma
    assert (max(centres) > 0.1 * sigma) == (not scheme.projects)  # where users share u, x is that u


# --- an audit --------------------------------------------------------------------------------------------------------

RUNS, ROUNDS, NOISE, DELTA = 1000, 4, 2.0, 1e-2
SURE = 1e-4
"""The chance that a bound of the audit is wrong."""


def released(target: bool, meet: PrivateMean, rate: float) -> Tensor:
    """A statistic of each of many runs: how far the released points have gone along the target's direction.

    Other users have no rows that matter. The target, where it is there, pulls as far as it can, ten times clip.
    """
    users, scheme = 5, rs.fedavg(1.0)
    A, b = torch.zeros(users, 1, 2, dtype=torch.float64), torch.zeros(users, 1, dtype=torch.float64)
    A[0, 0, 0], b[0, 0] = 1e-3 * target, 1e4 * target
    engine = InProcess(rs.LeastSquares(A, b), rs.GradientSteps(1))
    who = rs.Bernoulli(rate, absent="paper") if rate < 1 else rs.Everyone()
    parts, u0 = Parts(who, meet=meet), torch.zeros(1, 2, dtype=torch.float64)
    ends = []
    for seed in range(RUNS):
        loop = rounds(engine, scheme, begin(u0, u0, users, scheme, parts), parts, 2 * seed + target)
        for _ in range(ROUNDS):
            last = next(loop)
        ends.append(last.model[0, 0])
    return torch.stack(ends)


def lower_bound(meet: PrivateMean, rate: float = 1.0) -> float:
    """What every threshold between two federations says of epsilon at DELTA at least, by Clopper and Pearson."""
    without, with_target = (released(target, meet, rate).numpy() for target in (False, True))
    bounds = []
    tried = np.linspace(without.min(), with_target.max(), 40)
    chance = SURE / (4 * len(tried))
    for threshold in tried:
        for above in (True, False):
            hit, miss = (int(((x > threshold) == above).sum()) for x in (with_target, without))
            for k, n in ((hit, miss), (miss, hit)):
                low = stats.beta.ppf(chance, k, RUNS - k + 1) if k else 0.0
                high = stats.beta.ppf(1 - chance, n + 1, RUNS - n) if n < RUNS else 1.0
                bounds.append(np.log((low - DELTA) / high) if low > DELTA else -np.inf)
    return float(max(bounds))


def test_an_audit_finds_no_more_than_is_claimed() -> None:
    meet = a_meeting(NOISE, users=5)
    claimed = accountant.epsilon(((NOISE, 1.0, ROUNDS),), DELTA)
    assert 0.2 * claimed < lower_bound(meet) <= claimed


@pytest.mark.slow
def test_an_audit_of_samples_finds_no_more_than_is_claimed() -> None:
    meet = a_meeting(1.0, users=5, rate=0.5)
    claimed = accountant.epsilon(((1.0, 0.5, ROUNDS),), DELTA)
    assert 0.2 * claimed < lower_bound(meet, 0.5) <= claimed


def nothing_cut(rows: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    return rows, torch.ones(len(rows), dtype=torch.bool)


SELDOM = ("nothing is cut", "noise that is taken back")


@pytest.mark.parametrize(
    "how", ["a third of the noise", *(pytest.param(how, marks=pytest.mark.slow) for how in SELDOM)]
)
def test_an_audit_finds_a_mechanism_that_is_broken(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meet = a_meeting(NOISE, users=5)
    if how == "a third of the noise":
        meet = replace(meet, noise=NOISE / 3)
    elif how == "nothing is cut":
        monkeypatch.setattr(private_mean, "clipped", nothing_cut)
    else:  # the last two rounds take back the noise of the first two
        plain: Callable[..., Any] = private_mean.drawn
        monkeypatch.setattr(
            private_mean,
            "drawn",
            lambda at, n, *w: plain(at._replace(t=at.t % 2), n, *w) * (1 if at.t < 2 else -1),
        )
    assert lower_bound(meet) > accountant.epsilon(((NOISE, 1.0, ROUNDS),), DELTA)
