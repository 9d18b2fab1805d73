"""Least squares, ridge regression, the lasso and the elastic net."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from resolvent.problems.least_squares import LeastSquares
from resolvent.sklearn.correction import square
from resolvent.sklearn.estimator import Federated, Floats
from resolvent.sklearn.fitting import Objective, fitted, mixture, strength


class FederatedLinearRegression(RegressorMixin, Federated):  # type: ignore[misc]
    """Linear regression over users' rows. The penalty says which of scikit-learn's objectives it has, with n rows:

        None          LinearRegression   |y - Xw|^2
        "l2"          Ridge              |y - Xw|^2 + alpha |w|^2
        "l1"          Lasso              |y - Xw|^2 / (2 n) + alpha |w|_1
        "elasticnet"  ElasticNet         |y - Xw|^2 / (2 n) + alpha l1_ratio |w|_1 + alpha (1 - l1_ratio)/2 |w|^2

    algorithm: "fedpi" or "fedsplit"; eta: its step, "auto" by default; anderson: the memory of its acceleration.
    max_iter: rounds. tol: what may be left of the optimality condition at the coefficients, per row, in units of each
    column's size and of the spread of y; a ConvergenceWarning says where it was not reached.
    """

    def __init__(
        self,
        penalty: str | None = None,
        *,
        alpha: float = 1.0,
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
        self.alpha = alpha
        self.l1_ratio = l1_ratio

    def fit(self, X: Any, y: Any, users: Any = None) -> FederatedLinearRegression:
        """Fit the model. users: whose row each one is; without it all rows are one user's."""
        X, y = self._rows(X, y, y_numeric=True)
        y = np.asarray(y, np.float64)
        l1, l2 = mixture(self)
        times = strength(self.alpha, "alpha") * (1 if self.penalty == "l2" else len(y))
        centre = float(y.mean()) if self.fit_intercept else 0.0
        size = float(np.sqrt(np.mean((y - centre) ** 2))) or 1.0
        found = fitted(
            self, X, y - centre, users, Objective(LeastSquares, square, l1 * times, l2 * times, size=size, reach=size)
        )
        self._settle(found, found.coefficients[0], float(found.intercepts[0]) + centre)
        return self

    def predict(self, X: Any) -> Floats:
        """The expected y of each row."""
        return self._linear(X)
