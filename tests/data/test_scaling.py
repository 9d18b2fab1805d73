"""Moments that users report and merge are those of the pooled rows, in exact arithmetic, for columns of any scale."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolvent.data import scaling
from resolvent.data.reports import median, most_frequent
from resolvent.errors import InputError

COLUMNS: dict[str, Any] = {
    "plain": lambda rng, n: rng.standard_normal(n),
    "far away": lambda rng, n: 1e9 + rng.standard_normal(n),
    "very far away": lambda rng, n: 1e15 + np.rint(rng.standard_normal(n) * 4),
    "tiny": lambda rng, n: 1e-200 * rng.standard_normal(n),
    "huge": lambda rng, n: 1e150 * rng.standard_normal(n),
    "skewed": lambda rng, n: np.exp(8 * rng.standard_normal(n)),
    "one outlier": lambda rng, n: np.where(np.arange(n) == 0, 1e12, rng.standard_normal(n)),
}


def exactly(values: np.ndarray) -> tuple[float, float]:
    """Mean and spread in rational arithmetic."""
    exact = [Fraction(v) for v in values.tolist()]
    mean = sum(exact, Fraction(0)) / len(exact)
    square = sum(((v - mean) * (v - mean) for v in exact), Fraction(0)) / len(exact)
    top = max(abs(v - mean) for v in exact) or Fraction(1)
    return float(mean), float(top) * math.sqrt(float(square / (top * top)))


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("seed", range(3))
def test_merged_moments_are_those_of_all_rows(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [1, 3, 200, 17][: seed + 2]
    column = COLUMNS[kind](rng, sum(sizes))
    users = np.split(column[:, None], np.cumsum(sizes)[:-1])
    found = scaling.merged(map(scaling.moments, users))
    mean, spread = exactly(column)
    assert found.n[0] == len(column)
    assert found.mean[0] == pytest.approx(mean, rel=1e-14, abs=1e-13 * spread)
    assert found.spread[0] == pytest.approx(spread, rel=1e-12)


def test_plain_sums_would_not_do() -> None:
    """Why users do not report sums of x and of x^2: of 1e9 + noise nothing is left of them."""
    x = 1e9 + np.random.default_rng(0).standard_normal(1000)
    naive = (x**2).sum() / 1000 - (x.sum() / 1000) ** 2
    assert abs(naive - x.var()) > 0.5
    assert scaling.moments(x[:, None]).spread[0] == pytest.approx(x.std(), rel=1e-12)


@given(st.floats(-1e300, 1e300), st.lists(st.integers(1, 50), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_constant_column_has_exactly_no_spread(value: float, sizes: list[int]) -> None:
    found = scaling.standardisation([np.full((n, 1), value) for n in sizes])
    assert found == scaling.Scaling((value,), (1.0,))


def test_missing_entries_do_not_count() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 3))
    X[rng.random(X.shape) < 0.3] = np.nan
    X[:7, 1] = np.nan  # a user who has nothing of a column
    found = scaling.merged(map(scaling.moments, (X[:7], X[7:])))
    assert found.n.tolist() == (~np.isnan(X)).sum(0).tolist()
    np.testing.assert_allclose(found.mean, np.nanmean(X, 0), rtol=1e-13)
    np.testing.assert_allclose(found.spread, np.nanstd(X, 0), rtol=1e-13)


def test_standardised_rows_have_mean_0_and_spread_1_over_all_users() -> None:
    rng = np.random.default_rng(2)
    users = [rng.standard_normal((n, 2)) * [1e-3, 50] + [1e4, k] for k, n in enumerate((5, 60, 30))]
    found = scaling.standardisation(users)
    pooled = np.concatenate([found(X) for X in users])
    np.testing.assert_allclose(pooled.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(pooled.std(0), 1, rtol=1e-9)


def test_a_spread_beyond_floats_is_refused() -> None:
    with pytest.raises(InputError, match=r"column is 'dose'.*beyond"):
        scaling.standardisation([np.array([[1.7e308]]), np.array([[-1.7e308]])], ["dose"])


@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=8), min_size=1, max_size=4)
)
@settings(max_examples=80, deadline=None)
def test_the_median_of_what_users_report_is_the_median(users: list[list[float]]) -> None:
    pooled = [v for values in users for v in values]
    if pooled:
        assert median([np.array(values, np.float64) for values in users]) == pytest.approx(np.median(pooled), rel=1e-15)


def test_the_most_frequent_value_is_that_of_all_users_together() -> None:
    assert most_frequent([np.array([1.0, 1.0, 2.0]), np.array([2.0, 2.0])]) == 2.0
    assert most_frequent([np.array(["b", "a"], object)]) == "a"
