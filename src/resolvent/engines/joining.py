"""What the ranks of a run know of each other's users: how many there are, their weights, and other facts."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.process_group import Group, same
from resolvent.errors import InputError, refuse
from resolvent.iteration.facts import Facts, facts_of
from resolvent.problems.inputs import WEIGHTS


def split(users: int, group: Group) -> Tensor:
    """The users of this rank, where all ranks have made the same problem: a run of consecutive numbers."""
    if users < group.size:
        raise InputError(f"there are {users} users and {group.size} ranks, but every rank needs one; take fewer ranks")
    return torch.arange(users).tensor_split(group.size)[group.rank]


def whole_facts(problem: Any, operator: Any, numbers: Tensor, group: Group) -> Facts:
    """The facts of a problem that every rank has made whole."""
    facts = facts_of(problem, operator)
    _alike(facts, group, users=facts.users, weights=_sum_of(facts.weights))
    names = (
        "lipschitz",
        "convexity",
        "typical_eta",
        "matrix_free",
        "predictor",
    )  # all ranks then measure the same held-out rows
    return replace(
        facts,
        numbers=numbers,
        start=None if facts.start is None else group.spread(facts.start),
        lookup={name: facts.lookup(name) for name in names}.get,
    )


def joined_facts(problem: Any, operator: Any, weights: Any, group: Group) -> Facts:
    """The facts of all users, of whom every rank has brought some."""
    own = facts_of(problem, operator)
    _alike(own, group)
    counts = [int(n) for n in group.gathered(own.users)]
    first = sum(counts[: group.rank])
    numbers = torch.arange(first, first + own.users)
    lam = _everywhere(_weights(own, weights, group), numbers, sum(counts), group)
    if not float(lam.sum()) > 0:
        refuse("weights", "zero for every user of every rank", "at least one must be positive")
    lipschitz, convexity, sizes = (
        _known(constants, numbers, sum(counts), group) for constants in (own.lipschitz, own.convexity, own.sizes)
    )
    typical = sorted(group.gathered(own.typical_eta))
    constants = {"lipschitz": lipschitz, "convexity": convexity, "matrix_free": own.matrix_free}
    return replace(
        own,
        users=sum(counts),
        numbers=numbers,
        weights=(lam / lam.sum()).to(own.weights),
        convex=all(group.gathered(own.convex)),
        sizes=sizes,
        start=None if own.start is None else group.spread(own.start),
        counted=False,
        lookup=(constants | {"typical_eta": typical[len(typical) // 2]}).get,
    )


def _weights(facts: Facts, given: Any, group: Group) -> Tensor:
    """The weights of the users here, on a scale that all ranks share."""
    refusal, own = None, facts.weights.detach().double()
    chosen, sizes = torch.ones_like(own), facts.sizes
    mean = "training" in facts.offers  # a network's f_i is a mean over its rows, any other a sum
    if isinstance(given, str):
        if given not in WEIGHTS or (given == "rows" and sizes is None):
            refusal = f'weights is {given!r}, but "users", "rows" (of users who have rows) or numbers are needed'
        elif sizes is not None and (given == "rows") == mean:
            chosen = sizes.to(own) if mean else 1 / sizes.to(own)
    elif given is not None:
        chosen = torch.as_tensor(given, dtype=torch.float64, device=own.device)
        if chosen.shape != own.shape or not bool((torch.isfinite(chosen) & (chosen >= 0)).all()):
            refusal = f"weights is {given!r}, but one number >= 0 for each of the {facts.users} users here is needed"
    elif bool((own != own[0]).any()):
        refusal = (
            "the problem has weights of its own, which sum to one on this rank and so do not compare with those of "
            "other ranks; give them to the engine: rs.AllReduce(weights=[...])"
        )
    _refused(refusal, group)
    kinds = ["numbers" if given is not None and not isinstance(given, str) else str(given or "users")]
    same(group, {"weights": kinds[0]}, "all ranks must weigh their users in the same way")
    return chosen


def _refused(refusal: str | None, group: Group) -> None:
    """Refuse on every rank what one of them finds wrong."""
    for rank, complaint in enumerate(group.gathered(refusal)):
        if complaint is not None:
            raise InputError(f"on rank {rank} {complaint}")


def _alike(own: Facts, group: Group, **more: Any) -> None:
    """Refuse ranks whose problems cannot be one problem."""
    facts = {
        "the version of resolvent": sys.modules["resolvent"].__version__,
        "the version of torch": torch.__version__,
        "the problem": own.kind,
        "the length of a model": own.dim,
        "the dtype": str(own.dtype),
        "the device": own.device.type,
        "the local operator": plain(own.operator),
        "what the problem offers": sorted(own.offers),
        "the penalty": plain(own.penalty),
        "the checksum of frozen parameters": own.frozen,
    }
    same(group, facts | more, "all ranks must be alike")


def plain(value: Any) -> str:
    """A description without addresses in memory, which differ between processes."""
    text = repr(value)
    return " ".join(part.partition("0x")[0] for part in text.split())


def _sum_of(tensor: Tensor) -> str:
    return hashlib.sha256(json.dumps(tensor.detach().cpu().tolist()).encode()).hexdigest()[:16]


def _known(mine: Tensor | None, numbers: Tensor, users: int, group: Group) -> Tensor | None:
    """A fact of each user, where all ranks know it."""
    return _everywhere(mine, numbers, users, group) if all(group.gathered(mine is not None)) else None


def _everywhere(mine: Any, numbers: Tensor, users: int, group: Group) -> Tensor:
    """One value per user, of all ranks' users."""
    values = mine.detach()
    return group.sum(values.new_zeros(users).index_copy(0, numbers.to(values.device), values))
