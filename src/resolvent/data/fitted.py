"""Which problem a table becomes, by name: what it needs of the labels, and the class that is built."""

from __future__ import annotations

from typing import Any, NamedTuple

from resolvent.data.target import COUNTS, MANY, NUMBERS, TWO, Target
from resolvent.errors import quoted, refuse
from resolvent.problems.least_squares import LeastSquares
from resolvent.problems.linear.losses import Huber, Poisson, SquaredHinge
from resolvent.problems.logistic import Logistic
from resolvent.problems.quantile import Quantile
from resolvent.problems.softmax import Softmax


class Kind(NamedTuple):
    """What the labels must be, and what is built of them."""

    needs: str
    build: type[Any]


KINDS = {
    "least-squares": Kind(NUMBERS, LeastSquares),
    "logistic": Kind(TWO, Logistic),
    "poisson": Kind(COUNTS, Poisson),
    "huber": Kind(NUMBERS, Huber),
    "squared-hinge": Kind(TWO, SquaredHinge),
    "quantile": Kind(NUMBERS, Quantile),
    "softmax": Kind(MANY, Softmax),
}
"""By name, as on the command line."""


def kind_name(name: str, target: Target | None) -> str:
    """A problem by its name in `KINDS`; "auto" is the one that the labels suggest."""
    if isinstance(name, str) and name == "auto" and target is not None:
        return "least-squares" if target.classes is None else "logistic" if target.two else "softmax"
    plain = quoted(name, str).replace("_", "-")
    if plain not in KINDS:
        refuse("kind", quoted(name), f"one of auto, {', '.join(KINDS)} is needed")
    return plain
