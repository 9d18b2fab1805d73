"""A node's personal model, from what the node itself remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from resolvent.engines.flower.memory import latest
from resolvent.engines.flower.node import load_node
from resolvent.errors import InputError
from resolvent.federation.project import Project
from resolvent.iteration.engine import PERSONAL


def _config(project: Project, node: str) -> dict[str, Any]:
    """What the node was last started with."""
    path = project.state / "nodes" / node / "config.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"name": node}
    return found


def personal(project: Project, node: str, to: Path, run: str | None = None) -> tuple[str, int]:
    """Write the latest local answer of a node: the run and the round that it is from.

    .safetensors: of a network its parameters by name, else one vector `model`; .npz: the vector.
    """
    if to.suffix not in (".safetensors", ".npz"):
        raise InputError(f"--to is {to}, but a file that ends in .safetensors or .npz is needed")
    memory = project.state / "nodes" / node / "memory"
    found, t, tensors = latest(memory, run)
    p = tensors[PERSONAL][0].cpu()
    if to.suffix == ".npz":
        import numpy as np

        np.savez(to, model=p.numpy())
        return found, t + 1
    from safetensors.torch import save_file

    problem: Any = load_node(project.path, _config(project, node), memory).problem
    content = {"model": p.clone()}
    if hasattr(problem, "module"):
        made = problem.module(p, {name: tensor for name, tensor in tensors.items() if name != PERSONAL}, 0)
        content = {name: tensor.detach().clone().contiguous() for name, tensor in made.state_dict().items()}
    save_file(content, to)
    return found, t + 1
