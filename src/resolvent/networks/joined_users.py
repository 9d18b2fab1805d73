"""Several problems over one network as one: the users of all of them side by side."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.networks.problem import Neural
from resolvent.networks.userdata import Resident, stacked

COMPARED_ROWS = 2
"""Rows of each user on which the joined problem is compared with its parts."""


def joined(problems: Sequence[Any]) -> Neural | None:
    """A problem whose users are those of all of these, one problem after the other; None where they are not alike.

    Its weights are those of the parts, and do not sum to one: it is for gradients, and has no mean.
    """
    first = problems[0]
    if not all(isinstance(problem, Neural) and _alike(problem, first) for problem in problems):
        return None
    alike = first.gradients.method != "vmap" and all(_padded_alike(problem, first) for problem in problems)
    if not (first.start.is_cuda or alike):
        return None
    whole = copy.copy(first)
    whole.data = stacked(list(chain.from_iterable(problem.data.users for problem in problems)))
    whole.weights = torch.cat([problem.weights for problem in problems])
    try:
        return whole if _agrees(whole, problems) else None
    except (RuntimeError, ValueError):  # by torch: batch norm does not take one row, for example
        return None


def _alike(one: Neural, other: Neural) -> bool:
    """Whether two problems have the same network, loss, device and type, as far as can be seen."""
    same = isinstance(one.data, Resident) and isinstance(other.data, Resident) and one.layout == other.layout
    place = (one.start.device, one.start.dtype) == (other.start.device, other.start.dtype)
    method = one.method == other.method and one.loss == other.loss and repr(one._module) == repr(other._module)
    return same and place and method and _same(_constants(one._module), _constants(other._module))


def _padded_alike(one: Neural, other: Neural) -> bool:
    """Whether each user's rows are padded as far beside the other problem's users as without them.

    On a CPU a run has the bits that it has alone, and those of a sum depend on its length. How far rows and batches are
    padded follows from which sizes there are.
    """
    return torch.equal(one.sizes.unique(), other.sizes.unique())


def _constants(module: nn.Module) -> dict[str, Tensor]:
    """What is not trained: frozen parameters, and buffers as they came."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return frozen | dict(module.named_buffers())


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _agrees(whole: Neural, problems: Sequence[Neural]) -> bool:
    """Whether gradients of the first rows are those of the parts: two modules may differ in what nobody can look at."""
    generator = torch.Generator().manual_seed(0)
    rows = min(COMPARED_ROWS, int(whole.sizes.min()))
    which = torch.arange(rows, device=whole.sizes.device).expand(whole.users, rows)
    near = [
        problem.start + 0.1 * torch.randn(problem.users, problem.dim, generator=generator).to(problem.start)
        for problem in problems
    ]
    mask = torch.ones(whole.users, rows)
    together = whole.batch_grad(torch.cat(near), which, mask).split([problem.users for problem in problems])
    for problem, W, joint in zip(problems, near, together, strict=True):
        own = problem.batch_grad(W, which[: problem.users], mask[: problem.users])
        if not float((joint - own).norm()) <= torch.finfo(own.dtype).eps ** 0.5 * float(own.norm()):
            return False
    return True
