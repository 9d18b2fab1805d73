"""Who holds which rows: a partition is a row of `KINDS`, and splits and counts are of any partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resolvent import randomness
from resolvent.data.kinds import (
    TRIM,
    Contiguous,
    Dirichlet,
    Iid,
    Labels,
    Partition,
    RowNumbers,
    Shards,
    Sorted,
    classes,
)
from resolvent.errors import refuse, whole
from resolvent.problems.labels import label_array

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
        refuse("spec", repr(spec), "a partition such as 'iid' or 'shards:2' is needed")
    name, colon, number = spec.strip().partition(":")
    if name.lower() not in KINDS:
        near = get_close_matches(name.lower(), KINDS, n=1, cutoff=0.0)[0]
        refuse("spec", repr(spec), f"one of {', '.join(KINDS)} is needed (nearest: {near})")
    make, read = KINDS[name.lower()]
    if read is None:
        if colon:
            refuse("spec", repr(spec), f"{name} takes no number")
        return make()
    try:
        value = read(number)
    except ValueError:
        refuse("spec", repr(spec), f"{name} needs {'a whole' if read is int else 'a'} number, as in '{name}:2'")
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
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.ndim != 1 or not len(shares) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-9:
        refuse("fractions", repr(fractions), "numbers >= 0 that sum to one are needed")
    order = rows[np.argsort(randomness.words(seed, randomness.SPLITS, rows), kind="stable")]
    cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
    return tuple(np.sort(piece) for piece in np.split(order, cuts))


def counts(parts: Sequence[Any], y: Any) -> tuple[NDArray[np.int64], Labels]:
    """How many rows of each class each user holds, (users, classes), and the classes."""
    values, code = classes(_labels(y), "counts")
    rows = [_indices(part) for part in parts]
    if any(len(part) and (part.min() < 0 or part.max() >= len(code)) for part in rows):
        refuse("parts", "out of range", f"y has {len(code)} rows")
    table = [np.bincount(code[part], minlength=len(values)) for part in rows]
    return np.array(table, dtype=np.int64).reshape(len(rows), len(values)), values


def _trim(parts: list[RowNumbers], seed: int) -> list[RowNumbers]:
    least = min(len(part) for part in parts)
    keys = (randomness.words(seed, randomness.PARTITION, TRIM, part) for part in parts)
    return [part[np.argsort(key, kind="stable")[:least]] for part, key in zip(parts, keys, strict=True)]


def _labels(y: Any) -> Labels:
    labels = label_array(y.cpu().numpy() if isinstance(y, Tensor) else y)
    if labels.ndim != 1 or not len(labels):
        refuse("y", f"of shape {labels.shape}", "one label per row is needed")
    return labels


def _indices(rows: Any) -> RowNumbers:
    array = np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        refuse("indices", f"of shape {array.shape} and type {array.dtype}", "a list of row numbers is needed")
    return array.astype(np.int64)


def _check_seed(seed: int) -> None:
    if whole(seed, "seed", least=0) >= 2**63:
        refuse("seed", seed, "a whole number below 2^63 is needed")
