"""Different users, categories and classes stay different, whatever type they are and however they come in."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import resolvent as rs
from resolvent.data.columns import word
from resolvent.errors import InputError
from resolvent.problems.labels import label_array
from resolvent.sklearn import FederatedLinearRegression

BIG = 2**53
IDS = [BIG, BIG + 1, BIG + 2, BIG + 3]
"""Whole numbers of which floats hold two."""
N = 24
X = np.random.default_rng(0).standard_normal(N)


def cycle(values: list[Any]) -> list[Any]:
    return [values[k % len(values)] for k in range(N)]


def read_csv(values: list[Any]) -> Any:
    text = "x,who,y\n" + "".join(f"{x},{who},{k % 3}\n" for k, (x, who) in enumerate(zip(X, values, strict=True)))
    return pd.read_csv(io.StringIO(text))


FRAMES: dict[str, Callable[[list[Any]], Any]] = {
    "int64": lambda v: pd.DataFrame({"x": X, "who": np.array(v, np.int64), "y": np.arange(N) % 3}),
    "uint64": lambda v: pd.DataFrame({"x": X, "who": np.array(v, np.uint64), "y": np.arange(N) % 3}),
    "Int64": lambda v: pd.DataFrame({"x": X, "who": pd.array(v, "Int64"), "y": np.arange(N) % 3}),
    "arrow": lambda v: pd.DataFrame({"x": X, "who": pd.array(v, "int64[pyarrow]"), "y": np.arange(N) % 3}),
    "object": lambda v: pd.DataFrame({"x": X, "who": pd.Series(v, dtype=object), "y": np.arange(N) % 3}),
    "NumPy in objects": lambda v: pd.DataFrame(
        {"x": X, "who": pd.Series(list(map(np.int64, v)), dtype=object), "y": np.arange(N) % 3}
    ),
    "Decimal": lambda v: pd.DataFrame(
        {"x": X, "who": pd.Series(list(map(Decimal, v)), dtype=object), "y": np.arange(N) % 3}
    ),
    "Categorical": lambda v: pd.DataFrame({"x": X, "who": pd.Categorical(v), "y": np.arange(N) % 3}),
    "polars": lambda v: pl.DataFrame({"x": X, "who": v, "y": np.arange(N) % 3}),
    "polars Decimal": lambda v: pl.DataFrame({"x": X, "who": list(map(Decimal, v)), "y": np.arange(N) % 3}),
    "columns": lambda v: {"x": X, "who": v, "y": np.arange(N) % 3},
    "rows": lambda v: [{"x": x, "who": who, "y": k % 3} for k, (x, who) in enumerate(zip(X, v, strict=True))],
    "CSV": read_csv,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_integers_beyond_two_to_the_53_are_different_users(kind: str) -> None:
    values = cycle(IDS)
    made = rs.data.from_frame(FRAMES[kind](values), user="who", target="y", kind="least-squares")
    assert made.users == tuple(map(str, IDS))
    assert [rows.tolist() for rows in made.division.training] == [list(range(k, N, 4)) for k in range(4)]
    held = rs.data.from_frame(FRAMES[kind](values), "who", "y", test_users=[BIG + 1], kind="least-squares")
    assert held.division.held_users == (str(BIG + 1),)
    assert [rows.tolist() for rows in held.division.held_out] == [list(range(1, N, 4))]


@pytest.mark.parametrize("kind", FRAMES)
def test_integers_beyond_two_to_the_53_are_different_categories(kind: str) -> None:
    make = FRAMES[kind]
    made = rs.data.from_frame(make(cycle(IDS)), target="y", categories=["who"], users=2, kind="least-squares")
    assert made.preparation.features == ("x", *(f"who={one}" for one in IDS[1:]))
    codes = made.preparation.transform(make(cycle(IDS[1:])))[:, 1:]
    assert np.array_equal(codes, np.eye(3)[np.arange(N) % 3])
    row = made.preparation.transform({"x": 0.0, "who": BIG + 3})
    assert row.tolist() == [[0, 0, 0, 1]]
    with pytest.raises(InputError, match=f"'{BIG + 4}'"):
        made.preparation.transform({"x": 0.0, "who": BIG + 4})


@pytest.mark.parametrize("kind", [kind for kind in FRAMES if kind != "Categorical"])
def test_integers_beyond_two_to_the_53_are_different_classes(kind: str) -> None:
    frame = FRAMES[kind](cycle(IDS))
    made = rs.data.from_frame(frame, target="who", users=2, kind="softmax")
    assert made.preparation.classes == tuple(IDS)
    assert np.array_equal(made.codes, np.arange(N) % 4)
    again = type(made.preparation).from_dict(made.preparation.as_dict())
    assert again.labels(np.arange(4.0)).tolist() == IDS
    assert again.encode(IDS).tolist() == [0, 1, 2, 3]
    two = rs.data.from_frame(frame, target="who", users=2, positive=BIG + 1)
    assert (two.codes > 0).tolist() == [k % 4 == 1 for k in range(N)]


def test_missing_values_round_no_integer(tmp_path: Path) -> None:
    """pandas makes floats of integers among which one is missing, wherever we let it."""
    values = cycle([*IDS, None])
    frames = {"rows": FRAMES["rows"](values), "columns": FRAMES["columns"](values), "Int64": FRAMES["Int64"](values)}
    frames["polars"] = FRAMES["polars"](values)
    path = tmp_path / "table.csv"
    lines = [f"{x},{'' if v is None else v},{k % 3}\n" for k, (x, v) in enumerate(zip(X, values, strict=True))]
    path.write_text("x,who,y\n" + "".join(lines))
    frames["CSV"] = rs.data.columns(path)[0]
    for name, frame in frames.items():
        made = rs.data.from_frame(
            frame, target="y", categories=["who"], impute="most_frequent", users=2, kind="least-squares"
        )
        assert made.preparation.columns[1].levels == tuple(map(str, IDS)), name
        assert made.x[:, 1:].sum(0).tolist() == [5, 5, 5], name


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_classes_of_files(suffix: str, tmp_path: Path) -> None:
    path, y = tmp_path / f"table.{suffix}", np.array(cycle(IDS), np.uint64)
    if suffix == "npz":
        np.savez(path, x=X[:, None], y=y)
    else:
        frame = pd.DataFrame({"x": X, "y": y})
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    assert rs.data.read(path).y.tolist() == cycle(IDS)
    assert rs.data.signs(rs.data.read(path).y, positive=BIG + 1).tolist() == cycle([-1, 1, -1, -1])
    source, target = rs.data.columns(path)
    assert rs.data.from_frame(source, target=target, users=2, kind="softmax").preparation.classes == tuple(IDS)


def test_a_label_of_libsvm_that_a_float_rounds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.libsvm"
    path.write_text(f"1 1:2\n{BIG + 1} 1:3\n")
    with pytest.raises(InputError, match=f"a label is {BIG + 1}, but whole numbers up to 2\\^53"):
        rs.data.read(path)
    path.write_text(f"1e300 1:2\n{BIG + 2} 1:3\n")
    assert rs.data.read(path).y.tolist() == [1e300, BIG + 2]


def test_numbers_that_no_float_equals_have_words_of_their_own() -> None:
    tenth, third = Decimal("0.1"), Fraction(1, 3)
    different: list[Any] = [2**64, 2**64 + 1, 10**400, tenth, Decimal.from_float(0.1), third, 1 / 3]
    assert len({word(value) for value in different}) == len(different)
    assert [word(v) for v in (Decimal("1.50"), Decimal("1E+2"), Decimal("-0.0"), np.float32(3))] == [
        "1.5",
        "100",
        "0",
        "3",
    ]
    values = cycle([2**64, 2**64 + 1, -(10**400), 0.5])
    frame = pd.DataFrame({"x": X, "who": pd.Series(values, dtype=object), "y": np.arange(N) % 3})
    made = rs.data.from_frame(frame, user="who", target="y", kind="least-squares")
    assert made.users == (str(-(10**400)), "0.5", str(2**64), str(2**64 + 1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "1"], "it mixes int and str"),
        ([True, 1], "it mixes bool and int"),
        ([Decimal("0.1"), 0.1], "it mixes Decimal and float"),
        ([1, None], "missing"),
        ([1, float("nan")], "missing"),
        ([1, pd.NA], "missing"),
        (["a", pd.NaT], "missing"),
        ([np.datetime64("2020-01-01"), 1], "dates are no numbers"),
    ],
)
def test_users_of_a_frame_that_are_mixed_or_missing_are_refused(values: list[Any], message: str) -> None:
    given = pd.Series(cycle(values), dtype=object)
    for frame in (pd.DataFrame({"x": X, "who": given, "y": X}), {"x": X, "who": given.tolist(), "y": X}):
        with pytest.raises(InputError, match=message):
            rs.data.from_frame(frame, user="who", target="y")


def test_text_is_compared_to_the_last_character() -> None:
    names = ["a", "a ", "A", "a\0", "é", "e\u0301", "1", "1.0", "01"]
    made = rs.data.from_frame(pd.DataFrame({"x": X, "who": cycle(names), "y": X}), user="who", target="y")
    assert made.users == tuple(sorted(names))
    fit = FederatedLinearRegression().fit(X[:, None], X, users=cycle(names))
    assert fit.users_ == sorted(names)


def test_categories_of_a_frame_that_are_written_alike_are_refused() -> None:
    frame = pd.DataFrame({"x": X, "who": pd.Categorical(cycle([1, "1"])), "y": X})
    with pytest.raises(InputError, match="column is 'who', but it mixes int and str"):
        rs.data.from_frame(frame, user="who", target="y")


def test_a_target_of_categories_is_called_so() -> None:
    frame = pd.DataFrame({"x": X, "y": pd.Categorical(cycle([1, 2, 5]))})
    with pytest.raises(InputError, match=r"'y', a column of categories, but numbers are needed: convert it by astype"):
        rs.data.from_frame(frame, target="y", users=2, kind="least-squares")


@pytest.mark.parametrize("values", [[1, "1"], [BIG + 1, float(BIG)], [2**63, -1], ["u", "u\0"]])
def test_labels_in_a_list_stay_what_they_are(values: list[Any]) -> None:
    assert label_array(values).tolist() == values
    assert label_array(np.array(values, object)).tolist() == values


def test_labels_of_users_with_other_types_stay_apart() -> None:
    eye = [np.eye(2), np.eye(2)]
    unsigned = rs.Softmax(eye, [np.array([-1, BIG + 1]), np.array([BIG, BIG + 2], np.uint64)], reg=1.0)
    assert unsigned.classes == (-1, BIG, BIG + 1, BIG + 2)
    with pytest.raises(InputError, match="y is a mixture of types"):
        rs.Softmax(eye, [[1, 2], ["1", "2"]], reg=1.0)
    with pytest.raises(InputError, match="y is a mixture of types"):
        rs.data.signs([1, "1"])
    with pytest.raises(InputError, match="y is a mixture of types"):
        rs.data.split("sorted:1", [1, "1", 1, "1"], 2)


USERS: dict[str, Any] = {
    "a list": cycle(IDS),
    "int64": np.array(cycle(IDS)),
    "objects": np.array(cycle(IDS), object),
    "beside a fraction": [*cycle([*IDS, 0.5])],
    "beyond 64 bits": cycle([2**64, 2**64 + 1, 2**70]),
    "NumPy's in a list": list(map(np.uint64, cycle(IDS))),
    "Int64": pd.Series(cycle(IDS), dtype="Int64"),
    "polars": pl.Series(cycle(IDS)),
    "text": cycle(["a", "a\0", "b"]),
    "truth values": cycle([True, False]),
}


@pytest.mark.parametrize("name", USERS)
def test_users_of_an_estimator_are_those_that_were_given(name: str) -> None:
    given = USERS[name]
    fit = FederatedLinearRegression().fit(X[:, None], 2 * X, users=given)
    assert fit.users_ == sorted(set(given))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "1"], "a mixture of numbers and text"),
        ([True, 1], "a mixture of bool and numbers"),
        ([1, None], r"None or NaN in places \(the first is users\[1\]\), but every row needs its user"),
        (["a", float("nan")], "None or NaN"),
        (["a", None], "None or NaN"),
        ([1, pd.NA], "None or NaN"),
        ([pd.Timestamp(0), pd.NaT], "None or NaN"),
        ([{}, {}], "of type dict"),
    ],
)
def test_users_of_an_estimator_that_are_mixed_or_missing_are_refused(values: list[Any], message: str) -> None:
    for users in (cycle(values), pd.Series(cycle(values), dtype=object)):
        with pytest.raises(InputError, match=message):
            FederatedLinearRegression().fit(X[:, None], X, users=users)


@pytest.mark.filterwarnings("ignore::resolvent.ResolventWarning")
def test_big_classes_come_back_from_a_saved_and_an_exported_run(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.resize([-1.0, 1.0], N) + X / 9, "y": cycle(IDS[:2])})
    made = rs.data.from_frame(frame, target="y", users=2)
    run = rs.solve(made.problem(reg=0.1), rs.fedpi(1.0), rounds=20)
    run.save(tmp_path / "run")
    for each in (run, rs.open(tmp_path / "run")):
        assert each.predict(frame[["x"]]).tolist() == frame.y.tolist()
        assert each.score(frame[["x"]], frame.y) == 1
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(run.export(tmp_path / "model.onnx")))
    predicted = session.run(["prediction"], {"X": frame[["x"]].to_numpy()})[0]
    assert list(map(int, predicted.tolist())) == frame.y.tolist()
