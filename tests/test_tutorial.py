"""docs/tutorial.md does what it says: in Python, opened again in a fresh process, and by four commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import resolvent as rs
from command_line import resolvent

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
FIRST, SECOND = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = re.findall(r"^    (resolvent .*)$", PAGE, flags=re.MULTILINE)


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
    exported = json.loads(Path("illness.json").read_text())
    table = rs.data.from_frame(rs.data.hospitals(), user="hospital", target="ill", test=0.2, standardise=True)
    run = rs.solve(table.problem(), "fedpi", rounds=60, anderson=5)
    assert np.allclose(exported["model"], run.model.tolist(), rtol=0, atol=1e-6)
    assert "<section>" in Path("curves.html").read_text()
