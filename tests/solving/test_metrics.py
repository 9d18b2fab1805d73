"""Metrics on held-out data against scikit-learn's, over all rows together and per user, and where they stand."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import resolvent as rs
from resolvent.solving.metrics import NAMED, Judged, as_metrics, auc, judge

sklearn = pytest.importorskip("sklearn.metrics")


class Linear(NamedTuple):
    """A linear model's predictor."""

    loss: str
    features: int
    classes: tuple[Any, ...] | None = None
    classifies: bool = False

    def decision(self, model: Any, X: Any) -> NDArray[np.float64]:
        return np.asarray(X @ np.asarray(model, np.float64))


def logistic(seed: int, users: int = 4, dim: int = 3) -> Any:
    problem: Any = rs.make_logistic(users=users, dim=dim, rows=20, seed=seed)
    if not hasattr(problem, "predictor"):
        problem.predictor = Linear("logistic", dim, (-1, 1), True)
    return problem


def held_out(seed: int, dim: int = 3, sizes: tuple[int, ...] = (7, 30, 0, 12)) -> rs.HeldOut:
    random = np.random.default_rng(seed)
    A = [np.round(random.normal(size=(n, dim)), seed % 3) for n in sizes]  # rounded: ties
    b = [np.where(random.random(n) < 0.4, -1, 1) for n in sizes]
    if sizes[0]:
        b[0][:] = 1  # one class alone
    return rs.HeldOut(A, b)


def judged(truth: Any, t: Any) -> Judged:
    t = np.asarray(t, np.float64)
    return Judged(np.asarray(truth), t, 0.5 * (1 + np.tanh(t / 2)), 2)


@pytest.mark.parametrize("seed", range(40))
def test_named_metrics_are_those_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 40))
    truth, t = random.integers(0, 2, n), np.round(random.normal(size=n) * 3, int(random.integers(0, 3)))
    found = judged(truth, t)
    p = found.scores
    assert NAMED["accuracy"](found) == pytest.approx(sklearn.accuracy_score(truth, p > 0.5))
    assert NAMED["log_loss"](found) == pytest.approx(sklearn.log_loss(truth, p, labels=[0, 1]), rel=1e-12)
    if len(set(truth)) == 2:
        assert auc(found) == pytest.approx(sklearn.roc_auc_score(truth, p), abs=1e-12)
    else:
        assert math.isnan(auc(found))
    numbers = Judged(truth + t, t, t, None)
    assert NAMED["rmse"](numbers) == pytest.approx(sklearn.root_mean_squared_error(truth + t, t), rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_metrics_of_many_classes_are_those_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    t = np.round(random.normal(size=(30, 4)), 1)
    truth = np.concatenate([np.arange(4), random.integers(0, 4, 26)])
    p = np.exp(t) / np.exp(t).sum(1, keepdims=True)
    found = Judged(truth, t, p, 4)
    assert NAMED["accuracy"](found) == pytest.approx(sklearn.accuracy_score(truth, t.argmax(1)))
    assert NAMED["log_loss"](found) == pytest.approx(sklearn.log_loss(truth, p), rel=1e-12)
    assert auc(found) == pytest.approx(sklearn.roc_auc_score(truth, p, multi_class="ovr"), abs=1e-12)
    assert math.isnan(auc(found._replace(truth=np.zeros_like(truth))))


def test_the_log_loss_is_right_where_probabilities_round_to_zero() -> None:
    assert NAMED["log_loss"](judged([0, 1], [800.0, -800.0])) == 800.0


def test_a_diverging_model_has_nan_and_not_a_crash() -> None:
    pooled, own = judge("test", [judged([0, 1], [math.nan, 1.0])], as_metrics(["accuracy", "auc", "log_loss"], ()))
    assert all(math.isnan(value) for value in (*pooled.values(), *(v for one in own.values() for v in one)))


@pytest.mark.parametrize("seed", range(4))
def test_columns_of_the_history_are_the_metrics_of_each_model(seed: int) -> None:
    models: list[Any] = []
    test = held_out(seed)
    run = rs.solve(
        logistic(seed), rs.fedpi(0.1), rounds=6, test=test, callback=lambda r: models.append(r.model[0].numpy())
    )
    A, b = np.concatenate(test.A), np.concatenate(test.b)
    columns = [name for name in run.history if str(name).startswith("test_")]
    assert columns == ["test_accuracy", "test_auc", "test_log_loss"]
    for model, area, loss in zip(models, run.history.test_auc, run.history.test_log_loss, strict=True):
        assert area == pytest.approx(sklearn.roc_auc_score(b, A @ model), abs=1e-12)
        assert loss == pytest.approx(sklearn.log_loss(b, 1 / (1 + np.exp(-A @ model))), rel=1e-10)
    own: Any = run.user_metrics
    assert list(own.index) == ["0", "1", "2", "3"]
    assert own.test_auc.isna().tolist() == [True, False, True, False]
    assert own.test_auc.iloc[3] == pytest.approx(sklearn.roc_auc_score(test.b[3], test.A[3] @ models[-1]), abs=1e-12)


def test_metrics_of_ones_own_see_truth_and_probabilities() -> None:
    seen: list[Any] = []

    def brier(truth: Any, scores: Any) -> float:
        seen.append(len(truth))
        return float(sklearn.brier_score_loss(truth, scores))

    test = held_out(1)
    run = rs.solve(logistic(1), rs.fedpi(0.1), rounds=2, test=test, metrics={"brier": brier, "area": "auc"})
    p = 1 / (1 + np.exp(-np.concatenate(test.A) @ run.model.numpy()))
    assert run.history.test_brier.iloc[-1] == pytest.approx(np.mean((p - (np.concatenate(test.b) > 0)) ** 2))
    assert "test_area" in run.history
    assert seen[:4] == [49, 7, 30, 12]


def test_metrics_may_write_to_what_they_get() -> None:
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(3, 6, 2)), rng.normal(size=(3, 6))

    def error(truth: Any, scores: Any) -> float:
        truth -= scores
        np.abs(truth, out=truth)
        return float(truth.mean())

    test = rs.HeldOut(list(A), [own.copy() for own in b])
    measured = {"error": error, "rmse": "rmse"}
    run = rs.solve(rs.LeastSquares(A, b), rs.fedpi(0.1), rounds=3, test=test, metrics=measured)
    left = (A @ run.model.numpy() - b).ravel()
    assert run.history.test_error.iloc[-1] == pytest.approx(np.abs(left).mean(), rel=1e-12)
    assert run.history.test_rmse.iloc[-1] == pytest.approx(np.sqrt(np.mean(left**2)), rel=1e-12)
    assert all(map(np.array_equal, test.b, b))


def test_metrics_have_a_cadence_of_their_own() -> None:
    test, counts = held_out(2), []

    def count(truth: Any, scores: Any) -> float:
        counts.append(len(truth))
        return 1.0

    options: Any = {"rounds": 11, "test": test, "metrics": {"count": count}}
    run = rs.solve(logistic(2), rs.fedpi(0.1), validate_every=4, **options)
    assert run.history["round"][run.history.test_count.notna()].tolist() == [1, 4, 8, 11]
    assert counts.count(49) == 4
    run = rs.solve(logistic(2), rs.fedpi(0.1), every=5, validate_every=4, **options)
    assert run.history["round"].tolist() == [4, 5, 8, 10, 11]


def test_metrics_change_nothing_that_is_computed() -> None:
    plain = rs.solve(logistic(3), rs.fedpi(0.1), rounds=5)
    judged = rs.solve(logistic(3), rs.fedpi(0.1), rounds=5, test=held_out(3), validate_every=2)
    assert plain.model.equal(judged.model)
    assert plain.history.value.equals(judged.history.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metrics": ["auc"]}, "held-out data"),
        ({"test": ([1], [2])}, "rs.HeldOut"),
        ({"test": held_out(1, dim=2)}, "2 features"),
        ({"test": held_out(1), "metrics": ["rmse"]}, "logistic has accuracy, auc, f1"),
        ({"test": held_out(1), "metrics": ["area"]}, "'area'"),
        ({"test": held_out(1), "metrics": {"area": 3}}, "a function of"),
        ({"test": held_out(1), "metrics": {"a,b": len}}, "letters"),
        ({"test": held_out(1), "validate_every": 0}, "validate_every"),
        ({"test": rs.HeldOut(np.ones((2, 3)), [0, 1])}, "classes are -1, 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        rs.solve(logistic(1), rs.fedpi(0.1), rounds=1, **more)


@pytest.mark.parametrize(
    ("A", "b", "words"),
    [
        ([np.ones((2, 3))], [[1.0]], "b.0. is of length 1"),
        ([np.ones((2, 3)), np.ones((2, 4))], [[1, 1], [1, 1]], "same features"),
        ([np.full((2, 3), np.nan)], [[1, 1]], "finite numbers"),
        ([np.ones((0, 3))], [[]], "at least one row"),
        (3, 4, "one matrix"),
        ([np.ones((2, 3))], [[1, 1], [1, 1]], "one vector for each"),
    ],
)
def test_held_out_data_that_do_not_fit_are_refused(A: Any, b: Any, words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        rs.HeldOut(A, b)


@pytest.mark.parametrize("seed", range(40))
def test_metrics_of_rare_classes_are_those_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    many, n = 2 + seed % 3, int(random.integers(2, 40))
    truth = np.concatenate([np.arange(many), random.integers(0, many, n)])  # every class occurs
    t = np.round(random.normal(size=(len(truth), many)) * 2, int(random.integers(0, 3)))
    p = np.exp(t) / np.exp(t).sum(1, keepdims=True)
    cases = [Judged(truth, t, p, many)]
    if many == 2:
        cases.append(Judged(truth, t[:, 1] - t[:, 0], p[:, 1], 2))
    for one in cases:
        taken = t.argmax(1) if one.decision.ndim == 2 else (one.decision > 0).astype(int)
        own = {"average": "binary" if many == 2 else "macro"}
        for name in ("precision", "recall", "f1"):
            theirs = getattr(sklearn, f"{name}_score")(truth, taken, labels=range(many), zero_division=np.nan, **own)
            if many == 2 or len(set(taken)) == many:
                assert NAMED[name](one) == pytest.approx(theirs, rel=1e-12, nan_ok=True)
            elif name == "precision":
                assert math.isnan(NAMED[name](one))
        assert NAMED["balanced_accuracy"](one) == pytest.approx(sklearn.balanced_accuracy_score(truth, taken))
        scores = one.decision if one.decision.ndim == 1 else t[:, 1] - t[:, 0] if many == 2 else p
        areas = (
            [sklearn.average_precision_score(truth == k, scores[:, k]) for k in range(many)]
            if many > 2
            else [sklearn.average_precision_score(truth, scores)]
        )
        assert NAMED["average_precision"](one) == pytest.approx(np.mean(areas), rel=1e-12)
        squares = np.square(p - np.eye(many)[truth]).sum(1).mean()
        assert NAMED["brier"](one) == pytest.approx(squares / (2 if many == 2 else 1), rel=1e-12)
        if many == 2:
            assert NAMED["brier"](one) == pytest.approx(sklearn.brier_score_loss(truth, p[:, 1]), rel=1e-12)


def test_what_one_class_alone_does_not_define_is_nan() -> None:
    never = judged([0, 0, 1], [-1.0, -2.0, -3.0])  # takes no row for the second class
    assert math.isnan(NAMED["precision"](never))
    assert (NAMED["recall"](never), NAMED["f1"](never), NAMED["balanced_accuracy"](never)) == (0, 0, 0.5)
    absent = judged([0, 0], [-1.0, 1.0])
    assert all(math.isnan(NAMED[name](absent)) for name in ("recall", "average_precision", "auc"))
    assert NAMED["precision"](absent) == 0


def test_rare_classes_are_measured_when_asked_for_and_only_where_they_fit() -> None:
    problem = logistic(0)
    names = ["f1", "recall", "precision", "balanced_accuracy", "average_precision", "brier"]
    run = rs.solve(problem, rs.fedpi(eta=0.1), rounds=2, test=held_out(0), metrics=names, progress=False)
    row = run.history.iloc[-1]
    assert all(0 <= row[f"test_{name}"] <= 1 for name in names)
    assert np.array_equal(run.predict_proba(held_out(0).A[1]), run.probabilities(held_out(0).A[1]))
    squares = rs.make_least_squares(users=2, dim=3, rows=8)
    with pytest.raises(rs.InputError, match="rmse"):
        rs.solve(squares, rs.fedpi(eta=0.1), rounds=1, test=rs.HeldOut([np.eye(3)], [np.ones(3)]), metrics=["f1"])


def test_a_model_of_one_class_only_is_pointed_out() -> None:
    """Rows of the rare class lie among the others: the best plane takes all rows for the other one."""
    random = np.random.default_rng(0)
    A = random.normal(size=(3, 40, 2))
    b = np.where(np.arange(40) % 10 == 0, 1.0, -1.0) * np.ones((3, 1))
    more: dict[str, Any] = {"rounds": 20, "test": rs.HeldOut(A, b), "progress": False, "anderson": 5}
    with pytest.warns(rs.DoubtfulResult, match=r"all 120 test rows are taken for -1, though 12 of them are not"):
        run = rs.solve(rs.Logistic(A, b, intercept=True), "fedpi", **more)
    assert "class_weight='balanced'" in run.reason
    balanced = rs.solve(rs.Logistic(A, b, intercept=True, class_weight="balanced"), "fedpi", **more)
    assert 0 < (balanced.predict(A[0]) == 1).mean() < 1
    frame = {"x": A[..., 0].ravel(), "y": A[..., 1].ravel(), "ill": np.where(b.ravel() > 0, "yes", "no")}
    table = rs.data.from_frame(frame, target="ill", users=3, test=0.3)
    with pytest.warns(rs.DoubtfulResult, match="are taken for 'no'"):
        rs.solve(table.problem(), "fedpi", **more | {"test": table.held_out})
