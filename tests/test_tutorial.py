"""docs/tutorial.md does what it says: in Python, opened again in a fresh process, and by four commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import resolvent as rs
from command_line import resolvent
from resolvent.data.sites import SiteTable, Terms

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
FIRST, SECOND = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
ALONE, TOGETHER = PAGE.split("## Every hospital on a machine of its own")
COMMANDS, FEDERATED = (re.findall(r"^    (resolvent .*)$", part, flags=re.MULTILINE) for part in (ALONE, TOGETHER))


def test_it_is_short() -> None:
    lines = [line for line in (FIRST + SECOND).splitlines() if line.strip()]
    assert len(lines) < 40
    assert len(COMMANDS) == 4


def test_the_script_then_a_fresh_process(tmp_path: Path) -> None:
    said = []
    for script in (FIRST, SECOND):
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "'yes'" in said[0].splitlines()[-1]
    assert re.findall(r"'(yes|no)'", said[1]) == ["no", "yes"]
    assert {"curves.png", "illness", "illness.onnx"} <= {path.name for path in tmp_path.iterdir()}
    history = rs.open(tmp_path / "illness").history
    assert history["gap"].iloc[-1] < 1e-12
    assert history["test_auc"].iloc[-1] > 0.7


def test_the_commands_reach_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        said = resolvent(*shlex.split(command)[1:])
        assert said.code == 0, said.err
    assert Path("illness.onnx").is_file()
    (folder,) = (path for path in Path("runs").iterdir() if path.is_dir())
    table = rs.data.from_frame(rs.data.hospitals(), user="hospital", target="ill", test=0.2, standardise=True)
    run = rs.solve(table.problem(), "fedpi", rounds=60, anderson=5)
    assert np.allclose(rs.open(folder).model, run.model, rtol=0, atol=1e-6)
    assert "What was solved, and how surely" in Path("illness.html").read_text()


@pytest.mark.slow
def test_the_federation_of_three_hospitals_reaches_the_model_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real Flower, command by command; whatever happens, nothing is left running."""
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    *commands, stop = FEDERATED
    try:
        for command in commands:
            done = subprocess.run(
                [sys.executable, "-m", *shlex.split(command)], capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stderr
    finally:
        subprocess.run([sys.executable, "-m", *shlex.split(stop)], check=True, timeout=100)
    (folder,) = (path for path in Path("trial/runs").iterdir() if path.is_dir())
    run = rs.open(folder)
    assert run.status == "stopped"
    tables = {
        name: SiteTable(pd.read_csv(f"sites/{name}.csv"), Terms("ill", test=0.2)) for name in ("east", "north", "south")
    }
    preparation = run.description.preparation
    assert preparation is not None
    rows = {
        name: (table.features(preparation)[table.training], table.codes(preparation)[table.training])
        for name, table in tables.items()
    }
    pooled = rs.Logistic([x for x, _ in rows.values()], [y for _, y in rows.values()], intercept=True)
    gap, least = pooled.gap(run.model.reshape(1, -1)), pooled.fstar
    assert gap is not None
    assert least is not None
    assert float(gap[0]) < 1e-8 * least
    together = np.concatenate([x for x, _ in rows.values()])
    assert np.allclose(together.mean(0), 0, atol=1e-12)
    assert np.allclose(together.std(0), 1, rtol=1e-12)
    west = pd.read_csv("sites/west.csv")
    assert pd.read_csv("predictions.csv")["prediction"].tolist() == run.predict(west).tolist()
    assert run.user_metrics is not None
    assert list(run.user_metrics.index) == ["east", "north", "south"]
