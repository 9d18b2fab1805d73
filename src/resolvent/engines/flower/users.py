"""A node from its folder: `user.py` there says what the user's problem is."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from resolvent.engines.flower.node import Node
from resolvent.errors import InputError

FILE = "user.py"
MEMORY = "memory"


def load_node(folder: Path, config: Mapping[str, Any], memory: Path | None = None) -> Node:
    """The node that `problem(config)`, and `metrics(model, config)` where there is one, of `user.py` make."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {FILE}; `resolvent federate init` makes a folder with one")
    given = dict(config)
    sys.path.insert(0, str(folder))  # what lies beside the file can be imported
    made = runpy.run_path(str(path), run_name="user")
    problem, metrics = made.get("problem"), made.get("metrics")
    if not callable(problem):
        raise InputError(f"{path} has no function problem(node_config)")
    told = partial(_metrics, metrics, given) if callable(metrics) else None
    return Node(problem(given), folder / MEMORY if memory is None else memory, told)


def _metrics(metrics: Any, config: dict[str, Any], model: Any) -> dict[str, float]:
    found: dict[str, float] = metrics(model, config)
    return found
