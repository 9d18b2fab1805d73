"""Imports point one way, and heavy packages are imported where they are used.

The source is parsed, never imported: imports inside functions and under TYPE_CHECKING are seen too, and a module that
does not even import is still judged.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "resolvent"
SOURCE = Path(__file__).resolve().parents[1] / "src" / PACKAGE

# A module may import from lower layers only; the parts of a subpackage may import each other.
LAYERS = {
    "errors": 0,
    "installed": 0,
    "randomness": 1,
    "schedules": 1,
    "config": 1,
    "problems": 2,
    "data": 2,
    "models": 2,
    "scheme": 2,
    "participation": 2,
    "trends": 2,
    "averaging": 2,
    "yardstick": 2,
    "descent": 2,
    "anderson": 3,
    "bound": 3,
    "theory": 3,
    "local": 4,
    "signs": 4,
    "tuning": 4,
    "setting": 5,
    "convergence": 6,
    "target": 6,
    "explain": 7,
    "state": 5,
    "rounds": 6,
    "checkpoint": 7,
    "engines": 7,
    "history": 7,
    "monitor": 7,
    "progress": 7,
    "run": 8,
    "watch": 8,
    "runs": 9,
    "solve": 10,
    "experiment": 11,
    "report": 11,
    "paper": 12,
    "cli": 13,
    "__main__": 14,
}
# (importer, imported) within one layer, each with its reason.
ALLOWED_PAIRS: set[tuple[str, str]] = set()
# These may import nothing of the package but what is listed, whatever the layers say.
ONLY = {"report": {"runs", "errors", "installed"}}
# `import resolvent` runs __init__.py, which imports everything up to here: only what lies above may write it.
FACE_ABOVE = "solve"

LIGHT = {"torch", "numpy", PACKAGE}
# Third-party packages that a module may, beyond LIGHT, import at its top.
HEAVY_AT_TOP: dict[str, set[str]] = {
    "cli": {"typer"},
    "problems.neural.kernels": {"triton"},
    "problems.neural.loops": {"numba"},
}


@dataclass(frozen=True)
class Import:
    name: str  # the full dotted name, relative imports resolved
    line: int
    at_import: bool  # runs when the module is imported: in no function, and not for the type checker alone


def dotted(path: Path) -> tuple[str, bool]:
    """The module's name inside the package ("" for the package itself), and whether it is an __init__."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return (".".join(parts[:-1]), True) if parts[-1] == "__init__" else (".".join(parts), False)


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def statements(node: ast.AST, at_import: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for field, value in ast.iter_fields(node):
        quiet = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and field == "body" and is_type_checking(node.test)
        )
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield child, at_import and not quiet
            elif isinstance(child, ast.AST):
                yield from statements(child, at_import and not quiet)


def imports(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Every import of the source; `from a import b` counts as `a.b`, since b may be a module."""
    here = [PACKAGE, *filter(None, module.split("."))]
    for node, at_import in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            up = here[: len(here) - node.level + is_package] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        yield from (Import(name, node.lineno, at_import) for name in names)


def exists(name: str) -> bool:
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()


def unknown(name: str) -> str:
    return f"{PACKAGE}.{name} has no layer: add it to LAYERS in tests/test_imports.py, above all that it imports"


def wrong_way(source: str, module: str, is_package: bool = False) -> list[str]:
    """What the module imports of the package and should not, one sentence each."""
    top = module.split(".")[0]
    if not top:
        return []  # the public face may import anything
    if top not in LAYERS:
        return [unknown(top)]
    found = []
    for imported in imports(source, module, is_package):
        root, *rest = imported.name.split(".")
        if root != PACKAGE:
            continue
        target = rest[0] if rest else ""
        where = f"{PACKAGE}.{module}, line {imported.line}: imports {imported.name}"
        if target == top:
            continue
        if top in ONLY:
            if target not in ONLY[top]:
                found.append(f"{where}, but {top} may import only {', '.join(sorted(ONLY[top]))}")
        elif target in LAYERS:
            if LAYERS[target] >= LAYERS[top] and (top, target) not in ALLOWED_PAIRS:
                layers = f"{target} is in layer {LAYERS[target]} and {top} in layer {LAYERS[top]}"
                found.append(f"{where}, but {layers}: imports go to lower layers only")
        elif target and exists(target):
            found.append(f"{where}, but {unknown(target)}")
        elif LAYERS[top] <= LAYERS[FACE_ABOVE]:
            found.append(f"{where}, a name of the public face, which imports {top} itself: import the module instead")
    return found


def heavy_at_top(source: str, module: str, is_package: bool = False) -> list[str]:
    """What the module imports at its top that a machine with nothing but torch and numpy lacks."""
    light = LIGHT | sys.stdlib_module_names | HEAVY_AT_TOP.get(module, HEAVY_AT_TOP.get(module.split(".")[0], set()))
    return [
        f"{f'{PACKAGE}.{module}'.rstrip('.')}, line {imported.line}: imports {imported.name} at its top, "
        "but only torch, numpy and the standard library may stand there: import it in the function that uses it"
        for imported in imports(source, module, is_package)
        if imported.at_import and imported.name.split(".")[0] not in light
    ]


MODULES = [pytest.param(path, id=str(path.relative_to(SOURCE))) for path in sorted(SOURCE.rglob("*.py"))]


def test_there_is_something_to_check() -> None:
    assert MODULES, f"no module found under src/{PACKAGE}"


@pytest.mark.parametrize("path", MODULES)
def test_imports_point_one_way(path: Path) -> None:
    complaints = wrong_way(path.read_text(encoding="utf-8"), *dotted(path))
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("path", MODULES)
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    complaints = heavy_at_top(path.read_text(encoding="utf-8"), *dotted(path))
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("scheme", "from resolvent.local import ExactProx", "local is in layer 4 and scheme in layer 2"),
        ("scheme", "from .local import ExactProx", "local is in layer"),
        ("scheme", "from . import local", "local is in layer"),
        ("scheme", "from resolvent import local", "local is in layer"),
        ("scheme", "import resolvent.local as loc", "local is in layer"),
        ("scheme", "from resolvent.participation import Bernoulli", "participation is in layer 2"),
        ("problems.simple", "from ..rounds import State", "rounds is in layer"),
        ("rounds", "def f():\n    from resolvent.engines import inprocess", "line 2: imports resolvent.engines"),
        ("rounds", "if TYPE_CHECKING:\n    from resolvent.engines.debug import Debug", "engines is in layer"),
        ("report.page", "from resolvent.solve import Run", "report may import only errors, installed, runs"),
        ("theory", "import resolvent as rs", "public face"),
        ("theory", "from resolvent import LeastSquares", "public face"),
        ("novelty", "", "resolvent.novelty has no layer: add it to LAYERS"),
    ],
)
def test_a_wrong_import_is_reported(module: str, source: str, complaint: str) -> None:
    assert complaint in "\n".join(wrong_way(source, module))


@pytest.mark.parametrize(
    ("module", "is_package", "source"),
    [
        ("", True, "from resolvent.solve import solve"),
        ("scheme", False, "from resolvent import schedules\nfrom resolvent.errors import refuse"),
        ("problems", True, "from .simple import Box\nfrom . import logistic\nfrom ..errors import refuse"),
        ("problems.simple", False, "from .logistic import Logistic\nfrom ..errors import refuse"),
        (
            "engines.debug",
            False,
            "from resolvent.rounds import State\nfrom resolvent.engines.inprocess import InProcess",
        ),
        ("report.page", False, "from resolvent.runs import load\nfrom .figures import draw"),
        ("experiment", False, "import resolvent as rs\nfrom resolvent import LeastSquares"),
        ("rounds", False, "import torch\nfrom collections.abc import Iterator\nimport resolventish.engines"),
    ],
)
def test_a_right_import_is_not_reported(module: str, is_package: bool, source: str) -> None:
    assert wrong_way(source, module, is_package) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pandas as pd",
        "from scipy.linalg import cho_factor",
        "try:\n    import rich\nexcept ImportError:\n    rich = None",
        "class Run:\n    import safetensors.torch",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import matplotlib.pyplot as plt",
    ],
)
def test_a_heavy_import_at_the_top_is_reported(source: str) -> None:
    assert len(heavy_at_top(source, "rounds")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import math\nimport numpy as np\nimport torch.nn.functional as F\nfrom .errors import refuse",
        "def history():\n    import pandas as pd",
        "class Run:\n    def history(self):\n        if self:\n            import pandas as pd",
        "if typing.TYPE_CHECKING:\n    import pandas as pd",
    ],
)
def test_a_heavy_import_elsewhere_is_not_reported(source: str) -> None:
    assert heavy_at_top(source, "rounds") == []
