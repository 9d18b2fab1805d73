"""Who holds which rows: ways to deal rows to users, each a pure function of (labels, users, seed); splits; counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resolvent import randomness
from resolvent.errors import bounded, listed, number, quoted, refuse, whole
from resolvent.problems.inputs import as_tensor
from resolvent.problems.labels import label_array

RowNumbers = NDArray[np.int64]
Labels = NDArray[Any]

_ROWS, _SHARDS, _SHARES, _GIFTS, _TRIM = range(5)
"""What is drawn: no two of them share their numbers."""


@runtime_checkable
class Partition(Protocol):
    """One way to deal rows to users; `equal` says whether users get the same number of rows unless told otherwise."""

    @property
    def equal(self) -> bool: ...
    def deal(self, y: Labels, users: int, seed: int) -> list[RowNumbers]: ...


@dataclass(frozen=True)
class Iid:
    """Rows in random order, cut into one piece per user."""

    equal = False

    def deal(self, y: Labels, users: int, seed: int) -> list[RowNumbers]:
        return np.array_split(_shuffled(len(y), seed, _ROWS), users)


@dataclass(frozen=True)
class Contiguous:
    """Rows in the order of the file, cut into one piece per user."""

    equal = False

    def deal(self, y: Labels, users: int, seed: int) -> list[RowNumbers]:
        return np.array_split(np.arange(len(y)), users)


@dataclass(frozen=True)
class Shards:
    """At most n classes per user: each class is cut into users n / classes shards, and n shards go to each user.

    No shard holds two classes, so the bound is strict however unequal the classes are (the paper's appendix A: 20
    users of MNIST with 6 classes each from 12 shards per class).
    """

    n: int
    equal = True

    def __post_init__(self) -> None:
        whole(self.n, "n of shards")

    def deal(self, y: Labels, users: int, seed: int) -> list[RowNumbers]:
        values, code = classes(y, "shards")
        each, rest = divmod(users * self.n, len(values))
        if self.n > len(values):
            refuse("n of shards", self.n, f"y has only {len(values)} classes")
        if rest:
            step = len(values) // math.gcd(users, len(values))
            refuse("n of shards", self.n, f"{users} users and {len(values)} classes need a multiple of {step}")
        sizes = np.bincount(code)
        if sizes.min() < each:
            rare = values[sizes.argmin()]
            refuse("y", f"of class {rare} in {sizes.min()} rows only", f"each class is cut into {each} shards")
        order = _shuffled(len(y), seed, _ROWS)
        by_class = np.split(order[np.argsort(code[order], kind="stable")], np.cumsum(sizes)[:-1])
        return _hand_out([shard for rows in by_class for shard in np.array_split(rows, each)], users, seed)


@dataclass(frozen=True)
class Sorted:
    """Rows sorted by label, cut into users n shards of which each user gets n (McMahan and others, 2017)."""

    n: int
    equal = True

    def __post_init__(self) -> None:
        whole(self.n, "n of sorted")

    def deal(self, y: Labels, users: int, seed: int) -> list[RowNumbers]:
        _, code = classes(y, "sorted")
        if users * self.n > len(y):
            refuse("n of sorted", self.n, f"{users} users would need {users * self.n} rows, and y has {len(y)}")
        return _hand_out(np.array_split(np.argsort(code, kind="stable"), users * self.n), users, seed)


@dataclass(frozen=True)
class Dirichlet:
    """Each class is dealt in proportions ~ Dirichlet(alpha): skewed as alpha goes to 0, alike as it grows.

    A user who is left with nothing gets one row of the largest.
    """

    alpha: float
    equal = False

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, (int, float)) and math.isfinite(self.alpha) and self.alpha > 0):
            refuse("alpha of dirichlet", quoted(self.alpha), "a finite number > 0 is needed")

    def deal(self, y: Labels, users: int, seed: int) -> list[RowNumbers]:
        values, code = classes(y, "dirichlet")
        ends = np.cumsum(self.shares(len(values), users, seed), axis=1)
        order = _shuffled(len(y), seed, _ROWS)
        parts: list[list[RowNumbers]] = [[] for _ in range(users)]
        for c in range(len(values)):
            rows = order[code[order] == c]
            cuts = np.rint(ends[c, :-1] * len(rows)).astype(np.int64)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        return _nobody_empty([np.concatenate(part) for part in parts], seed)

    def shares(self, many: int, users: int, seed: int) -> NDArray[np.float64]:
        """(many, users), rows ~ Dirichlet(alpha): G U^(1/alpha) ~ Gamma(alpha) where G ~ Gamma(alpha + 1).

        By logarithms and inversion: shares of a small alpha underflow otherwise, and a draw is one hash.
        """
        from scipy.special import gammaincinv

        at = np.arange(many)[:, None], np.arange(users)
        draws = (randomness.uniforms(seed, randomness.PARTITION, _SHARES, k, *at) for k in (0, 1))
        u, v = (np.maximum(draw, 2.0**-54) for draw in draws)  # a zero has no logarithm
        log = self.alpha * np.log(gammaincinv(self.alpha + 1, u)) + np.log(v)
        with np.errstate(over="ignore"):
            weights = np.exp((log - log.max(axis=1, keepdims=True)) / self.alpha)
        shares: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return shares


def classes(y: Labels, kind: str) -> tuple[Labels, RowNumbers]:
    """The classes, and each row's number among them."""
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and (y == np.rint(y)).all()):
        refuse("y", "real-valued", f"{kind} needs classes (iid and contiguous do not)")
    try:
        values, code = np.unique(y, return_inverse=True)
    except TypeError:
        refuse("y", "a mixture of types", f"{kind} needs classes of one type, all numbers or all text")
    return values, code.astype(np.int64)


def _shuffled(n: int, seed: int, purpose: int) -> RowNumbers:
    keys = randomness.words(seed, randomness.PARTITION, purpose, np.arange(n))
    return np.argsort(keys, kind="stable")


def _hand_out(shards: list[RowNumbers], users: int, seed: int) -> list[RowNumbers]:
    deck = _shuffled(len(shards), seed, _SHARDS).reshape(users, -1)
    return [np.concatenate([shards[i] for i in hand]) for hand in deck]


def _nobody_empty(parts: list[RowNumbers], seed: int) -> list[RowNumbers]:
    sizes = np.array([len(part) for part in parts])
    for user in np.flatnonzero(sizes == 0):
        giver = int(sizes.argmax())
        row = int(randomness.words(seed, randomness.PARTITION, _GIFTS, int(user))[0] % np.uint64(sizes[giver]))
        parts[user], parts[giver] = parts[giver][row : row + 1], np.delete(parts[giver], row)
        sizes[user], sizes[giver] = 1, sizes[giver] - 1
    return parts


KINDS: dict[str, tuple[Callable[..., Partition], Callable[[str], float] | None]] = {
    "iid": (Iid, None),
    "contiguous": (Contiguous, None),
    "shards": (Shards, int),
    "sorted": (Sorted, int),
    "dirichlet": (Dirichlet, float),
}
"""A name, what it makes, and the kind of number that follows it after a colon."""


def parse(spec: str | Partition) -> Partition:
    """`iid`, `contiguous`, `shards:N`, `sorted:N` or `dirichlet:a` as the kind it names."""
    if isinstance(spec, Partition):
        return spec
    if not isinstance(spec, str):
        refuse("spec", quoted(spec), "a partition such as 'iid' or 'shards:2' is needed")
    name, colon, number = spec.strip().partition(":")
    if name.lower() not in KINDS:
        near = get_close_matches(name.lower(), KINDS, n=1, cutoff=0.0)[0]
        refuse("spec", quoted(spec), f"one of {', '.join(KINDS)} is needed (nearest: {near})")
    make, read = KINDS[name.lower()]
    if read is None:
        if colon:
            refuse("spec", quoted(spec), f"{name} takes no number")
        return make()
    try:
        value = read(number)
    except ValueError:
        refuse("spec", quoted(spec), f"{name} needs {'a whole' if read is int else 'a'} number, as in '{name}:2'")
    return make(value)


def split(spec: str | Partition, y: Any, users: int, seed: int = 0, equal: bool | None = None) -> list[RowNumbers]:
    """The rows of each user, disjoint and in ascending order.

    equal=True drops rows at random until every user has as many as the smallest; None does so for `shards` and
    `sorted`, whose users are equal by definition; False retains every row.
    """
    kind, users, labels = parse(spec), whole(users, "users"), _labels(y)
    _check_seed(seed)
    if users > len(labels):
        refuse("users", users, f"y has {len(labels)} rows and every user needs one")
    if equal and isinstance(kind, Dirichlet):
        refuse("equal", equal, "users of a Dirichlet partition differ in size: take shards or sorted for equal ones")
    parts = kind.deal(labels, users, seed)
    if kind.equal if equal is None else equal:
        parts = _trim(parts, seed)
    return [np.sort(part) for part in parts]


def splits(indices: Any, fractions: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0) -> tuple[RowNumbers, ...]:
    """One user's rows for training, validation and test: what a row is for depends on the seed and its user's rows.

    A user of few rows may have empty ones among them.
    """
    _check_seed(seed)
    rows = _indices(indices)
    shares = np.array([number(share) for share in listed(fractions, "fractions", "numbers that sum to one are needed")])
    if shares.ndim != 1 or not len(shares) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-9:
        refuse("fractions", quoted(fractions), "numbers >= 0 that sum to one are needed")
    order = rows[np.argsort(randomness.words(seed, randomness.SPLITS, rows), kind="stable")]
    cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
    return tuple(np.sort(piece) for piece in np.split(order, cuts))


def counts(parts: Sequence[Any], y: Any) -> tuple[NDArray[np.int64], Labels]:
    """How many rows of each class each user holds, (users, classes), and the classes."""
    values, code = classes(_labels(y), "counts")
    rows = [_indices(part) for part in listed(parts, "parts", "a list with the rows of each user is needed")]
    if any(len(part) and (part.min() < 0 or part.max() >= len(code)) for part in rows):
        refuse("parts", "out of range", f"y has {len(code)} rows")
    table = [np.bincount(code[part], minlength=len(values)) for part in rows]
    return np.array(table, dtype=np.int64).reshape(len(rows), len(values)), values


def _trim(parts: list[RowNumbers], seed: int) -> list[RowNumbers]:
    least = min(len(part) for part in parts)
    keys = (randomness.words(seed, randomness.PARTITION, _TRIM, part) for part in parts)
    return [part[np.argsort(key, kind="stable")[:least]] for part, key in zip(parts, keys, strict=True)]


def _labels(y: Any) -> Labels:
    labels = label_array(as_tensor(y, "y").detach().cpu().numpy() if isinstance(y, Tensor) else y)
    if labels.ndim != 1 or not len(labels):
        refuse("y", f"of shape {labels.shape}", "one label per row is needed")
    return labels


def _indices(rows: Any) -> RowNumbers:
    bounded(rows, "indices")
    try:
        array = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows)
    except Exception:
        refuse("indices", quoted(rows), "a list of row numbers is needed")
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        refuse("indices", f"of shape {array.shape} and type {array.dtype}", "a list of row numbers is needed")
    return array.astype(np.int64)


def _check_seed(seed: int) -> None:
    if whole(seed, "seed", least=0) >= 2**63:
        refuse("seed", seed, "a whole number below 2^63 is needed")
