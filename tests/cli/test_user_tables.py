"""`resolvent run FILE`: from a table with a column of users to named coefficients and metrics of test rows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.preprocessing import StandardScaler

import resolvent as rs
from command_line import Said, model, resolvent, rows
from resolvent import data
from resolvent.runs import folders

RUNS = Path("runs")
COLUMNS = ["age", "pressure", "cholesterol", "smoker"]
USUAL = ("--user-column", "hospital", "--target", "ill", "--rounds", 80, "--anderson", 5)


@pytest.fixture(autouse=True)
def table() -> pd.DataFrame:
    frame = data.hospitals().assign(id=lambda f: np.arange(len(f)))
    frame.to_csv("patients.csv", index=False)
    frame.to_parquet("patients.parquet")
    return frame


def ran(*more: object, file: str = "patients.csv") -> Said:
    said = resolvent("run", file, *USUAL, *more, "--format", "json")
    assert said.code == 0, said.err
    return said


def test_it_is_the_regression_of_the_pooled_training_rows(table: pd.DataFrame) -> None:
    """With the default reg, 1 / (users rows_i), in standardised units; its intercept is not regularised."""
    said = ran("--drop", "id,ward", "--test", 0.25, "--seed", 3)
    made = data.from_frame(table, "hospital", "ill", drop=["id", "ward"], test=0.25, seed=3)
    trained, held = np.concatenate(made.division.training), np.concatenate(made.division.held_out)
    x = table[COLUMNS].astype(float)
    scaler = StandardScaler().fit(x.iloc[trained])
    sizes = np.array([len(rows) for rows in made.division.training])
    C = 1 / (1 / (len(sizes) * sizes)).sum()
    pooled = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    pooled.fit(scaler.transform(x.iloc[trained]), table.ill.iloc[trained])
    found = said.json["coefficients"]
    np.testing.assert_allclose([found[name] for name in COLUMNS], pooled.coef_[0] / scaler.scale_, rtol=1e-6)
    shift = pooled.intercept_[0] - (pooled.coef_[0] / scaler.scale_) @ scaler.mean_
    assert found["(intercept)"] == pytest.approx(shift, rel=1e-6)
    p, truth = pooled.predict_proba(scaler.transform(x.iloc[held]))[:, 1], table.ill.iloc[held] == "yes"
    assert said.json["test_accuracy"] == pytest.approx(accuracy_score(truth, p > 0.5), abs=1e-9)
    assert said.json["test_auc"] == pytest.approx(roc_auc_score(truth, p), abs=1e-9)
    assert said.json["test_log_loss"] == pytest.approx(log_loss(truth, p), rel=1e-6)
    (run,) = folders(RUNS)
    assert run.config["problem"]["name"] == "logistic"
    assert run.about["problem"]["partition"]["names"] == list(made.users)


def test_formats_and_files_of_settings_give_the_same_run() -> None:
    asked = (
        "--drop",
        "id",
        "--test-users",
        "north,west",
        "--impute",
        "age=mean,ward=most_frequent",
        "--positive",
        "no",
    )
    ran(*asked)
    (first,) = folders(RUNS)
    ran(*asked, file="patients.parquet")
    resolvent("run", first.path / "config.toml", "--quiet")
    for run in folders(RUNS):
        assert rows(run) == rows(first)
        assert model(run) == model(first)


def test_numbers_make_least_squares_and_are_judged_by_rmse() -> None:
    said = ran("--target", "pressure", "--drop", "id,ill", "--test", 0.2)
    assert said.json["test_rmse"] == pytest.approx(12, abs=1.5)  # the noise that was put in
    assert "test_auc" not in said.json


def test_a_column_that_tells_the_answer_is_pointed_out() -> None:
    rs.data.hospitals().assign(discharged=lambda f: f.ill.map({"yes": "home", "no": "ward"})).to_csv("leak.csv")
    said = resolvent("run", "leak.csv", "--user-column", "hospital", "--target", "ill", "--test", 0.2, "--rounds", 50)
    assert "most of all by 'discharged=ward': is it known before 'ill' is?" in said.err


OWN = """\
import resolvent as rs


def problem():
    return rs.data.from_frame(rs.data.hospitals(), user="hospital", target="ill").problem()
"""


def test_a_person_sees_names_and_is_told_of_a_run_that_is_not_done() -> None:
    said = resolvent("run", "patients.csv", *USUAL, "--drop", "id", "--no-standardise", "--anderson", 0, "--rounds", 5)
    assert said.code == 0
    assert "Coefficients" in said.out
    assert "adds to the log odds of 'yes'" in said.out
    assert "ward=surgery" in said.out
    assert "above its minimum; give more --rounds, --anderson 5 or --standardise\n" in said.err
    said = resolvent("run", "patients.csv", *USUAL, "--drop", "id", "--no-standardise", "--anderson", 2, "--rounds", 5)
    assert "above its minimum; give more --rounds or --standardise\n" in said.err  # not what was given already
    said = resolvent("run", "patients.csv", *USUAL, "--drop", "id", "--standardise", "--anderson", 2, "--rounds", 1)
    assert "above its minimum; give more --rounds\n" in said.err
    Path("mine.py").write_text(OWN)
    said = resolvent("run", "mine.py:problem", "--anderson", 0, "--rounds", 1)
    assert "above its minimum; give more --rounds or --anderson 5\n" in said.err  # its function prepares its rows
    done = resolvent("run", "patients.csv", *USUAL, "--drop", "id")
    assert "above its minimum" not in done.err


def test_an_interrupted_run_has_the_same_test_rows_when_it_is_resumed() -> None:
    ran("--drop", "id", "--test", 0.2)
    (whole,) = folders(RUNS)
    fork = resolvent("run", "patients.csv", *USUAL, "--drop", "id", "--test", 0.2, "--rounds", 30, "--quiet")
    assert fork.code == 0
    half = folders(RUNS)[-1]
    assert resolvent("fork", half.id, "--rounds", 80, "--quiet").code == 0
    on = folders(RUNS)[-1].history()
    assert on["test_auc"].iloc[-1] == whole.history()["test_auc"].iloc[-1]


def test_metrics_by_name_and_each_users_own_on_disk(table: pd.DataFrame) -> None:
    ran("--drop", "id", "--test", 0.2, "--metrics", "auc,log_loss")
    (run,) = folders(RUNS)
    history = run.history()
    assert [name for name in history if str(name).startswith("test_")] == ["test_auc", "test_log_loss"]
    made = data.from_frame(table, "hospital", "ill", drop=["id"], test=0.2, standardise=True)
    whole = rs.solve(made.problem(), "fedpi", rounds=80, anderson=5, test=made.held_out, metrics=["auc", "log_loss"])
    opened = rs.open(run.path)
    assert whole.user_metrics is not None
    assert opened.user_metrics is not None
    assert opened.user_metrics.equals(whole.user_metrics)
    assert list(opened.user_metrics.index) == list(made.users)
    file = run.path / "users.csv"
    file.write_text(file.read_text().replace("north", "south", 1))
    assert run.damage() == ["users.csv was changed since it was written"]
    file.unlink()
    assert run.damage() == ["users.csv is missing"]


def test_users_metrics_are_those_of_the_end_of_a_run_that_was_given_more_rounds() -> None:
    ran("--drop", "id", "--test", 0.2)
    (run,) = folders(RUNS)
    first = rs.open(run.path).user_metrics
    assert resolvent("resume", run.id, "--rounds", 90, "--quiet").code == 0
    ran("--drop", "id", "--test", 0.2, "--rounds", 90, "--metrics", "accuracy,auc,log_loss")
    longer, whole = (rs.open(each.path).user_metrics for each in folders(RUNS))
    assert first is not None
    assert longer is not None
    assert whole is not None
    assert longer.equals(whole)
    assert not longer.equals(first)


def test_a_comparison_of_a_file_is_called_after_it() -> None:
    told = ("--algorithms", "fedpi", "--drop", "id,ward", "--rounds", 3, "--test", 0.2, "--metrics", "auc")
    said = resolvent("compare", "patients.csv", *USUAL, *told, "--quiet")
    assert said.code == 0, said.err
    assert sorted(path.name for path in RUNS.glob("compare*")) == ["compare-patients.html", "compare-patients.png"]
    assert all("test_auc" in run.history() and "test_log_loss" not in run.history() for run in folders(RUNS))


BAD: dict[str, tuple[tuple[object, ...], list[str]]] = {
    "no such file": (("run", "patient.csv"), ["there is no file patient.csv"]),
    "no such column of users": (
        ("run", "patients.csv", "--user-column", "hospitl", "--target", "ill"),
        ["patients.csv: user is 'hospitl'", "nearest: 'hospital'"],
    ),
    "no such target": (("run", "patients.csv", "--user-column", "hospital", "--target", "il"), ["target is 'il'"]),
    "no such column to drop": (("run", "patients.csv", *USUAL, "--drop", "id,war"), ["drop is 'war'", "'ward'"]),
    "users and a column": (("run", "patients.csv", *USUAL, "--users", 3), ["users is 3", "'hospital' says whose"]),
    "partition and a column": (("run", "patients.csv", *USUAL, "--partition", "iid"), ["partition is 'iid'"]),
    "test 2": (("run", "patients.csv", *USUAL, "--test", 2), ["test is 2.0", "between 0 and 1"]),
    "test of text": (("run", "patients.csv", *USUAL, "--test", "some"), ["problem.test is 'some'", "a finite number"]),
    "no such test user": (("run", "patients.csv", *USUAL, "--test-users", "nort"), ["'nort'", "nearest: 'north'"]),
    "test twice": (("run", "patients.csv", *USUAL, "--test", 0.1, "--test-users", "north"), ["one of the two"]),
    "unknown filling": (("run", "patients.csv", *USUAL, "--impute", "zero"), ["impute is 'zero'", "median"]),
    "no such metric": (
        ("run", "patients.csv", *USUAL, "--test", 0.1, "--metrics", "acuracy"),
        ["did you mean accuracy"],
    ),
    "a metric of numbers": (("run", "patients.csv", *USUAL, "--test", 0.1, "--metrics", "rmse"), ["metrics is 'rmse'"]),
    "metrics of nothing": (("run", "patients.csv", *USUAL, "--metrics", "auc"), ["run.metrics is 'auc'", "--test"]),
    "no such class": (("run", "patients.csv", *USUAL, "--positive", "maybe"), ["positive is 'maybe'", "no, yes"]),
    "keys of patients": (
        ("run", "names.csv", "--user-column", "hospital", "--target", "ill"),
        ["names.csv: column is 'name' with 900 different texts in 900 rows", "drop it"],
    ),
    "holes": (
        ("run", "holes.csv", *USUAL),
        ["holes.csv: column is 'age' with 9 missing values (the first in row 1)", "impute it (mean"],
    ),
    "counts of text": (("run", "poisson", "--data", "patients.csv", *USUAL), ["'ill', a column of text"]),
    "poisson without data": (("run", "poisson"), ["'poisson'", "--data"]),
    "a column of users in a file without columns": (
        ("run", "plain.libsvm", "--user-column", "hospital"),
        ["plain.libsvm: user is 'hospital'", "no such column"],
    ),
    "reg of least squares": (
        ("run", "patients.csv", *USUAL, "--target", "age", "--set", "problem.reg=1"),
        ["problem.reg is 1.0", "least squares"],
    ),
    "a switch with a value": (("run", "patients.csv", *USUAL, "--intercept=yes"), ["--intercept"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(name: str, table: pd.DataFrame) -> None:
    table.assign(name=[f"patient {k}" for k in range(900)]).to_csv("names.csv", index=False)
    table.assign(age=table.age.where(table.id % 100 != 0)).to_csv("holes.csv", index=False)
    Path("plain.libsvm").write_text("1 1:2 2:1\n-1 1:1 2:5\n" * 20)
    command, words = BAD[name]
    said = resolvent(*command)
    assert said.code == 2, said
    assert said.err.startswith("resolvent: ")
    assert said.err.count("\n") == 1
    assert not said.out
    for word in words:
        assert word in said.err, (word, said.err)
    assert not RUNS.exists()


@pytest.mark.parametrize("asked", ["balanced", "yes=5,no=0.5", "yes=5"])
def test_rows_count_by_class_and_by_a_column_of_weights(table: pd.DataFrame, asked: str) -> None:
    weight = np.random.default_rng(0).integers(0, 4, len(table)) + 0.5
    table.assign(times=weight).to_csv("weighted.csv", index=False)
    more = ("--drop", "id,ward", "--class-weight", asked, "--set", "problem.reg=0.1", "--stop-gap", 1e-10)
    said = ran(*more, "--sample-weight", "times", file="weighted.csv")
    x = StandardScaler().fit(table[COLUMNS].astype(float))
    by_class: object = asked if asked == "balanced" else {"yes": 5.0, "no": 0.5 if "no" in asked else 1.0}
    C = 1 / (0.1 * table.hospital.nunique())
    pooled = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=1000, class_weight=by_class)
    pooled.fit(x.transform(table[COLUMNS].astype(float)), table.ill, sample_weight=weight)
    found = said.json["coefficients"]
    assert set(found) == {*COLUMNS, "(intercept)"}
    np.testing.assert_allclose([found[name] for name in COLUMNS], pooled.coef_[0] / x.scale_, rtol=1e-4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--class-weight", "even"], "'balanced'"),
        (["--class-weight", "perhaps=2"], "the classes are no, yes"),
        (["--class-weight", "yes=many"], "CLASS=NUMBER"),
        (["--class-weight", "balanced", "--target", "age"], "least-squares takes"),
        (["--sample-weight", "tims"], "there is no such column"),
        (["--sample-weight", "ward"], "finite numbers >= 0"),
        (["--sample-weight", "ill"], "name another one"),
    ],
)
def test_weights_that_a_table_cannot_have_are_refused(more: list[str], words: str) -> None:
    said = resolvent("run", "patients.csv", *USUAL, "--drop", "id", *more)
    assert said.code == 2
    assert words in said.err


def test_columns_that_are_hardly_numbers_are_noted(table: pd.DataFrame) -> None:
    said = ran("--rounds", 2)
    assert "note: 'id' looks like an identifier: drop=['id'] (--drop id)" in said.err
    assert "Warning" not in said.err
    assert "identifier" not in ran("--rounds", 2, "--drop", "id").err


def test_one_line_says_what_a_table_became(table: pd.DataFrame) -> None:
    drop = ("--drop", "id", "--rounds", 2)
    line = "note: logistic of 2 classes, 5 users, 900 training rows\n"
    assert line in ran(*drop).err
    training = len(table) - sum(len(part) for part in data.from_frame(
        table, "hospital", "ill", drop=["id"], test=0.9).division.held_out)  # fmt: skip
    assert f" 5 users, {training} training rows, {len(table) - training} held out\n" in ran(*drop, "--test", 0.9).err
    said = resolvent("run", "patients.csv", "--target", "ward", *drop)
    dealt = "10 users who are dealt rows (iid; --user-column names whose they are)"
    assert f"note: softmax of {table.ward.nunique()} classes, {dealt}, 900 training rows\n" in said.err


def test_the_page_of_a_model_has_what_was_asked_for_and_says_what_moves_probabilities(table: pd.DataFrame) -> None:
    table["age"] = table["age"].astype(float)
    table.loc[3, "age"] = None
    table.to_csv("patients.csv", index=False)
    asked = ("--drop", "id", "--test", 0.2, "--rounds", 20, "--impute", "mean", "--metrics", "f1,brier")
    said = ran(*asked, "--class-weight", "balanced")
    assert resolvent("report", "--to", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    heads, all_rows = (re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", page)[:2])
    shown = dict(zip(heads, all_rows, strict=True))
    assert [float(shown[name]) for name in ("f1", "brier")] == [
        pytest.approx(said.json[f"test_{name}"], abs=5.1e-4) for name in ("f1", "brier")
    ]
    assert "Missing values are filled in: age by " in page
    assert "trained with class weights, balanced" in page


def test_the_usual_reg_is_turned_off_as_the_pages_say(table: pd.DataFrame) -> None:
    off = "--set problem.reg=0"
    docs = Path(__file__).parents[2] / "docs"
    assert all(off in (docs / name).read_text(encoding="utf-8") for name in ("data.md", "tutorial.md"))
    usual = ("--drop", "id", "--rounds", 60, "--anderson", 5)
    made = data.from_frame(table, "hospital", "ill", drop=["id"], standardise=True)
    X, y = np.concatenate(made.A), np.concatenate(made.b)
    best = LogisticRegression(C=np.inf, tol=1e-12, solver="newton-cholesky").fit(X, y)
    named = made.preparation.unscale(np.append(best.coef_, best.intercept_))
    for more, near in ((off.split(), True), ((), False)):
        coefficients = ran(*usual, *more).json["coefficients"]
        assert all(np.isclose(coefficients[name], value, rtol=1e-6) for name, value in named.items()) == near
