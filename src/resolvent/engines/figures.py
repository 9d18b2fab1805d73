"""Figures of networks over the users of all ranks, from those of each rank's users."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resolvent.errors import InputError

Figures = dict[str, float]
SPREAD = "_spread"
"""How the name of a standard deviation over users ends; what comes before is the name of the mean."""


def combined(said: Sequence[tuple[float, Figures]]) -> Figures:
    """Figures over all users from (weight of the rank's users, their figures), in the order of ranks."""
    names = list(said[0][1])
    for rank, (_, own) in enumerate(said):
        if list(own) != names:
            raise InputError(
                f"rank {rank} reports {', '.join(own)} and rank 0 reports {', '.join(names)}, but all ranks need "
                "validation and test data of the same kinds"
            )
    counting = [(share, own) for share, own in said if share > 0]
    means = {name: sum(share * own[name] for share, own in counting) for name in names}
    return {name: _deviation(name, means, counting) if name.endswith(SPREAD) else means[name] for name in names}


def _deviation(name: str, means: Figures, counting: Sequence[tuple[float, Figures]]) -> float:
    """The square of a deviation is the mean of those inside the ranks, plus that of the ranks' means."""
    mean = name.removesuffix(SPREAD)
    return math.sqrt(sum(share * (own[name] ** 2 + (own[mean] - means[mean]) ** 2) for share, own in counting))
