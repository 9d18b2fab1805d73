"""A table whose rows belong to users: features and labels of each, held-out rows, and what a model needs to predict."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data import coding, fitted, reports
from resolvent.data import target as targets
from resolvent.data.columns import TEXT, Column, as_frame, column
from resolvent.data.dividing import Division, by_column, by_partition, divided
from resolvent.data.held_out import HeldOut
from resolvent.data.limits import check_dense
from resolvent.data.preparation import INTERCEPT, Preparation
from resolvent.data.scaling import standardisation
from resolvent.errors import ResolventWarning, bounded, listed, quoted, refuse

if TYPE_CHECKING:
    import pandas as pd


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
    weight: NDArray[np.float64] | None = None
    """Of each row's loss."""
    hints: tuple[str, ...] = ()
    """On columns of numbers that may be meant otherwise."""

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
        parts = self.division.held_out
        if not parts:
            return None
        return HeldOut([self.x[rows] for rows in parts], [self.codes[rows] for rows in parts], self.division.held_users)

    def problem(self, kind: str = "auto", **more: Any) -> Any:
        """The problem of these users: "least-squares", "logistic", ...; "auto" is the one that the table is for.

        more: arguments of its class, such as reg, penalty or class_weight. The problem carries the preparation of its
        rows. Another kind may code the labels in another way: `table.coded(kind)` has them, and held-out rows, in its
        terms.
        """
        table = self if _auto(kind) else self.coded(kind)
        more = {"intercept": True} | more if self.intercept else dict(more)
        build = fitted.KINDS[table.kind].build
        takes = [name for name in signature(build.__init__).parameters if name not in ("self", "A", "b", "y")]
        if unknown := [name for name in more if name not in takes]:
            refuse(unknown[0], quoted(more[unknown[0]]), f"{table.kind} takes {', '.join(takes)}")
        if isinstance(more.get("class_weight"), Mapping):
            more["class_weight"] = table.preparation.target.by_code(more["class_weight"])
        if self.weight is not None:
            more = {"sample_weight": [self.weight[rows] for rows in self.division.training]} | more
        problem = build(table.A, table.b, **more)
        problem.preparation = table.preparation
        return problem

    def coded(self, kind: str) -> UserTable:
        """The same table for a problem of another kind."""
        name = fitted.kind_name(kind, self.preparation.target)
        target = targets.target(self.target, fitted.KINDS[name].needs, self.positive)
        return replace(self, preparation=replace(self.preparation, target=target), kind=name)

    @cached_property
    def codes(self) -> NDArray[np.float64]:
        """The labels of all rows of the frame."""
        return self.preparation.target.encode(self.target)

    def __repr__(self) -> str:
        rows = sum(map(len, self.division.training))
        names = ", ".join(self.users[:5]) + (", ..." if len(self.users) > 5 else "")
        held_out = f", {sum(map(len, self.division.held_out))} rows held out" if self.division.held_out else ""
        size = f"{len(self.users)} users ({names}), {rows} rows, {len(self.preparation.features)} features"
        return f"UserTable({size}, target {self.target.name!r}{held_out})"


def from_frame(
    frame: Any,
    user: str | int | None = None,
    target: str | int | None = None,
    drop: Sequence[str | int] = (),
    test: float | None = None,
    test_users: Collection[Any] = (),
    impute: reports.Impute = None,
    standardise: bool = False,
    intercept: bool = True,
    positive: Any = None,
    seed: int = 0,
    categories: Sequence[str | int] = (),
    users: int | None = None,
    partition: str | None = None,
    kind: str = "auto",
    sample_weight: str | int | None = None,
) -> UserTable:
    """Users' rows from a pandas or polars frame.

    user: the column that says whose row it is. target: the column to predict. drop: columns that are no features.
    test: the share of each user's rows that is held out. test_users: users who are held out whole. impute: "mean",
    "median" or "most_frequent" (as text always is), or a dict of these by column; else missing values are refused.
    standardise: every feature gets mean 0 and spread 1 over the training rows. intercept: whether the model has one.
    positive: the class that is told from the others. seed: of the test rows and of a partition. categories: columns
    that are categories though they hold numbers; text is categories anyway. users, partition: without `user`, rows
    are dealt to this many users, "iid" or as rs.data.split says. kind: the problem that the labels are for; "auto"
    is what they suggest: text, booleans and numbers of two values are classes, other numbers are numbers.
    sample_weight: the column of the weights by which the losses of training rows are multiplied; no feature.

    Statistics (levels, fills, means, spreads) are merged from what each user reports of its own training rows.
    """
    frame, positive = as_frame(bounded(frame, "frame")), bounded(positive, "positive")
    user, target = (None if name is None else quoted(name, str) for name in (user, target))  # frames number columns too
    left_out, categories = _listed("drop", drop), _listed("categories", categories)
    impute = {str(name): kind for name, kind in impute.items()} if isinstance(impute, Mapping) else impute
    weight = None
    if sample_weight is not None:
        sample_weight = quoted(sample_weight, str)
        weight = _weights(frame, sample_weight, (user, target))
        left_out.append(sample_weight)
    names = feature_names(frame, user, target, left_out, categories)
    assert target is not None
    reports.check(impute, names)
    labels = column(frame, target)
    meaning = targets.target(
        labels, None if _auto(kind) else fitted.KINDS[fitted.kind_name(kind, None)].needs, positive
    )
    codes = meaning.encode(labels)
    columns = coding.coded_columns(frame, names, impute, categories)
    doubtful = coding.no_numbers([raw for raw in columns if raw.name not in categories])
    twice = coding.alike(target, map(str, meaning.places))
    for remark in filter(None, (doubtful, twice)):
        warnings.warn(remark, ResolventWarning, stacklevel=2)
    said = [doubtful, coding.few_values([raw for raw in columns if raw.name not in categories])]
    if user is None:
        owned = by_partition(partition, codes, users, seed)
    elif users is not None or partition is not None:
        argument, given = ("users", users) if users is not None else ("partition", partition)
        refuse(argument, quoted(given), f"the column {user!r} says whose row is whose: leave it out")
    else:
        owned = by_column(column(frame, user))
    grouped = [raw.texts for raw in columns if raw.kind == TEXT]
    test_users = listed(test_users, "test_users", "a list of users is needed")
    division = divided(owned, test, test_users, seed, grouped if meaning.classes is None else [*grouped, codes])
    features = [coding.feature(raw, division.training, impute, raw.name in categories) for raw in columns]
    preparation = Preparation(tuple(features), meaning, None, tuple(left_out), user)
    check_features(preparation.features)
    check_dense(len(frame), len(preparation.features), "the frame")
    x = preparation.matrix(columns)
    if standardise:
        shares = [x[rows] for rows in division.training]
        preparation = replace(preparation, scaling=standardisation(shares, preparation.features))
        x = preparation.scaled(x)
    said += [twice, *(coding.alike(feature.name, feature.levels or ()) for feature in features)]
    hints = tuple(hint for hint in said if hint)
    kind = fitted.kind_name(kind, meaning)
    return UserTable(division, x, labels, positive, preparation, intercept, kind, weight, hints)


def _auto(kind: object) -> bool:
    return isinstance(kind, str) and kind == "auto"


def _weights(frame: pd.DataFrame, name: str, others: tuple[str | None, ...]) -> NDArray[np.float64]:
    """The column of weights, checked."""
    if name not in frame.columns:
        near = get_close_matches(name, list(frame.columns), n=1, cutoff=0.0)[0]
        refuse("sample_weight", quoted(name), f"there is no such column (nearest: {near!r})")
    if name in others:
        refuse("sample_weight", quoted(name), "that is the column of users or of labels: name another one")
    raw = column(frame, name)
    if raw.kind == TEXT or not (np.isfinite(raw.numbers) & (raw.numbers >= 0)).all():
        refuse("sample_weight", quoted(name), "a column of finite numbers >= 0, none of them missing, is needed")
    return raw.numbers


def _listed(argument: str, names: Any) -> list[str]:
    """The names of several columns."""
    return [quoted(name, str) for name in listed(names, argument, f"a list of columns is needed: [{quoted(names)}]")]


def feature_names(
    frame: pd.DataFrame, user: str | None, target: str | None, drop: Sequence[str], categories: Sequence[str]
) -> list[str]:
    """The names of the columns that become features, once every name that was given is there."""
    columns = list(frame.columns)
    if not len(frame):
        refuse("frame", "without rows", "at least one row is needed")
    if target is None:
        refuse("target", "missing", f"the column to predict is needed: one of {', '.join(columns[:12])}")
    one = [] if user is None else [user]
    for argument, names in (("user", one), ("target", [target]), ("drop", drop), ("categories", categories)):
        for name in names:
            if name not in frame.columns:
                near = get_close_matches(name, columns, n=1, cutoff=0.0)[0]
                refuse(argument, quoted(name), f"there is no such column (nearest: {near!r})")
    if user == target:
        refuse("target", quoted(target), "that is the column of users: name another one")
    for name in drop:
        if name in (user, target):
            refuse("drop", quoted(name), "that is the column of users or of labels, which is no feature anyway")
    features = [name for name in columns if name not in (user, target, *drop)]
    if not features:
        refuse("frame", "without a column left", "features are needed beside the labels and the column of users")
    if INTERCEPT in features:
        refuse("column", quoted(INTERCEPT), "the intercept has this name: rename it")
    return features


def check_features(names: tuple[str, ...]) -> None:
    if not names:
        refuse("frame", "without a feature that varies", "columns of numbers, or of two categories or more, are needed")
    name, many = Counter(names).most_common(1)[0]
    if many > 1:
        refuse("frame", f"of two columns that both make a feature {name!r}", "one of them needs another name")
