"""Stopping by a metric: the best model so far is retained, and how long a run has waited for a better one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from resolvent.errors import quoted, refuse
from resolvent.iteration.rounds import Round
from resolvent.solving.stopping import Best, Stop


class Patience:
    """Compares evaluations with the best one. `best` is the best model, `waited` how many came since."""

    def __init__(self, stop: Stop, best: Best | None, waited: int) -> None:
        self._stop, self.best, self.waited = stop, best, waited

    def compare(self, row: dict[str, Any], happened: Round, due: bool = True) -> str | None:
        """Take a row of the history that has the metric; why the run stops, where it has waited long enough.

        due: whether a longer run would look at this row too.
        """
        stop, best = self._stop, self.best
        assert stop.metric is not None
        if stop.metric not in row:
            metrics = [
                name for name in row if name not in ("round", "eta", "participants", "metric", "clock", "seconds")
            ]
            refuse("stop.metric", quoted(stop.metric), f"the history has {', '.join(metrics)}")
        value = float(row[stop.metric])
        if stop.better(value, math.nan if best is None else best.value):
            now = _best(happened, value)
            self.best, self.waited = now if due else replace(now, beaten=best, waited=self.waited), 0
            return None
        self.waited += 1
        if self.waited < stop.patience:
            return None
        since = "was never a number" if best is None else f"was best in round {best.round} ({best.value:.6g})"
        return f"{stop.metric} {since}, {self.waited} {'evaluation' if self.waited == 1 else 'evaluations'} ago"


def patience(stop: object, best: Best | None, waited: int, device: Any) -> Patience | None:
    """Where a run stops by a metric, from where it was left."""
    if not isinstance(stop, Stop) or stop.metric is None:
        return None
    if best is not None:
        memory = {name: tensor.to(device) for name, tensor in best.memory.items()}
        best = replace(best, model=best.model.to(device), memory=memory)
    return Patience(stop, best, waited)


def _best(happened: Round, value: float) -> Best:
    state = happened.state
    return Best(state.reported[0], happened.number, value, happened.engine.facts.common_memory(state.memory))
