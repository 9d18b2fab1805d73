"""Links, files and commands that the pages name exist, and the site can be built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import resolvent as rs
from resolvent.iteration import registry

ROOT = Path(__file__).parents[1]
PAGES = {str(p.relative_to(ROOT)): p for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))

SETS = {"AffineSet", "Ball", "Box", "HalfSquares", "Halfspace", "ObtuseCone", "Orthant"}
"""Convex sets and toys: the reference shows them as members of their modules."""

every_page = pytest.mark.parametrize("name", sorted(PAGES))


def read(name: str) -> str:
    return PAGES[name].read_text(encoding="utf-8")


def test_there_is_something_to_check() -> None:
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "docs/guide.md",
        "docs/problems.md",
        "docs/schemes.md",
        "docs/participation.md",
    } <= PAGES.keys()
    assert {"setup", "check", "test", "coverage"} <= TARGETS


@every_page
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", read(name))
    broken = [link for link in links if "://" not in link and not (PAGES[name].parent / link).exists()]
    assert broken == []


@every_page
def test_make_knows_its_targets(name: str) -> None:
    named = re.findall(r"(?:`|^ +)make ([a-z]+)", read(name), flags=re.MULTILINE)
    assert set(named) <= TARGETS


def test_paths_for_contributors_exist() -> None:
    named = re.findall(r"`((?:src|tests|docs|bench|\.ci)/[\w./-]*)`", read("CONTRIBUTING.md"))
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_public_name_is_in_the_reference() -> None:
    shown = re.findall(r"^::: resolvent\.(\S+)", read("docs/api.md"), flags=re.MULTILINE)
    named = {entry.rpartition(".")[2] for entry in shown}
    covered = {"TABLE", *rs.TABLE, "plus_minus", "models"}  # the table's module lists its constructors
    warnings = {name for name in rs.__all__ if isinstance(x := getattr(rs, name), type) and issubclass(x, Exception)}
    assert set(rs.__all__) - named - covered - warnings - SETS == set()


def test_the_site_is_built(tmp_path: Path) -> None:
    """Strictly: a link that leads nowhere fails; and nothing is loaded from elsewhere."""
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    reference = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert 'id="resolvent.solve"' in reference
    commands = (tmp_path / "site" / "cli.html").read_text(encoding="utf-8")
    for kind in registry.KINDS:
        for part in registry.configurable(kind).values():
            if part.make.__module__.startswith("resolvent."):  # tests register parts, too
                assert f"<td><code>{part.name}</code></td>" in commands, part.name
    pages = {page.name: page.read_text(encoding="utf-8") for page in (tmp_path / "site").glob("*.html")}
    loaded = r"""<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="(?:https?:)?//[^"]+"""
    assert not [found for page in pages.values() for found in re.findall(loaded, page)]
    assert [name for name, page in pages.items() if re.search(r"<\w+, ", page)] == []  # <a, b> would be a tag
