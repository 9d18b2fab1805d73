"""Partitions: disjoint, complete, bounded, equal, and a function of the seed alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from resolvent.data import counts, split, splits
from resolvent.data.partition import KINDS, Contiguous, Dirichlet, Iid, Shards, Sorted, parse

SEEDS = st.integers(0, 2**63 - 1)
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])  # of users with no rows


@st.composite
def labelled(draw: Any, least: int = 1, classes: int = 6) -> NDArray[np.int64]:
    """Labels of classes of very unequal sizes, in random order."""
    sizes = draw(st.lists(st.integers(least, 60), min_size=2, max_size=classes))
    y = np.repeat(np.arange(len(sizes)) * 3 - 1, sizes)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(y)


def digits(per_class: int = 120, classes: int = 10) -> NDArray[np.int64]:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), per_class))


def check_disjoint(parts: list[NDArray[np.int64]], rows: int) -> int:
    """How many rows are dealt; each at most once, each user's in order."""
    everything = np.concatenate(parts)
    assert everything.dtype == np.int64
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < rows
    assert all((np.diff(part) > 0).all() for part in parts)
    return len(everything)


# --- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["iid", "contiguous", "sorted:2", "dirichlet:0.1", "dirichlet:10"])
@given(y=labelled(), users=st.integers(1, 12), seed=SEEDS)
@unhurried
def test_every_row_belongs_to_one_user(spec: str, y: NDArray[np.int64], users: int, seed: int) -> None:
    assume(len(y) >= 2 * users)
    parts = split(spec, y, users, seed, equal=False)
    assert len(parts) == users
    assert check_disjoint(parts, len(y)) == len(y)
    assert min(map(len, parts)) >= 1


@pytest.mark.parametrize("spec", ["iid", "contiguous", "sorted:2"])
@given(y=labelled(), users=st.integers(1, 12), seed=SEEDS)
@unhurried
def test_equal_drops_as_few_rows_as_it_can(spec: str, y: NDArray[np.int64], users: int, seed: int) -> None:
    assume(len(y) >= 2 * users)
    whole = split(spec, y, users, seed, equal=False)
    parts = split(spec, y, users, seed, equal=True)
    check_disjoint(parts, len(y))
    assert {len(part) for part in parts} == {min(map(len, whole))}
    assert all(np.isin(part, before).all() for part, before in zip(parts, whole, strict=True))


@given(y=labelled(least=24), data=st.data(), seed=SEEDS, equal=st.sampled_from([None, True, False]))
@unhurried
def test_shards_bound_the_classes_of_a_user_strictly(
    y: NDArray[np.int64], data: st.DataObject, seed: int, equal: bool | None
) -> None:
    classes = len(np.unique(y))
    n = data.draw(st.integers(1, classes))
    least = classes // math.gcd(classes, n)  # shards come in multiples of the classes
    users = least * data.draw(st.integers(1, 12 // least))
    parts = split(Shards(n), y, users, seed, equal)
    dealt = check_disjoint(parts, len(y))
    table, _ = counts(parts, y)
    assert (table > 0).sum(1).max() <= n
    if equal is False:
        assert dealt == len(y)
    else:
        assert len({len(part) for part in parts}) == 1


@given(y=labelled(), users=st.integers(1, 40), seed=SEEDS, alpha=st.floats(1e-320, 1e6))
@unhurried
def test_dirichlet_leaves_nobody_empty(y: NDArray[np.int64], users: int, seed: int, alpha: float) -> None:
    assume(len(y) >= users)
    parts = split(Dirichlet(alpha), y, users, seed)
    assert check_disjoint(parts, len(y)) == len(y)
    assert min(map(len, parts)) >= 1


@pytest.mark.parametrize("spec", ["iid", "shards:2", "sorted:2", "dirichlet:0.5"])
def test_a_partition_is_a_function_of_the_seed(spec: str) -> None:
    y = digits()
    one, again, other = (split(spec, y, 20, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_partitions_are_the_same_everywhere() -> None:
    """Drawn once and written down: hashes are the same on all machines, and in all versions to come."""
    y = np.arange(40) % 4
    assert split("iid", y, 4, seed=1)[0].tolist() == [2, 4, 5, 12, 17, 20, 30, 36, 37, 38]
    assert split("shards:2", y, 4, seed=1)[0].tolist() == [3, 6, 14, 18, 19, 22, 23, 31, 34, 39]
    assert split("dirichlet:0.5", y, 4, seed=1)[0].tolist() == [5, 38]
    assert splits(np.arange(10), (0.8, 0.2), seed=1)[1].tolist() == [8, 9]


@given(rows=st.sets(st.integers(0, 10**6), max_size=200), seed=SEEDS)
@unhurried
def test_splits_share_out_every_row(rows: set[int], seed: int) -> None:
    indices = np.array(sorted(rows), dtype=np.int64)
    train, validation, test = splits(indices, (0.8, 0.1, 0.1), seed)
    assert np.array_equal(np.sort(np.concatenate([train, validation, test])), indices)
    assert abs(len(train) - 0.8 * len(rows)) <= 0.5
    assert abs(len(test) - 0.1 * len(rows)) <= 0.5 + 1e-9


# --- what the kinds mean ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [6, 2])
def test_the_papers_shards(n: int) -> None:
    """20 users, 12 (4) shards a class, 6 (2) a user."""
    y = digits()
    table, values = counts(split(f"shards:{n}", y, users=20, seed=0), y)
    assert values.tolist() == list(range(10))
    assert (table.sum(1) == len(y) // 20).all()
    assert (table % (120 // (2 * n)) == 0).all()  # whole shards
    assert (table > 0).sum(1).max() <= n
    assert table.sum() == len(y)


def test_sorted_gives_shards_of_neighbours() -> None:
    """CIFAR-10 in the paper: 100 shards, 10 a user."""
    y = digits(100)
    parts = split("sorted:10", y, users=10, seed=0)
    order = np.argsort(y, kind="stable").reshape(100, 10)
    owner = np.full(len(y), -1)
    for user, part in enumerate(parts):
        owner[part] = user
    assert (owner[order] == owner[order][:, :1]).all()
    assert {len(part) for part in parts} == {100}


def test_contiguous_keeps_the_order_of_the_file() -> None:
    parts = split("contiguous", np.zeros(7), 3)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4], [5, 6]]


def test_iid_mixes() -> None:
    y = np.sort(digits(500))
    table, _ = counts(split("iid", y, 5, seed=0), y)
    assert abs(table - 100).max() < 50


def test_dirichlet_skews_as_alpha_falls() -> None:
    y = digits(1000)
    largest = [counts(split(f"dirichlet:{a}", y, 10, seed=0), y)[0].max(0).mean() / 1000 for a in (100, 1, 0.01)]
    assert largest[0] < 0.15 < largest[1] < 0.5
    assert largest[2] > 0.9


def test_dirichlet_shares_have_the_moments_of_a_dirichlet() -> None:
    """Mean 1/m, variance (m - 1)/(m^2 (m alpha + 1))."""
    m, draws = 5, 40000
    for alpha in (0.05, 0.7, 3.0):
        shares = Dirichlet(alpha).shares(draws, m, seed=7)
        variance = (m - 1) / (m**2 * (m * alpha + 1))
        assert shares.sum(1) == pytest.approx(1)
        assert shares.mean(0) == pytest.approx(1 / m, abs=6 * np.sqrt(variance / draws))
        assert shares.var(0) == pytest.approx(variance, rel=0.1)


def test_labels_may_be_tensors_text_or_whole_floats() -> None:
    y = digits(20)
    wanted = split("shards:2", y, 10, seed=5)
    for labels in (torch.from_numpy(y), np.array(list("abcdefghij"))[y], y.astype(float), y.tolist()):
        assert all(np.array_equal(a, b) for a, b in zip(split("shards:2", labels, 10, seed=5), wanted, strict=True))


def test_regression_can_be_dealt_without_classes() -> None:
    y = np.random.default_rng(0).standard_normal(30)
    assert check_disjoint(split("iid", y, 4), 30) == 30
    assert check_disjoint(split("contiguous", y, 4), 30) == 30


def test_a_row_of_the_table_is_a_kind() -> None:
    assert parse("iid") == Iid()
    assert parse("CONTIGUOUS") == Contiguous()
    assert parse(" shards:6") == Shards(6)
    assert parse("sorted:10") == Sorted(10)
    assert parse("dirichlet:0.3") == Dirichlet(0.3)
    assert parse(Shards(3)) == Shards(3)
    assert list(KINDS) == ["iid", "contiguous", "shards", "sorted", "dirichlet"]


def test_counts_of_nobody_and_of_users_without_rows() -> None:
    table, values = counts([[], [0, 2]], ["b", "a", "b"])
    assert table.tolist() == [[0, 0], [0, 2]]
    assert values.tolist() == ["a", "b"]
    assert counts([], [1, 2])[0].shape == (0, 2)


def test_splits_depend_on_the_seed_and_not_on_the_order() -> None:
    rows = np.arange(100)
    one, other = splits(rows, seed=1), splits(rows, seed=2)
    assert [len(part) for part in one] == [80, 10, 10]
    assert not np.array_equal(one[1], other[1])
    assert all(np.array_equal(a, b) for a, b in zip(splits(rows[::-1], seed=1), one, strict=True))
    assert splits([4, 9], (1.0,), seed=1)[0].tolist() == [4, 9]


# --- real labels -----------------------------------------------------------------------------------------------------


def test_covertype(real_data: Callable[[str], Any]) -> None:
    """Seven classes, the largest a hundred times the smallest."""
    with np.load(real_data("covtype/covtype.npz")) as file:
        y = file["y"]
    whole = split("shards:2", y, 14, seed=0, equal=False)
    table, values = counts(whole, y)
    assert values.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert table.sum() == len(y)
    assert (table > 0).sum(1).max() <= 2
    parts = split("dirichlet:0.1", y, 100, seed=0)
    assert check_disjoint(parts, len(y)) == len(y)


# --- refusals --------------------------------------------------------------------------------------------------------

TEN = digits(20)
REAL = np.array([0.5, 1.5, 2.5])
REFUSED: dict[str, tuple[Callable[[], object], list[str]]] = {
    "unknown": (lambda: split("shard:2", TEN, 5), ["spec is 'shard:2'", "iid, contiguous, shards", "nearest: shards"]),
    "unknown and far": (lambda: split("dirchlet", TEN, 5), ["nearest: dirichlet"]),
    "no spec": (lambda: split(None, TEN, 5), ["spec is None", "'shards:2'"]),  # type: ignore[arg-type]
    "no number": (lambda: split("shards", TEN, 5), ["spec is 'shards'", "a whole number", "'shards:2'"]),
    "half a class": (lambda: split("sorted:1.5", TEN, 5), ["spec is 'sorted:1.5'", "a whole number"]),
    "no alpha": (lambda: split("dirichlet:x", TEN, 5), ["spec is 'dirichlet:x'", "a number"]),
    "a number too many": (lambda: split("iid:3", TEN, 5), ["spec is 'iid:3'", "takes no number"]),
    "no classes a user": (lambda: split("shards:0", TEN, 5), ["n of shards is 0", ">= 1"]),
    "more classes than there are": (lambda: split("shards:11", TEN, 10), ["n of shards is 11", "only 10 classes"]),
    "does not divide": (lambda: split("shards:3", TEN, 5), ["n of shards is 3", "5 users", "multiple of 2"]),
    "a class too small": (
        lambda: split("shards:1", [0, 0, 0, 0, 1], 4),
        ["class 1", "1 rows only", "2 shards"],
    ),
    "too many shards": (lambda: split("sorted:50", TEN, 5), ["n of sorted is 50", "250 rows", "y has 200"]),
    "no shards": (lambda: split("sorted:-1", TEN, 5), ["n of sorted is -1", ">= 1"]),
    "alpha 0": (lambda: split("dirichlet:0", TEN, 5), ["alpha of dirichlet is 0.0", "> 0"]),
    "alpha nan": (lambda: split("dirichlet:nan", TEN, 5), ["alpha of dirichlet is nan", "> 0"]),
    "alpha inf": (lambda: split("dirichlet:inf", TEN, 5), ["alpha of dirichlet is inf", "finite"]),
    "equal Dirichlet": (lambda: split("dirichlet:1", TEN, 5, equal=True), ["equal is True", "differ in size"]),
    "no users": (lambda: split("iid", TEN, 0), ["users is 0", ">= 1"]),
    "more users than rows": (lambda: split("iid", TEN, 201), ["users is 201", "200 rows"]),
    "no rows": (lambda: split("iid", [], 1), ["y is of shape (0,)", "one label per row"]),
    "a table": (lambda: split("iid", np.ones((3, 2)), 1), ["y is of shape (3, 2)"]),
    "shards of a regression": (lambda: split("shards:1", REAL, 1), ["y is real-valued", "shards needs classes", "iid"]),
    "sorted regression": (lambda: split("sorted:1", REAL, 1), ["y is real-valued", "sorted needs classes"]),
    "Dirichlet regression": (lambda: split("dirichlet:1", REAL, 1), ["y is real-valued", "dirichlet needs"]),
    "missing labels": (lambda: split("dirichlet:1", [0, np.nan], 1), ["y is real-valued"]),
    "mixed labels": (lambda: split("shards:1", np.array([1, "a"], dtype=object), 1), ["y is a mixture of types"]),
    "seed": (lambda: split("iid", TEN, 2, seed=-1), ["seed is -1", ">= 0"]),
    "seed too large": (lambda: split("iid", TEN, 2, seed=2**63), ["seed is", "2^63"]),
    "seed of splits": (lambda: splits([1, 2], seed=1.5), ["seed is 1.5"]),  # type: ignore[arg-type]
    "fractions": (lambda: splits([1, 2], (0.8, 0.1)), ["fractions is (0.8, 0.1)", "sum to one"]),
    "negative fractions": (lambda: splits([1, 2], (1.2, -0.2)), ["fractions is (1.2, -0.2)", ">= 0"]),
    "no fractions": (lambda: splits([1, 2], ()), ["fractions is ()"]),
    "NaN fractions": (lambda: splits([1, 2], (np.nan, 1.0)), ["fractions is"]),
    "indices": (lambda: splits([0.5]), ["indices is", "row numbers"]),
    "indices in a table": (lambda: splits([[1]]), ["indices is of shape (1, 1)"]),
    "counts out of range": (lambda: counts([[7]], [0, 1]), ["parts is out of range", "2 rows"]),
    "counts below": (lambda: counts([[-1]], [0, 1]), ["parts is out of range"]),
    "counts of a regression": (lambda: counts([[0]], REAL), ["y is real-valued", "counts needs classes"]),
}


@pytest.mark.parametrize(("attempt", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused_in_one_sentence(
    attempt: Callable[[], object], words: list[str], refused: Callable[..., str]
) -> None:
    assert len(refused(attempt, *words)) < 300
