"""Penalties by name, and from a few words as configurations write them: "l1:0.1", "box:-1:1", "simplex"."""

from __future__ import annotations

from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration import registry
from resolvent.iteration.penalties import L1, L2, ElasticNet, Penalty
from resolvent.iteration.registry import part
from resolvent.problems.sets import Ball, Box, Orthant, Simplex

PENALTIES = {"l1": L1, "l2": L2, "elastic-net": ElasticNet, "box": Box, "orthant": Orthant, "simplex": Simplex}
for _name, _kind in PENALTIES.items():
    part("penalty", _name)(_kind)


@part("penalty", "ball")
def _ball(radius: float) -> Ball:
    """{x : |x| <= radius}."""
    return Ball(0.0, radius)


def parse_penalty(text: str) -> Penalty:
    """The penalty that these words name."""

    def number(word: str) -> float:
        try:
            return float(word)
        except ValueError:
            refuse("penalty", quoted(text), f"numbers are needed behind the name: {registry.usages('penalty')}")

    given = registry.words("penalty", text, number)
    try:
        penalty: Penalty = registry.named("penalty", given.pop("kind")).make(**given)
    except InputError as error:
        raise InputError(f"penalty is {text!r}, but {error}") from None
    return penalty
