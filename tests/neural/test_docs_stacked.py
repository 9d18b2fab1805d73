"""docs/stacked.md: its code runs, and prints what the page says it prints."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "stacked.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STACKED = ROOT / "src" / "resolvent" / "networks" / "stacked"


def test_the_page_prints_what_it_says() -> None:
    namespace: dict[str, Any] = {}
    printed, compared = "", 0
    for kind, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "text":
            assert printed == block
            printed, compared = "", compared + 1
            continue
        assert not printed, f"the page does not show what was printed before {block.splitlines()[0]}"
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(block, str(PAGE), "exec"), namespace)
        printed = out.getvalue()
    assert not printed
    assert compared == 4


def test_the_page_names_every_file_of_the_compiler() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [
        path.name for path in STACKED.glob("*.py") if path.name != "__init__.py" and f"`{path.name}`" not in text
    ]
    assert not missing
