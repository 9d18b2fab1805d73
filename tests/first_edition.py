"""A State packed as the first edition of the package stored it: what checkpoints on users' disks look like."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from resolvent.iteration.anderson import Past
from resolvent.iteration.state import State

YARDSTICK = ("size", "step", "pull", "eta", "came", "judged", "open")
OWN = ("u", "p", "w", "met", "next", "z", "seen")


def pack(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, numbers): the numbers are JSON, whose floats keep every bit."""
    tensors = {name: getattr(state, name) for name in OWN if getattr(state, name) is not None}
    tensors |= {f"memory.{name}": tensor for name, tensor in state.memory.items()}
    past = state.past if isinstance(state.past, Past) else Past()
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
