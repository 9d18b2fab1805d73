"""The estimators are scikit-learn's kind: its own checks, pipelines, grids, routed users, warnings and refusals."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from resolvent.errors import BadAnswer, InputError
from resolvent.local.newton import Newton
from resolvent.sklearn import FederatedLinearRegression, FederatedLogisticRegression, FederatedPoissonRegressor

ESTIMATORS: dict[str, Any] = {
    "linear": FederatedLinearRegression(),
    "lasso": FederatedLinearRegression("l1", alpha=0.01),
    "poisson": FederatedPoissonRegressor(),
    "logistic": FederatedLogisticRegression(),
}


def rows(n: int = 90) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4)) + 2
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-(X - 2) @ [2, -1, 0, 1])), "ill", "well")
    return X, y, rng.choice(["north", "south", "west"], n)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "lasso" else []) for name in ESTIMATORS]
)
def test_scikit_learns_own_checks(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(ESTIMATORS[name], on_skip=None, on_fail=None)
    wrong = [f"{check['check_name']}: {check['exception']}" for check in found if check["status"] == "failed"]
    assert not wrong, "\n".join(wrong)
    assert sum(check["status"] == "passed" for check in found) > 40


def test_a_pipeline_in_a_grid_with_routed_users() -> None:
    X, y, users = rows()
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedLogisticRegression().set_fit_request(users=True)
        grid = GridSearchCV(
            make_pipeline(StandardScaler(), model),
            {"federatedlogisticregression__C": [0.01, 1.0]},
            cv=GroupKFold(3).set_split_request(groups=True),
        )
        grid.fit(X, y, users=users, groups=users)
        best = grid.best_estimator_[-1]
        assert best.users_ == ["north", "south", "west"]
        their = GridSearchCV(
            make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10)),
            {"logisticregression__C": [0.01, 1.0]},
            cv=GroupKFold(3).set_split_request(groups=True),
        ).fit(X, y, groups=users)
        np.testing.assert_allclose(
            grid.cv_results_["mean_test_score"], their.cv_results_["mean_test_score"], atol=1e-12
        )
        assert list(grid.best_params_.values()) == list(their.best_params_.values())
        scores = cross_val_score(model, X, y, cv=3, params={"users": users})
    assert (scores > 0.5).all()


def test_users_that_nobody_asked_for_are_refused_by_the_router() -> None:
    X, y, users = rows()
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), FederatedLogisticRegression())
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError, match="users"):
            pipeline.fit(X, y, users=users)


def test_names_of_features_and_probabilities() -> None:
    X, y, users = rows()
    frame = pd.DataFrame(X, columns=["age", "dose", "weight", "pressure"])
    model = FederatedLogisticRegression().fit(frame, y, users=pd.Series(users))
    assert model.feature_names_in_.tolist() == list(frame.columns)
    assert model.n_features_in_ == 4
    assert model.classes_.tolist() == ["ill", "well"]
    P = model.predict_proba(frame)
    np.testing.assert_allclose(P.sum(1), 1, rtol=1e-15)
    np.testing.assert_allclose(P[:, 1], 1 / (1 + np.exp(-model.decision_function(frame))), rtol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(frame), np.log(P), rtol=1e-12)
    assert (model.predict(frame) == model.classes_[P.argmax(1)]).all()


def test_the_tolerance_is_checked_at_the_coefficients() -> None:
    """The optimality condition by hand, in units in which columns have spread one."""
    X, y, users = rows()
    model = FederatedLogisticRegression(C=2.0, tol=1e-5).fit(X, y, users=users)
    t = np.where(y == "well", 1.0, -1.0)
    pull = -t / (1 + np.exp(t * model.decision_function(X)))
    slopes = np.append((X.T @ pull + model.coef_[0] / 2 - X.mean(0) * pull.sum()) / X.std(0), pull.sum()) / len(y)
    assert model.optimality_ == pytest.approx(np.linalg.norm(slopes), rel=1e-6)
    assert 1e-12 < model.optimality_ <= 1e-5
    assert model.n_iter_ < FederatedLogisticRegression(C=2.0, tol=1e-12).fit(X, y, users=users).n_iter_


def test_a_prox_that_is_not_found_ends_the_rounds_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Newton.rows

    def lost(self: Any, ask: Any, *more: Any) -> Any:
        if ask.t == 3:
            raise BadAnswer("the prox was not found to the tolerance")
        return asked(self, ask, *more)

    monkeypatch.setattr(Newton, "rows", lost)
    X = np.random.default_rng(0).standard_normal((30, 3))
    with pytest.warns(ConvergenceWarning, match="after 3 rounds .*scale the columns of X or give eta"):
        model = FederatedLogisticRegression().fit(X, X[:, 0] > 0, users=np.arange(30) % 2)
    assert model.n_iter_ == 3
    assert model.score(X, X[:, 0] > 0) > 0.8


def test_too_few_rounds_are_warned_about() -> None:
    X, y, users = rows()
    with pytest.warns(ConvergenceWarning, match="after 2 rounds the optimality condition is violated by"):
        model = FederatedLogisticRegression(max_iter=2).fit(X, y, users=users)
    assert model.optimality_ > model.tol
    assert model.n_iter_ == 2


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "penalty": ({"penalty": "l3"}, {}, "penalty is 'l3', but 'l1'"),
    "C": ({"C": 0}, {}, "C is 0, but a number > 0"),
    "C of text": ({"C": "1"}, {}, "C is '1'"),
    "ratio": ({"penalty": "elasticnet", "l1_ratio": 1.5}, {}, "l1_ratio is 1.5"),
    "tol": ({"tol": 0}, {}, "tol is 0"),
    "max_iter": ({"max_iter": 0}, {}, "max_iter is 0"),
    "another problem": (
        {"algorithm": "fedprox"},
        {},
        "'fedprox', but it solves another problem: one of fedsplit, fedpi",
    ),
    "an algorithm": ({"algorithm": "adam"}, {}, "'adam', but it is unknown"),
    "users": ({}, {"users": ["a"]}, "users is of shape .1,., but one user for each of the 90 rows"),
    "nobody": ({}, {"users": np.full(90, np.nan)}, "users is None or NaN in places"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_its_sentence(name: str) -> None:
    made, more, words = REFUSED[name]
    X, y, _ = rows()
    with pytest.raises(InputError, match=words):
        FederatedLogisticRegression(**made).fit(X, y, **more)


def test_counts_that_have_no_model_are_refused() -> None:
    X, _, _ = rows()
    with pytest.raises(ValueError, match="not all of them 0"):
        FederatedPoissonRegressor().fit(X, np.zeros(90))
