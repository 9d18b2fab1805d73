"""Links, files and commands that the pages name exist, and no page uses a word that was replaced."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import resolvent as rs

ROOT = Path(__file__).parents[1]
PAGES = {str(p.relative_to(ROOT)): p for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))

RETIRED = {
    "desk": "workspace",
    "crew": "thread pool",
    "silo": "user data",
    "silos": "user data",
    "pulse": "monitor state",
}
"""Words that had to be learned, and what replaced them."""

every_page = pytest.mark.parametrize("name", sorted(PAGES))


def read(name: str) -> str:
    return PAGES[name].read_text(encoding="utf-8")


def retired(text: str) -> list[str]:
    return [f"{word}: say {RETIRED[word]}" for word in re.findall(r"[a-z]+", text.lower()) if word in RETIRED]


def docstrings() -> Iterator[tuple[str, str]]:
    """Of the public interface: of every name in it, and of the public methods and properties of its classes."""
    for name in rs.__all__:
        thing = getattr(rs, name)
        yield name, inspect.getdoc(thing) or ""
        if inspect.isclass(thing):
            yield from ((f"{name}.{key}", inspect.getdoc(x) or "") for key, x in vars(thing).items() if key[0] != "_")


def test_there_is_something_to_check() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/guide.md"} <= PAGES.keys()
    assert {"setup", "check", "test", "coverage"} <= TARGETS
    assert len(list(docstrings())) > 200


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


@every_page
def test_no_page_uses_a_word_that_was_replaced(name: str) -> None:
    assert retired(read(name)) == []


def test_no_public_docstring_uses_a_word_that_was_replaced() -> None:
    assert [(name, words) for name, text in docstrings() if (words := retired(text))] == []
