"""Logistic regression, of two classes or many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets

from resolvent.errors import refuse
from resolvent.problems.logistic import Logistic
from resolvent.problems.softmax.model import Softmax
from resolvent.sklearn import correction
from resolvent.sklearn.estimator import Federated, Floats
from resolvent.sklearn.fitting import Objective, fitted, mixture, strength


class FederatedLogisticRegression(ClassifierMixin, Federated):  # type: ignore[misc]
    """Logistic regression over users' rows, with the objective of sklearn.linear_model.LogisticRegression:

        C sum_j loss(y_j, x_j . w + intercept) + (1 - l1_ratio)/2 |w|^2 + l1_ratio |w|_1

    penalty: "l2", "l1", "elasticnet" (with l1_ratio) or None. More than two classes are one softmax.
    algorithm: "fedpi" or "fedsplit"; eta: its step, "auto" by default; anderson: the memory of its acceleration.
    max_iter: rounds. tol: what may be left of the optimality condition at the coefficients, per row, in units of each
    column's size; a ConvergenceWarning says where it was not reached.
    """

    def __init__(
        self,
        penalty: str | None = "l2",
        *,
        C: float = 1.0,
        l1_ratio: float = 0.5,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-8,
        algorithm: str = "fedpi",
        eta: float | str = "auto",
        anderson: int = 10,
    ) -> None:
        super().__init__(fit_intercept, max_iter, tol, algorithm, eta, anderson)
        self.penalty = penalty
        self.C = C
        self.l1_ratio = l1_ratio

    def fit(self, X: Any, y: Any, users: Any = None) -> FederatedLogisticRegression:
        """Fit the model. users: whose row each one is; without it all rows are one user's."""
        X, y = self._rows(X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        many = len(self.classes_)
        if many < 2:
            raise ValueError(f"y holds one class only, {self.classes_[0]!r}, but a classifier needs at least two")
        l1, l2 = mixture(self)
        over = _inverse(self.C)
        if many == 2:
            b, objective = (
                np.where(codes == 1, 1.0, -1.0),
                Objective(_logistic, correction.logistic, l1 * over, l2 * over),
            )
        else:
            b, objective = codes.astype(np.float64), Objective(_softmax, correction.softmax, l1 * over, l2 * over, many)
        found = fitted(self, X, b, users, objective)
        coefficients, intercepts = found.coefficients, found.intercepts
        if many > 2:  # a constant added to every class's score changes nothing: the smallest scores are reported
            intercepts = intercepts - intercepts.mean()
            coefficients = coefficients if l1 * over or l2 * over else coefficients - coefficients.mean(0)
        self._settle(found, coefficients, intercepts)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Scores: of the second of two classes, (rows,), or of each class, (rows, classes)."""
        scores = self._linear(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class, (rows, classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        return np.asarray(softmax(scores))

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithm of `predict_proba`."""
        return np.asarray(np.log(self.predict_proba(X)))


def _inverse(C: Any) -> float:
    """1 / C: how strong the penalty is beside a sum over rows."""
    if not strength(C, "C", infinite=True) > 1e-300:
        refuse("C", C, "a number > 0 is needed")
    return 0.0 if math.isinf(C) else 1 / float(C)


def _logistic(A: Any, b: Any, **more: Any) -> Logistic:
    return Logistic(A, b, reg=0.0, **more)


def _softmax(A: Any, b: Any, **more: Any) -> Softmax:
    return Softmax(A, b, reg=0.0, **more)
