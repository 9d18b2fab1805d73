"""Imports point one way, and heavy packages are imported where they are used. `import_graph.py` has the floors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from import_graph import (
    FLOORS,
    INSIDE,
    PACKAGE,
    cycles,
    dotted,
    edges,
    imports,
    is_module,
    level,
    module_of,
    modules,
    upward,
)

# These may import nothing of the package but what is listed, whatever the floors say.
ONLY = {"report": {"runs", "iteration", "errors", "installed"}}
# `import resolvent` runs __init__.py, which imports everything up to here: only what lies above may write it.
FACE_ABOVE = "solving"

LIGHT = {"torch", "numpy", PACKAGE}
# Third-party packages that a module may, beyond LIGHT, import at its top.
HEAVY_AT_TOP: dict[str, set[str]] = {
    "cli": {"typer"},
    "sklearn": {"sklearn"},
    "ui.api": {"fastapi"},
    "ui.door": {"uvicorn"},
    "ui.guard": {"starlette"},
    "ui.models": {"pydantic"},
    "ui.server": {"fastapi"},
    "networks.stacked.triton_kernels": {"triton"},
    "networks.stacked.triton_group_norm": {"triton"},
    "networks.stacked.cpu_loops": {"numba"},
}
LOOP = {"randomness", "errors", "iteration"}
"""The loop and all that it imports."""


def wrong_way(source: str, module: str, is_package: bool = False) -> list[str]:
    """What the module imports of the package and should not, one sentence each."""
    top = module.split(".")[0]
    if not top:
        return []  # the public face may import anything
    floor = level(FLOORS, top)
    if floor is None:
        return [f"{PACKAGE}.{top} has no floor: add it to FLOORS in tests/import_graph.py, above all that it imports"]
    found = []
    for imported in imports(source, module, is_package):
        if imported.name.split(".")[0] != PACKAGE:
            continue
        target = module_of(imported.name)
        part = target.split(".")[0]
        where = f"{PACKAGE}.{module}, line {imported.line}: imports {imported.name}"
        if not target:
            if floor <= (level(FLOORS, FACE_ABOVE) or 0):
                found.append(f"{where}, a name of the public face, which imports {top}: import the module instead")
        elif top in ONLY and part != top:
            if part not in ONLY[top]:
                found.append(f"{where}, but {top} may import only {', '.join(sorted(ONLY[top]))}")
        elif why := upward(module, target):
            found.append(f"{where}, but {why}: imports go to lower floors only")
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


@pytest.mark.parametrize("complaints_of", [wrong_way, heavy_at_top])
def test_every_module_imports_what_it_may(complaints_of: Callable[..., list[str]]) -> None:
    """Imports point one way, and heavy packages are imported where they are used."""
    paths = list(modules())
    assert len(paths) > 100, f"hardly a module found under src/{PACKAGE}"
    complaints = [x for path in paths for x in complaints_of(path.read_text(encoding="utf-8"), *dotted(path))]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("iteration.scheme", "from resolvent.local.operators import ExactProx", "local is on floor 4 and iteration on"),
        ("iteration.scheme", "from ..local import operators", "local is on floor"),
        ("iteration.scheme", "from resolvent import local", "local is on floor"),
        ("iteration.scheme", "import resolvent.local.bound as b", "local is on floor"),
        ("iteration.scheme", "from .state import State", "state is on floor 7 and scheme on floor 2 of iteration"),
        ("problems.rows", "from resolvent.problems import sets", "sets is on floor 2 and rows on floor 2 of problems"),
        (
            "local.bound",
            "def f():\n    from resolvent.networks.problem import Neural",
            "networks is on floor 4 and local on",
        ),
        ("networks.stacked.layers", "from .pools import MaxPool", "pools is on floor"),
        ("networks.stacked.layers", "from resolvent.networks.problem import Neural", "problem is on floor"),
        ("problems.simple", "from ..iteration.rounds import State\nfrom ..local import bound", "local is on floor"),
        ("iteration.rounds", "def f():\n    from resolvent.engines import in_process", "line 2: imports resolvent.e"),
        ("iteration.rounds", "if TYPE_CHECKING:\n    from resolvent.engines.debug import Debug", "engines is on"),
        (
            "report.page",
            "from resolvent.solving.run import Run",
            "report may import only errors, installed, iteration, runs",
        ),
        ("theory.explain", "import resolvent as rs", "public face"),
        ("theory.explain", "from resolvent import LeastSquares", "public face"),
        ("novelty", "", "resolvent.novelty has no floor: add it to FLOORS"),
        ("local.novelty", "from resolvent.local import operators", "novelty has no floor: add it to INSIDE"),
    ],
)
def test_a_wrong_import_is_reported(module: str, source: str, complaint: str) -> None:
    assert complaint in "\n".join(wrong_way(source, module))


@pytest.mark.parametrize(
    ("module", "is_package", "source"),
    [
        ("", True, "from resolvent.solving.solve import solve"),
        ("iteration.scheme", False, "from resolvent.iteration import schedules\nfrom resolvent.errors import refuse"),
        ("networks", True, "from .problem import Neural\nfrom . import gradients\nfrom ..errors import refuse"),
        ("problems.simple", False, "from .inputs import as_rows\nfrom ..errors import refuse"),
        ("engines.debug", False, "from resolvent.iteration.state import State\nfrom .in_process import InProcess"),
        ("report.page", False, "from resolvent.runs import load\nfrom .figures import draw"),
        ("experiment.build", False, "import resolvent as rs\nfrom resolvent import LeastSquares"),
        ("iteration.rounds", False, "import torch\nfrom collections.abc import Iterator\nimport resolventish.engines"),
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


def test_no_module_imports_itself_by_a_detour() -> None:
    assert cycles(edges(at_import=True)) == []


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b -> c -> b"]),
    ],
)
def test_a_cycle_is_found(graph: dict[str, set[str]], found: list[str]) -> None:
    assert cycles(graph) == found


def test_every_floor_is_there() -> None:
    """An entry of a floor that no longer exists would hide a mistake."""
    parts = [part for floor in FLOORS for part in floor]
    parts += [f"{package}.{part}" for package, floors in INSIDE.items() for floor in floors for part in floor]
    assert [name for name in parts if not is_module(name)] == []


def test_the_loop_needs_torch_and_numpy_only() -> None:
    """Importing it loads no network code, nothing of torch.fx beyond what torch itself loads, and no other package."""
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import resolvent.iteration.rounds; "
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"scipy", "pandas", "numba", "triton", "rich", "typer", "safetensors", "matplotlib", "plotly"}
    assert "resolvent.iteration.rounds" in loaded
    assert not {name.split(".")[0] for name in loaded} & heavy
    assert not [name for name in loaded if name.startswith(("resolvent.networks", "torch.fx"))]


def test_the_loop_imports_the_ground_floors_alone() -> None:
    graph, reached, waiting = edges(), set(), ["iteration.rounds"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += graph.get(module, ())
    assert {module.split(".")[0] for module in reached} <= LOOP
