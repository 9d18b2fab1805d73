"""What a run's model says of new rows: by a linear model's preparation and predictor, or through a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resolvent.errors import InputError, refuse
from resolvent.solving.metrics import probabilities as shares

PROBABILISTIC = ("cross_entropy", "nll_loss")
"""Losses of networks whose outputs become probabilities by softmax."""


def predict(run: Any, X: Any) -> NDArray[Any]:
    """Labels, or numbers, one per row."""
    told = run.description
    if told.network is not None:
        found = outputs(run, X)
        return found.argmax(1) if _classes(told, found) else found
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
    found = outputs(run, X)
    if told.network["loss"] not in PROBABILISTIC or found.ndim != 2:
        refuse("probabilities", "asked for", "only networks trained by cross entropy have them")
    return np.stack([1 - p, p], 1) if (p := shares(found)).ndim == 1 else p


def score(run: Any, X: Any, y: Any) -> float:
    """Accuracy, R^2, or the explained share of the deviance."""
    told = run.description
    if told.network is None:
        features, predictor = _features(run, X)
        y = y if told.preparation is None else told.preparation.encode(y)
        return float(predictor.score(run.model, features, y))
    found, truth = outputs(run, X), _array(y)
    if _classes(told, found):
        if truth.shape != found.shape[:1] + found.shape[2:]:
            refuse("y", f"of shape {truth.shape}", f"one class for each of the {len(found)} rows is needed")
        return float((found.argmax(1) == truth).mean())
    truth = truth.astype(np.float64)
    if truth.size != found.size or len(truth) != len(found):
        refuse("y", f"of shape {truth.shape}", f"targets of the shape {found.shape} of the outputs are needed")
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


def _classes(told: Any, found: NDArray[Any]) -> bool:
    """Whether outputs are scores of classes, (rows, classes, ...)."""
    return told.network["loss"] in PROBABILISTIC and found.ndim >= 2 and found.shape[1] > 1


def _array(y: Any) -> NDArray[Any]:
    return np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
