"""Values and metrics of models, as users report them. A model may ride on the next question: no message of its own."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.flower.asking import Note, Taken, unnoted
from resolvent.engines.flower.messages import Question
from resolvent.problems.problem import weighted

MAX_MODELS_PER_QUESTION = 4
"""Models that ride on one question, at most: the newest."""
RETAINED_MODELS = 64
"""Models of which what users said is retained."""
NO_VALUE = "no_value"
"""The event that a user reported no finite value."""


class Evaluation:
    """What users said of models. A metric is known once every user has reported it.

    Whoever reports a value that is not finite, or none where others have one, is noted once: nobody can tell then
    whether the value falls.
    """

    def __init__(self, facts: Any, rides: bool, note: Note = unnoted) -> None:
        self._facts, self.rides, self._note = facts, rides, note
        self._without_value: set[int] = set()
        self._wanted: dict[str, Tensor] = {}
        self._reports: dict[str, dict[int, dict[str, float]]] = {}
        self._means: dict[str, dict[str, float]] = {}
        """By model, where only means over all users are known."""

    def want(self, models: Tensor, ride: bool = True) -> None:
        """Metrics of these models will be asked for: on the next question, if they are to `ride`."""
        for row in models.split(1):
            key = _key(row)
            if key not in self._reports:
                self._reports[key] = {}
                if ride:
                    self._wanted[key] = row
        for old in list(self._wanted)[: -max(MAX_MODELS_PER_QUESTION, len(models))]:
            del self._wanted[old]
        for old in list(self._reports)[: -max(RETAINED_MODELS, 2 * len(models))]:
            del self._reports[old]
            self._means.pop(old, None)

    def riding(self) -> Tensor | None:
        """The models that go with the next question; they go once."""
        models = list(self._wanted.values())
        self._wanted.clear()
        return torch.cat(models) if models else None

    def take(self, taken: Taken) -> None:
        """What an answer says of the models that went with its question."""
        models, answer = taken.question.models, taken.answer
        if models is None:
            return
        for k, row in enumerate(models.split(1)):
            metrics = {name: numbers[k] for name, numbers in answer.metrics.items()}
            if answer.values is not None:
                metrics["value"] = answer.values[k]
            if (reports := self._reports.get(_key(row))) is not None:
                reports[taken.user] = metrics
                self._look_for_values(reports, taken.question)

    def take_means(self, models: Tensor, means: Mapping[str, Sequence[float]]) -> None:
        """What is known of models, one number each, without anybody having reported it."""
        for k, row in enumerate(models.split(1)):
            self._means[_key(row)] = {name: numbers[k] for name, numbers in means.items()}

    def _look_for_values(self, reports: dict[int, dict[str, float]], question: Question) -> None:
        """Note who has no finite value of a model. Problems without values have none, and nothing is said of them."""
        if not any("value" in metrics for metrics in reports.values()):
            return
        for user in sorted(reports.keys() - self._without_value):
            value = reports[user].get("value")
            if value is None or not math.isfinite(value):
                self._without_value.add(user)
                number = question.t + 1 if question.verb == "local" else None
                reason = "it reports no value" if value is None else f"it reports the value {value}"
                self._note(NO_VALUE, user=self._facts.names[user], round=number, reason=reason)

    def measured(self, models: Tensor) -> dict[str, Tensor]:
        """f, f - f* (never known here) and metrics of models (k, d), (k,) each: weighted means over all users."""
        if self.rides:
            self.want(models)
        keys, names = [_key(row) for row in models.split(1)], ("value", "gap", *self._facts.metrics)
        return {name: torch.tensor([self._mean(key, name) for key in keys], dtype=torch.float64) for name in names}

    def _mean(self, key: str, name: str) -> float:
        if key in self._means:
            return self._means[key].get(name, math.nan)
        reports = self._reports.get(key, {})
        if len(reports) < self._facts.users or any(name not in metrics for metrics in reports.values()):
            return math.nan
        numbers = torch.tensor([reports[user][name] for user in range(self._facts.users)], dtype=torch.float64)
        held_out = self._facts.lookup("held_out")
        if name == "value" or held_out is None:
            return float(weighted(self._facts.weights.double(), numbers))
        return pooled(name, numbers, held_out)

    def middle(self, model: Tensor) -> float:
        """The median of the finite values that users report of a model (1, d), which one of them alone cannot move far;
        NaN until all have answered."""
        reports = self._reports.get(_key(model), {})
        values = [r["value"] for r in reports.values() if math.isfinite(r.get("value", math.nan))]
        return statistics.median(values) if values and len(reports) == self._facts.users else math.nan

    def of_users(self, model: Tensor) -> dict[str, list[float]] | None:
        """Each user's own metrics of a model (1, d), where all have reported them."""
        reports = self._reports.get(_key(model), {})
        if not self._facts.metrics or len(reports) < self._facts.users:
            return None
        every = range(self._facts.users)
        return {name: [reports[user].get(name, math.nan) for user in every] for name in self._facts.metrics}


def pooled(name: str, numbers: Tensor, rows: Tensor) -> float:
    """A metric of all held-out rows, from those of each user's: exact for means over rows and for the rmse; an AUC is
    the mean of the users'. Users of whom it is not known, with one class alone say, are left out."""
    known = ~numbers.isnan() & (rows > 0)
    if not bool(known.any()):
        return math.nan
    share, values = rows[known].double() / rows[known].sum(), numbers[known]
    return float((share @ values**2).sqrt() if name.endswith("rmse") else share @ values)


def _key(row: Tensor) -> str:
    return hashlib.sha256(row.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
