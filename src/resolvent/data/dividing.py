"""Whose rows are whose, and which of them are held out: by a column of users, or dealt by a partition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data import partition as partitions
from resolvent.data.columns import NUMBER, Column, word
from resolvent.errors import InputError, quoted, refuse

RowNumbers = NDArray[np.int64]
USERS = 10
"""How many users a partition has unless it is said."""


class TooFewRows(InputError):
    """No user has a row to spare for being held out."""


@dataclass(frozen=True, eq=False)
class Division:
    """The users who train, with their rows, and the users of held-out rows, with theirs."""

    users: tuple[str, ...]
    training: list[RowNumbers]
    held_users: tuple[str, ...] = ()
    held_out: list[RowNumbers] = field(default_factory=list)


def by_column(column: Column) -> dict[str, RowNumbers]:
    """The rows of each user, by name: numbers in their order, text in that of the alphabet."""
    if column.missing.any():
        refuse("user", column.holes, "every row needs its user: fill it in, or leave those rows out")
    texts = column.texts
    place = dict(zip(texts, column.exact if column.kind == NUMBER else texts, strict=True))
    names = sorted(place, key=lambda name: (place[name], name))
    code = {name: k for k, name in enumerate(names)}
    which = np.array([code[text] for text in texts])
    if len(names) > len(texts) // 2 and len(names) > 100:
        what = f"{column.name!r} with {len(names)} users in {len(texts)} rows"
        refuse("user", what, "users have several rows: name the column that says whose row it is")
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which))[:-1])
    return dict(zip(names, parts, strict=True))


def by_partition(spec: str | None, labels: NDArray[Any], users: int | None, seed: int) -> dict[str, RowNumbers]:
    """Rows dealt to users 0, 1, ... by a partition."""
    dealt = partitions.split(spec or "iid", labels, USERS if users is None else users, seed)
    return {str(k): rows for k, rows in enumerate(dealt)}


def divided(
    owned: dict[str, RowNumbers],
    test: float | None,
    test_users: Collection[Any],
    seed: int,
    needed: Sequence[NDArray[Any]],
) -> Division:
    """Training rows and held-out rows: a share of every user's, or some users' whole.

    needed: columns of categories and labels. Rows that hold what no training row holds go back to training, so that a
    random split never hides a category. Every user retains at least one row.
    """
    if test is not None and test_users:
        refuse("test_users", quoted(list(test_users)), "test is given as well: one of the two is enough")
    if test_users:
        return _whole_users(owned, test_users)
    if test is None:
        return Division(tuple(owned), list(owned.values()))
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0 < test < 1:
        refuse("test", quoted(test), "a share of the rows is needed, between 0 and 1, such as 0.2")
    training, held_out = [], []
    for rows in owned.values():
        stays, goes = partitions.splits(rows, (1 - test, test), seed)
        if not len(stays):
            stays, goes = goes[:1], goes[1:]
        training.append(stays)
        held_out.append(goes)
    for values in needed:
        seen = set(values[np.concatenate(training)].tolist())
        for k, rows in enumerate(held_out):
            lost = np.array([value not in seen for value in values[rows].tolist()], dtype=bool)
            training[k], held_out[k] = np.sort(np.concatenate([training[k], rows[lost]])), rows[~lost]
    if not any(map(len, held_out)):
        most = max(map(len, training))
        raise TooFewRows(f"test is {test}, but no user's rows ({most} at most) can spare any: give a larger share")
    return Division(tuple(owned), training, tuple(owned), held_out)


def _whole_users(owned: dict[str, RowNumbers], test_users: Collection[Any]) -> Division:
    if isinstance(test_users, str):
        refuse("test_users", quoted(test_users), "a list of users is needed")
    asked = [word(name) for name in test_users]
    for name in asked:
        if name not in owned:
            near = get_close_matches(name, owned, n=1, cutoff=0.0)[0]
            refuse("test_users", quoted(name), f"there is no such user (nearest: {near!r})")
    train = tuple(name for name in owned if name not in asked)
    if not train:
        refuse("test_users", "every user", "at least one user must train")
    rest = tuple(name for name in owned if name in asked)
    return Division(train, [owned[name] for name in train], rest, [owned[name] for name in rest])
