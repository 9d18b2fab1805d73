"""What is measured on held-out data while a run goes: by a linear model's predictor, or on what a network answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resolvent.data.held_out import HeldOut
from resolvent.errors import InputError, refuse, whole
from resolvent.iteration.engine import Engine, Look
from resolvent.solving.metrics import NAMED, OF_NUMBERS, Judged, as_metrics, judge, probabilities

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
        """Metrics of a linear model (d,)."""
        found: dict[str, float] = {}
        for evaluation in self._linear:
            pooled, own = evaluation(model)
            found |= pooled
            self.own |= {name: (evaluation.data.names, values) for name, values in own.items()}
        return found

    def look(self, evaluate: bool) -> Look | None:
        """What an engine whose users have held-out data is asked for; None: as always."""
        if self._metrics is None and (evaluate or not self._chosen):
            return None
        return Look(evaluate or not self._chosen, None if self._metrics is None else self._judge)

    def _judge(self, name: str, users: list[tuple[Any, Any]], loss: str | None) -> dict[str, float]:
        """Metrics of what a network answers to each user's rows."""
        judged = [answered(outputs, targets, loss) for outputs, targets in users]
        wrong = OF_NUMBERS if judged[0].classes is not None else NAMED.keys() - OF_NUMBERS
        for key, metric in (self._metrics or {}).items():
            if metric in [NAMED[name] for name in wrong]:
                kind = "numbers" if judged[0].classes is None else "classes"
                refuse("metrics", repr(key), f"the network predicts {kind}: give another one, or a function")
        pooled, own = judge(name, judged, self._metrics or {})
        names = tuple(map(str, range(len(users))))
        self.own |= {column: (names, values) for column, values in own.items()}
        return pooled


def evaluations(
    known: Any, validation: Any = None, test: Any = None, metrics: Any = None, validate_every: Any = None
) -> Evaluations:
    """What `solve` is asked to measure on held-out data, checked."""
    if validate_every is not None:
        whole(validate_every, "validate_every")
    given = {name: data for name, data in (("validation", validation), ("test", test)) if data is not None}
    predictor = getattr(known, "predictor", None) if given else None
    linear = [Evaluation.of(name, data, predictor, metrics) for name, data in given.items()]
    network = "inspect" in getattr(known, "offers", ())
    if metrics is not None and not given and not network:
        refuse("metrics", repr(metrics), "held-out data are needed beside them: test=rs.HeldOut(A, b)")
    chosen = network and validate_every is not None
    return Evaluations(linear, as_metrics(metrics) if network and metrics is not None else None, chosen)


def check_engine(engine: Engine, asked: Evaluations) -> None:
    """Refuse metrics and a cadence of an engine whose users measure held-out data as they like."""
    if asked.look(False) is not None and len(inspect.signature(engine.inspect).parameters) < 4:
        raise InputError(
            f"metrics or validate_every is given, but users of {type(engine).__name__} measure their held-out data "
            'in every recorded round; leave them out, or take engine="in_process"'
        )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A linear model's metrics on held-out data called `name`, "test" for example."""

    name: str
    data: HeldOut
    predictor: Any
    metrics: Mapping[str, Callable[[Judged], float]]

    @classmethod
    def of(cls, name: str, data: Any, predictor: Any, metrics: Any) -> Evaluation:
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
            if function in NAMED.values() and function not in [NAMED[name] for name in usual]:
                refuse("metrics", repr(key), f"{predictor.loss} has {', '.join(usual)}, and functions of your own")
        _indices(np.concatenate([y for y in data.b if len(y)]), predictor, name)
        return cls(name, data, predictor, chosen)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{metric}" for metric in self.metrics)

    def __call__(self, model: Any) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Metrics of a model (d,) over all rows together, and of each user's rows."""
        users = [self._judged(model, A, b) for A, b in zip(self.data.A, self.data.b, strict=True)]
        return judge(self.name, users, self.metrics)

    def _judged(self, model: Any, A: Any, b: NDArray[Any]) -> Judged:
        p, t = self.predictor, self.predictor.decision(model, A)
        if not p.classifies:
            return Judged(np.asarray(b, np.float64), t, np.exp(t) if p.loss == "poisson" else t, None)
        return Judged(_indices(b, p, self.name), t, probabilities(t) if p.loss in PROBABILITIES else t, len(p.classes))


def answered(outputs: Any, targets: Any, loss: str | None) -> Judged:
    """What a network answers to some rows, as its loss reads it.

    (rows, classes) with whole targets are scores of classes, which become probabilities by softmax where the loss is
    torch's cross entropy. One output per row is that of the second of two classes where the loss is binary.
    """
    o, y = np.asarray(outputs, np.float64), np.asarray(targets)
    if o.ndim == 2 and y.ndim == 1 and o.shape[1] > 1 and y.dtype.kind in "iu":
        return Judged(y, o, probabilities(o) if loss in ("cross_entropy", "nll_loss") else o, o.shape[1])
    if o.size == y.size:
        o, y = o.reshape(-1), y.reshape(-1)
    if loss in ("binary_cross_entropy_with_logits", "soft_margin_loss"):
        return Judged((y > 0).astype(np.int64), o, probabilities(o), 2)
    if loss == "binary_cross_entropy":
        with np.errstate(divide="ignore"):
            return Judged((y > 0).astype(np.int64), np.log(o) - np.log1p(-o), o, 2)
    return Judged(y, o, o, None)


def _usual(predictor: Any) -> tuple[str, ...]:
    """What is measured where nothing was asked for."""
    if not predictor.classifies:
        return ("rmse",)
    return ("accuracy", "auc", "log_loss") if predictor.loss in PROBABILITIES else ("accuracy", "auc")


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
