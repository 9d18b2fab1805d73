"""docs/architecture.md names what is there: the floors of the picture, and the modules of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from import_graph import FLOORS, is_module, level

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_picture_has_every_floor_and_no_arrow_upwards() -> None:
    picture = PAGE.split("```mermaid")[1].split("```")[0]
    arrows = re.findall(r"(\w+)(?:\[[^\]]*\])? --> (\w+)", picture)
    parts = {part for arrow in arrows for part in arrow} - {"ground"}
    undrawn = {"errors", "installed", "randomness", "toml", "face", "__main__"}
    assert parts == {part for floor in FLOORS for part in floor} - undrawn
    for upper, lower in arrows:
        if lower != "ground":
            assert (level(FLOORS, upper) or 0) > (level(FLOORS, lower) or 0), f"{upper} -> {lower}"


@pytest.mark.parametrize("folder", re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE))
def test_the_table_of_floors_names_modules_that_are_there(folder: str) -> None:
    row = re.search(rf"^\| `{folder}/` \|(.*)\|$", PAGE, re.MULTILINE)
    assert row is not None
    named = re.findall(r"`([a-z_]+)/?`", row.group(1))
    assert named
    inside = [name for name in named if name not in ("nn",) and not is_module(f"{folder}.{name}")]
    assert [name for name in inside if name not in ("solve", "explain", "run")] == []
