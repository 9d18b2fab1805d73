"""What is measured on held-out data while a run goes: by a linear model's predictor, or on what a network answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resolvent.data.held_out import HeldOut
from resolvent.errors import InputError, quoted, refuse, whole
from resolvent.iteration.engine import Look
from resolvent.iteration.facts import Facts
from resolvent.solving.metrics import (
    NAMED,
    OF_CLASSES,
    OF_PROBABILITIES,
    Judged,
    as_metrics,
    judge,
    one_class,
    probabilities,
    rmse,
)
from resolvent.solving.network_outputs import read

OF_NUMBERS = (rmse,)
"""Named metrics of regressions; the others are of classifiers."""
PROBABILITIES = ("logistic", "softmax")
"""Losses of linear models whose decisions become probabilities."""
Own = dict[str, tuple[tuple[str, ...], list[float]]]
"""By column: the users' names, and the metric of each."""


class Evaluations:
    """All that is measured on held-out data in a run. `own` has each user's metrics at the last evaluation."""

    def __init__(
        self,
        linear: list[Evaluation],
        metrics: Mapping[str, Callable[[Judged], float]] | None = None,
        chosen: bool = False,
    ) -> None:
        """metrics: of what a network answers. chosen: whether a network's users measure only when they are asked to."""
        self._linear, self._metrics, self._chosen = linear, metrics, chosen
        self.columns = tuple(name for one in linear for name in one.columns)
        """Those that are known before the first evaluation."""
        self.own: Own = {}

    def __call__(self, model: Tensor) -> dict[str, float]:
        """Metrics of a linear model (1, d)."""
        metrics: dict[str, float] = {}
        for evaluation in self._linear:
            pooled, own = evaluation(model[0])
            metrics |= pooled
            self.own |= {name: (evaluation.data.names, values) for name, values in own.items()}
        return metrics

    def remarks(self, model: Tensor) -> list[str]:
        """What must be said of a linear model (d,) that a run hands back."""
        found = [one_class(each.name, each.judged(model), each.labels) for each in self._linear]
        return [sentence for sentence in found if sentence is not None]

    def look(self, evaluate: bool) -> Look:
        """What an engine whose users have held-out data is asked for."""
        return Look(evaluate or not self._chosen, None if self._metrics is None else self._judge)

    def _judge(
        self, name: str, users: list[tuple[Any, Any]], loss: str | None, ignored: int | None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of what a network answers to each user's rows: the named ones, and functions of one's own."""
        metrics = self._metrics or {}
        named = {key: metric for key, metric in metrics.items() if metric in NAMED.values()}
        judged = [Judged(y, o, o, None, (y, o)) for o, y in users]
        if named:
            rows = _read(named, users, loss, ignored)
            judged = [row._replace(unread=one.unread) for row, one in zip(rows, judged, strict=True)]
        pooled, own = judge(name, judged, metrics)
        names = tuple(map(str, range(len(users))))
        self.own |= {column: (names, values) for column, values in own.items()}
        columns = {f"{name}_{key}" for key in named}
        return (
            {column: value for column, value in pooled.items() if column in columns},
            {column: value for column, value in pooled.items() if column not in columns},
        )


def _read(
    named: Mapping[str, Any], users: list[tuple[Any, Any]], loss: str | None, ignored: int | None
) -> list[Judged]:
    """Each user's rows as named metrics need them; refused where they are of another kind than the network."""
    rows = [read(outputs, targets, loss, ignored) for outputs, targets in users]
    (o, y), first = next(pair for pair in zip(users, rows, strict=True) if len(pair[0][1]))
    own = "give a function of (targets, outputs) by name"
    for key, metric in named.items():
        if first is None:
            shapes = f"outputs of shape {o.shape[1:]} and targets of shape {y.shape[1:]} per row"
            refuse("metrics", quoted(key), f"{shapes} do not tell where the classes are: {own}")
        if (metric in OF_NUMBERS) != (first.classes is None):
            kind = "numbers" if first.classes is None else "classes"
            refuse("metrics", quoted(key), f"the network predicts {kind}: give another one, or a function")
        if metric in OF_PROBABILITIES and first.link is None:
            refuse("metrics", quoted(key), f"what a loss of your own takes as probabilities is not known: {own}")
    return [judged for judged in rows if judged is not None]


def evaluations(
    facts: Facts, validation: Any = None, test: Any = None, metrics: Any = None, validate_every: Any = None
) -> Evaluations:
    """What `solve` is asked to measure on held-out data, checked."""
    if validate_every is not None:
        whole(validate_every, "validate_every")
    given = {name: data for name, data in (("validation", validation), ("test", test)) if data is not None}
    predictor = facts.lookup("predictor") if given else None
    prepared = facts.lookup("preparation") if given else None
    linear = [Evaluation.of(name, data, predictor, metrics, prepared) for name, data in given.items()]
    network = "inspect" in facts.offers
    reported = bool(facts.metrics) and not given
    if reported and (metrics is not None or validate_every is not None):
        raise InputError(
            "metrics or validate_every is given, but the users of this engine measure their own held-out data in every "
            "recorded round; leave it out, and say by every= how often rounds are recorded"
        )
    if metrics is not None and not given and not network:
        refuse("metrics", quoted(metrics), "held-out data are needed beside them: test=rs.HeldOut(A, b)")
    if network and as_metrics(metrics) and facts.lookup("held_out") == ():
        needed = "held-out data are needed beside them: rs.Neural(..., test=...) or validation=..."
        refuse("metrics", quoted(metrics), needed)
    chosen = network and validate_every is not None
    return Evaluations(linear, as_metrics(metrics) if network and metrics is not None else None, chosen)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A linear model's metrics on held-out data called `name`, "test" for example."""

    name: str
    data: HeldOut
    predictor: Any
    metrics: Mapping[str, Callable[[Judged], float]]
    labels: tuple[Any, ...]
    """What the classes are called, where there are any."""

    @classmethod
    def of(cls, name: str, data: Any, predictor: Any, metrics: Any, preparation: Any = None) -> Evaluation:
        """Checked: the data fit the problem's predictor, and the metrics fit the kind of model."""
        if not isinstance(data, HeldOut):
            refuse(name, f"of type {type(data).__name__}", "rs.HeldOut(A, b) is needed")
        if predictor is None:
            refuse(name, "given", "only linear models predict from rows of features; give a network its own test data")
        if data.features != predictor.features:
            refuse(name, f"with {data.features} features", f"the problem has {predictor.features}")
        usual = _usual(predictor)
        chosen = as_metrics(metrics, usual)
        for key, function in chosen.items():
            if function in NAMED.values() and function not in (fit := _fit(predictor)):
                names = ", ".join(name for name, named in NAMED.items() if named in fit)
                refuse("metrics", quoted(key), f"{predictor.loss} has {names}, and functions of your own")
        _indices(np.concatenate([y for y in data.b if len(y)]), predictor, name)
        known = predictor.classes if preparation is None else preparation.target.classes
        return cls(name, data, predictor, chosen, known or ())

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{metric}" for metric in self.metrics)

    def __call__(self, model: Any) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Metrics of a model (d,) over all rows together, and of each user's rows."""
        return judge(self.name, self.judged(model), self.metrics)

    def judged(self, model: Any) -> list[Judged]:
        """Each user's rows beside what a model (d,) makes of them."""
        return [self._judged(model, A, b) for A, b in zip(self.data.A, self.data.b, strict=True)]

    def _judged(self, model: Any, A: Any, b: NDArray[Any]) -> Judged:
        p, t = self.predictor, self.predictor.decision(model, A)
        if not p.classifies:
            return Judged(np.asarray(b, np.float64), t, np.exp(t) if p.loss == "poisson" else t, None)
        return Judged(_indices(b, p, self.name), t, probabilities(t) if p.loss in PROBABILITIES else t, len(p.classes))


def _usual(predictor: Any) -> tuple[str, ...]:
    """What is measured where nothing was asked for."""
    if not predictor.classifies:
        return ("rmse",)
    return ("accuracy", "auc", "log_loss") if predictor.loss in PROBABILITIES else ("accuracy", "auc")


def _fit(predictor: Any) -> tuple[Any, ...]:
    """The named metrics that a model has."""
    if not predictor.classifies:
        return OF_NUMBERS
    return (*OF_CLASSES, *OF_PROBABILITIES) if predictor.loss in PROBABILITIES else OF_CLASSES


def _indices(b: NDArray[Any], predictor: Any, name: str) -> NDArray[Any]:
    """Targets as class indices: of labels, or of the -1 and +1 that a binary problem has."""
    if not predictor.classifies:
        return b
    classes = list(predictor.classes)
    if len(classes) == 2 and predictor.loss != "softmax" and b.dtype.kind in "fiu" and bool((np.abs(b) == 1).all()):
        return (b > 0).astype(np.int64)
    places = {label: k for k, label in enumerate(classes)}
    try:
        return np.array([places[label] for label in b.tolist()], np.int64)
    except KeyError as error:
        refuse(
            f"{name}.b", f"partly {error.args[0]!r}", f"the problem's classes are {', '.join(map(str, classes[:10]))}"
        )
