"""What the estimators share: how the algorithm runs, the linear part of a prediction, and what scikit-learn asks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from resolvent.sklearn.fitting import Fitted

Floats = NDArray[np.float64]


class Federated(BaseEstimator):  # type: ignore[misc]
    """A linear model over users' rows, fitted by rounds of a federated algorithm."""

    coef_: Floats
    intercept_: Any

    def __init__(
        self, fit_intercept: bool, max_iter: int, tol: float, algorithm: str, eta: float | str, anderson: int
    ) -> None:
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.algorithm = algorithm
        self.eta = eta
        self.anderson = anderson

    def _rows(self, X: Any, y: Any, **more: Any) -> tuple[Any, Any]:
        """Checked rows, dense or sparse, and targets."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, ensure_min_samples=2, **more)
        return X, y

    def _settle(self, found: Fitted, coefficients: Floats, intercepts: Any) -> None:
        self.coef_, self.intercept_ = coefficients, intercepts
        self.n_iter_, self.optimality_, self.users_ = found.rounds, found.optimality, found.users

    def _linear(self, X: Any) -> Floats:
        """x . w + intercept of each row: (rows,), or (rows, scores) where `coef_` has a row per score."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
