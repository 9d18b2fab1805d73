"""Weights of rows: a row of weight k counts as k rows, in values, derivatives, proxes, bounds and certified minima."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.linear_model as linear
import sklearn.svm as svm
import torch

import resolvent as rs
from resolvent.errors import InputError

KINDS: dict[str, Any] = {
    "least-squares": rs.LeastSquares,
    "logistic": rs.Logistic,
    "squared-hinge": rs.SquaredHinge,
    "softmax": rs.Softmax,
    "poisson": rs.Poisson,
    "huber": rs.Huber,
    "quantile": rs.Quantile,
}
CLASSES = ("logistic", "squared-hinge", "softmax")
SIZES = {"equal": (12, 12, 12), "unequal": (9, 30, 14), "sparse": (9, 30, 14)}


class Case:
    """Three users' rows with whole weights, some of them 0, and the same rows repeated."""

    def __init__(self, kind: str, form: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.A: Any = [rng.standard_normal((n, 3)) for n in SIZES[form]]
        score = [A @ [1.0, -1.0, 0.5] + rng.standard_normal(len(A)) for A in self.A]
        make = {
            "logistic": lambda t: np.where(t > 0.7, 1.0, -1.0),
            "squared-hinge": lambda t: np.where(t > 0.7, 1.0, -1.0),
            "softmax": lambda t: np.array(["no", "perhaps", "yes"])[np.digitize(t, [-1, 1])],
            "poisson": lambda t: rng.poisson(np.exp(t.clip(-2, 2))).astype(float),
        }
        self.b: Any = [make.get(kind, lambda t: t)(t) for t in score]
        self.whole: Any = [rng.integers(0, 4, len(A)) for A in self.A]
        for weight in self.whole:
            weight[:2] = 1
        self.twice = [np.repeat(A, k, axis=0) for A, k in zip(self.A, self.whole, strict=True)]
        self.twice_b = [np.repeat(b, k) for b, k in zip(self.b, self.whole, strict=True)]
        if form == "sparse":
            self.A, self.twice = ([sp.csr_array(A) for A in part] for part in (self.A, self.twice))
        elif form == "equal":
            self.A, self.b, self.whole = np.stack(self.A), np.stack(self.b), np.stack(self.whole)
        self.rng = rng


def near(a: Any, b: Any, digits: float = 1e-10) -> None:
    a, b = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, float) for x in (a, b))
    assert np.abs(a - b).max() <= digits * (1 + np.abs(b).max())


@pytest.mark.parametrize("form", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_whole_weights_are_rows_that_are_there_so_often(kind: str, form: str) -> None:
    for seed in range(4):
        case = Case(kind, form, seed)
        more: dict[str, Any] = {"intercept": seed % 2 == 1}
        if kind != "least-squares" and seed > 0:
            more["reg"] = 0.3  # else what is usual, which depends on how many rows there are
        if seed > 1:
            more["weights"] = "users"
        if seed == 3:
            more["penalty"] = rs.L2(0.1)
        ours = KINDS[kind](case.A, case.b, sample_weight=case.whole, **more)
        theirs = KINDS[kind](case.twice, case.twice_b, **more)
        W = torch.from_numpy(case.rng.standard_normal((3, ours.dim)))
        for part in ("value", "grad", "hessian"):
            if part in theirs.offers:
                near(getattr(ours, part)(W), getattr(theirs, part)(W))
        near(ours.weights, theirs.weights, 1e-14)
        near(ours.prox(W, 0.2), theirs.prox(W, 0.2), 1e-8)
        if theirs.lipschitz is not None:
            near(ours.lipschitz, theirs.lipschitz)
        if kind in ("logistic", "softmax"):
            near(ours.hessian_times(W)(W), theirs.hessian_times(W)(W))
            near(ours.hessian_diagonal(W), theirs.hessian_diagonal(W))
        assert (ours.fstar is None) == (theirs.fstar is None)
        if theirs.fstar is not None:
            assert ours.fstar == pytest.approx(theirs.fstar, rel=1e-9, abs=1e-12)
            point = torch.from_numpy(case.rng.standard_normal((1, ours.dim)))
            near(ours.gap(point), theirs.gap(point), 1e-8)
        some = torch.tensor([2, 0])
        near(ours.take(some).grad(W[some]), theirs.grad(W)[some])
        if "batches" in ours.offers:  # a batch of all rows is the gradient
            n = int(ours.sizes.max())
            rows = torch.arange(n).expand(3, n)
            mask = (rows < ours.sizes.unsqueeze(1)).to(W)
            near(ours.batch_grad(W, rows * mask.long(), mask), ours.grad(W))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["unequal", "sparse"])
def test_any_weights_multiply_losses(kind: str, form: str) -> None:
    """f is linear in them: what rows of weight u + 2 v cost is what those of u and twice those of v cost."""
    case = Case(kind, form, 7)
    u, v = ([case.rng.exponential(size=len(b)) for b in case.b] for _ in range(2))
    more = {} if kind == "least-squares" else {"reg": 0.0}
    both = [x + 2 * y for x, y in zip(u, v, strict=True)]
    f, g, h = (KINDS[kind](case.A, case.b, sample_weight=w, **more) for w in (u, v, both))
    W = torch.from_numpy(case.rng.standard_normal((3, f.dim)))
    for part in sorted({"value", "grad", "hessian"} & f.offers):
        near(getattr(h, part)(W), getattr(f, part)(W) + 2 * getattr(g, part)(W))
    p = h.prox(W, 0.3)
    if kind != "quantile":
        near(p + 0.3 * h.grad(p), W, 1e-8)


REG = 0.3


def peer(kind: str, total: float, class_weight: Any, intercept: bool) -> Any:
    """scikit-learn's estimator with the objective of three users of equal weights and this reg."""
    if kind == "least-squares":
        return linear.LinearRegression(fit_intercept=intercept)
    own: dict[str, Any] = {"fit_intercept": intercept, "tol": 1e-10, "max_iter": 100_000}
    if kind == "poisson":
        return linear.PoissonRegressor(alpha=3 * REG / total, solver="newton-cholesky", **own)
    own |= {"class_weight": class_weight, "C": 1 / (3 * REG)}
    if kind == "squared-hinge":
        return svm.LinearSVC(dual=False, **own)
    return linear.LogisticRegression(solver="newton-cholesky", **own)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kind", ["least-squares", "logistic", "squared-hinge", "softmax", "poisson"])
def test_minimisers_are_those_of_scikit_learn(kind: str, intercept: bool) -> None:
    if kind == "squared-hinge" and intercept:
        pytest.skip("its intercept is penalised there")
    for seed in range(3):
        case = Case(kind, "unequal", seed)
        X, y = np.vstack(case.A), np.concatenate(case.b)
        w = [case.rng.exponential(size=len(b)) for b in case.b]
        classes: Any = ["balanced", {y[0]: 3.0}, None][seed] if kind in CLASSES else None
        more: dict[str, Any] = {} if kind == "least-squares" else {"reg": REG}
        more |= {"class_weight": classes} if kind in CLASSES else {}
        problem = KINDS[kind](case.A, case.b, sample_weight=w, intercept=intercept, **more)
        of = peer(kind, float(np.concatenate(w).sum()), classes, intercept).fit(X, y, np.concatenate(w))
        theirs = np.append(np.ravel(of.coef_), of.intercept_ if intercept else [])
        least = problem.minimiser.numpy()
        if kind == "softmax" and intercept:  # a shift of all intercepts changes nothing
            least[-3:] -= least[-3:].mean()
            theirs[-3:] -= theirs[-3:].mean()
        near(least, theirs, 1e-6)
        run = rs.solve(problem, "fedpi", rounds=300, anderson=10, progress=False, stop=rs.Stop(gap=1e-12))
        near(problem.value(run.model) @ problem.weights, problem.fstar, 1e-9)


def test_balanced_classes_count_the_same_with_and_without_weights_of_rows() -> None:
    case = Case("logistic", "unequal", 1)
    w = [case.rng.exponential(size=len(b)) for b in case.b]
    for weight in (None, w):
        problem = rs.Logistic(case.A, case.b, class_weight="balanced", sample_weight=weight)
        each = torch.cat([problem.rows.weight(i) for i in range(3)]).numpy()  # type: ignore[misc]
        y, total = np.concatenate(case.b), sum(map(len, case.b)) if weight is None else np.concatenate(w).sum()
        assert each[y > 0].sum() == pytest.approx(each[y < 0].sum())
        assert each.sum() == pytest.approx(total)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sample_weight": [[1.0] * 9]}, "a list of 1"),
        ({"sample_weight": [[1.0] * 9, [1.0] * 30, [1.0] * 15]}, r"sample_weight\[2\].*\(14,\)"),
        ({"sample_weight": [[1.0] * 9, [-1.0] * 30, [1.0] * 14]}, r"sample_weight\[1\].*>= 0"),
        ({"sample_weight": [[1.0] * 9, [np.nan] * 30, [1.0] * 14]}, r"sample_weight\[1\].*NaN"),
        ({"sample_weight": [[1.0] * 9, [0.0] * 30, [1.0] * 14]}, r"sample_weight\[1\].*leave this user out"),
        ({"sample_weight": 2.0}, "one entry for each of the 3 users"),
        ({"class_weight": "even"}, "'balanced'"),
        ({"class_weight": {0: 2.0}}, "the classes are -1, 1"),
        ({"class_weight": {1: -2.0}}, ">= 0"),
        ({"class_weight": [1.0, 2.0, 3.0]}, "each of the classes -1, 1"),
        ({"class_weight": {1: "many"}}, "array of numbers"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(more: dict[str, Any], words: str) -> None:
    case = Case("logistic", "unequal", 0)
    with pytest.raises(InputError, match=words):
        rs.Logistic(case.A, case.b, **more)
