"""The estimators: linear, logistic and Poisson regression, with what scikit-learn asks of each."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot, softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from resolvent.errors import refuse
from resolvent.problems.least_squares import LeastSquares
from resolvent.problems.linear.losses import Poisson
from resolvent.problems.logistic import Logistic
from resolvent.problems.softmax import Softmax
from resolvent.sklearn import correction
from resolvent.sklearn.fitting import Objective, fitted, mixture, strength, weights_of

Floats = NDArray[np.float64]


@dataclass(repr=False, eq=False, kw_only=True)
class _Federated(BaseEstimator):  # type: ignore[misc]
    """A linear model over users' rows, fitted by rounds of a federated algorithm."""

    fit_intercept: bool = True
    max_iter: int = 1000
    tol: float = 1e-8
    algorithm: str = "fedpi"
    eta: float | str = "auto"
    anderson: int = 10
    coef_: Floats = field(init=False)
    intercept_: Any = field(init=False)

    def _rows(self, X: Any, y: Any, numeric: bool = True) -> tuple[Any, Any]:
        """Checked rows, dense or sparse, and targets."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, ensure_min_samples=2, y_numeric=numeric)
        return X, np.asarray(y, np.float64) if numeric else y

    def _fit(self, X: Any, b: Floats, weight: Floats, users: Any, objective: Objective) -> tuple[Floats, Floats]:
        """Coefficients (scores, d) and intercepts (scores,); how they were found is stored."""
        fit = fitted(self, X, b, weight, users, objective)
        self.n_iter_, self.optimality_, self.users_ = fit.rounds, fit.optimality, fit.users
        return fit.coefficients, fit.intercepts

    def _linear(self, X: Any) -> Floats:
        """x . w + intercept of each row: (rows,), or (rows, scores) where `coef_` has a row per score."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(repr=False, eq=False)
class FederatedLinearRegression(RegressorMixin, _Federated):  # type: ignore[misc]
    """Linear regression over users' rows. The penalty says which of scikit-learn's objectives it has, with n rows:

        None          LinearRegression   |y - Xw|^2
        "l2"          Ridge              |y - Xw|^2 + alpha |w|^2
        "l1"          Lasso              |y - Xw|^2 / (2 n) + alpha |w|_1
        "elasticnet"  ElasticNet         |y - Xw|^2 / (2 n) + alpha l1_ratio |w|_1 + alpha (1 - l1_ratio)/2 |w|^2

    algorithm: "fedpi" or "fedsplit"; eta: its step, "auto" by default; anderson: the memory of its acceleration.
    max_iter: rounds. tol: how far the optimality condition may be violated at the coefficients, per row, in units of
    each column's size and of the spread of y; a ConvergenceWarning says where it was not reached.
    """

    penalty: str | None = None
    _: KW_ONLY
    alpha: float = 1.0
    l1_ratio: float = 0.5

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> FederatedLinearRegression:
        """Fit the model. users: whose row each one is; without it all rows are one user's. sample_weight: of each row's
        loss."""
        X, y = self._rows(X, y)
        weight = weights_of(sample_weight, X)
        l1, l2 = mixture(self)
        times = strength(self.alpha, "alpha") * (1 if self.penalty == "l2" else float(weight.sum()))
        centre = float(np.average(y, weights=weight)) if self.fit_intercept else 0.0
        size = float(np.sqrt(np.average((y - centre) ** 2, weights=weight))) or 1.0
        objective = Objective(LeastSquares, correction.square, l1 * times, l2 * times, size=size, reach=size)
        coefficients, intercepts = self._fit(X, y - centre, weight, users, objective)
        self.coef_, self.intercept_ = coefficients[0], float(intercepts[0]) + centre
        return self

    def predict(self, X: Any) -> Floats:
        """The expected y of each row."""
        return self._linear(X)


@dataclass(repr=False, eq=False)
class FederatedLogisticRegression(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Logistic regression over users' rows, with the objective of sklearn.linear_model.LogisticRegression:

        C sum_j loss(y_j, x_j . w + intercept) + (1 - l1_ratio)/2 |w|^2 + l1_ratio |w|_1

    penalty: "l2", "l1", "elasticnet" (with l1_ratio) or None. More than two classes are one softmax. class_weight:
    "balanced", a dict by class, or None.
    algorithm: "fedpi" or "fedsplit"; eta: its step, "auto" by default; anderson: the memory of its acceleration.
    max_iter: rounds. tol: how far the optimality condition may be violated at the coefficients, per row, in units of
    each column's size; a ConvergenceWarning says where it was not reached.
    """

    penalty: str | None = "l2"
    _: KW_ONLY
    C: float = 1.0
    l1_ratio: float = 0.5
    class_weight: Any = None

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> FederatedLogisticRegression:
        """Fit the model. users: whose row each one is; without it all rows are one user's. sample_weight: of each row's
        loss, beside what its class has."""
        X, y = self._rows(X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        many = len(self.classes_)
        if many < 2:
            raise ValueError(f"y holds one class only, {self.classes_[0]!r}, but a classifier needs at least two")
        if not strength(self.C, "C", infinite=True) > 1e-300:
            refuse("C", self.C, "a number > 0 is needed")
        weight = weights_of(sample_weight, X)
        if self.class_weight is not None:
            own = {"classes": self.classes_, "y": y, "sample_weight": weight}
            weight = weight * compute_class_weight(self.class_weight, **own)[codes]
        over = 0.0 if math.isinf(self.C) else 1 / float(self.C)
        l1, l2 = (share * over for share in mixture(self))
        b = np.where(codes == 1, 1.0, -1.0) if many == 2 else codes.astype(np.float64)
        objective = Objective(partial(Logistic, reg=0.0), correction.logistic, l1, l2)
        if many > 2:
            objective = Objective(partial(Softmax, reg=0.0), correction.softmax, l1, l2, many)
        coefficients, intercepts = self._fit(X, b, weight, users, objective)
        if many > 2:  # a constant added to every class's score changes nothing: the smallest scores are reported
            intercepts = intercepts - intercepts.mean()
            coefficients = coefficients if l1 or l2 else coefficients - coefficients.mean(0)
        self.coef_, self.intercept_ = coefficients, intercepts
        return self

    def decision_function(self, X: Any) -> Floats:
        """Scores: of the second of two classes, (rows,), or of each class, (rows, classes)."""
        scores = self._linear(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class, (rows, classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        return np.asarray(softmax(scores))

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithm of `predict_proba`."""
        return np.asarray(np.log(self.predict_proba(X)))


@dataclass(repr=False, eq=False, kw_only=True)
class FederatedPoissonRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Poisson regression over users' rows, with the objective of sklearn.linear_model.PoissonRegressor:

        1/n sum_j (exp(t_j) - y_j t_j) + alpha/2 |w|^2,   t_j = x_j . w + intercept

    algorithm: "fedpi" or "fedsplit"; eta: its step, "auto" by default; anderson: the memory of its acceleration.
    max_iter: rounds. tol: how far the optimality condition may be violated at the coefficients, per row, in units of
    each column's size and of the mean of y; a ConvergenceWarning says where it was not reached.
    """

    alpha: float = 1.0

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> FederatedPoissonRegressor:
        """Fit the model. users: whose row each one is; without it all rows are one user's. sample_weight: of each row's
        loss."""
        X, y = self._rows(X, y)
        weight = weights_of(sample_weight, X)
        if y.min() < 0 or not y @ weight > 0:
            what = "Some value(s) of y are out of the valid range"
            raise ValueError(f"{what}: numbers >= 0, not all of them 0, are needed")
        mean, l2 = float(np.average(y, weights=weight)), strength(self.alpha, "alpha") * float(weight.sum())
        build = partial(Poisson, reg=0.0)
        objective = Objective(build, correction.poisson, 0.0, l2, start=math.log(mean), size=mean)
        coefficients, intercepts = self._fit(X, y, weight, users, objective)
        self.coef_, self.intercept_ = coefficients[0], float(intercepts[0])
        return self

    def predict(self, X: Any) -> Floats:
        """The expected count of each row."""
        return np.asarray(np.exp(self._linear(X)))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D^2, the share of the deviance that is explained, as scikit-learn's PoissonRegressor has it."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
