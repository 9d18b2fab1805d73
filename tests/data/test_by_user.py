"""Tables by user: what rows become, against scikit-learn on the pooled rows; every bad table has its sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import resolvent as rs
from resolvent.data import Preparation, UserTable, from_frame
from resolvent.errors import InputError

N = 120


def hospitals(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ward = rng.choice(["surgery", "intensive care", "children's"], N)
    frame = pd.DataFrame(
        {
            "id": np.arange(N),
            "hospital": rng.choice(list("edcba"), N, p=[0.4, 0.3, 0.2, 0.06, 0.04]),
            "age": rng.normal(60, 12, N).round(),
            "ward": ward,
            "smoker": rng.random(N) < 0.3,
            "dose": 1e9 + rng.standard_normal(N),
        }
    )
    t = 0.08 * (frame.age - 60) + (ward == "surgery") - 0.8 * frame.smoker
    frame["ill"] = np.where(rng.random(N) < 1 / (1 + np.exp(-t)), "yes", "no")
    return frame


def table(frame: Any = None, **more: Any) -> UserTable:
    chosen = {"user": "hospital", "target": "ill", "drop": ["id"]} | more
    return from_frame(hospitals() if frame is None else frame, **chosen)


def pooled(made: UserTable) -> np.ndarray:
    """All training rows, in the order of the frame."""
    rows = np.concatenate(made.division.training)
    out = np.empty((rows.max() + 1, made.A[0].shape[1]))
    out[rows] = np.concatenate(made.A)
    return out


def test_features_are_those_of_scikit_learn_on_the_pooled_rows() -> None:
    frame = hospitals()
    made = table(frame, standardise=True)
    coded = OneHotEncoder(drop="first", sparse_output=False).fit_transform(frame[["ward"]])
    matrix = np.column_stack([frame.age, coded, frame.smoker, frame.dose])
    np.testing.assert_allclose(pooled(made), StandardScaler().fit_transform(matrix), atol=1e-6)
    assert made.preparation.features == ("age", "ward=intensive care", "ward=surgery", "smoker", "dose")
    assert made.users == ("a", "b", "c", "d", "e")
    for name, A, b in zip(made.users, made.A, made.b, strict=True):
        own = frame[frame.hospital == name]
        assert len(A) == len(own)
        assert b.tolist() == np.where(own.ill == "yes", 1.0, -1.0).tolist()


def test_categories_are_the_union_of_what_users_hold() -> None:
    frame = pd.DataFrame({"u": list("aabbcc"), "c": list("zxyyxw"), "v": [1.0, 2, 3, 4, 5, 6], "y": [0, 1, 0, 1, 1, 0]})
    made = from_frame(frame, "u", "y")
    assert made.preparation.features == ("c=x", "c=y", "c=z", "v")
    assert made.A[0].tolist() == [[0, 0, 1, 1], [1, 0, 0, 2]]
    assert made.A[2].tolist() == [[1, 0, 0, 5], [0, 0, 0, 6]]  # w, the first, is what the others differ from


def to_polars(frame: pd.DataFrame) -> pl.DataFrame:
    """Column by column: without pyarrow, and with None for what is missing."""
    gone = {name: frame[name].isna() for name in frame}
    return pl.DataFrame(
        {name: [None if m else v for v, m in zip(frame[name], gone[name], strict=True)] for name in frame}
    )


LIKE: dict[str, Callable[[pd.DataFrame], Any]] = {
    "polars": to_polars,
    "polars categories": lambda frame: to_polars(frame).with_columns(pl.col("ward").cast(pl.Categorical)),
    "pandas categories": lambda frame: frame.astype({"ward": "category", "hospital": "category"}),
    "pandas objects": lambda frame: frame.astype(object),
    "pandas nullable": lambda frame: frame.convert_dtypes(),
    "a mapping of lists": lambda frame: {name: list(frame[name]) for name in frame},
    "rows": lambda frame: frame.to_dict("records"),
}


@pytest.mark.parametrize("kind", LIKE)
def test_every_kind_of_frame_gives_the_same_bits(kind: str) -> None:
    frame = hospitals()
    frame.loc[3::40, "age"] = np.nan
    frame.loc[5::50, "ward"] = None
    more = {"impute": {"age": "mean", "ward": "most_frequent"}, "standardise": True, "test": 0.25}
    first, other = table(frame, **more), table(LIKE[kind](frame), **more)
    assert first.preparation == other.preparation
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first.A + first.b, other.A + other.b, strict=True))
    again = other.preparation.transform(LIKE[kind](frame))
    assert again.tobytes() == first.x.tobytes()


@pytest.mark.parametrize(("impute", "strategy"), [("mean", "mean"), ("median", "median"), ("most_frequent",) * 2])
def test_imputed_values_are_those_of_the_pooled_training_rows(impute: str, strategy: str) -> None:
    frame = hospitals().drop(columns="ward")
    frame.loc[np.random.default_rng(1).random(N) < 0.2, "age"] = np.nan
    made = table(frame, impute=impute, test=0.3)
    rows = np.concatenate(made.division.training)
    expected = SimpleImputer(strategy=strategy).fit(frame[["age"]].iloc[rows]).statistics_[0]
    (age,) = (column for column in made.preparation.columns if column.name == "age")
    assert age.fill == pytest.approx(expected, rel=1e-14)
    assert np.isfinite(made.x).all()


def test_a_test_split_is_of_each_user_and_no_statistic_sees_it() -> None:
    frame = hospitals()
    made = table(frame, test=0.25, standardise=True, seed=3)
    held, trained = np.concatenate(made.division.held_out), np.concatenate(made.division.training)
    assert sorted([*held, *trained]) == list(range(N))
    assert made.held_out.names == made.users
    for rows, gone in zip(made.division.training, made.division.held_out, strict=True):
        assert len(gone) == pytest.approx(0.25 * (len(rows) + len(gone)), abs=1.6)
    spoiled = frame.copy()
    spoiled.loc[held, ["age", "dose"]] = -1e6
    assert table(spoiled, test=0.25, standardise=True, seed=3).preparation == made.preparation
    assert table(frame, test=0.25, seed=4).division.held_out[0].tolist() != made.division.held_out[0].tolist()


def test_users_can_be_held_out_whole() -> None:
    made = table(test_users=["b", "e"])
    assert made.users == ("a", "c", "d")
    assert made.held_out.names == ("b", "e")
    assert sum(made.held_out.sizes) == int(hospitals().hospital.isin(["b", "e"]).sum())


def test_a_random_split_never_hides_a_category_or_a_class() -> None:
    frame = hospitals()
    frame["ward"] = np.where(np.arange(N) == 7, "attic", frame.ward)
    frame["outcome"] = np.where(np.arange(N) == 9, "unknown", frame.ill)
    for seed in range(12):
        made = table(frame, target="outcome", drop=["id", "ill"], test=0.5, seed=seed)
        assert "ward=children's" in made.preparation.features
        assert made.preparation.classes == ("no", "unknown", "yes")
        trained = frame.iloc[np.concatenate(made.division.training)]
        assert "attic" in set(trained.ward)
        assert "unknown" in set(trained.outcome)


def test_small_users_keep_a_row_and_one_class_is_enough() -> None:
    frame = pd.DataFrame({"u": list("abbcccc"), "x": [1.0, 2, 3, 4, 5, 6, 8], "y": [1, 0, 0, 1, 0, 1, 1]})
    made = from_frame(frame, "u", "y", test=0.9)
    assert [len(rows) for rows in made.division.training] == [1, 1, 1]
    run = rs.solve(from_frame(frame, "u", "y").problem(reg=0.1), "fedpi", rounds=100)
    assert run.history.gap.iloc[-1] < 1e-9


def test_a_model_predicts_new_rows_in_a_fresh_process(tmp_path: Any) -> None:
    made = table(impute="most_frequent", standardise=True)
    problem = made.problem(reg=0.01)
    model = rs.solve(problem, "fedpi", rounds=60, anderson=4).model
    new = [
        {"age": 70, "ward": "surgery", "smoker": True, "dose": 1e9},
        {"age": None, "ward": None, "smoker": False, "dose": 1e9 + 1},
    ]
    expected = problem.preparation.labels(problem.predictor.predict(model, problem.preparation.transform(new)))
    saved = {"preparation": problem.preparation.as_dict(), "predictor": problem.predictor.as_dict()}
    (tmp_path / "m.json").write_text(json.dumps(saved | {"model": model.tolist(), "new": new}))
    code = (
        "import json, sys; from resolvent.data import Preparation\n"
        "from resolvent.problems.linear.predictor import Predictor\n"
        "s = json.load(open(sys.argv[1])); p = Preparation.from_dict(s['preparation'])\n"
        "q = Predictor.from_dict(s['predictor'])\n"
        "x = p.transform(s['new']); print(json.dumps([x.tolist(), p.labels(q.predict(s['model'], x)).tolist()]))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [problem.preparation.transform(new).tolist(), expected.tolist()]
    assert Preparation.from_dict(json.loads(json.dumps(saved["preparation"]))) == problem.preparation


@pytest.mark.parametrize("intercept", [True, False])
def test_coefficients_come_back_in_the_units_of_the_table(intercept: bool) -> None:
    made = table(standardise=True, intercept=intercept)
    w = np.random.default_rng(0).standard_normal(made.x.shape[1] + intercept)
    named = made.preparation.unscale(w)
    raw = table(intercept=intercept).x
    shift = named.pop("(intercept)")
    assert list(named) == list(made.preparation.features)
    scores = made.x @ w[: made.x.shape[1]] + (w[-1] if intercept else 0)
    np.testing.assert_allclose(raw @ np.array(list(named.values())) + shift, scores, atol=1e-5)  # dose is about 1e9


def test_a_softmax_of_two_classes_has_coefficients_of_each() -> None:
    made = table(kind="softmax")
    problem = made.problem(reg=1.0)
    w = np.random.default_rng(0).standard_normal(problem.dim)
    named = problem.preparation.unscale(w)
    assert list(named) == ["no", "yes"]
    features = made.x.shape[1]
    assert [*named["yes"].values()] == [w[-1], *w[features : 2 * features]]
    assert Preparation.from_dict(problem.preparation.as_dict()) == problem.preparation
    with pytest.raises(InputError, match=r"reg is 1\.0, but least-squares takes weights, intercept, penalty"):
        table(target="age").problem(reg=1.0)


def test_classes_and_their_order() -> None:
    frame = hospitals().assign(grade=lambda f: np.arange(N) % 3, flag=lambda f: f.ill == "yes")
    two = table(positive="no")
    assert two.preparation.classes == ("yes", "no")
    assert two.preparation.labels([-1, 1]).tolist() == ["yes", "no"]
    flag = table(frame, target="flag", drop=["id", "ill", "grade"]).preparation
    assert flag.classes == (False, True)
    assert flag.labels([1, -1]).tolist() == [True, False]
    one = table(frame, target="grade", drop=["id", "ill", "flag"], positive=2).preparation
    assert one.classes == ("not 2", 2)
    assert one.encode([0, 2, 1]).tolist() == [-1, 1, -1]
    with pytest.raises(InputError, match="'5'"):
        one.encode([5])
    numbers = table(frame, target="grade", drop=["id", "ill", "flag"])
    assert numbers.preparation.classes is None
    assert numbers.kind == "least-squares"


def test_labels_that_are_numbers_come_back_as_numbers() -> None:
    for values, kind in (([0.0, 0.5], "auto"), ([0.0, 0.5, 3.0], "softmax")):
        made = table(changed(dose=np.resize(values, N)), target="dose", drop=["id", "ill"], kind=kind)
        back = made.preparation.labels(made.preparation.encode(np.array(values)))
        assert (str(back.dtype), back.tolist()) == ("float64", values)


def test_texts_that_differ_by_a_nul_at_the_end_are_kept_apart() -> None:
    """NumPy's own text drops it."""
    given = ["u", "u\0", "v"]
    frame = changed(ill=np.resize(np.array(given, object), N), ward=np.resize(np.array(["x\0", "x"], object), N))
    made = table(frame)
    assert made.preparation.classes == tuple(given)
    assert "ward=x\0" in made.preparation.features
    assert made.preparation.labels(made.preparation.encode(given)).tolist() == given
    problem = made.problem()
    assert set(problem.predictor.predict(np.eye(1, problem.dim)[0], made.x)) <= {0, 1, 2}
    softmax = rs.Softmax([np.eye(3)], [given], reg=1.0)
    assert softmax.classes == tuple(given)
    assert softmax.predictor.predict(softmax.minimiser, np.eye(3)).tolist() == given
    test = rs.HeldOut([np.eye(3)], [given])
    run = rs.solve(softmax, rs.fedpi(1.0), rounds=5, test=test)
    assert run.history.test_accuracy.iloc[-1] == 1


def test_a_frames_own_categories_may_be_numbers() -> None:
    made = table(changed(ward=pd.Categorical(np.resize([1, 2, 10], N))))
    assert [name for name in made.preparation.features if "ward" in name] == ["ward=10", "ward=2"]
    new = {"age": 1, "ward": 10, "smoker": True, "dose": 1}
    assert dict(zip(made.preparation.features, made.preparation.transform(new)[0], strict=True))["ward=10"] == 1


def test_columns_that_are_called_by_numbers() -> None:
    frame = hospitals()
    names = {name: k for k, name in enumerate(frame.columns)}
    more: dict[str, Any] = {"categories": [names["ward"]], "impute": {names["age"]: "mean"}}
    made = from_frame(frame.rename(columns=names), names["hospital"], names["ill"], drop=[names["id"]], **more)
    usual = table(frame, categories=["ward"], impute={"age": "mean"})
    assert np.array_equal(made.x, usual.x)
    assert made.preparation.columns[0].name == str(names["age"])
    row = frame.rename(columns=names).iloc[0].to_dict()
    assert np.array_equal(made.preparation.transform(row)[0], made.x[0])


def test_rows_may_be_dealt_instead() -> None:
    frame = hospitals()
    made = from_frame(frame, target="ill", drop=["id", "hospital"], users=4, partition="contiguous")
    assert [len(A) for A in made.A] == [30, 30, 30, 30]
    assert made.users == ("0", "1", "2", "3")


# --- refused ---------------------------------------------------------------------------------------------------------


def changed(**columns: Any) -> pd.DataFrame:
    return hospitals().assign(**columns)


def with_hole(column: str, rows: Any = slice(4, None, 30)) -> pd.DataFrame:
    frame = hospitals()
    frame.loc[frame.index[rows], column] = None
    return frame


BAD: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "no frame": (lambda: 3, {}, "frame is of type int"),
    "an array": (lambda: np.zeros((3, 3)), {}, "frame is of type ndarray"),
    "a lazy frame": (lambda: to_polars(hospitals()).lazy(), {}, "LazyFrame.*collect"),
    "no rows": (lambda: hospitals().iloc[:0], {}, "without rows"),
    "no target": (hospitals, {"target": None}, "target is missing.*id, hospital"),
    "no such target": (hospitals, {"target": "iil"}, "target is 'iil'.*nearest: 'ill'"),
    "no such user column": (hospitals, {"user": "hospitals"}, "user is 'hospitals'.*nearest: 'hospital'"),
    "no such column to drop": (hospitals, {"drop": ["ids"]}, "drop is 'ids'.*nearest: 'id'"),
    "a number to drop": (hospitals, {"drop": 3}, r"drop is 3, but a list.*\[3\]"),
    "text to drop": (hospitals, {"drop": "id"}, r"drop is 'id', but a list.*\['id'\]"),
    "the target dropped": (hospitals, {"drop": ["ill"]}, "drop is 'ill'"),
    "user and target the same": (hospitals, {"user": "ill"}, "column of users"),
    "nothing left": (lambda: hospitals()[["hospital", "ill"]], {"drop": []}, "without a column left"),
    "nothing varies": (lambda: hospitals()[["hospital", "ill"]].assign(w="x"), {"drop": []}, "without a feature"),
    "two columns of a name": (
        lambda: pd.concat([hospitals(), hospitals()[["age"]]], axis=1), {}, "two columns 'age'"
    ),
    "holes": (lambda: with_hole("age"), {}, r"'age' with 4 missing values \(the first in row 5\).*mean"),
    "a hole in text": (lambda: with_hole("ward"), {}, "'ward' with 4 missing.*most_frequent"),
    "the mean of text": (lambda: with_hole("ward"), {"impute": {"ward": "mean"}}, "'ward' with 4.*text has no mean"),
    "nothing but holes": (lambda: changed(age=np.nan), {"impute": "mean"}, "'age'.*drop it"),
    "a hole in the target": (lambda: with_hole("ill"), {}, "target is 'ill', missing.*4 rows.*row 5"),
    "a hole in the users": (lambda: with_hole("hospital"), {}, "user is 'hospital' with 4 missing"),
    "an unknown filling": (lambda: with_hole("age"), {"impute": "zero"}, "impute is 'zero'.*mean, median"),
    "filling of no column": (hospitals, {"impute": {"agee": "mean"}}, "impute is for a column 'agee'"),
    "infinite": (lambda: changed(age=np.where(np.arange(N) == 2, np.inf, 1.0)), {}, "'age', infinite in 1 row.*row 3"),
    "dates": (lambda: changed(age=pd.date_range("2020", periods=N)), {}, "'age'.*dates are no numbers"),
    "polars dates": (
        lambda: to_polars(hospitals()).with_columns(pl.date(2020, 1, 1).alias("age")), {}, "'age'.*dates are no numbers"
    ),
    "dates as text": (lambda: changed(age=[f"2020-01-{k % 28 + 1:02}" for k in range(N)]), {}, "dates are no numbers"),
    "numbers and words": (
        lambda: changed(age=["?" if k == 3 else str(k) for k in range(N)]), {}, r"'age', which holds numbers, and '\?'"
    ),
    "numbers as text": (lambda: changed(age=[str(k) for k in range(N)]), {}, "'age'.*written as text.*categories="),
    "decimal commas": (
        lambda: changed(age=[f"{k % 4},5" for k in range(N)]), {},
        r"'age'.*decimal comma \('0,5' in row 1\).*write 0.5 there.*\['age'\].str.replace",
    ),
    "names": (lambda: changed(ward=[f"x{k}" for k in range(N)]), {}, "'ward' with 120 different texts in 120 rows"),
    "a mixture": (lambda: changed(ward=[k if k % 2 else "x" for k in range(N)]), {}, "'ward'.*mixes int and str"),
    "lists": (lambda: changed(ward=[[1]] * N), {}, "'ward'.*of type list"),
    "complex numbers": (lambda: changed(age=np.ones(N) * 1j), {}, "'age'.*complex"),
    "one class": (lambda: changed(ill="yes"), {}, "target is 'ill', which is 'yes' in every row"),
    "no such class": (hospitals, {"positive": "maybe"}, "positive is 'maybe'.*no, yes"),
    "positive of numbers": (hospitals, {"target": "age", "kind": "least-squares", "positive": 60}, "positive is 60"),
    "least squares of text": (hospitals, {"kind": "least-squares"}, "'ill', a column of text"),
    "an unknown problem": (hospitals, {"kind": "logistics"}, "kind is 'logistics'.*logistic"),
    "test 0": (hospitals, {"test": 0}, "test is 0, but a share"),
    "test 1.5": (hospitals, {"test": 1.5}, "test is 1.5"),
    "test true": (hospitals, {"test": True}, "test is True"),
    "too small a test": (hospitals, {"test": 0.001}, "no user's rows"),
    "test and users": (hospitals, {"test": 0.2, "test_users": ["a"]}, "test is given as well"),
    "no such user": (hospitals, {"test_users": ["z"]}, "test_users is 'z'"),
    "text for users": (hospitals, {"test_users": "a"}, "test_users is 'a', but a list"),
    "everyone held out": (hospitals, {"test_users": list("abcde")}, "every user"),
    "users beside a column": (hospitals, {"users": 3}, "users is 3.*'hospital'"),
    "partition beside a column": (hospitals, {"partition": "iid"}, "partition is 'iid'.*'hospital'"),
    "users that are rows": (lambda: changed(hospital=np.arange(N)), {}, "120 users in 120 rows"),
    "the intercept's name": (lambda: changed(**{"(intercept)": 1.0}), {}, "rename it"),
    "a category's name": (lambda: changed(**{"ward=surgery": 1.0}), {}, "both make a feature 'ward=surgery'"),
    "a category of held-out users alone": (
        lambda: changed(ward=np.where(hospitals().hospital == "a", "attic", "x")),
        {"test_users": ["a"]},
        r"'ward' with 'attic' \(the first in row [0-9]+\).*hold only x there: leave such rows out, or put one of these",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_has_its_sentence(name: str) -> None:
    make, more, words = BAD[name]
    with pytest.raises(InputError, match=words) as caught:
        table(make(), **more)
    assert "\n" not in str(caught.value)


NEW: dict[str, tuple[Any, str]] = {
    "no such column": ([{"age": 1, "wards": "surgery", "smoker": True, "dose": 1}], "without a column 'ward'.*'wards'"),
    "an unseen category": ({"age": 1, "ward": "attic", "smoker": True, "dose": 1}, "'ward' with 'attic'"),
    "a missing value": ({"age": None, "ward": "surgery", "smoker": True, "dose": 1}, "'age' with 1 missing.*--impute"),
    "text": ({"age": "old", "ward": "surgery", "smoker": True, "dose": 1}, "'age' with 'old' in row 1, but numbers"),
    "a decimal comma": (
        [{"age": age, "ward": "surgery", "smoker": True, "dose": 1} for age in ("61.0", "61,5")],
        "'61,5' in row 2",
    ),
    "infinite": ({"age": np.inf, "ward": "surgery", "smoker": True, "dose": 1}, "'age', infinite"),
    "an array": (np.zeros((2, 4)), "column 'ward' holds categories"),
    "an array of another width": (np.zeros((2, 3)), "4 columns are needed"),
    "an array of text": (np.array([["a"]]), "array of type"),
}


@pytest.mark.parametrize("name", NEW)
def test_a_new_row_that_does_not_fit_has_its_sentence(name: str) -> None:
    given, words = NEW[name]
    with pytest.raises(InputError, match=words):
        table().preparation.transform(given)


def test_a_damaged_preparation_is_refused() -> None:
    with pytest.raises(InputError, match="the preparation cannot be read"):
        Preparation.from_dict({"columns": []})


def messy() -> pd.DataFrame:
    return changed(
        id=[f"patient {k}" for k in range(N)], seen="2024-03-01", age=np.where(np.arange(N) % 3, 50.0, np.nan)
    )


def test_all_complaints_come_at_once_with_what_would_pass() -> None:
    """Identifiers first, whatever share is held out."""
    with pytest.raises(InputError, match=r"3 columns cannot be used.*'id'.*'seen'.*'age'.*this passes") as caught:
        from_frame(messy(), "hospital", "ill", test=0.2)
    words = str(caught.value)
    assert "drop=['id', 'seen'] (--drop id,seen)" in words
    assert 'impute="mean" (--impute mean)' in words
    passed = from_frame(messy(), "hospital", "ill", test=0.2, drop=["id", "seen"], impute="mean")
    assert "age" in passed.preparation.features


def test_what_passes_fills_each_column_by_what_it_can_be_filled_with() -> None:
    frame, impute = with_hole("ward"), {"ward": "mean", "dose": "median"}
    frame.loc[3, "age"] = None
    with pytest.raises(InputError, match="2 columns cannot be used") as caught:
        table(frame, impute=impute)
    assert "this passes: impute={" in str(caught.value)
    words = str(caught.value).split("(--impute ")[1].removesuffix(")")
    fills = dict(pair.split("=") for pair in words.split(","))
    assert fills == {"ward": "most_frequent", "dose": "median", "age": "mean"}
    assert table(frame, impute=fills).preparation.columns


def test_a_column_with_a_decimal_comma_is_read_as_advised() -> None:
    """Also where only some of its numbers have one."""
    frame = changed(age=[f"{k % 4}{',' if k % 3 else '.'}5" for k in range(N)])
    with pytest.raises(InputError, match="decimal comma") as caught:
        table(frame)
    advice = str(caught.value).rsplit("by ", 1)[1]
    made = table(frame.assign(age=eval(advice)))
    assert "age" in made.preparation.features


def test_an_unseen_category_may_be_left_empty_where_that_is_imputed() -> None:
    preparation = table(with_hole("ward"), impute="mean").preparation
    rows = pd.DataFrame([{"age": 1.0, "ward": ward, "smoker": True, "dose": 1} for ward in ("surgery", "attic", None)])
    with pytest.raises(InputError, match=r"'attic' \(the first in row 2\).* or their cells empty, which counts as"):
        preparation.transform(rows)
    assert np.isfinite(preparation.transform(rows.replace({"attic": None}))).all()


def test_an_identifier_is_named_before_the_share() -> None:
    with pytest.raises(InputError, match=r"'id' with .* different texts"):
        from_frame(messy().drop(columns=["seen", "age"]), "hospital", "ill", test=0.2)


def test_one_way_to_fill_means_the_most_frequent_for_text() -> None:
    made = from_frame(with_hole("ward"), "hospital", "ill", impute="mean", drop=["id"])
    fills = {feature.name: feature.fill for feature in made.preparation.columns}
    assert fills["ward"] == with_hole("ward")["ward"].mode()[0]
    assert isinstance(fills["age"], float)


@pytest.mark.parametrize("name", ["id", "ID", "patient_id", "patientId", "PatientID", "record uid"])
def test_an_identifier_of_numbers_is_pointed_out(name: str) -> None:
    frame = hospitals().rename(columns={"id": name})
    with pytest.warns(rs.ResolventWarning, match=rf"'{name}' looks like an identifier: drop=\['{name}'\]") as said:
        made = from_frame(frame, "hospital", "ill")
    assert made.hints[0] == str(said[0].message)


@pytest.mark.parametrize("name", ["postcode", "zip", "ZIP code", "home_zip", "plz", "diagnosis_code"])
def test_a_code_of_numbers_is_pointed_out_unless_it_is_categories(name: str) -> None:
    frame = changed(id=np.random.default_rng(0).integers(10_000, 10_005, N)).rename(columns={"id": name})
    with pytest.warns(rs.ResolventWarning, match=rf"'{name}' looks like a code: categories=\['{name}'\]"):
        from_frame(frame, "hospital", "ill")
    assert not any(name in hint for hint in from_frame(frame, "hospital", "ill", categories=[name]).hints)


@pytest.mark.parametrize("start", [0, 1])
def test_numbered_rows_are_identifiers_and_come_first(start: int) -> None:
    frame = changed(id=np.arange(N) + start, postcode=np.arange(N) * 7).rename(columns={"id": "Unnamed: 0"})
    with pytest.warns(rs.ResolventWarning, match=r"'Unnamed: 0'.*an identifier.*'postcode'.*a code"):
        from_frame(frame, "hospital", "ill")


def test_whole_numbers_of_a_few_values_are_listed_and_other_names_are_left_alone() -> None:
    plain = {"paid": 1.5, "covid": 2.5, "encoded": 3.5, "index": 4.5}
    grade, dose, children = np.resize([1, 2, 3, 4], N), np.resize([0.5, 1.0, 1.5], N), np.resize(np.arange(12), N)
    frame = changed(grade=grade, dose=dose, children=children, **plain).drop(columns="id")
    (hint,) = from_frame(frame, "hospital", "ill").hints
    assert "'grade'" in hint
    assert "categories=['grade']" in hint
