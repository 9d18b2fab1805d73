"""docs/guide.md from "While it runs" on, and docs/problems.md: every block in order, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guide.md"
SECTIONS = ("While it runs", "Several runs", "After the run")


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_the_code_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    blocks = [
        block
        for title in SECTIONS
        for block in re.findall(r"```python\n(.*?)```", text.split(f"## {title}\n")[1].split("\n## ")[0], re.DOTALL)
    ]
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        if "reason" in block:
            assert names["run"].reason.startswith("test_log_loss was best in round")
        if "watch" in block:
            assert names["run"].reason == "as the callback said"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compared.png", "curves.png", "model.onnx", "my-run"]
    assert names["longer"].state.round == 50


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_the_code_of_the_problems_runs() -> None:
    page, names = PAGE.with_name("problems.md"), dict[str, Any]()
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert names["run"].history["test_recall"].iloc[-1] > 0.9
