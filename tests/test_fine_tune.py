"""docs/fine-tune.md does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

PAGE = (Path(__file__).parents[1] / "docs" / "fine-tune.md").read_text(encoding="utf-8")
SCRIPT = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))


def printed(script: str, folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "adapter" / "adapter_model.safetensors").stat().st_size < 50_000
    return done.stdout.splitlines()


def check_products(lines: list[str]) -> None:
    """The last two lines: A and B were trained, then B alone."""
    both, alone = (float(line.split()[-1]) for line in lines[-2:])
    assert both > 1e-3
    assert alone < 1e-5  # of sums over five hospitals in single precision
    assert [line.split()[-3] for line in lines[-2:]] == ["4096", "2304"]


def test_the_script_in_fewer_steps(tmp_path: Path) -> None:
    assert SCRIPT.count("rounds=8") == 2
    check_products(printed(SCRIPT.replace("range(100)", "range(10)").replace("rounds=8", "rounds=1"), tmp_path))


@pytest.mark.slow
def test_the_script(tmp_path: Path) -> None:
    lines = printed(SCRIPT, tmp_path)
    check_products(lines)
    assert float(lines[8].split()[-1]) > 0.65  # of the next tokens, three in four can be known
    assert "3,  8, 13, 18, 23" in lines[9]
