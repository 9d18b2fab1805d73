"""docs/architecture.md names what is there: the floors of the picture, and every function on a vector's journey."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from import_graph import FLOORS, SOURCE, is_module, level, modules

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
JOURNEY = PAGE.split("## A vector's journey")[1].split("\n## ")[0]


@cache
def defined() -> set[str]:
    """Every module, function, class, method and field of the package, by its own name and with its class or module."""
    found: set[str] = set()
    for path in modules():
        stem = path.stem if path.stem != "__init__" else path.parent.name
        found |= {stem, ".".join(path.relative_to(SOURCE).with_suffix("").parts)}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                full = ".".join([*path.relative_to(SOURCE).with_suffix("").parts, node.name])
                found |= {node.name, f"{stem}.{node.name}", full, f"{path.parent.name}.{node.name}"}
            if isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        found |= {f"{node.name}.{part.name}", part.name}
    return found


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Za-z_.]+)`", JOURNEY))))
def test_the_journey_passes_through_what_exists(name: str) -> None:
    short = name.removeprefix("engine.").removeprefix("scheme.")
    assert {name, short} & defined(), f"{name} is not defined in the package"


def test_the_picture_has_every_floor_and_no_arrow_upwards() -> None:
    picture = PAGE.split("```mermaid")[1].split("```")[0]
    arrows = re.findall(r"(\w+)(?:\[[^\]]*\])? --> (\w+)", picture)
    parts = {part for arrow in arrows for part in arrow} - {"ground"}
    assert parts == {part for floor in FLOORS for part in floor} - {"errors", "installed", "randomness", "__main__"}
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
