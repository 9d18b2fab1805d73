"""Randomness is a pure function of its coordinates, and looks like chance along each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import resolvent as rs
from resolvent import randomness
from resolvent.local.descent import batches, shuffled, shuffled_on
from resolvent.randomness import BATCHES, PRESENCE, STEPS, uniforms, words

DRAWS = 20_000
N = np.arange(DRAWS)

# One coordinate runs, the others stay: seed, purpose, round, user, and what a local step adds.
ALONG = {
    "seed": (N, PRESENCE, 3, 5),
    "round": (0, PRESENCE, N, 5),
    "user": (0, PRESENCE, 3, N),
    "row": (0, BATCHES, 3, 1, 5, N),
    "negative": (0, PRESENCE, 3, -N),
    "far": (2**62, PRESENCE, 2**40, N * 2**20),
}
along = pytest.mark.parametrize("coordinates", ALONG.values(), ids=ALONG.keys())


def chi_square(counts: NDArray[Any], expected: float) -> float:
    """How many standard deviations the statistic is from its mean: within 6 but for one draw in 1e8."""
    statistic, freedom = float(((counts - expected) ** 2 / expected).sum()), counts.size - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


# --- a pure function -------------------------------------------------------------------------------------------------


@along
def test_the_same_coordinates_give_the_same_draw(coordinates: tuple[Any, ...]) -> None:
    first = words(*coordinates)
    words(1, 2, 3)
    np.random.default_rng(0).random(5)
    assert np.array_equal(words(*coordinates), first)


def test_these_draws_stay_for_ever() -> None:
    """Old runs can be gone on with only while these numbers stay."""
    drawn = [f"{int(word):016x}" for word in words(0, PRESENCE, 0, np.arange(3))]
    assert drawn == ["683532c03f0848d8", "7596eb8090ac0967", "4e43b8fb1068dd85"]


def test_no_global_state_is_touched() -> None:
    before, theirs = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    uniforms(0, PRESENCE, N)
    rs.Bernoulli(0.5).present(0, 0, 10)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], theirs)  # type: ignore[index]


def test_users_draw_the_same_however_they_are_asked() -> None:
    """All at once, one by one, or backwards."""
    together = uniforms(7, PRESENCE, 2, np.arange(50))
    assert np.array_equal(np.concatenate([uniforms(7, PRESENCE, 2, i) for i in range(50)]), together)
    assert np.array_equal(uniforms(7, PRESENCE, 2, np.arange(50)[::-1])[::-1], together)
    grid = uniforms(7, PRESENCE, np.arange(4)[:, None], np.arange(50))
    assert grid.shape == (4, 50)
    assert np.array_equal(grid[2], together)


def test_every_coordinate_and_its_place_matter() -> None:
    at = (5, PRESENCE, 2, 3)
    others: list[tuple[int, ...]] = [
        (6, PRESENCE, 2, 3),
        (5, BATCHES, 2, 3),
        (5, PRESENCE, 4, 3),
        (5, PRESENCE, 2, 4),
        (5, PRESENCE, 3, 2),
    ]
    others += [(5, STEPS, 2, 3), (2, PRESENCE, 5, 3), (*at, 0), at[:3]]
    draws = [int(words(*c)[0]) for c in (at, *others)]
    assert len(set(draws)) == len(draws)


@along
def test_no_two_draws_are_equal(coordinates: tuple[Any, ...]) -> None:
    assert len(np.unique(words(*coordinates))) == DRAWS


# --- chance ----------------------------------------------------------------------------------------------------------


@along
def test_draws_are_uniform(coordinates: tuple[Any, ...]) -> None:
    x = uniforms(*coordinates)
    assert x.dtype == np.float64
    assert x.min() >= 0
    assert x.max() < 1
    counts = np.histogram(x, bins=100, range=(0, 1))[0]
    assert abs(chi_square(counts, DRAWS / 100)) < 6


@along
def test_every_bit_is_a_fair_coin(coordinates: tuple[Any, ...]) -> None:
    bits = (words(*coordinates)[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 6 * 0.5 / np.sqrt(DRAWS)


@along
@pytest.mark.parametrize("lag", [1, 2, 17])
def test_neighbours_are_independent(coordinates: tuple[Any, ...], lag: int) -> None:
    """Pairs fill the square evenly."""
    x = uniforms(*coordinates)
    counts = np.histogram2d(x[:-lag], x[lag:], bins=12, range=((0, 1), (0, 1)))[0]
    assert abs(chi_square(counts, (DRAWS - lag) / 144)) < 6


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, PRESENCE, 3, N), (0, PRESENCE, 4, N)),
        ((0, PRESENCE, 3, N), (1, PRESENCE, 3, N)),
        ((0, PRESENCE, 3, N), (0, BATCHES, 3, N)),
        ((0, PRESENCE, 3, N), (0, PRESENCE, N, 3)),
        ((0, PRESENCE, 3, N), (3, PRESENCE, 0, N)),
    ],
    ids=["rounds", "seeds", "purposes", "round_and_user", "seed_and_round"],
)
def test_streams_are_independent_of_each_other(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    x, y = uniforms(*one), uniforms(*other)
    assert abs(float(np.corrcoef(x, y)[0, 1])) < 6 / np.sqrt(DRAWS)
    counts = np.histogram2d(x, y, bins=12, range=((0, 1), (0, 1)))[0]
    assert abs(chi_square(counts, DRAWS / 144)) < 6


def test_one_bit_of_a_coordinate_changes_half_of_the_draw() -> None:
    for bit in range(0, 63, 7):
        changed = words(0, PRESENCE, N) ^ words(0, PRESENCE, N ^ (1 << bit))
        flips = np.bitwise_count(changed).mean()
        assert flips == pytest.approx(32, abs=0.3)


# --- who takes part --------------------------------------------------------------------------------------------------

USERS, ROUNDS = 40, 2000


def masks(participation: Any, seed: int = 0) -> NDArray[np.bool_]:
    """(rounds, users): who was present."""
    table = np.zeros((ROUNDS, USERS), dtype=bool)
    for t in range(ROUNDS):
        table[t, participation.present(seed, t, USERS).numpy()] = True
    return table


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_bernoulli_comes_as_often_as_it_should(p: float) -> None:
    present = masks(rs.Bernoulli(p))
    spread = np.sqrt(p * (1 - p))
    assert present.mean() == pytest.approx(p, abs=6 * spread / np.sqrt(present.size))
    assert np.abs(present.mean(0) - p).max() < 6 * spread / np.sqrt(ROUNDS)  # each user
    assert np.abs(present.mean(1) - p).max() < 6 * spread / np.sqrt(USERS)  # each round
    assert np.var(present.sum(1)) == pytest.approx(USERS * p * (1 - p), rel=0.25)  # independent users


def test_bernoulli_users_and_rounds_are_independent() -> None:
    present = masks(rs.Bernoulli(0.5)).astype(float) - 0.5
    users = present.T @ present / ROUNDS * 4 - np.eye(USERS)
    assert np.abs(users).max() < 6 / np.sqrt(ROUNDS)
    after = (present[1:] * present[:-1]).mean(0) * 4
    assert np.abs(after).max() < 6 / np.sqrt(ROUNDS)


def test_bernoulli_with_certainty_is_everyone() -> None:
    assert rs.Bernoulli(1.0).present(0, 0, USERS) is None
    assert rs.Everyone().present(0, 0, USERS) is None


@pytest.mark.parametrize("n", [1, 7, 39, 40])
def test_fixed_size_draws_so_many_and_everybody_alike(n: int) -> None:
    present = masks(rs.FixedSize(n))
    assert (present.sum(1) == n).all()
    p = n / USERS
    assert np.abs(present.mean(0) - p).max() <= 6 * np.sqrt(p * (1 - p) / ROUNDS)


def test_fixed_size_draws_every_pair_alike() -> None:
    """20 users, 3 a round: each of the 190 pairs together with probability 6/380."""
    counts = np.zeros((20, 20))
    for t in range(4000):
        who = rs.FixedSize(3).present(0, t, 20).tolist()
        for i, j in itertools.combinations(who, 2):
            counts[i, j] += 1
    pairs = counts[np.triu_indices(20, 1)]
    assert abs(chi_square(pairs, 4000 * 3 / 190)) < 6


@pytest.mark.parametrize("participation", [rs.Bernoulli(0.5), rs.FixedSize(7)], ids=str)
def test_present_users_are_sorted_indices_and_depend_on_seed_and_round_alone(participation: Any) -> None:
    who = participation.present(3, 11, USERS)
    assert who.dtype == torch.int64
    assert torch.equal(who, who.unique(sorted=True))
    assert torch.equal(participation.present(3, 11, USERS), who)
    assert not torch.equal(participation.present(3, 12, USERS), who)
    assert not torch.equal(participation.present(4, 11, USERS), who)


def test_bernoulli_users_do_not_mind_who_else_is_there() -> None:
    few, many = (rs.Bernoulli(0.5).present(3, 11, users) for users in (10, 100))
    assert torch.equal(many[many < 10], few)  # type: ignore[arg-type, index, operator]


def test_trace_repeats_itself() -> None:
    trace = rs.Trace([[True, False, True], [False, False, False]])
    assert [trace.present(9, t, 3).tolist() for t in range(4)] == [[0, 2], [], [0, 2], []]


# --- shuffles --------------------------------------------------------------------------------------------------------


def passes(sizes: list[int], batch: int, rounds: int, who: list[int] | None = None) -> Iterator[list[list[int]]]:
    """The rows of each user in the order in which a pass visits them, a list a round."""
    users = list(range(len(sizes))) if who is None else who
    for t in range(rounds):
        visited: list[list[int]] = [[] for _ in sizes]
        for rows, mask in batches(torch.tensor(sizes), batch, 0, t, np.array(users), 0):
            assert rows.shape[1] <= batch
            for user, (row, real) in enumerate(zip(rows.tolist(), mask.tolist(), strict=True)):
                visited[user] += [r for r, is_real in zip(row, real, strict=True) if is_real]
        yield visited


@pytest.mark.parametrize("batch", [1, 3, 5, 100])
def test_a_pass_visits_every_row_once(batch: int) -> None:
    for visited in passes([5, 8, 1, 7], batch, rounds=20):
        assert [sorted(rows) for rows in visited] == [list(range(n)) for n in (5, 8, 1, 7)]


def test_every_order_is_as_likely() -> None:
    orders = dict.fromkeys(itertools.permutations(range(4)), 0)
    for visited in passes([4, 9], 2, rounds=3000):
        orders[tuple(visited[0])] += 1
    assert abs(chi_square(np.array(list(orders.values())), 3000 / 24)) < 6


def test_a_users_shuffle_does_not_depend_on_the_others() -> None:
    together = next(passes([5, 8, 1, 7], 3, rounds=1))
    alone = next(passes([8], 3, rounds=1, who=[1]))
    assert alone[0] == together[1]
    assert next(passes([8], 3, rounds=1, who=[2]))[0] != together[1]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(0, 2**62),
    st.integers(0, 10**6),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_shuffles_on_a_device_are_those_of_the_cpu(sizes: list[int], seed: int, t: int, several: bool) -> None:
    """torch's signed integers give the same order as NumPy's unsigned ones."""
    count = np.array(sizes)[:, None]
    real = np.arange(count.max()) < count
    seeds = np.arange(len(sizes))[:, None] + seed if several else seed
    begun = randomness.folded(seeds, randomness.BATCHES, t, 3, np.arange(len(sizes))[:, None])
    here, there = shuffled(begun, real), shuffled_on(torch.device("cpu"), begun, real)
    assert torch.equal(here, there)
    for i, n in enumerate(sizes):
        own = int(np.ravel(seeds)[i % np.size(seeds)])
        keys = randomness.words(own, randomness.BATCHES, t, 3, i, np.arange(n)).tolist()
        assert here[i, :n].tolist() == sorted(range(n), key=keys.__getitem__)
