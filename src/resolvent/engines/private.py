"""What of an engine may be known outside of a private run: nothing that users' rows decide, beside what the meeting
releases.

Values, gaps, Hessians, and inner products of users' rows, from which residuals and certificates are computed, are NaN
or not there. Everybody who asks an engine about models, the history, stopping, divergence, asks this one.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from resolvent.iteration.engine import Answers, Ask, Curvature, Engine, Look, MeanAnswer, Present, Traffic
from resolvent.iteration.facts import Facts, Memory


class Private:
    """Any engine, of which the loop may ask everything, and nobody learns anything else."""

    def __init__(self, engine: Engine, public: bool) -> None:
        """public: whether held-out rows are, so that metrics on them are told."""
        self.engine, self._public = engine, public
        self.facts: Facts = engine.facts.withholding()

    @property
    def traffic(self) -> Traffic | None:
        """Bytes that really moved tell of answers: those that are expected stand in their place."""
        return None

    def __enter__(self) -> Self:
        self.engine.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.__exit__(*error)

    # --- for the loop ------------------------------------------------------------------------------------------------

    def present(self, who: Tensor | None) -> Present:
        return self.engine.present(who)

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        with np.errstate(all="ignore"):  # its warnings would tell that somebody's numbers overflow
            return self.engine.local(ask, u, memory)

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        with np.errstate(all="ignore"):
            return self.engine.local_mean(ask, u, memory)

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        return self.engine.mean(z, who, news)

    def every(self, flags: Tensor) -> bool:
        return self.engine.every(flags)

    def gram(self, rows: Tensor) -> Tensor:
        """Of meeting points, one row each, which are public."""
        if rows.shape[1] == 1:
            return self.engine.gram(rows)
        return rows.new_full((len(rows), len(rows)), torch.nan)

    # --- for everybody else ------------------------------------------------------------------------------------------

    def curvature(self, w: Tensor) -> Curvature | None:
        return None

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        unknown = torch.full((len(w),), torch.nan, dtype=torch.float64)
        return {"value": unknown, "gap": unknown}

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        """Metrics of the model on held-out rows, where these are public; users' own models and memories stay out."""
        nothing = {"value": torch.nan, "gap": torch.nan}
        found = self.engine.inspect(w, w, {}, look) if self._public and look.held_out else None
        return nothing if found is None else found | nothing
