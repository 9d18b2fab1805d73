"""Random tables, from a frame to predictions of a run that was saved and opened, against pandas and least squares."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pandas as pd

import resolvent as rs
from hunt.family import Family


def frame(rng: np.random.Generator) -> pd.DataFrame:
    """Numbers of any scale, counts, booleans and categories, some of them missing, and whose row each one is."""
    n = int(rng.integers(40, 90))
    columns: dict[str, Any] = {
        "far": 10.0 ** rng.uniform(0, 6) + rng.standard_normal(n) * 10.0 ** rng.uniform(-1, 1),
        "count": rng.integers(0, 9, n),
        "flag": rng.random(n) < 0.4,
        "ward": rng.choice(["heart", "lung", "Hand", "ä b"], n),
        "code": rng.choice([3, 7, 10], n),
    }
    table = pd.DataFrame({name: columns[name] for name in rng.permutation(list(columns))[: int(rng.integers(2, 6))]})
    if rng.random() < 0.5:
        for name in set(table) & {"far", "ward"}:
            table.loc[rng.random(n) < 0.1, name] = None
    table["site"] = rng.choice(["a", "b", "c", "7"], n)
    table["y"] = rng.standard_normal(n) + table.drop(columns=["site"]).notna().sum(axis=1)
    return table


def design(table: pd.DataFrame, like: pd.DataFrame, coded: bool) -> Any:
    """Features by hand, in the way of the table's training rows: filled, categories with every level, and a one."""
    made: list[Any] = [np.ones(len(table))]
    for name in like.columns.drop(["site", "y"]):
        known, values = like[name].dropna(), table[name]
        if name == "ward" or (name == "code" and coded):
            most: Any = known.value_counts(sort=False).sort_index().idxmax()
            values = values.fillna(most)
            made += [np.asarray(values == level, float) for level in sorted(known.unique())]
        else:
            middle = known.astype(float).mean()
            made.append(values.astype(float).fillna(middle).to_numpy() - middle)
    return np.column_stack(made)


def predictions(seed: int) -> str:
    rng = np.random.default_rng(seed)
    table = frame(rng)
    coded = "code" in table and bool(rng.random() < 0.5)
    impute = {"far": "mean", "ward": "most_frequent"} if table.isna().any(axis=None) else None
    impute = impute and {name: how for name, how in impute.items() if name in table}
    held = table.iloc[: int(rng.integers(0, 8))].copy()
    scaled = bool(rng.random() < 0.7)
    read = rs.data.from_frame(
        table, user="site", target="y", impute=impute, standardise=scaled, categories=["code"] if coded else []
    )
    problem = read.problem(weights="rows")
    run = rs.solve(problem, "fedpi", rounds=400, anderson=5, stop=rs.Stop(gap=1e-18), progress=False)
    if not run.history.gap.iloc[-1] <= 1e-13 * (1 + float(problem.fstar)):
        return "warned"
    A, y = design(table, table, coded), table.y.to_numpy()
    size = np.linalg.norm(A, axis=0)
    size[size == 0] = 1
    w = np.linalg.lstsq(A / size, y, rcond=1e-12)[0] / size
    asked = pd.concat([held, table.sample(5, random_state=seed)])
    expected = design(asked, table, coded) @ w
    shuffled = asked[list(rng.permutation(asked.columns.drop("y")))]
    with tempfile.TemporaryDirectory() as folder:
        run.save(folder + "/run")
        for each in (run, rs.open(folder + "/run")):
            found = np.asarray(each.predict(shuffled), float)
            assert np.allclose(found, expected, rtol=1e-5, atol=1e-5), f"{found} where {expected} is right"
    return "right"


FAMILIES = [Family("tables to predictions", predictions, few=6, many=300)]
