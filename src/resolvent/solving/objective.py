"""Values of the objective f + g, as users tell them, and the bytes that a run has cost."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from resolvent.iteration.engine import Engine, Look, Traffic
from resolvent.iteration.facts import Facts, Memory
from resolvent.iteration.part import Cost
from resolvent.iteration.round import Round


class Objective:
    """What users say of models. Where they do not know of the penalty it is added, and the gap is then not known: f* of
    the users is that of f alone."""

    def __init__(self, engine: Engine, facts: Facts) -> None:
        self.engine, self._g = engine, facts.beside

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        """Metrics of models (k, d), (k,) each."""
        metrics = self.engine.measure(w)
        if self._g is None or "value" not in metrics:
            return metrics
        value = metrics["value"]
        return metrics | {"value": value + self._g.value(w).to(value), "gap": torch.full_like(value, math.nan)}

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        """More of one round's models, global (1, d) and local, where users have more to say; None where not."""
        metrics = self.engine.inspect(w, p, memory, look)
        if self._g is None or metrics is None or "value" not in metrics:
            return metrics
        return metrics | {"value": metrics["value"] + float(self._g.value(w)[0]), "gap": math.nan}


class Bytes:
    """Counts bytes: those that an engine has moved, or, where nothing moves, those that a network would carry.

    `unreported` are those of rounds since the last row.
    """

    def __init__(self, engine: Engine, cost: Cost, unreported: Traffic) -> None:
        """cost: what crosses for each user and round."""
        self._engine, size = engine, torch.finfo(engine.facts.dtype).bits // 8
        self._size, self._answer = size, cost.up * size + cost.bytes_up
        self._question = cost.down * size + cost.bytes_down
        self._up = self._down = 0
        self._reported = Traffic(-unreported.up, -unreported.down)

    def count(self, happened: Round) -> None:
        """Add a round's numbers: for each question and for each answer, whichever round that answers."""
        more = happened.cost
        self._up += happened.participants * self._answer + more.up * self._size + more.bytes_up
        self._down += happened.asked * self._question + more.down * self._size

    @property
    def unreported(self) -> Traffic:
        up, down = self._engine.traffic or (self._up, self._down)
        return Traffic(up - self._reported.up, down - self._reported.down)

    def report(self) -> Traffic:
        """Those of a new row."""
        row = self.unreported
        self._reported = Traffic(self._reported.up + row.up, self._reported.down + row.down)
        return row

    def withdraw(self, up: int, down: int) -> None:
        """A row with these is left out after all: they belong to the next one."""
        self._reported = Traffic(self._reported.up - up, self._reported.down - down)
