"""The page of a table's model: its numbers are scikit-learn's, its names the table's, in a browser and on paper."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix, roc_auc_score

import resolvent as rs
from command_line import resolvent
from resolvent import config as configs
from resolvent.experiment.build import build

from .test_page import browser as browser
from .test_page import playwright
from .test_page import pytestmark as pytestmark

THRESHOLD = 0.3


def cells(page: Any, kind: str) -> list[list[str]]:
    return [row.split("\t") for row in page.locator(f"table.{kind} tbody tr").all_inner_texts()]


def reported(*words: str) -> Any:
    rs.data.hospitals().to_csv("patients.csv", index=False)
    said = resolvent("run", "patients.csv", "--user-column", "hospital", "--rounds", "20", *words)
    assert said.code == 0, said.err
    said = resolvent("report", "--to", "page.html", "--threshold", str(THRESHOLD))
    assert said.code == 0, said.err
    assert Path("page.html").stat().st_size < 1_000_000
    (folder,) = Path("runs").glob("*/about.json")
    return rs.open(folder.parent)


def test_numbers_are_those_of_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run = reported("--target", "ill", "--test", "0.2", "--anderson", "5")
    test = build(configs.read(run.config)).task.test
    assert test is not None
    p = [run.description.predictor.probabilities(run.model, a)[:, 1] for a in test.A]
    truth = [np.asarray(b) == 1 for b in test.b]
    page = browser.new_page()
    page.goto(Path("page.html").resolve().as_uri())
    assert page.locator("h1").inner_text() == "ill from patients.csv"
    shown = cells(page, "quality")
    assert [row[0] for row in shown] == ["all", *test.names]
    pooled = np.concatenate(p), np.concatenate(truth)
    for row, (chance, real) in zip(shown, [pooled, *zip(p, truth, strict=True)], strict=True):
        assert row[1] == str(len(real))
        assert float(row[3]) == pytest.approx(roc_auc_score(real, chance), abs=5.1e-4)  # three digits are shown
    counts = confusion_matrix(pooled[1], pooled[0] >= THRESHOLD)
    assert cells(page, "confusion") == [[name, *map(str, row)] for name, row in zip(("no", "yes"), counts, strict=True)]
    came, said = calibration_curve(pooled[1], pooled[0], n_bins=10)
    for row, true, mean in zip(cells(page, "calibration"), came, said, strict=True):
        assert [float(row[0]), float(row[1])] == pytest.approx([mean, true], abs=5.1e-4)
    named = run.description.preparation.unscale(run.model)
    table = cells(page, "coefficients")
    assert {row[0]: row[1] for row in table} == {k: f"{v:.4g}" for k, v in named.items() if k != "(intercept)"}
    widths = page.locator(".track i").evaluate_all("all => all.map(each => each.getBoundingClientRect().width)")
    assert widths == sorted(widths, reverse=True)
    rows = rs.data.hospitals().groupby("hospital").size()
    assert {row[0] for row in cells(page, "users")} == set(rows.index)
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.body).maxWidth") == "none"
    playwright.expect(page.locator("svg")).to_be_visible()
    page.close()


def test_without_held_out_rows_it_says_what_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    reported("--target", "pressure")
    page = browser.new_page()
    page.goto(Path("page.html").resolve().as_uri())
    assert "add --test 0.2" in page.locator("body").inner_text()
    assert cells(page, "coefficients")
    page.close()
    Path("patients.csv").rename("elsewhere.csv")
    said = resolvent("report", "--to", "page.html")
    assert said.code == 0, said.err
    assert "cannot be read again" in Path("page.html").read_text()
    refused = resolvent("report", "--threshold", "2")
    assert refused.code == 2
    assert "above 0 and below 1" in refused.err
