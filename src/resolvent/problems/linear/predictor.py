"""What a linear model says of new rows: scores, predictions, probabilities, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resolvent.errors import InputError, bounded, quoted, refuse
from resolvent.problems.inputs import as_tensor, refuse_shape
from resolvent.problems.labels import label_array, plain_label

CLASSIFIERS = ("logistic", "squared-hinge", "softmax")
REGRESSIONS = ("least-squares", "huber", "poisson", "quantile")


@dataclass(frozen=True)
class Predictor:
    """A kind of linear model without its parameters: `loss` names it, `numbers` are the numbers of its loss.

    A model is a vector: one coefficient per feature and then, with `intercept`, the intercept. Softmax has one
    coefficient per class and feature, class by class, and then, with `intercept`, one intercept per class:
    `model[: K * d].reshape(K, d)` has a row of coefficients per class. `classes` are the labels, in the order of the
    scores; of two classes with one score, the second is the one that positive scores stand for.
    """

    loss: str
    features: int
    intercept: bool = False
    classes: tuple[Any, ...] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss not in CLASSIFIERS + REGRESSIONS:
            refuse("loss", quoted(self.loss), f"one of {', '.join(CLASSIFIERS + REGRESSIONS)} is needed")

    @property
    def classifies(self) -> bool:
        return self.classes is not None

    @property
    def scores(self) -> int:
        """How many scores a row has: one, or one per class."""
        return len(self.classes or ()) if self.loss == "softmax" else 1

    def decision(self, model: Any, X: Any) -> NDArray[np.float64]:
        """The scores a . w of each row, (rows,), or (rows, classes) for softmax."""
        w, X = self._parameters(model), self._rows(X)
        many = self.scores
        coefficients = w[: many * self.features].reshape(many, self.features)
        scores = np.asarray(X @ coefficients.T)
        if self.intercept:
            scores = scores + w[many * self.features :]
        return scores if self.loss == "softmax" else scores[:, 0]

    def predict(self, model: Any, X: Any) -> NDArray[Any]:
        """The likeliest class of each row, or the expected target."""
        scores = self.decision(model, X)
        if self.classes is None:
            return np.asarray(np.exp(scores) if self.loss == "poisson" else scores)
        best = scores.argmax(1) if self.loss == "softmax" else (scores > 0).astype(np.int64)
        return np.asarray(label_array(self.classes)[best])

    def probabilities(self, model: Any, X: Any) -> NDArray[np.float64]:
        """Of each class, (rows, classes). Only logistic regression and softmax have them."""
        if self.loss not in ("logistic", "softmax"):
            refuse("probabilities", f"asked of {self.loss}", "only logistic regression and softmax have them")
        scores = self.decision(model, X)
        if self.loss == "logistic":
            scores = np.stack([np.zeros_like(scores), scores], 1)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        return np.asarray(shares / shares.sum(1, keepdims=True), np.float64)

    def score(self, model: Any, X: Any, y: Any) -> float:
        """The accuracy of a classifier. Of a regression the share of the deviance that it explains, against the best
        constant: R^2, for Poisson's the D^2 of its deviance, for quantiles that of the pinball loss."""
        predicted = self.predict(model, X)
        y = label_array(as_tensor(y, "y").detach().cpu().numpy() if isinstance(y, torch.Tensor) else y)
        if y.shape != predicted.shape:
            refuse_shape("y", y, f"one target for each of the {len(predicted)} rows of X is needed")
        if self.classes is not None:
            return float((predicted == y).mean())
        y = y.astype(np.float64)
        constant = np.quantile(y, self.numbers["q"]) if self.loss == "quantile" else y.mean()
        unexplained, total = self._deviance(y, predicted), self._deviance(y, np.full_like(y, constant))
        return 1 - unexplained / total if total > 0 else float(unexplained == 0)

    def _deviance(self, y: NDArray[np.float64], mean: NDArray[np.float64]) -> float:
        if self.loss == "poisson":
            ratio = np.where(y > 0, y, 1) / np.where(y > 0, mean, 1)
            return float(2 * (np.where(y > 0, y * np.log(ratio), 0) - y + mean).sum())
        if self.loss == "quantile":
            q, r = self.numbers["q"], y - mean
            return float(np.maximum(q * r, (q - 1) * r).sum())
        return float(((y - mean) ** 2).sum())

    def _parameters(self, model: Any) -> NDArray[np.float64]:
        w = model.detach().cpu().numpy() if isinstance(model, torch.Tensor) else np.asarray(model)
        needed = self.scores * (self.features + self.intercept)
        if w.shape != (needed,):
            refuse_shape("model", w, f"a vector of {needed} parameters is needed")
        return w.astype(np.float64)

    def _rows(self, X: Any) -> Any:
        """X as a matrix in float64, sparse where it is sparse."""
        try:
            if hasattr(X, "tocsr"):
                X = X.tocsr()
            else:
                X = X.to_numpy() if hasattr(X, "to_numpy") else X
                X = np.asarray(X.detach().cpu() if isinstance(X, torch.Tensor) else bounded(X, "X"))
            X = X.astype(np.float64)
        except InputError:
            raise
        except Exception:  # text; or a class of the caller's, which may raise anything
            refuse("X", quoted(X), f"a matrix with {self.features} columns is needed")
        if X.ndim != 2 or X.shape[1] != self.features:
            refuse_shape("X", X, f"a matrix with {self.features} columns is needed")
        return X

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON."""
        labels = None if self.classes is None else [plain_label(label) for label in self.classes]
        return asdict(self) | {"classes": labels, "numbers": {k: float(v) for k, v in self.numbers.items()}}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Predictor:
        labels = saved.get("classes")
        return Predictor(
            saved["loss"],
            int(saved["features"]),
            bool(saved.get("intercept", False)),
            None if labels is None else tuple(labels),
            dict(saved.get("numbers", {})),
        )
