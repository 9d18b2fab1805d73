"""What a run's model says of new rows: by a linear model's preparation and predictor, or through a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resolvent.errors import InputError, bounded, quoted, refuse
from resolvent.solving.metrics import accuracy
from resolvent.solving.metrics import probabilities as shares
from resolvent.solving.network_outputs import OVER_CLASSES, THRESHOLDS, labels, read

IGNORED = -100
"""The label that does not count where a model computes its loss."""
BINARY = (-1, 1), (0, 1)
"""What targets of two classes are."""


def predict(run: Any, X: Any) -> NDArray[Any]:
    """Labels, or numbers, one per row."""
    description = run.description
    if description.network is not None:
        values, network = outputs(run, X), description.network
        own = network["input"].get("labels")  # of a model that computes its loss
        if own and not own["shape"] and "int" in own["dtype"] and values.ndim == 2 and values.shape[1] > 1:
            largest: NDArray[Any] = np.argmax(values, 1)
            return largest
        classes = labels(values, network["loss"])
        return values if classes is None else classes
    features, predictor = _features(run, X)
    predicted: NDArray[Any] = predictor.predict(run.model, features)
    return predicted if description.preparation is None else description.preparation.labels(predicted)


def probabilities(run: Any, X: Any) -> NDArray[Any]:
    """Of each class, (rows, classes)."""
    description = run.description
    if description.network is None:
        features, predictor = _features(run, X)
        values: NDArray[Any] = predictor.probabilities(run.model, features)
        return values
    values, loss = outputs(run, X), description.network["loss"]
    two = loss in THRESHOLDS and values.size == len(values)
    if not two and (loss not in OVER_CLASSES or values.ndim != 2):
        raise InputError(
            "probabilities are known of networks trained by torch's cross entropy, with one target per row; "
            "run.module().eval()(...) has the outputs of this one"
        )
    values = values.reshape(-1) if two else values
    p = values if loss == "binary_cross_entropy" else shares(values)
    return np.stack([1 - p, p], 1) if p.ndim == 1 else p


def score(run: Any, X: Any, y: Any = None) -> float:
    """Accuracy, R^2, or the explained share of the deviance; without y of a batch that has labels."""
    description = run.description
    if y is None:
        if not isinstance(X, Mapping) or "labels" not in X:
            refuse("y", "left out", 'targets are needed, or a batch X that has "labels"')
        y = X["labels"]
    if description.network is None:
        features, predictor = _features(run, X)
        y = y if description.preparation is None else description.preparation.encode(y)
        return float(predictor.score(run.model, features, y))
    values, truth, loss = outputs(run, X), _array(y), description.network["loss"]
    shift = description.network.get("shift")
    if shift is not None and truth.dtype.kind in "iu" and values.shape[:-1] == truth.shape:
        counted, guesses = truth != IGNORED, values.argmax(-1)
        if shift and truth.ndim > 1:
            counted[:, :shift], guesses = False, np.roll(guesses, shift, 1)
        return float((guesses == truth)[counted].mean())
    if labels(values, loss) is not None:
        judged = read(values, truth, loss, description.network.get("ignored"))
        if judged is None or judged.classes is None or len(truth) != len(values):
            refuse("y", f"of shape {truth.shape}", f"one class for each of the {len(values)} rows is needed")
        return accuracy(judged)
    truth = truth.astype(np.float64)
    if truth.size != values.size or len(truth) != len(values):
        refuse("y", f"of shape {truth.shape}", f"targets of the shape {values.shape} of the outputs are needed")
    if loss is None and any(bool(np.isin(truth, both).all()) for both in BINARY):
        raise InputError(
            "y has two classes, but the network was trained by a loss of your own, and what its outputs say of classes "
            "is not known; compare run.predict(X), the outputs, with y yourself"
        )
    left = np.square(truth.reshape(-1) - values.reshape(-1)).sum()
    most = np.square(truth - truth.mean()).sum()
    return float(1 - left / most) if most > 0 else float(left == 0)


def outputs(run: Any, X: Any) -> NDArray[np.float64]:
    """What a run's network answers in eval mode, without gradients."""
    network, module = run.description.network, run.module().eval()
    first = next(module.parameters())
    if "inputs" in network["input"]:
        return _outputs_of_several(module, X, network["input"]["inputs"])
    bounded(X, "X")
    try:
        x = X if isinstance(X, torch.Tensor) else torch.as_tensor(np.asarray(X))
    except Exception:  # no numbers; or a class of the caller's, which may raise anything
        refuse("X", quoted(X), f"a batch of rows of shape {tuple(network['input']['shape'])} is needed")
    x = x.to(first.device, first.dtype) if x.is_floating_point() or network["input"]["dtype"].startswith("f") else x
    if list(x.shape[1:]) != network["input"]["shape"]:
        refuse(
            "X", f"of shape {tuple(x.shape)}", f"a batch of rows of shape {tuple(network['input']['shape'])} is needed"
        )
    from resolvent.networks.calling import outputs_of

    with torch.no_grad():
        values: NDArray[np.float64] = outputs_of(module(x)).double().cpu().numpy()
    return values


def _outputs_of_several(module: torch.nn.Module, X: Any, inputs: dict[str, Any]) -> NDArray[np.float64]:
    """The same of a module whose inputs are a dict or a tuple; rows may have any length that the module takes."""
    from resolvent.networks.calling import call
    from resolvent.networks.packed_inputs import as_inputs

    given, first = as_inputs(X), next(module.parameters())
    if isinstance(given, dict):  # a whole batch may be given
        given = {key: part for key, part in given.items() if key in inputs or key != "labels"}
    if not isinstance(given, dict) or [*map(str, given)] != [key for key in inputs if key in map(str, given)]:
        refuse("X", f"of type {type(X).__name__}", f"a batch of {', '.join(inputs)} is needed, as the users had")
    tensors = {key: torch.as_tensor(part) for key, part in given.items()}
    kinds = {key: first.dtype if t.is_floating_point() else t.dtype for key, t in tensors.items()}
    with torch.no_grad():
        return call(module, {key: t.to(first.device, kinds[key]) for key, t in tensors.items()}).double().cpu().numpy()


def _features(run: Any, X: Any) -> tuple[Any, Any]:
    description = run.description
    if description.predictor is None:
        kind = description.kind or "the run"
        raise InputError(
            f"there is nothing to predict with, since {kind} predicts nothing; run.model has the parameters"
        )
    return X if description.preparation is None else description.preparation.transform(X), description.predictor


def _array(y: Any) -> NDArray[Any]:
    try:
        return np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else bounded(y, "y"))
    except Exception as error:
        if isinstance(error, InputError):
            raise
        refuse("y", quoted(y), "one label or number per row is needed")
