"""docs/glossary.md names files, names and labels that exist, and every label that the source cites."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest

import resolvent as rs

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "resolvent"
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TABLES = {
    title: re.findall(r"^\| (.+) \|$", text, flags=re.MULTILINE)[1:]
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
}
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
CODE = sorted({q for q in QUOTED if re.fullmatch(r"[\w/]+\.py(:[\w.]+)?", q)})
PUBLIC = sorted({q for q in QUOTED if re.fullmatch(r"rs(\.\w+)+", q)})

LABEL = re.compile(r"\b(?:eq|thm|fig|tab|table|alg|sec):[A-Za-z][\w-]*|(?<!:)\bgFL-\d")


def labels(text: str) -> set[str]:
    return {f"eq:{found}" if found.startswith("gFL") else found for found in LABEL.findall(text)}


PAPER = labels("""
sec:bg eq:wFL eq:prox fig:proxprojection eq:FL-prod sec:sp eq:FB eq:ls-appx fig:fixed_pr_stationary sec:fp eq:BB
eq:regFL thm:fp-hom thm:fp fig:eta_effect_fedprox eq:PR eq:DR eq:pi-1 eq:pi-2 eq:pi-3 eq:rg eq:rpp eq:rp thm:rp
fig:comp sec:acc eq:gFL-1 eq:gFL-2 eq:gFL-3 tab:FL fig:extrap sec:con sec:app-setup sec:lslr_exp_setup
sec:mnist_exp_setup table:mnist_model sec:cifar_exp_setup table:cifar-10_model fig:fedrp_eta fig:trade_off fig:cifar10
alg:splitting_usersampling fig:splitting_usersampling alg:splitting_SGD fig:splitting_minibatch fig:extrap_error
sec:app-proof thm:GFP eq:asymreg eq:bb-tmp eq:BB-qfm
""")
"""All labels of the paper's source."""


@cache
def defined(path: Path) -> frozenset[str]:
    """What a module defines: its functions, classes and constants, and the methods and fields of its classes."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")).body))


def _names(body: list[ast.stmt], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                found |= _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return found


def missing(reference: str) -> str | None:
    """What is wrong with a reference such as iteration/rounds.py:rounds, or None."""
    file, _, name = reference.partition(":")
    path = ROOT / file if file.startswith(("src/", "tests/", "bench/")) else SOURCE / file
    if path.is_file() and (not name or name in defined(path)):
        return None
    elsewhere = [str(p.relative_to(SOURCE)) for p in sorted(SOURCE.rglob("*.py")) if name and name in defined(p)]
    return f"{reference}: not there; defined in {', '.join(elsewhere) or 'no module'}"


def test_the_page_was_read() -> None:
    assert {title: len(rows) > 15 for title, rows in TABLES.items()} == {
        "From the paper to the code": True,
        "Symbols": True,
        "Terms": True,
    }
    assert len(CODE) > 50
    assert len(PUBLIC) > 10


def test_every_file_and_name_exists() -> None:
    wrong = [why for reference in CODE if (why := missing(reference))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_exists(name: str) -> None:
    attrgetter(name.removeprefix("rs."))(rs)


def test_every_label_is_one_of_the_paper() -> None:
    """On the page and in the source."""
    assert labels(PAGE.partition("\n## ")[2]) <= PAPER
    for path in sorted(SOURCE.rglob("*.py")):
        assert labels(path.read_text(encoding="utf-8")) <= PAPER, path


def test_every_label_that_is_cited_has_a_row() -> None:
    mapped = {label for row in TABLES["From the paper to the code"] for label in labels(row.split(" | ")[0])}
    assert labels("\n".join(TABLES["Symbols"])) <= mapped
    for path in sorted(SOURCE.rglob("*.py")):
        assert labels(path.read_text(encoding="utf-8")) <= mapped, path


@pytest.mark.parametrize("title", TABLES)
def test_nothing_is_explained_twice(title: str) -> None:
    counts = Counter(row.split(" | ")[0] for row in TABLES[title])
    assert [term for term, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    "reference", ["iteration/nowhere.py", "iteration/rounds.py:turns", "iteration/state.py:State.v", "tests/rounds.py"]
)
def test_what_is_not_there_is_found(reference: str) -> None:
    assert missing(reference) is not None
