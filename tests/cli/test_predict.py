"""`resolvent predict`: every stored run predicts new rows, by the names of the table's columns."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import resolvent as rs
from command_line import resolvent


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    frame = rs.data.hospitals()
    frame.to_csv("patients.csv", index=False)
    return frame


def run_of(*words: str) -> rs.Run:
    said = resolvent("run", "patients.csv", "--user-column", "hospital", "--rounds", "8", *words)
    assert said.code == 0, said.err
    (folder,) = Path("runs").glob("*/about.json")
    return rs.open(folder.parent)


def test_labels_and_probabilities_of_a_table_in_another_order(table: pd.DataFrame) -> None:
    run = run_of("--target", "ill")
    new = table.drop(columns=["ill", "hospital"]).iloc[:20]
    new[sorted(new.columns, reverse=True)].to_csv("new.csv", index=False)
    said = resolvent("predict", run.folder.name, "new.csv", "--out", "done/predicted.csv")
    assert said.code == 0, said.err
    made = pd.read_csv("done/predicted.csv")
    assert list(made.columns) == ["row", "prediction", "P(no)", "P(yes)"]
    assert made["prediction"].tolist() == run.predict(new).tolist()
    assert np.allclose(made[["P(no)", "P(yes)"]], run.probabilities(new), rtol=1e-15, atol=0)


def test_the_score_is_said_where_the_file_has_the_answers(table: pd.DataFrame) -> None:
    run = run_of("--target", "ill")
    said = resolvent("predict", "latest", "patients.csv", "--format", "json")
    assert f"accuracy {run.score(table, table['ill']):.4g}" in said.err
    assert '"P(yes)"' in said.out


def test_in_another_folder_the_option_that_exists_is_named(table: pd.DataFrame) -> None:
    said = resolvent("predict", "latest", "patients.csv", "--runs", "elsewhere")
    assert said.code == 2
    assert "name their folder with --out (predict: --runs)" in said.err


def test_numbers_have_no_probabilities(table: pd.DataFrame) -> None:
    run = run_of("--target", "pressure")
    said = resolvent("predict", run.folder.name, "patients.csv", "--out", "p.tsv")
    assert said.code == 0, said.err
    made = pd.read_csv("p.tsv", sep="\t")
    assert list(made.columns) == ["row", "prediction"]
    assert np.allclose(made["prediction"], run.predict(table), rtol=1e-12)


def test_a_run_without_names_takes_columns_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = rs.solve(rs.make_least_squares(users=2, dim=3, rows=9), "fedpi", rounds=5, progress=False)
    run.save("mine")
    X = np.random.default_rng(0).standard_normal((4, 3))
    pd.DataFrame(X, columns=list("abc")).to_csv("new.csv", index=False)
    assert resolvent("predict", "mine", "new.csv", "--out", "p.csv").code == 0
    assert np.allclose(pd.read_csv("p.csv")["prediction"], X @ run.model.numpy(), rtol=1e-12)


def test_a_network_takes_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = torch.randn(30, 4), torch.randint(0, 3, (30,))
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rs.ResolventWarning)
        run = rs.solve(rs.Neural(model, [(x, y)]), rs.fedavg(eta=0.1), rounds=2, progress=False)
    run.save("network")
    np.savez("new.npz", x=x.numpy())
    said = resolvent("predict", "network", "new.npz")
    assert said.code == 2  # a module of one's own is not made from what a folder says
    assert "pass it" in said.err
    monkeypatch.setattr(rs.Run, "module", lambda self: model)  # as those of the package are made again
    assert resolvent("predict", "network", "new.npz", "--out", "p.csv").code == 0
    with torch.no_grad():
        shares = torch.softmax(model(x), 1)
    made = pd.read_csv("p.csv")
    assert made["prediction"].tolist() == shares.argmax(1).tolist()
    assert np.allclose(made[["P(0)", "P(1)", "P(2)"]], shares, atol=1e-6)
    refused = resolvent("predict", "network", "new.csv")
    assert refused.code == 2
    assert ".npz" in refused.err


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["nothing.csv"], "no such file"),
        (["patients.csv", "--out", "p.docx"], ".csv, .tsv, .parquet or .json"),
        (["without.csv"], "without a column 'age'"),
    ],
)
def test_bad_input_is_one_sentence(table: pd.DataFrame, words: list[str], needed: str) -> None:
    run = run_of("--target", "ill")
    table.drop(columns="age").to_csv("without.csv", index=False)
    said = resolvent("predict", run.folder.name, *words)
    assert said.code == 2
    assert needed in said.err
    assert len(said.err.strip().splitlines()) == 1
