"""Preparation from what each user reports, against pandas on the pooled table; odd users against plain grouping."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

import resolvent as rs
from hunt.family import Family
from resolvent.sklearn import FederatedLinearRegression

BIG = 2**53
VALUES: tuple[Any, ...] = (
    *(
        0,
        1,
        -1,
        BIG - 1,
        BIG,
        BIG + 1,
        BIG + 2,
        BIG + 3,
        -BIG - 1,
        2**63 - 1,
        2**63,
        2**64,
        2**64 + 1,
        10**30,
        10**30 + 1,
    ),
    *(0.5, 1.0, float(BIG), 1e300, 5e-324, 0.1, 0.1 + 2**-56, Fraction(1, 3), 1 / 3),
    *("a", "a ", " a", "a\0", "A", "1", "1.0", "01", "", "nan", "None", "é", "e\u0301", "\u200b"),
    *(True, False, "True", np.int64(BIG + 1), np.uint64(BIG + 2), np.float32(0.1), Decimal(1), Decimal("0.1")),
    *(None, float("nan"), pd.NA, pd.NaT),
)


def kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "truth"
    return "text" if isinstance(value, str) else "decimal" if isinstance(value, Decimal) else "number"


def plain(value: Any) -> Any:
    """As Python has it: NumPy's numbers compare integers and floats as floats."""
    return value.item() if isinstance(value, np.generic) else value


def grouped(values: list[Any]) -> list[list[int]]:
    """Rows by equal values, as Python compares them, in the order of their first rows."""
    groups: dict[Any, list[int]] = {}
    for row, value in enumerate(values):
        groups.setdefault(plain(value), []).append(row)
    return sorted(groups.values())


def container(values: list[Any], rng: np.random.Generator) -> Any:
    """The same values as a list, objects, or what pandas and NumPy make of them, where that rounds nothing."""
    ways: list[Any] = [list, lambda v: pd.Series(v, dtype=object), lambda v: np.array([*v, None], object)[:-1]]
    if all(type(v) is int and -(2**63) <= v < 2**63 for v in values):
        ways += [lambda v: np.array(v, np.int64), lambda v: pd.Series(v, dtype="Int64"), lambda v: pd.Series(v)]
    return ways[int(rng.integers(len(ways)))](values)


def identities(seed: int) -> str:
    """Users of a frame, of an estimator, and categories: grouped as Python groups them, or refused for a reason."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 20))
    pool: list[Any] = list(VALUES)
    if rng.random() < 0.8:
        chosen = str(rng.choice(["number", "text", "truth", "decimal"]))
        pool = [v for v in pool if not pd.isna(v) and kind(v) == chosen]
    if rng.random() < 0.3:
        pool = [v for v in pool if type(v) is int] or pool
    values = [pool[int(k)] for k in rng.integers(len(pool), size=n)]
    x = rng.standard_normal(n)
    missing, kinds = any(pd.isna(v) for v in values), {kind(v) for v in values if not pd.isna(v)}
    bad = missing or len(kinds) > 1
    ends = []
    for use in ("frame", "estimator"):
        given = container(values, rng)
        try:
            if use == "frame":
                made = rs.data.from_frame({"x": x, "who": given, "y": x}, user="who", target="y")
                found = sorted(sorted(rows.tolist()) for rows in made.division.training)
                assert len(set(made.users)) == len(found), f"users {made.users}"
            else:
                model = FederatedLinearRegression(max_iter=1)
                names = fitted_users(model, x, given)
                found = sorted([row for row, v in enumerate(values) if plain(v) == name] for name in names)
        except rs.InputError as error:
            if not bad:
                raise AssertionError(f"{use}: {error} for {values}") from error
            ends.append("refused")
            continue
        decimals = kinds == {"decimal", "number"} and all(
            not isinstance(v, float | Fraction | np.floating) for v in values
        )
        assert not bad or (decimals and not missing), f"{use} took {values}"
        assert found == grouped(values), f"{use}: {found} where {grouped(values)} is right, of {values}"
        ends.append("right")
    return "refused" if "refused" in ends else "right"


def fitted_users(model: Any, x: Any, users: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(model.fit(x[:, None], x, users=users).users_)


def prepared(seed: int) -> str:
    """Levels, fills, means and spreads of training rows, and the features of every row."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(12, 60))
    table = pd.DataFrame(
        {
            "who": rng.choice([BIG, BIG + 1, BIG + 2, 7], n),
            "far": 10.0 ** rng.uniform(0, 9) + rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3),
            "code": rng.choice([2**60, 2**60 + 1, 2**60 + 2, 5], n),
            "ward": rng.choice(["x", "x\0", "X", " x", "é"], n),
            "y": rng.standard_normal(n),
        }
    )
    gaps = bool(rng.random() < 0.6)
    if gaps:
        table.loc[rng.random(n) < 0.2, "far"] = np.nan
        table.loc[rng.random(n) < 0.2, "ward"] = None
        table["code"] = table["code"].astype("Int64").mask(pd.Series(rng.random(n) < 0.2))
    how = str(rng.choice(["mean", "median"]))
    impute = {"far": how, "ward": "most_frequent", "code": "most_frequent"} if gaps else None
    test = float(rng.choice([0.0, 0.25])) or None
    try:
        made = rs.data.from_frame(
            table, "who", "y", test=test, impute=impute, standardise=True, categories=["code"], seed=seed % 1000
        )
    except rs.InputError:
        return "refused"
    groups: dict[Any, Any] = dict(table.groupby("who").indices)
    held = made.held_out.names if made.held_out else ()
    assert made.users == tuple(str(name) for name in sorted(groups)), f"users {made.users} {held}"
    for rows, own in zip(made.division.training, (groups[name] for name in sorted(groups)), strict=True):
        assert set(rows.tolist()) <= set(own.tolist()), "a row of another user"
    trained = table.iloc[np.sort(np.concatenate(made.division.training))]
    columns: list[Any] = []
    names: list[str] = []
    for name in ("far", "code", "ward"):
        seen = trained[name].dropna()
        if name == "far":
            fill = getattr(seen, how)() if gaps else 0.0
            columns.append(table[name].fillna(fill).to_numpy(float))
            names.append(name)
            continue
        levels = sorted({str(v) for v in seen})
        counts = seen.astype(object).map(str).value_counts()
        most = min(counts[counts == counts.max()].index)
        texts = [most if pd.isna(v) else str(v) for v in table[name].astype(object)]
        columns += [np.array([text == level for text in texts], float) for level in levels[1:]]
        names += [f"{name}={level}" for level in levels[1:]]
    assert list(made.preparation.features) == names, f"{made.preparation.features} where {names} is right"
    X = np.column_stack(columns)
    sample = X[trained.index]
    mean, spread = sample.mean(0), sample.std(0)
    spread[spread == 0] = 1
    noise = 8 * np.finfo(float).eps * n * np.abs(sample).max(0) / spread  # pandas' and NumPy's own sums
    off = np.abs(made.x - (X - mean) / spread) - noise * (1 + np.abs(made.x))
    assert (off <= 1e-12).all(), f"features off by {off.max():.1e}"
    again = made.preparation.transform(table.drop(columns=["y"]))
    assert np.array_equal(again, made.x), "new rows are prepared otherwise"
    return "right"


FAMILIES = [
    Family("users and categories of any type", identities, few=20, many=600),
    Family("tables prepared user by user", prepared, few=10, many=300),
]
