"""When a run ends, and why; and the best model by a metric, with what is remembered of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from torch import Tensor

from resolvent.errors import one_of, quoted, real, refuse, whole
from resolvent.iteration.facts import Memory
from resolvent.iteration.packing import remembered
from resolvent.iteration.round import Round

HIGHER = ("accuracy", "auc", "score", "f1", "r2", "precision", "recall")
LOWER = (
    *("loss", "perplexity", "brier", "rmse", "mse", "mae", "error"),
    *("value", "gap", "residual", "consensus", "stationarity"),
)
"""Ends of names of metrics that are better when higher, and when lower."""


class _Stop:
    """What a callback returns to end the run after this round."""

    def __repr__(self) -> str:
        return "rs.STOP"


STOP: Final = _Stop()
"""What a callback returns to end the run after this round."""


class Ending(NamedTuple):
    """Why a run ends: "finished", "stopped" or "diverged", and the reason in words."""

    status: str
    reason: str


@dataclass(frozen=True)
class Stop:
    """When to stop before `rounds`: as soon as one of these is met. `certificates` is met by both of them together.

    metric: a column of the history such as "validation_loss"; the run stops once `patience` evaluations in a row were
    not better than the best one by more than `min_delta`, and `Run.best` has the best model. mode: "min" or "max", told
    by the metric's name where it is a usual one.
    """

    gap: float | None = None
    """Stop when f(w) - f* is at most this."""
    residual: float | None = None
    """Stop when the residual is at most this."""
    certificates: float | None = None
    """Stop when stationarity and consensus are at most this."""
    seconds: float | None = None
    """Stop after this many seconds of computing."""
    metric: str | None = None
    """Stop when this column, validation_loss say, no longer improves."""
    patience: int = 5
    """With a metric: evaluations without improvement to wait for."""
    min_delta: float = 0.0
    """How much better counts as better."""
    mode: Literal["min", "max"] | None = None
    """Whether less or more is better; told by the metric's name where that is usual."""

    def __post_init__(self) -> None:
        for name in ("gap", "residual", "certificates", "seconds", "min_delta"):
            limit = getattr(self, name)
            if limit is not None or name == "min_delta":
                limit = real(limit, f"stop.{name}", lambda x: x >= 0, "a number >= 0 is needed")
                object.__setattr__(self, name, limit)
        whole(self.patience, "stop.patience")
        if self.mode is not None:
            one_of(self.mode, "stop.mode", ("min", "max"), '"min" or "max" is needed')
        if self.metric is not None and not isinstance(self.metric, str):
            refuse("stop.metric", quoted(self.metric), "the name of a column of the history is needed")
        if self.metric is None and self.mode is not None:
            refuse("stop.mode", quoted(self.mode), "it says which of two metrics is better: give stop.metric as well")
        if self.metric is not None and self.mode is None and not self.metric.endswith(HIGHER + LOWER):
            refuse("stop.metric", quoted(self.metric), 'whether more of it is better must be said: mode="min" or "max"')

    @property
    def limits(self) -> bool:
        """Whether there is a limit that every round must be compared with."""
        return any(limit is not None for limit in (self.gap, self.residual, self.certificates, self.seconds))

    def reason(self, row: dict[str, Any]) -> str | None:
        """Why this row of the history is the last, or None."""
        if self.gap is not None and row["gap"] <= self.gap:
            return f"gap {row['gap']:.3g} <= {self.gap:g}"
        if self.residual is not None and row["residual"] <= self.residual:
            return f"residual {row['residual']:.3g} <= {self.residual:g}"
        if self.certificates is not None and max(row["stationarity"], row["consensus"]) <= self.certificates:
            return f"stationarity and consensus <= {self.certificates:g}"
        if self.seconds is not None and row["seconds"] >= self.seconds:
            return f"{row['seconds']:.3g} seconds >= {self.seconds:g}"
        return None

    def better(self, value: float, best: float) -> bool:
        """Whether a metric is better than the best so far by more than min_delta; NaN never is."""
        if math.isnan(value) or math.isnan(best):
            return not math.isnan(value)
        assert self.metric is not None
        up = self.mode == "max" or (self.mode is None and self.metric.endswith(HIGHER))
        return value > best + self.min_delta if up else value < best - self.min_delta


@remembered
@dataclass(frozen=True, eq=False)
class Best:
    """The best model (d,) of a run by the metric of rs.Stop, its round, and the metric there."""

    model: Tensor
    round: int
    value: float
    memory: Memory = field(default_factory=dict, repr=False)
    """What the model needs beside its parameters: a network's buffers."""
    beaten: Best | None = field(default=None, repr=False)
    waited: int = 0
    """The best before it and how long that had waited, where this one was looked at only since the run ended there."""

    def __repr__(self) -> str:
        return f"Best(round {self.round}, {self.value:.6g})"


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
