"""The bytes of a history's rows: each row has those of all rounds since the row before it."""

from __future__ import annotations

import torch

from resolvent.iteration.engine import Engine, Traffic
from resolvent.iteration.rounds import Round


class Bytes:
    """Counts bytes: those that an engine has moved, or, where nothing moves, those that a network would carry.

    `unreported` are those of rounds since the last row.
    """

    def __init__(self, engine: Engine, unreported: Traffic) -> None:
        self._engine, facts = engine, engine.facts
        self._dim, self._vector = facts.dim, facts.dim * torch.finfo(facts.dtype).bits // 8
        self._matrix_free = facts.matrix_free
        self._counted = Traffic(0, 0)
        self._reported = Traffic(-unreported.up, -unreported.down)

    def count(self, happened: Round) -> None:
        """Add a round's vectors: one for each question and for each answer, whichever round that answers.

        Where curvature was asked for at a model, a gradient and half of a symmetric Hessian come back; of a long model,
        a gradient and products with the Hessian, one after the other.
        """
        curved, products = happened.curvature, 1 + happened.products
        up = curved * products if self._matrix_free else curved * (self._dim + 3) // 2
        down = curved * products if self._matrix_free else curved
        self._counted = Traffic(
            self._counted.up + (happened.participants + up) * self._vector,
            self._counted.down + (happened.asked + down) * self._vector,
        )

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
