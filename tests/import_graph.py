"""The package's import graph, floor by floor: what may import what, and what does.

    make graph

The source is parsed, never imported: imports inside functions and under TYPE_CHECKING are seen too, and a module that
does not even import is still judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "resolvent"
SOURCE = Path(__file__).resolve().parents[1] / "src" / PACKAGE

FLOORS: list[set[str]] = [
    {"errors", "installed", "toml"},
    {"randomness"},
    {"iteration"},
    {"problems"},
    {"data", "local", "networks"},
    {"theory"},
    {"engines"},
    {"solving"},
    {"config", "sklearn"},
    {"runs"},
    {"experiment", "report"},
    {"federation"},
    {"paper"},
    {"ui"},
    {"cli"},
    {"__main__", "face"},
]
"""From the ground up. A module may import from lower floors only, and from its own package."""

INSIDE: dict[str, list[set[str]]] = {
    "iteration": [
        {"registry", "called"},
        {"schedules", "packing", "penalties", "metric_names"},
        {"facts", "part", "scheme", "yardstick", "metric"},
        {
            "engine",
            "averaging",
            "acceleration",
            "participation",
            "metric_prox",
            "metric_choice",
            "table",
            "privacy",
            "accountant",
        },
        {"meeting"},
        {"certificates", "sending", "tuning", "anderson", "robust", "server", "private_mean"},
        {"compression", "parts"},
        {"state"},
        {"round", "asking", "checkpoint"},
        {"rounds"},
    ],
    "problems": [
        {"problem", "products", "room", "labels", "compensated", "one_thread"},
        {"inputs", "newton", "sparse_rows"},
        {"rows", "sets", "callables"},
        {"row_weights"},
        {"reference", "penalty_words", "linear_sets"},
        {"pinball", "quadratic", "over_rows"},
        {"linear"},
        {
            "least_squares",
            "logistic",
            "softmax",
            "quantile",
            "simple",
            "indicators",
            "custom",
        },
        {"generate", "verify"},
    ],
    "problems.quadratic": [{"affine", "jacobi"}, {"decomposition", "pooled"}],
    "problems.linear": [{"loss", "predictor"}, {"curved"}, {"model"}, {"losses"}],
    "problems.newton": [
        {"inverses", "safeguard"},
        {"equation"},
        {"prox", "krylov"},
        {"matrix_free"},
    ],
    "problems.reference": [
        {"objective"},
        {"terms", "door"},
        {"curvature", "barrier", "faces", "gaps", "wide"},
        {"smooth", "bound", "ball"},
        {"pooled_rows"},
    ],
    "problems.pinball": [{"prox"}, {"minimum"}],
    "local": [
        {"bound", "descent", "law"},
        {"newton", "training"},
        {"operators"},
        {"choice", "metric_bound", "normalised", "tilted"},
    ],
    "networks": [
        {"layout", "packed_inputs", "models", "cuda_graphs", "mean_losses", "dropout", "adapters", "precision"},
        {"row_readers"},
        {"calling", "userdata", "rebuilding"},
        {"plain", "streamed"},
        {"stacked", "plain_autograd", "vectorised"},
        {"user_inputs", "gradients", "one_pass", "verify", "compiled"},
        {"method_choice", "fitting"},
        {"evaluation"},
        {"problem"},
        {"joined_users"},
    ],
    "networks.stacked": [
        {"jobs", "cpu_loops", "triton_kernels", "triton_group_norm", "cuda"},
        {"workspace"},
        {"layers"},
        {"pointwise", "pools", "group_norm"},
        {"convolution", "losses"},
        {"forms", "net"},
        {"trace", "head", "parameters", "fused"},
        {"program"},
        {"method"},
    ],
    "config": [{"problem_sections"}, {"sections"}],
    "sklearn": [{"users"}, {"correction"}, {"fitting"}, {"estimators"}],
    "theory": [{"closed_forms", "trends"}, {"setting"}, {"target", "convergence"}, {"explain"}],
    "engines": [
        {"delayed", "rendezvous", "interrupts", "private"},
        {"in_process", "process_group"},
        {"joining"},
        {"debug", "joint", "flower", "rank"},
        {"all_reduce"},
    ],
    "engines.flower": [
        {"packets", "rule", "memory", "plausibility"},
        {"messages", "grid", "masking"},
        {"summands"},
        {"checks", "node"},
        {"asking"},
        {"claims", "evaluation", "forward"},
        {"facts"},
        {"engine"},
        {"secure"},
    ],
    "federation": [
        {"settings", "superlink", "superexec", "supernode", "guard"},
        {"project", "processes"},
        {"keys", "bundle", "template", "site"},
        {"control", "agreeing"},
        {"deployment"},
        {"nodes", "worker", "recording"},
        {"up", "server_app", "export"},
        {"running"},
        {"doctor", "demo"},
    ],
    "solving": [
        {"objective", "stopping", "metrics", "progress", "description"},
        {"network_outputs", "divergence", "beginning", "checking"},
        {"evaluating", "predicting", "recording", "private"},
        {"run", "history"},
        {"steps"},
        {"prepare"},
        {"solve"},
        {"seeds"},
        {"comparing"},
    ],
    "ui": [
        {"guard", "store", "curves", "form", "examples", "downloads"},
        {"explorer", "jobs", "users", "panels", "door"},
        {"recipes", "stream", "models"},
        {"api"},
        {"server"},
    ],
}
"""The floors inside a package: the same rule holds between them. Packages without an entry must have no cycle."""


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


@cache  # several tests read the whole package
def imports(source: str, module: str, is_package: bool = False) -> list[Import]:
    """Every import of the source; `from a import b` counts as `a.b`, since b may be a module."""
    here = [PACKAGE, *filter(None, module.split("."))]
    found: list[Import] = []
    for node, at_import in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            up = here[: len(here) - node.level + is_package] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        found += (Import(name, node.lineno, at_import) for name in names)
    return found


def is_module(name: str) -> bool:
    """Whether this dotted name inside the package is a module or a package."""
    path = SOURCE / name.replace(".", "/")
    return bool(name) and (path.is_dir() or path.with_suffix(".py").is_file())


def module_of(name: str) -> str:
    """The module inside the package that an imported name belongs to; "" for a name of the public face."""
    inner = name.removeprefix(PACKAGE).lstrip(".")
    while inner and not is_module(inner):
        inner = inner.rpartition(".")[0]
    return inner


def level(floors: list[set[str]], part: str) -> int | None:
    return next((k for k, floor in enumerate(floors) if part in floor), None)


def upward(module: str, target: str) -> str | None:
    """Why one module of the package must not import another, or None where it may."""
    package, here, there = "", module.split("."), target.split(".")
    while here and there and here[0] == there[0]:
        package = f"{package}.{here[0]}".lstrip(".")
        here, there = here[1:], there[1:]
    floors = FLOORS if not package else INSIDE.get(package)
    if floors is None or not here or not there:  # a package's __init__ stands above its modules
        return None
    mine, other = level(floors, here[0]), level(floors, there[0])
    for part, found in ((here[0], mine), (there[0], other)):
        if found is None:
            where = f'INSIDE["{package}"]' if package else "FLOORS"
            return f"{part} has no floor: add it to {where} in tests/import_graph.py, above all that it imports"
    assert mine is not None
    assert other is not None
    if other < mine:
        return None
    return f"{there[0]} is on floor {other} and {here[0]} on floor {mine} of {package or PACKAGE}"


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, by any number of steps; a package's __init__ is left out."""
    found: list[str] = []
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        if module in trail:
            found.append(" -> ".join((*trail[trail.index(module) :], module)))
        elif module not in done:
            for target in sorted(graph.get(module, ())):
                if not (SOURCE / target.replace(".", "/")).is_dir():
                    visit(target, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())
    return found


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def edges(at_import: bool = False) -> dict[str, set[str]]:
    """Which module imports which, inside the package; with `at_import`, only what runs when a module is imported."""
    graph: dict[str, set[str]] = {}
    for path in modules():
        module, is_package = dotted(path)
        found = imports(path.read_text(encoding="utf-8"), module, is_package)
        own = (i for i in found if i.name.split(".")[0] == PACKAGE and (i.at_import or not at_import))
        graph[module] = {module_of(i.name) for i in own} - {module}
    return graph


def walk() -> Iterator[str]:
    """The floors from the top down, and which floors each of them imports from."""
    graph = edges()
    for k in reversed(range(len(FLOORS))):
        for part in sorted(FLOORS[k]):
            inside = [m for m in graph if m.split(".")[0] == part]
            below = {t.split(".")[0] for m in inside for t in graph[m] if t} - {part}
            order = sorted(below, key=lambda p: (-(level(FLOORS, p) or 0), p))
            yield f"{k:3}  {part:12} {len(inside):3} modules  -> {', '.join(order) or 'nothing'}"
            yield from _inside(part)


def _inside(package: str) -> Iterator[str]:
    """The floors inside a package that has several, from the top down."""
    for k in reversed(range(len(INSIDE.get(package, [])))):
        yield f"         {k:3}  {', '.join(sorted(INSIDE[package][k]))}"


if __name__ == "__main__":
    print("\n".join(walk()))
    wrong = [f"{m} -> {t}: {why}" for m, found in edges().items() for t in found if m and t and (why := upward(m, t))]
    print("\n".join(wrong + cycles(edges(at_import=True))) or "no edge upwards, no cycle")
