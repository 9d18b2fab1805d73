"""The bytes of a history's rows: each row has those of all rounds since the row before it."""

from __future__ import annotations

import torch

from resolvent.iteration.engine import Engine, Traffic
from resolvent.iteration.part import Cost
from resolvent.iteration.rounds import Round


class Bytes:
    """Counts bytes: those that an engine has moved, or, where nothing moves, those that a network would carry.

    `unreported` are those of rounds since the last row.
    """

    def __init__(self, engine: Engine, cost: Cost, unreported: Traffic) -> None:
        """cost: what crosses for each user and round."""
        self._engine, self._cost = engine, cost
        self._size = torch.finfo(engine.facts.dtype).bits // 8
        self._counted = Traffic(0, 0)
        self._reported = Traffic(-unreported.up, -unreported.down)

    def count(self, happened: Round) -> None:
        """Add a round's numbers: for each question and for each answer, whichever round that answers."""
        up = happened.participants * self._cost.up + happened.cost.up
        down = happened.asked * self._cost.down + happened.cost.down
        more = happened.participants * self._cost.bytes_up + happened.cost.bytes_up
        self._counted = Traffic(self._counted.up + up * self._size + more, self._counted.down + down * self._size)

    @property
    def unreported(self) -> Traffic:
        moved = self._engine.traffic
        total = self._counted if moved is None else moved
        return Traffic(total.up - self._reported.up, total.down - self._reported.down)

    def report(self) -> Traffic:
        """Those of a new row."""
        row = self.unreported
        self._reported = Traffic(self._reported.up + row.up, self._reported.down + row.down)
        return row

    def withdraw(self, up: int, down: int) -> None:
        """A row with these is left out after all: they belong to the next one."""
        self._reported = Traffic(self._reported.up - up, self._reported.down - down)
