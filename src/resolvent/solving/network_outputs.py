"""What a network's outputs and targets say of classes or numbers, as its loss reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.solving.metrics import Floats, Judged, probabilities

OVER_CLASSES = ("cross_entropy", "nll_loss")
"""torch's losses of scores (rows, classes, ...), which become probabilities by softmax."""
THRESHOLDS = {"binary_cross_entropy_with_logits": 0.0, "soft_margin_loss": 0.0, "binary_cross_entropy": 0.5}
"""torch's losses of two classes: an output above this is one of the second class."""


def read(outputs: Any, targets: Any, loss: str | None, ignored: int | None = None) -> Judged | None:
    """Rows as named metrics need them; None where outputs and targets do not tell what they are.

    loss: the name of torch's function; None: a loss of one's own. Its outputs are scores of classes where targets are
    whole numbers and one axis, either the second or the last, has the classes; else they are numbers. Probabilities
    as targets count as the likeliest class. Targets that the loss ignores are left out.
    """
    o, y = np.asarray(outputs, np.float64), np.asarray(targets)
    if loss in OVER_CLASSES:
        if y.shape == o.shape:
            y = y.argmax(1)
        return _scores(o, y, 1, ignored) if _fits(o, y, 1) else None
    if loss in THRESHOLDS and o.size == y.size:
        return _two_classes(o.reshape(-1), y.reshape(-1), loss)
    if loss is None and o.ndim == y.ndim + 1 and y.dtype.kind in "iu":
        axes = [axis for axis in {1, o.ndim - 1} if _fits(o, y, axis)]
        if axes:
            judged = _scores(o, y, axes[0], None)
            return judged._replace(scores=judged.decision, link=None) if len(axes) == 1 else None
    return Judged(y.reshape(-1), o.reshape(-1), o.reshape(-1), None) if o.size == y.size else None


def labels(outputs: Floats, loss: str | None) -> NDArray[Any] | None:
    """The classes that outputs stand for, in the terms of the loss's targets; None where they are numbers."""
    if loss in OVER_CLASSES and outputs.ndim >= 2 and outputs.shape[1] > 1:
        likeliest: NDArray[Any] = outputs.argmax(1)
        return likeliest
    if loss in THRESHOLDS:
        return np.where(outputs > THRESHOLDS[loss], 1, -1 if loss == "soft_margin_loss" else 0)
    return None


def _fits(o: Floats, y: NDArray[Any], axis: int) -> bool:
    """Whether an axis of the outputs has the classes, and the others are those of the targets."""
    return o.ndim >= 2 and o.shape[axis] > 1 and o.shape[:axis] + o.shape[axis + 1 :] == y.shape


def _scores(o: Floats, y: NDArray[Any], axis: int, ignored: int | None) -> Judged:
    o, y = np.moveaxis(o, axis, -1).reshape(-1, o.shape[axis]), y.reshape(-1)
    if ignored is not None:
        o, y = o[y != ignored], y[y != ignored]
    return Judged(y, o, probabilities(o), o.shape[1])


def _two_classes(o: Floats, y: NDArray[Any], loss: str) -> Judged:
    truth = (y > (0 if loss == "soft_margin_loss" else 0.5)).astype(np.int64)
    if loss == "binary_cross_entropy":
        return Judged(truth, o, o, 2, link="identity")
    return Judged(truth, o, probabilities(o), 2)
