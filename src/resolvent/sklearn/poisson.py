"""Poisson regression: counts whose logarithm is linear."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from resolvent.problems.poisson import Poisson
from resolvent.sklearn.correction import poisson
from resolvent.sklearn.estimator import Federated, Floats
from resolvent.sklearn.fitting import Objective, fitted, strength


class FederatedPoissonRegressor(RegressorMixin, Federated):  # type: ignore[misc]
    """Poisson regression over users' rows, with the objective of sklearn.linear_model.PoissonRegressor:

        1/n sum_j (exp(t_j) - y_j t_j) + alpha/2 |w|^2,   t_j = x_j . w + intercept

    algorithm: "fedpi" or "fedsplit"; eta: its step, "auto" by default; anderson: the memory of its acceleration.
    max_iter: rounds. tol: what may be left of the optimality condition at the coefficients, per row, in units of each
    column's size and of the mean of y; a ConvergenceWarning says where it was not reached.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-8,
        algorithm: str = "fedpi",
        eta: float | str = "auto",
        anderson: int = 10,
    ) -> None:
        super().__init__(fit_intercept, max_iter, tol, algorithm, eta, anderson)
        self.alpha = alpha

    def fit(self, X: Any, y: Any, users: Any = None) -> FederatedPoissonRegressor:
        """Fit the model. users: whose row each one is; without it all rows are one user's."""
        X, y = self._rows(X, y, y_numeric=True)
        y = np.asarray(y, np.float64)
        if y.min() < 0 or not y.sum() > 0:
            raise ValueError(
                "Some value(s) of y are out of the valid range: numbers >= 0, not all of them 0, are needed"
            )
        mean = float(y.mean())
        l2 = strength(self.alpha, "alpha") * len(y)
        found = fitted(self, X, y, users, Objective(_poisson, poisson, 0.0, l2, start=math.log(mean), size=mean))
        self._settle(found, found.coefficients[0], float(found.intercepts[0]))
        return self

    def predict(self, X: Any) -> Floats:
        """The expected count of each row."""
        return np.asarray(np.exp(self._linear(X)))

    def score(self, X: Any, y: Any) -> float:
        """D^2, the share of the deviance that is explained, as scikit-learn's PoissonRegressor has it."""
        return float(d2_tweedie_score(y, self.predict(X), power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


def _poisson(A: Any, b: Any, **more: Any) -> Poisson:
    return Poisson(A, b, reg=0.0, **more)
