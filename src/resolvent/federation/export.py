"""A node's personal model, from what the node itself remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from resolvent.engines.flower.memory import latest
from resolvent.errors import InputError
from resolvent.federation.nodes import CONFIG
from resolvent.federation.project import Project
from resolvent.federation.site import load
from resolvent.iteration.engine import PERSONAL


def personal(project: Project, node: str, to: Path, run: str | None = None) -> tuple[str, int]:
    """Write the latest local answer of a node: the run and the round that it is from.

    .safetensors: of a network its parameters by name, else one vector `model`; .npz: the vector.
    """
    if to.suffix not in (".safetensors", ".npz"):
        raise InputError(f"--to is {to}, but a file that ends in .safetensors or .npz is needed")
    state = project.state / "nodes" / node
    run_id, t, tensors = latest(state / "memory", run)
    p = tensors.pop(PERSONAL)[0].cpu()
    if to.suffix == ".npz":
        import numpy as np

        np.savez(to, model=p.numpy())
        return run_id, t + 1
    from safetensors.torch import save_file

    from resolvent.networks.problem import Neural

    config = state / CONFIG  # what the node was last started with
    given = json.loads(config.read_text()) if config.is_file() else {"name": node}
    problem: Any = getattr(load(project.path, given, state / "memory"), "problem", None)
    content = {"model": p.clone()}
    if isinstance(problem, Neural):
        parameters = problem.module(p, tensors, 0).state_dict()
        content = {name: tensor.detach().clone().contiguous() for name, tensor in parameters.items()}
    save_file(content, to)
    return run_id, t + 1
