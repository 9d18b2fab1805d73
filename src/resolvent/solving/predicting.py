"""What a run's model says of new rows: by a linear model's preparation and predictor, or through a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resolvent.errors import InputError, refuse
from resolvent.solving.metrics import accuracy
from resolvent.solving.metrics import probabilities as shares
from resolvent.solving.network_outputs import OVER_CLASSES, THRESHOLDS, labels, read

BINARY = (-1, 1), (0, 1)
"""What targets of two classes are."""


def predict(run: Any, X: Any) -> NDArray[Any]:
    """Labels, or numbers, one per row."""
    told = run.description
    if told.network is not None:
        found = outputs(run, X)
        classes = labels(found, told.network["loss"])
        return found if classes is None else classes
    features, predictor = _features(run, X)
    predicted: NDArray[Any] = predictor.predict(run.model, features)
    return predicted if told.preparation is None else told.preparation.labels(predicted)


def probabilities(run: Any, X: Any) -> NDArray[Any]:
    """Of each class, (rows, classes)."""
    told = run.description
    if told.network is None:
        features, predictor = _features(run, X)
        found: NDArray[Any] = predictor.probabilities(run.model, features)
        return found
    found, loss = outputs(run, X), told.network["loss"]
    two = loss in THRESHOLDS and found.size == len(found)
    if not two and (loss not in OVER_CLASSES or found.ndim != 2):
        refuse(
            "probabilities", "asked for", "only networks trained by cross entropy, with one target per row, have them"
        )
    found = found.reshape(-1) if two else found
    p = found if loss == "binary_cross_entropy" else shares(found)
    return np.stack([1 - p, p], 1) if p.ndim == 1 else p


def score(run: Any, X: Any, y: Any) -> float:
    """Accuracy, R^2, or the explained share of the deviance."""
    told = run.description
    if told.network is None:
        features, predictor = _features(run, X)
        y = y if told.preparation is None else told.preparation.encode(y)
        return float(predictor.score(run.model, features, y))
    found, truth, loss = outputs(run, X), _array(y), told.network["loss"]
    if labels(found, loss) is not None:
        judged = read(found, truth, loss, told.network.get("ignored"))
        if judged is None or judged.classes is None or len(truth) != len(found):
            refuse("y", f"of shape {truth.shape}", f"one class for each of the {len(found)} rows is needed")
        return accuracy(judged)
    truth = truth.astype(np.float64)
    if truth.size != found.size or len(truth) != len(found):
        refuse("y", f"of shape {truth.shape}", f"targets of the shape {found.shape} of the outputs are needed")
    if loss is None and any(bool(np.isin(truth, both).all()) for both in BINARY):
        raise InputError(
            "y has two classes, but the network was trained by a loss of your own, and what its outputs say of classes "
            "is not known; compare run.predict(X), the outputs, with y yourself"
        )
    left = np.square(truth.reshape(-1) - found.reshape(-1)).sum()
    most = np.square(truth - truth.mean()).sum()
    return float(1 - left / most) if most > 0 else float(left == 0)


def outputs(run: Any, X: Any) -> NDArray[np.float64]:
    """What a run's network answers in eval mode, without gradients."""
    told, module = run.description.network, run.module().eval()
    first = next(module.parameters())
    x = X if isinstance(X, torch.Tensor) else torch.as_tensor(np.asarray(X))
    x = x.to(first.device, first.dtype) if x.is_floating_point() or told["input"]["dtype"].startswith("f") else x
    if list(x.shape[1:]) != told["input"]["shape"]:
        refuse("X", f"of shape {tuple(x.shape)}", f"a batch of rows of shape {tuple(told['input']['shape'])} is needed")
    with torch.no_grad():
        found: NDArray[np.float64] = module(x).double().cpu().numpy()
    return found


def _features(run: Any, X: Any) -> tuple[Any, Any]:
    told = run.description
    if told.predictor is None:
        kind = (
            f"{told.kind} predicts nothing" if told.kind else "this run was saved by a version that stored no predictor"
        )
        raise InputError(f"there is nothing to predict with, since {kind}; run.model has the parameters")
    return X if told.preparation is None else told.preparation.transform(X), told.predictor


def _array(y: Any) -> NDArray[Any]:
    return np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
