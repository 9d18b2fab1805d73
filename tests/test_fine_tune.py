"""docs/fine-tune.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PAGE = (Path(__file__).parents[1] / "docs" / "fine-tune.md").read_text(encoding="utf-8")
SCRIPT = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
FEWER = SCRIPT.replace("range(100)", "range(10)").replace("rounds=8", "rounds=1")


@pytest.mark.parametrize(
    "script", [FEWER, pytest.param(SCRIPT, marks=pytest.mark.slow)], ids=["fewer steps", "as it is"]
)
def test_the_script(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "fine-tune.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    both, alone = lines[-2:]
    assert both.split()[:-2] == ["A", "and", "B", "4096"]
    assert alone.split()[:-2] == ["B", "2304"]
    assert float(both.split()[-1]) > 1e-3
    assert float(alone.split()[-1]) < 1e-5  # of sums over five hospitals in single precision
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 50_000
    if script == SCRIPT:
        assert float(lines[8].split()[-1]) > 0.65  # of the next tokens, three in four can be known
        assert "3,  8, 13, 18, 23" in lines[9]
