"""A table whose rows belong to users: features and labels of each, held-out rows, and what a model needs to predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data import coding, fitted, imputing
from resolvent.data import target as targets
from resolvent.data.columns import TEXT, Column, Source, source
from resolvent.data.dividing import Division, by_column, by_partition, divided
from resolvent.data.held_out import HeldOut
from resolvent.data.imputing import Impute
from resolvent.data.libsvm import fits
from resolvent.data.preparation import INTERCEPT, Preparation
from resolvent.data.scaling import standardisation
from resolvent.errors import refuse


@dataclass(frozen=True, eq=False, repr=False)
class UserTable:
    """Users' rows, ready for a problem. preparation: how a raw row becomes such features."""

    division: Division
    x: NDArray[np.float64]
    target: Column
    positive: Any
    preparation: Preparation
    intercept: bool
    kind: str
    """The problem that these labels are for."""

    @property
    def users(self) -> tuple[str, ...]:
        """The names of the users who train."""
        return self.division.users

    @cached_property
    def A(self) -> list[NDArray[np.float64]]:
        """The features of each user's training rows, (rows, d)."""
        return [self.x[rows] for rows in self.division.training]

    @cached_property
    def b(self) -> list[NDArray[np.float64]]:
        """The labels of each user's training rows: -1 and +1 for two classes, 0, 1, ... for more, else numbers."""
        return [self.codes[rows] for rows in self.division.training]

    @cached_property
    def held_out(self) -> HeldOut | None:
        """The rows that nobody trains on, or None."""
        held = self.division.held
        if not len(held):
            return None
        return HeldOut([self.x[rows] for rows in held], [self.codes[rows] for rows in held], self.division.held_users)

    def problem(self, kind: str = "auto", **more: Any) -> Any:
        """The problem of these users: "least-squares", "logistic", ...; "auto" is the one that the table is for.

        more: arguments of its class, such as reg or penalty. The problem carries the preparation of its rows. Another
        kind may code the labels in another way: `table.coded(kind)` has them, and held-out rows, in its terms.
        """
        table = self if kind == "auto" else self.coded(kind)
        more = {"intercept": True} | more if self.intercept else more
        problem = fitted.KINDS[table.kind].build(table.A, table.b, **more)
        problem.preparation = table.preparation
        return problem

    def coded(self, kind: str) -> UserTable:
        """The same table for a problem of another kind."""
        name, made = fitted.kind(kind, self.preparation.target)
        meant = targets.target(self.target, made.needs, self.positive)
        return replace(self, preparation=replace(self.preparation, target=meant), kind=name)

    @cached_property
    def codes(self) -> NDArray[np.float64]:
        """The labels of all rows of the frame."""
        return self.preparation.target.encode(self.target)

    def __repr__(self) -> str:
        rows = sum(map(len, self.division.training))
        named = ", ".join(self.users[:5]) + (", ..." if len(self.users) > 5 else "")
        held = f", {sum(map(len, self.division.held))} rows held out" if len(self.division.held) else ""
        size = f"{len(self.users)} users ({named}), {rows} rows, {len(self.preparation.features)} features"
        return f"UserTable({size}, target {self.target.name!r}{held})"


def from_frame(
    frame: Any,
    user: str | int | None = None,
    target: str | int | None = None,
    drop: Sequence[str | int] = (),
    test: float | None = None,
    test_users: Collection[Any] = (),
    impute: Impute = None,
    standardise: bool = False,
    intercept: bool = True,
    positive: Any = None,
    seed: int = 0,
    categories: Sequence[str | int] = (),
    users: int | None = None,
    partition: str | None = None,
    kind: str = "auto",
) -> UserTable:
    """Users' rows from a pandas or polars frame.

    user: the column that says whose row it is. target: the column to predict. drop: columns that are no features.
    test: the share of each user's rows that is held out. test_users: users who are held out whole. impute: "mean",
    "median" or "most_frequent", or a dict of these by column; without it missing values are refused. standardise: every
    feature gets mean 0 and spread 1 over the training rows. intercept: whether the model has one. positive: the class
    that is told from the others. seed: of the test rows and of a partition. categories: columns that are categories
    though they hold numbers; text is categories anyway. users, partition: without `user`, rows are dealt to this many
    users, "iid" or as rs.data.split says. kind: the problem that the labels are for; "auto" is what they suggest: text,
    booleans and numbers of two values are classes, other numbers are numbers.

    Statistics (levels, fills, means, spreads) are merged from what each user reports of its own training rows.
    """
    found = frame if isinstance(frame, Source) else source(frame)
    user, target = (None if name is None else str(name) for name in (user, target))  # frames number their columns too
    drop, categories = _listed("drop", drop), _listed("categories", categories)
    impute = {str(name): kind for name, kind in impute.items()} if isinstance(impute, Mapping) else impute
    names = _features(found, user, target, drop, categories)
    assert target is not None
    imputing.check(impute, names)
    labels = found.column(target)
    needs = None if kind == "auto" else fitted.kind(kind, None)[1].needs
    meant = targets.target(labels, needs, positive)
    codes = meant.encode(labels)
    columns = [coding.read(found.column(name), name in categories) for name in names]
    for column in columns:
        imputing.check_column(column, impute)
    if user is None:
        owned = by_partition(partition, codes, users, seed)
    elif users is not None or partition is not None:
        argument, came = ("users", users) if users is not None else ("partition", partition)
        refuse(argument, repr(came), f"the column {user!r} says whose row is whose: leave it out")
    else:
        owned = by_column(found.column(user))
    grouped = [column.values for column in columns if column.kind == TEXT]
    kept = grouped if meant.classes is None else [*grouped, codes]
    division = divided(owned, test, test_users, seed, kept)
    seen = [coding.feature(column, division.training, impute, column.name in categories) for column in columns]
    preparation = Preparation(tuple(seen), meant, None, tuple(drop), user)
    if not preparation.features:
        refuse("frame", "without a feature that varies", "columns of numbers, or of two categories or more, are needed")
    twice = [name for name, many in Counter(preparation.features).items() if many > 1]
    if twice:
        refuse("frame", f"of two columns that both make a feature {twice[0]!r}", "one of them needs another name")
    fits(found.rows, len(preparation.features), "the frame")
    x = preparation.matrix(columns)
    if standardise:
        shares = [x[rows] for rows in division.training]
        preparation = replace(preparation, scaling=standardisation(shares, preparation.features))
        x = preparation.scaled(x)
    return UserTable(division, x, labels, positive, preparation, intercept, fitted.kind(kind, meant)[0])


def _listed(argument: str, names: Any) -> list[str]:
    """The names of several columns."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        refuse(argument, repr(names), f"a list of columns is needed: [{names!r}]")
    return [str(name) for name in names]


def _features(
    found: Source, user: str | None, target: str | None, drop: Sequence[str], categories: Sequence[str]
) -> list[str]:
    """The names of the columns that become features, once every name that was given is there."""
    if found.rows == 0:
        refuse("frame", "without rows", "at least one row is needed")
    if target is None:
        refuse("target", "missing", f"the column to predict is needed: one of {', '.join(found.names[:12])}")
    one = [] if user is None else [user]
    for argument, names in (("user", one), ("target", [target]), ("drop", drop), ("categories", categories)):
        for name in names:
            if name not in found.names:
                near = get_close_matches(str(name), found.names, n=1, cutoff=0.0)[0]
                refuse(argument, repr(name), f"there is no such column (nearest: {near!r})")
    if user == target:
        refuse("target", repr(target), "that is the column of users: name another one")
    for name in drop:
        if name in (user, target):
            refuse("drop", repr(name), "that is the column of users or of labels, which is no feature anyway")
    columns = [name for name in found.names if name not in (user, target, *drop)]
    if not columns:
        refuse("frame", "without a column left", "features are needed beside the labels and the column of users")
    if INTERCEPT in columns:
        refuse("column", repr(INTERCEPT), "the intercept has this name: rename it")
    return columns
