"""The accountant against dp-accounting called directly, a closed form, and what other accountants print."""

from __future__ import annotations

import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy import optimize, stats

from resolvent.errors import InputError
from resolvent.iteration import accountant

RNG = np.random.default_rng(5)
CASES = [
    (float(RNG.uniform(0.5, 6)), float(RNG.choice([1.0, RNG.uniform(0.02, 0.8)])), int(RNG.integers(1, 400)),
     float(10 ** RNG.uniform(-8, -3)))
    for _ in range(20)
]  # fmt: skip


@pytest.mark.parametrize(("noise", "rate", "rounds", "delta"), CASES)
def test_epsilon_is_what_dp_accounting_says_when_it_is_called_directly(
    noise: float, rate: float, rounds: int, delta: float
) -> None:
    books = dp.pld.PLDAccountant(value_discretization_interval=1e-3)
    gaussian = dp.GaussianDpEvent(noise)
    books.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian, rounds))
    ours = accountant.epsilon(((noise, rate, rounds),), delta)
    assert ours == pytest.approx(books.get_epsilon(delta), rel=4e-3)  # 1e-9 where its bins are as wide
    assert ours <= books.get_epsilon(delta) * (1 + 1e-9)


@pytest.mark.parametrize(("noise", "rate", "rounds"), [(50, 0.01, 10_000), (2, 0.001, 10_000), (4, 0.01, 5000)])
def test_many_rounds_that_each_spend_little_are_not_counted_as_much_more(
    noise: float, rate: float, rounds: int
) -> None:
    """With bins of 1e-3 the first was 0.125 in place of 0.059."""
    books = dp.pld.PLDAccountant(value_discretization_interval=2e-5)
    books.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), rounds)
    fine = books.get_epsilon(1e-5)
    assert fine * (1 - 1e-3) <= accountant.epsilon(((noise, rate, rounds),), 1e-5) <= fine * (1 + 4e-3)


def test_rounds_of_next_to_no_noise_among_others_are_counted() -> None:
    """exp(1 / noise^2) is beyond all numbers there; one such round alone spends more than 1 / (2 noise^2)."""
    assert accountant.epsilon(((1.0, 0.5, 5), (0.03, 0.5, 1)), 1e-5) > 1 / (2 * 0.03**2)


def test_a_round_of_much_noise_makes_the_bins_of_others_no_finer() -> None:
    """With bins for the second stretch alone the first one would take 1e11 of them."""
    alone = accountant.epsilon(((1.0, 0.5, 5),), 1e-5)
    assert accountant.epsilon(((1.0, 0.5, 5), (1e9, 0.5, 1)), 1e-5) == pytest.approx(alone, rel=1e-3)


def balle_and_wang(sigma: float, delta: float) -> float:
    """The least epsilon of one Gaussian mechanism of sensitivity 1 (2018, Theorem 8), by their formula for delta."""

    def delta_of(epsilon: float) -> float:
        a, b = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b))

    return optimize.brentq(lambda e: delta_of(e) - delta, 0, 5000, xtol=1e-13)


@pytest.mark.parametrize("noise", [0.7, 3.0, 11.0])
@pytest.mark.parametrize("rounds", [1, 30, 200])
def test_without_samples_epsilon_has_a_closed_form(noise: float, rounds: int) -> None:
    expected = balle_and_wang(noise / math.sqrt(rounds), 1e-5)
    assert accountant.epsilon(((noise, 1.0, rounds),), 1e-5) == pytest.approx(expected, rel=1e-6)
    split = ((noise, 1.0, rounds), (2 * noise, 1.0, 4 * rounds))
    assert accountant.epsilon(split, 1e-5) == pytest.approx(
        balle_and_wang(noise / math.sqrt(2 * rounds), 1e-5), rel=1e-6
    )


OTHERS = [
    (1.0, 0.1, 100, 1e-5, 7.8993, 7.0571, 7.0473),
    (2.0, 0.3, 300, 1e-5, 16.3076, 15.1638, 15.1531),
    (0.8, 0.02, 50, 1e-5, 2.8527, 2.1995, 2.1892),
    (5.0, 1.0, 100, 1e-5, 10.7255, 10.0077, 9.9973),
    (8.0, 0.05, 2000, 1e-6, 1.3027, 1.2184, 1.2083),
]
"""Opacus 1.6.0's bound by Renyi divergences and its PRV accountant, whose upper end it gives, and pfl 0.6.0's PRV
accountant, all for the Gaussian mechanism of Poisson samples."""
PRV_ERROR = 0.01
"""Asked of both PRV accountants; an upper end is twice as far above the lower one."""


@pytest.mark.parametrize(("noise", "rate", "rounds", "delta", "renyi", "upper", "middle"), OTHERS)
def test_other_accountants_agree_within_their_errors(
    noise: float, rate: float, rounds: int, delta: float, renyi: float, upper: float, middle: float
) -> None:
    """And with everybody present, which hides less, epsilon is well above."""
    ours, printed = accountant.epsilon(((noise, rate, rounds),), delta), 1e-4
    assert ours < renyi
    assert upper - 2 * PRV_ERROR - printed <= ours <= upper + printed
    assert middle - PRV_ERROR - printed <= ours <= middle + PRV_ERROR + printed
    assert rate == 1 or ours < 0.7 * accountant.epsilon(((noise, 1.0, rounds),), delta)


@pytest.mark.parametrize(("budget", "rate", "rounds"), [(1.0, 1.0, 40), (3.0, 0.2, 60), (8.0, 0.7, 5)])
def test_noise_for_a_budget_spends_it_and_no_more(budget: float, rate: float, rounds: int) -> None:
    noise = accountant.noise_for(budget, 1e-5, rate, rounds)
    assert accountant.epsilon(((noise, rate, rounds),), 1e-5) <= budget
    assert accountant.epsilon(((noise / 1.01, rate, rounds),), 1e-5) > budget


def test_noise_for_what_is_left_counts_what_was_spent() -> None:
    spent = ((4.0, 1.0, 10),)
    noise = accountant.noise_for(4.0, 1e-5, 0.5, 20, spent)
    assert 3.9 < accountant.epsilon((*spent, (noise, 0.5, 20)), 1e-5) <= 4.0
    with pytest.raises(InputError, match="no noise up to"):
        accountant.noise_for(0.5, 1e-5, 1.0, 20, spent)


def test_the_column_of_a_run_of_samples_is_never_too_small_and_exact_at_its_end() -> None:
    rounds = 77
    exact = [accountant.epsilon(((1.3, 0.2, t),), 1e-5) for t in (1, 16, 33, 50, 76, rounds)]
    column = [accountant.epsilon_so_far(((1.3, 0.2, t),), 1e-5, rounds) for t in (1, 16, 33, 50, 76, rounds)]
    assert column[0] == exact[0]
    assert column[1] == exact[1]
    assert column[-1] == exact[-1]
    assert all(b >= a for a, b in zip(exact, column, strict=True))
    assert all(b <= 1.05 * a for a, b in zip(exact, column, strict=True))
