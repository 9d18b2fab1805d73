"""Values of the objective f + g, as users tell them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from resolvent.iteration.engine import Engine, Look
from resolvent.iteration.facts import Facts, Memory


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
