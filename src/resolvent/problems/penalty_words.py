"""A penalty from a few words, as the command line and configurations write it: "l1:0.1", "box:-1:1", "simplex"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resolvent.errors import InputError, refuse
from resolvent.iteration.penalties import L1, L2, ElasticNet, Penalty
from resolvent.problems.sets import Ball, Box, Orthant
from resolvent.problems.simplex import Simplex

WRITTEN = "l1:T, l2:T, elastic-net:L1:L2, box:LOW:HIGH, orthant, simplex, simplex:TOTAL or ball:RADIUS"
KINDS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "l1": (L1, (1,)),
    "l2": (L2, (1,)),
    "elastic-net": (ElasticNet, (2,)),
    "box": (Box, (2,)),
    "orthant": (Orthant, (0,)),
    "simplex": (Simplex, (0, 1)),
    "ball": (lambda radius: Ball(0.0, radius), (1,)),
}
"""What each makes, and from how many numbers."""


def parse_penalty(text: str) -> Penalty:
    """The penalty that these words name."""
    name, *given = text.strip().split(":")
    kind, counts = KINDS.get(name.lower().replace("_", "-"), (None, ()))
    if kind is None or len(given) not in counts:
        refuse("penalty", repr(text), f"{WRITTEN} is needed")
    try:
        numbers = [float(number) for number in given]
    except ValueError:
        refuse("penalty", repr(text), f"numbers are needed behind the name: {WRITTEN}")
    try:
        penalty: Penalty = kind(*numbers)
    except InputError as error:
        raise InputError(f"penalty is {text!r}, but {error}") from None
    return penalty
