"""A State as named tensors and plain numbers, and back, without losing a bit: what a checkpoint holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.iteration.anderson import Past
from resolvent.iteration.averaging import Average
from resolvent.iteration.state import State
from resolvent.iteration.tuning import Tuning
from resolvent.iteration.yardstick import Yardstick

YARDSTICK = ("size", "step", "pull", "eta", "came", "judged", "open")
OWN = ("u", "p", "w", "met", "next", "z", "seen")


def pack(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, numbers): the numbers are JSON, whose floats keep every bit."""
    tensors = {name: getattr(state, name) for name in OWN if getattr(state, name) is not None}
    tensors |= {f"memory.{name}": tensor for name, tensor in state.memory.items()}
    past = state.past
    tensors |= {f"past.points.{k}": tensor for k, tensor in enumerate(past.points)}
    tensors |= {f"past.residuals.{k}": tensor for k, tensor in enumerate(past.residuals)}
    numbers: dict[str, Any] = {name: getattr(state, name) for name in ("round", "eta", "aligned", "together")}
    numbers["past"] = {
        key: getattr(past, key) for key in ("first", "launched", "steps", "failures", "rest", "accepted", "on")
    }
    if state.average is not None:
        tensors["average"] = state.average.model
        numbers["average"] = state.average.mass
    if state.tuning is not None:
        tuning = state.tuning
        tensors |= {f"tuning.{name}": t for name, t in (("p", tuning.p), ("g", tuning.g)) if t is not None}
        numbers["tuning"] = {key: getattr(tuning, key) for key in ("eta", "looks", "since", "due", "gain")}
    if state.yardstick is not None:
        tensors["yardstick"] = state.yardstick.origin
        numbers["yardstick"] = {key: getattr(state.yardstick, key) for key in YARDSTICK}
    return tensors, numbers


def moved(state: State, device: torch.device) -> State:
    """The same State on another device."""
    if state.u.device == device:
        return state
    tensors, numbers = pack(state)
    return unpack({name: tensor.to(device) for name, tensor in tensors.items()}, numbers)


def unpack(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> State:
    """The State that was packed."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

    def in_order(prefix: str) -> tuple[Tensor, ...]:
        return tuple(t for _, t in sorted(under(prefix).items(), key=lambda item: int(item[0])))

    average = Average(tensors["average"], numbers["average"]) if "average" in numbers else None
    tuning = Tuning(**(numbers["tuning"] | under("tuning."))) if "tuning" in numbers else None
    yardstick = Yardstick(tensors["yardstick"], **numbers["yardstick"]) if "yardstick" in numbers else None
    return State(
        round=numbers["round"],
        eta=numbers["eta"],
        aligned=numbers["aligned"],
        together=numbers.get("together", _shared(tensors)),
        yardstick=yardstick,
        **{name: tensors[name] for name in OWN if name in tensors},
        memory=under("memory."),
        past=Past(in_order("past.points."), in_order("past.residuals."), **({"on": ""} | numbers["past"])),
        average=average,
        tuning=tuning,
    )


def _shared(tensors: dict[str, Tensor]) -> bool:
    """Whether users share one u in a State that was packed before it said so itself: one row, and nobody is sampled.

    One user alone may be taken for users together. That does no harm: `adapt` tells its row from theirs.
    """
    return len(tensors["u"]) == 1 and "seen" not in tensors and "z" not in tensors
