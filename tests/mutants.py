"""`make mutants`: small mistakes in the modules that keep others out, one at a time. Do the tests nearby notice?

    python -m mutants                         # a sample of 40 mistakes, for at most 20 minutes
    python -m mutants lock keys               # in modules whose path contains one of these words
    python -m mutants --many 200 --minutes 90 --seed 7

A mistake is made in a copy of the tree, never here. Survivors are listed with their line: each is either a test that is
missing or a change that changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NEARBY = (
    ("engines/flower",
     ("asking", "checks", "claims", "facts", "forward", "grid", "memory", "messages", "packets", "plausibility",
      "rule"),
     ("engines/test_flower_claims.py", "engines/test_flower_trust.py", "engines/test_plausibility.py",
      "engines/test_careful_grid.py", "engines/test_flower_crossing.py", "engines/test_flower.py")),
    ("engines/flower", ("masking", "secure", "summands"), ("engines/test_secure.py",)),
    ("engines", ("process_group", "rendezvous"), ("engines/test_rendezvous.py",)),
    ("federation", ("doctor", "guard", "keys", "recording", "superexec", "superlink", "supernode", "worker"),
     ("federation/test_doors.py", "federation/test_server.py", "federation/test_processes.py",
      "federation/test_deployment.py")),
    ("ui", ("door", "guard"), ("ui/test_guard.py", "ui/test_door.py", "ui/test_api.py")),
    ("runs", ("lock", "regular", "sums", "trust"),
     ("runs/test_trust.py", "runs/test_damage.py", "runs/test_sharing.py")),
)  # fmt: skip
"""Folders of the package, modules there, and the tests that must notice, the quickest first."""
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ONLY_TEXT = {"refuse", "_row", "print"}
"""Functions whose strings are read by people: another wording is no mistake."""


class Mutant(NamedTuple):
    path: Path
    """Below the root of the tree."""
    line: int
    before: str
    after: str
    source: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mistake that is made in a module."""
    source = (ROOT / path).read_text()
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, others in _sites(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        content = source.encode()
        for after in others:
            new = content[:begin] + after.encode() + content[end:]
            yield Mutant(path, node.lineno, content[begin:end].decode(), after, new.decode())


def _sites(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, list[str]]]:
    """Nodes, and what each is replaced with."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.expr, ast.stmt)) and (others := _others(node)):
            yield node, others
        if isinstance(node, (ast.Raise, ast.JoinedStr)) or _is_only_text(node):
            continue
        if isinstance(node, ast.AnnAssign):  # its annotation is not run
            yield from () if node.value is None else _sites(ast.Expression(node.value))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None]
            yield from _sites(ast.Tuple(defaults, ast.Load()))
            yield from _sites(ast.Module(node.body, []))
        else:
            yield from _sites(node)


def _is_only_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ONLY_TEXT


def _others(node: ast.expr | ast.stmt) -> list[str]:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in COMPARED:
            return [f"({ast.unparse(ast.Compare(left, [COMPARED[type(op)]()], [right]))})"]
        case ast.BoolOp(_, [_, _, *_] as values):
            rests = [values[:k] + values[k + 1 :] for k in range(len(values))]
            return [f"({ast.unparse(ast.BoolOp(node.op, rest) if rest[1:] else rest[0])})" for rest in rests]
        case ast.UnaryOp(ast.Not(), operand):
            return [f"({ast.unparse(operand)})"]
        case ast.Constant(bool(value)):
            return [str(not value)]
        case ast.Constant(int(value) | float(value)):
            return [repr(value + 1) if isinstance(value, int) else repr(2 * value or 1.0)]
        case ast.Constant(str(value)) if value:
            return ['""']
        case ast.Raise():
            return ["pass"]
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            return ["return None"]
        case ast.Expr(ast.Call() | ast.Await()):
            return ["pass"]
    return []


def outcome(tree: Path, tests: tuple[str, ...], limit: float) -> str:
    """How the tests end in a copy of the tree: passed, failed or hung."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    given = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree / 'tests'}", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, *(str(tree / "tests" / test) for test in tests)], cwd=tree, env=given, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            return "failed" if process.wait(limit) else "passed"
        except subprocess.TimeoutExpired:
            return "hung"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def drawn(words: list[str], many: int, seed: int) -> list[tuple[Mutant, tuple[str, ...]]]:
    """A sample of all mistakes with the tests that must notice them: as many of each module, as far as there are."""
    rng, piles = random.Random(seed), []
    for folder, modules, tests in NEARBY:
        for module in modules:
            path = Path("src/resolvent") / folder / f"{module}.py"
            if not words or any(word in str(path) for word in words):
                pile = [(mutant, tests) for mutant in mutants(path)]
                piles.append(rng.sample(pile, len(pile)))
    in_turn = [mutant for each in itertools.zip_longest(*piles) for mutant in each if mutant is not None]
    return in_turn[:many]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only modules whose path contains one of these")
    parser.add_argument("--many", type=int, default=40, help="mistakes, at most")
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no further one after so long")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn")
    given = parser.parse_args()
    began, ends, limits = time.monotonic(), dict.fromkeys(("failed", "hung", "passed"), 0), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        for name in ("src", "tests", "examples", "docs", "bench"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        for mutant, tests in drawn(given.words, given.many, given.seed):
            if time.monotonic() - began > 60 * given.minutes:
                break
            if tests[0] not in limits:
                since = time.monotonic()
                if outcome(tree, tests, 1800.0) != "passed":
                    sys.exit(f"{', '.join(tests)}: they fail without any mistake; mend that first")
                limits[tests[0]] = 30 + 3 * (time.monotonic() - since)
            ends[_tried(mutant, tree, tests, limits[tests[0]])] += 1
    print(f"{sum(ends.values())} mutants: {ends['failed'] + ends['hung']} noticed, {ends['passed']} survived")


def _tried(mutant: Mutant, tree: Path, tests: tuple[str, ...], limit: float) -> str:
    """Make the mistake, see what the tests say, and take it back; a survivor is printed."""
    path = tree / mutant.path
    whole = path.read_text()
    try:
        _write(path, mutant.source)
        end = outcome(tree, tests, limit)
    finally:
        _write(path, whole)
    if end == "passed":
        before, after = (" ".join(text.split())[:80] for text in (mutant.before, mutant.after))
        print(f"survived  {mutant.path}:{mutant.line}  {before}  ->  {after}", flush=True)
    return end


def _write(path: Path, source: str) -> None:
    """Without what was compiled of it: that is told by its time and size, and both may be the same."""
    path.write_text(source)
    Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
