"""Metrics on held-out data: named ones and a user's own, over all rows together and for each user.

A metric is a function of (truth, scores). Of a linear classifier truth has class indices 0, 1, ... and scores are
probabilities: (rows,) of the second of two classes, else (rows, classes). Of a regression they are targets and
predictions. Of a network they are targets and outputs, as they are. What cannot be computed, the AUC of one class alone
for example, is NaN.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import quoted, refuse
from resolvent.iteration.metric_names import checked

Metric = Callable[[Any, Any], float]
Floats = NDArray[np.float64]
LEAST_LOG = -100.0
"""Where torch's binary cross entropy cuts the logarithm of a probability off."""


class Judged(NamedTuple):
    """What a model says of some rows, for named metrics. A metric of one's own sees `unread`, or truth and scores."""

    truth: NDArray[Any]
    """Class indices 0, 1, ..., or targets."""
    decision: Floats
    """(rows,), or (rows, classes): what the classes are ordered by, before it becomes a probability."""
    scores: Floats
    """Probabilities where the model has them, else decisions; predictions of a regression."""
    classes: int | None
    """How many; None for a regression."""
    unread: tuple[NDArray[Any], ...] | None = None
    """Targets and outputs of a network, all of them, in the shapes that they have."""
    link: Literal["softmax", "identity"] | None = "softmax"
    """How decisions of classes become probabilities; None where that is not known."""


def accuracy(j: Judged) -> float:
    """The share of rows whose class is right."""
    if j.classes is None or not np.isfinite(j.decision).all():
        return math.nan
    return float(np.mean(_chosen(j) == j.truth))


def _chosen(j: Judged) -> NDArray[Any]:
    """The class that the model takes each row for."""
    one = j.decision.ndim == 1
    return np.asarray(j.decision > (0.5 if j.link == "identity" else 0) if one else j.decision.argmax(1), int)


def precision(j: Judged) -> float:
    """The share of rows taken for the second class that are of it; of more than two classes, the mean over them."""
    return _counted(j, lambda hits, taken, there: _share(hits, taken))


def recall(j: Judged) -> float:
    """The share of rows of the second class that are taken for it; of more than two classes, the mean over them."""
    return _counted(j, lambda hits, taken, there: _share(hits, there))


def f1(j: Judged) -> float:
    """The harmonic mean of precision and recall; of more than two classes, the mean over them."""
    return _counted(j, lambda hits, taken, there: _share(2 * hits, taken + there))


def balanced_accuracy(j: Judged) -> float:
    """The mean over the classes that occur of the share of their rows whose class is right."""
    if j.classes is None or not np.isfinite(j.decision).all():
        return math.nan
    right = _chosen(j) == j.truth
    return float(np.mean([right[j.truth == k].mean() for k in np.unique(j.truth)]))


def _counted(j: Judged, of: Callable[[int, int, int], float]) -> float:
    """A function of how many rows of a class are found, are taken for it, and are there."""
    if j.classes is None or not np.isfinite(j.decision).all():
        return math.nan
    chosen, which = _chosen(j), [1] if j.classes == 2 else range(j.classes)
    pairs = [(chosen == k, j.truth == k) for k in which]
    return float(
        np.mean([of(int((taken & there).sum()), int(taken.sum()), int(there.sum())) for taken, there in pairs])
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def average_precision(j: Judged) -> float:
    """Precision averaged over the recall gained at each threshold; of more than two classes, the mean over them."""
    if j.classes is None or not np.isfinite(j.decision).all():
        return math.nan
    if j.decision.ndim == 1 or j.classes == 2:
        t = j.decision if j.decision.ndim == 1 else j.decision[:, 1] - j.decision[:, 0]
        return _mean_precision(j.truth == 1, t)
    return float(np.mean([_mean_precision(j.truth == k, j.scores[:, k]) for k in range(j.classes)]))


def _mean_precision(positive: NDArray[np.bool_], scores: Floats) -> float:
    """sum_n (R_n - R_(n-1)) P_n over the distinct scores, from the highest on; NaN without a positive row."""
    if not positive.any():
        return math.nan
    _, place = np.unique(-scores, return_inverse=True)
    taken, hits = np.cumsum(np.bincount(place)), np.bincount(place, positive)
    return float((hits * np.cumsum(hits) / taken).sum() / positive.sum())


def brier(j: Judged) -> float:
    """The mean squared error of the second class's probability; of more than two classes, summed over them."""
    if j.classes is None:
        return math.nan
    p = j.scores[:, 1] if j.scores.ndim == 2 and j.classes == 2 else j.scores
    if p.ndim == 1:
        return float(np.mean(np.square(p - (j.truth == 1))))
    return float(np.mean(np.square(p - np.eye(j.classes)[j.truth]).sum(1)))


def auc(j: Judged) -> float:
    """The area under the ROC curve; of more than two classes, the mean over each of them against the rest."""
    if j.classes is None or not np.isfinite(j.decision).all():
        return math.nan
    if j.decision.ndim == 1:
        return _area(j.truth == 1, j.decision)
    if j.classes == 2:
        return _area(j.truth == 1, j.decision[:, 1] - j.decision[:, 0])
    return float(np.mean([_area(j.truth == k, j.scores[:, k]) for k in range(j.classes)]))


def _area(positive: NDArray[np.bool_], scores: Floats) -> float:
    """The probability that a positive row scores above a negative one, ties counting half; NaN for one class alone."""
    many = int(positive.sum())
    others = len(positive) - many
    if not many or not others:
        return math.nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # of tied rows: the mean of the ranks that they share
    return float((ranks[place][positive].sum() - many * (many + 1) / 2) / (many * others))


def log_loss(j: Judged) -> float:
    """The mean of -log of the right class's probability, from decisions: exact where probabilities round to 0 or 1."""
    if j.classes is None:
        return math.nan
    t = j.decision
    if j.link == "identity":
        return float(-np.mean(np.maximum(np.where(j.truth == 1, np.log(t), np.log1p(-t)), LEAST_LOG)))
    if t.ndim == 1:
        return float(np.mean(np.logaddexp(0, np.where(j.truth == 1, -t, t))))
    return float(np.mean(_log_sum_exp(t) - np.take_along_axis(t, j.truth[:, None], 1)[:, 0]))


def perplexity(j: Judged) -> float:
    """exp of the log loss: among how many equally likely classes the model could as well have guessed."""
    return float(np.exp(log_loss(j)))


def rmse(j: Judged) -> float:
    """The root of the mean squared error."""
    if j.classes is not None:
        return math.nan
    return float(np.sqrt(np.mean(np.square(j.truth - j.scores))))


def _log_sum_exp(t: Floats) -> Floats:
    top = t.max(1)
    return np.asarray(top + np.log(np.exp(t - top[:, None]).sum(1)))


OF_CLASSES = (accuracy, auc, f1, precision, recall, balanced_accuracy, average_precision)
OF_PROBABILITIES = (log_loss, perplexity, brier)
NAMED: dict[str, Callable[[Judged], float]] = {f.__name__: f for f in (*OF_CLASSES, *OF_PROBABILITIES, rmse)}


def as_metrics(metrics: Any, usual: Iterable[str] = ()) -> dict[str, Callable[[Judged], float]]:
    """Metrics by name from what the caller gave: a list of names, or a dictionary of functions of (truth, scores)."""
    if metrics is None:
        return {name: NAMED[name] for name in usual}
    if isinstance(metrics, str):
        metrics = [metrics]
    if not isinstance(metrics, Mapping):
        metrics = {name: name for name in metrics}
    return {checked(name): _metric(name, given) for name, given in metrics.items()}


def _metric(name: str, given: Any) -> Callable[[Judged], float]:
    if isinstance(given, str):
        if given not in NAMED:
            refuse(
                "metrics",
                quoted(given),
                f"{', '.join(NAMED)}, or a dictionary of functions of (truth, scores), is needed",
            )
        return NAMED[given]
    if not callable(given):
        refuse(f"metrics[{name!r}]", quoted(given), "a function of (truth, scores) is needed")
    # of copies: a function may write to what it gets
    return lambda judged: float(given(*map(np.copy, judged.unread or (judged.truth, judged.scores))))


def judge(
    name: str, users: list[Judged], metrics: Mapping[str, Callable[[Judged], float]]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Each metric over the rows of all users together, and of each user's."""
    some = [judged for judged in users if _rows(judged)]
    truth, decision, scores, _, unread, _ = zip(*some, strict=True)
    together = some[0]._replace(
        truth=np.concatenate(truth),
        decision=np.concatenate(decision),
        scores=np.concatenate(scores),
        unread=None if unread[0] is None else tuple(map(np.concatenate, zip(*unread, strict=True))),
    )
    with np.errstate(all="ignore"):
        pooled = {f"{name}_{key}": _of(f, together) for key, f in metrics.items()}
        if len(users) == 1:
            return pooled, {column: [value] for column, value in pooled.items()}
        own = {f"{name}_{key}": [_of_one(f, judged) for judged in users] for key, f in metrics.items()}
    return pooled, own


def one_class(name: str, users: list[Judged], labels: Sequence[Any]) -> str | None:
    """A sentence on a model that takes all rows for one class, where there are others; else None."""
    some = [judged for judged in users if len(judged.truth)]
    if not some or some[0].classes is None or not all(np.isfinite(judged.decision).all() for judged in some):
        return None
    taken, truth = np.concatenate(list(map(_chosen, some))), np.concatenate([judged.truth for judged in some])
    others = int((truth != taken[0]).sum())
    if not others or (taken != taken[0]).any():
        return None
    what = f"rows are taken for {labels[taken[0]]!r}, though {others} of them {'are' if others > 1 else 'is'} not"
    return f"all {len(truth)} {name} {what}: class_weight='balanced' (--class-weight balanced) lets rare classes count"


def _of_one(metric: Callable[[Judged], float], judged: Judged) -> float:
    """A metric of one user's rows; NaN where it is not defined for them, as an AUC of one class alone."""
    if not _rows(judged):
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _of(metric, judged)
        except ValueError:  # so scikit-learn says that a metric is not defined
            return math.nan


def _of(metric: Callable[[Judged], float], judged: Judged) -> float:
    """A metric; NaN of a named one where the loss ignores every row."""
    return math.nan if metric in NAMED.values() and not len(judged.truth) else metric(judged)


def _rows(judged: Judged) -> int:
    return len(judged.truth if judged.unread is None else judged.unread[0])


def probabilities(t: Floats) -> Floats:
    """Of the second of two classes, (rows,), from decisions (rows,) or (rows, 2); of each of more, (rows, classes)."""
    if t.ndim == 2:
        shares: Floats = np.exp(t - _log_sum_exp(t)[:, None])
        return shares[:, 1] if t.shape[1] == 2 else shares
    small = np.exp(-np.abs(t))
    return np.where(t >= 0, 1 / (1 + small), small / (1 + small))
