"""What the ranks of a run know of each other's users: how many there are, their weights, and other facts."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.process_group import Group, same
from resolvent.errors import InputError, refuse
from resolvent.problems.inputs import WEIGHTS
from resolvent.problems.problem import Problem


@dataclass(frozen=True, eq=False)
class RankFacts:
    """All users are known, some of them are here."""

    names: Tensor
    """The numbers that users here have in the whole federation: rank after rank."""
    weights: Tensor
    operator: Any
    dim: int
    offers: frozenset[str]
    convex: bool
    closed_form: bool
    lipschitz: Tensor | None = None
    convexity: Tensor | None = None
    sizes: Tensor | None = None
    start: Tensor | None = None
    typical_eta: float = 1.0
    penalty: Any = None
    """g beside the f_i, the same on every rank."""
    intercepts: Tensor | None = None
    predictor: Any = None
    """Of a problem that every rank has made whole: all ranks then measure the same held-out rows."""

    @property
    def users(self) -> int:
        return len(self.weights)

    @property
    def here(self) -> int:
        return len(self.names)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.device


def split(users: int, group: Group) -> Tensor:
    """The users of this rank, where all ranks have made the same problem: a run of consecutive numbers."""
    if users < group.size:
        raise InputError(f"there are {users} users and {group.size} ranks, but every rank needs one; take fewer ranks")
    return torch.arange(users).tensor_split(group.size)[group.rank]


def whole_facts(problem: Any, operator: Any, names: Tensor, group: Group) -> RankFacts:
    """The facts of a problem that every rank has made whole."""
    _alike(problem, operator, group, users=problem.users, weights=_sum_of(problem.weights))
    known = {name: getattr(problem, name, None) for name in ("lipschitz", "convexity", "sizes")}
    start = getattr(problem, "start", None)
    return RankFacts(
        names,
        problem.weights,
        operator,
        problem.dim,
        problem.offers,
        problem.convex,
        problem.closed_form,
        start=None if start is None else group.spread(start),
        typical_eta=float(getattr(problem, "typical_eta", 1.0)),
        predictor=getattr(problem, "predictor", None),
        **_meeting(problem),
        **known,
    )


def _meeting(problem: Any) -> dict[str, Any]:
    """What users meet with: the penalty, and the coordinates that it leaves alone."""
    return {name: getattr(problem, name, None) for name in ("penalty", "intercepts")}


def joined_facts(problem: Any, operator: Any, weights: Any, group: Group) -> RankFacts:
    """The facts of all users, of whom every rank has brought some."""
    _alike(problem, operator, group)
    counts = [int(n) for n in group.words(int(problem.users))]
    first = sum(counts[: group.rank])
    names = torch.arange(first, first + problem.users)
    like = problem.weights
    lam = _everywhere(_weights(problem, weights, group), names, sum(counts), group)
    if not float(lam.sum()) > 0:
        refuse("weights", "zero for every user of every rank", "at least one must be positive")
    known = {name: _known(problem, name, names, sum(counts), group) for name in ("lipschitz", "convexity", "sizes")}
    start = getattr(problem, "start", None)
    typical = sorted(group.words(float(getattr(problem, "typical_eta", 1.0))))
    return RankFacts(
        names,
        (lam / lam.sum()).to(like),
        operator,
        problem.dim,
        problem.offers,
        all(group.words(bool(problem.convex))),
        problem.closed_form,
        start=None if start is None else group.spread(start),
        typical_eta=typical[len(typical) // 2],
        **_meeting(problem),
        **known,
    )


def _weights(problem: Any, given: Any, group: Group) -> Tensor:
    """The weights of the users here, on a scale that all ranks share."""
    words, own = None, problem.weights.detach().double()
    chosen, sizes = torch.ones_like(own), getattr(problem, "sizes", None)
    mean = "training" in problem.offers  # a network's f_i is a mean over its rows, any other a sum
    if isinstance(given, str):
        if given not in WEIGHTS or (given == "rows" and sizes is None):
            words = f'weights is {given!r}, but "users", "rows" (of users who have rows) or a list of numbers is needed'
        elif sizes is not None and (given == "rows") == mean:
            chosen = sizes.to(own) if mean else 1 / sizes.to(own)
    elif given is not None:
        chosen = torch.as_tensor(given, dtype=torch.float64, device=own.device)
        if chosen.shape != own.shape or not bool((torch.isfinite(chosen) & (chosen >= 0)).all()):
            words = f"weights is {given!r}, but one number >= 0 for each of the {problem.users} users here is needed"
    elif bool((own != own[0]).any()):
        words = (
            "the problem has weights of its own, which sum to one on this rank and so do not compare with those of "
            "other ranks; give them to the engine: rs.AllReduce(weights=[...])"
        )
    _refused(words, group)
    kinds = ["numbers" if given is not None and not isinstance(given, str) else str(given or "users")]
    same(group, {"weights": kinds[0]}, "all ranks must weigh their users in the same way")
    return chosen


def _refused(words: str | None, group: Group) -> None:
    """Refuse on every rank what one of them finds wrong."""
    for rank, said in enumerate(group.words(words)):
        if said is not None:
            raise InputError(f"on rank {rank} {said}")


def _alike(problem: Problem, operator: Any, group: Group, **more: Any) -> None:
    """Refuse ranks whose problems cannot be one problem."""
    facts = {
        "the version of resolvent": sys.modules["resolvent"].__version__,
        "the version of torch": torch.__version__,
        "the problem": type(problem).__name__,
        "the length of a model": problem.dim,
        "the dtype": str(problem.weights.dtype),
        "the device": problem.weights.device.type,
        "the local operator": plain(operator),
        "what the problem offers": sorted(problem.offers),
        "the penalty": plain(getattr(problem, "penalty", None)),
    }
    same(group, facts | more, "all ranks must be alike")


def plain(value: Any) -> str:
    """A description without addresses in memory, which differ between processes."""
    words = repr(value)
    return " ".join(part.partition("0x")[0] for part in words.split())


def _sum_of(tensor: Tensor) -> str:
    return hashlib.sha256(json.dumps(tensor.detach().cpu().tolist()).encode()).hexdigest()[:16]


def _known(problem: Any, name: str, names: Tensor, users: int, group: Group) -> Tensor | None:
    """A fact of each user, where all ranks know it."""
    mine = getattr(problem, name, None)
    return _everywhere(mine, names, users, group) if all(group.words(mine is not None)) else None


def _everywhere(mine: Any, names: Tensor, users: int, group: Group) -> Tensor:
    """One number per user, of all ranks' users."""
    numbers = mine.detach()
    return group.sum(numbers.new_zeros(users).index_copy(0, names.to(numbers.device), numbers))
