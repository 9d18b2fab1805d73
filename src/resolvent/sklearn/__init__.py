"""Estimators with scikit-learn's interface, parameters and objectives, fitted by a federated algorithm.

They need the extra `sklearn`. Every estimator takes `fit(X, y, users=...)`, one user per row, and has the coefficients
that scikit-learn's own has on the pooled rows.
"""

from resolvent.errors import InputError
from resolvent.installed import install

try:
    import sklearn  # noqa: F401
except ImportError:
    raise InputError(f"resolvent.sklearn needs scikit-learn, which is not installed: {install('sklearn')}") from None

from resolvent.sklearn.estimators import (
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)

__all__ = ["FederatedLinearRegression", "FederatedLogisticRegression", "FederatedPoissonRegressor"]
