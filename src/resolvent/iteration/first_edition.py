"""States that were stored before they were packed generically: the names of their tensors and numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from resolvent.iteration.acceleration import NoPast
from resolvent.iteration.anderson import Past
from resolvent.iteration.averaging import Average
from resolvent.iteration.state import State
from resolvent.iteration.tuning import Tuning
from resolvent.iteration.yardstick import Yardstick

OWN = ("u", "p", "w", "met", "next", "z", "seen")


def is_old(numbers: dict[str, Any]) -> bool:
    """Whether a stored State is of this edition."""
    return "class" not in numbers


def unpack(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> State:
    """The State that was packed."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

    def in_order(prefix: str) -> tuple[Tensor, ...]:
        return tuple(t for _, t in sorted(under(prefix).items(), key=lambda item: int(item[0])))

    average = Average(tensors["average"], numbers["average"]) if "average" in numbers else None
    tuning = Tuning(**(numbers["tuning"] | under("tuning."))) if "tuning" in numbers else None
    yardstick = Yardstick(tensors["yardstick"], **numbers["yardstick"]) if "yardstick" in numbers else None
    past = Past(in_order("past.points."), in_order("past.residuals."), **({"on": ""} | numbers["past"]))
    seen = tensors.get("seen")
    return State(
        round=numbers["round"],
        eta=numbers["eta"],
        aligned=numbers["aligned"],
        together=numbers.get("together", _shared(tensors)),
        yardstick=yardstick,
        **{name: tensors[name] for name in OWN if name in tensors},
        memory=under("memory."),
        error=tensors.get("memory.error"),
        complete=seen is None or bool(seen.all()),
        past=past if past.points or past.failures or past.first == past.first else NoPast(),
        average=average,
        tuning=tuning,
    )


def _shared(tensors: dict[str, Tensor]) -> bool:
    """Whether users share one u in a State that was packed before it said so itself: one row, and nobody is sampled.

    One user alone may be taken for users together. That does no harm: `adapt` tells its row from theirs.
    """
    return len(tensors["u"]) == 1 and "seen" not in tensors and "z" not in tensors
