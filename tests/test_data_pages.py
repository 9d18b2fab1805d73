"""docs/data.md and docs/sklearn.md, run as a stranger would run them: every block in order, then what they promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import resolvent

DOCS = Path(__file__).resolve().parents[1] / "docs"


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names


def test_a_table_to_a_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("data.md")
    assert names["run"].predict(names["new"]).tolist() == ["yes"]
    assert names["run"].history.gap.iloc[-1] < 1e-15
    assert names["again"] == names["problem"].preparation
    spreads = re.findall(r"\[([\d.]+)\]", capsys.readouterr().out)
    assert len(spreads) == 2
    assert float(spreads[0]) == pytest.approx(float(spreads[1]), rel=1e-7)


def test_estimators_equal_those_on_pooled_rows() -> None:
    names = run("sklearn.md")
    fitted = names["grid"].best_estimator_[-1]
    assert fitted.users_ == ["north", "south", "west"]
    first = names["FederatedLogisticRegression"](C=0.5).fit(names["X"], names["y"], users=names["hospital"])
    np.testing.assert_allclose(first.coef_, names["pooled"].coef_, atol=1e-6)


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    resolvent (.*)$", (DOCS / "data.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 2
    assert resolvent(*commands[0].split()).code == 0
    said = resolvent(*commands[1].split(), "--rounds", 60, "--format", "json")
    assert said.code == 0, said.err
    assert said.json["test_auc"] == pytest.approx(0.786685, abs=1e-5)  # as in Python
    assert said.json["coefficients"]["ward=heart"] == pytest.approx(0.6243876, rel=1e-5)
