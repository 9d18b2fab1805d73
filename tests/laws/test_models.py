"""Linear models over users' rows against scikit-learn, SciPy and autograd on the pooled rows: dense and sparse, with
and without an intercept, of features on different scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, QuantileRegressor
from sklearn.svm import LinearSVC

import resolvent as rs
from resolvent.errors import BadAnswer, InputError, ResolventWarning
from resolvent.problems.linear.predictor import Predictor
from resolvent.problems.newton.krylov import RESOLVED, krylov
from resolvent.problems.newton.matrix_free import matrix_free_prox
from resolvent.problems.pinball.prox import Pinball, prox
from resolvent.problems.reference.curvature import Iterate, certificate
from resolvent.problems.reference.objective import Objective

quiet = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
REG = 0.3


class Data:
    """Three users' rows, of features whose scales differ, with targets of each kind."""

    def __init__(self, seed: int, sparse: bool = False, features: int = 4) -> None:
        rng = np.random.default_rng(seed)
        self.A = [rng.standard_normal((n, features)) * (rng.random((n, features)) < 0.7) for n in (30, 45, 25)]
        w = rng.standard_normal(features)
        score = [a @ w + 0.5 for a in self.A]
        scales = 10.0 ** rng.uniform(-1, 1, features)
        self.A = [a * scales for a in self.A]
        self.numbers = [t + rng.standard_t(2, len(t)) for t in score]
        self.counts = [rng.poisson(np.exp(t.clip(-3, 3))).astype(float) for t in score]
        self.signs = [np.where(t + 2 * rng.standard_normal(len(t)) > 0, 1.0, -1.0) for t in score]
        names = np.array(["no", "perhaps", "yes"])
        self.names = [names[np.digitize(t + 2 * rng.standard_normal(len(t)), [-1, 1])] for t in score]
        self.X = np.vstack(self.A)
        self.rows: list[Any] = [sp.csr_array(a) for a in self.A] if sparse else self.A
        self.rng = rng


def pooled(y: list[Any]) -> Any:
    return np.concatenate(y)


def joined(estimator: Any) -> Any:
    """Coefficients and then intercepts, as models have them."""
    intercept: Any = np.atleast_1d(estimator.intercept_) if estimator.fit_intercept else []
    return np.concatenate([np.ravel(estimator.coef_), intercept])


def least_squares(data: Data, intercept: bool) -> tuple[Any, Any]:
    found = LinearRegression(fit_intercept=intercept).fit(data.X, pooled(data.numbers))
    return rs.LeastSquares(data.rows, data.numbers, intercept=intercept), joined(found)


def logistic(data: Data, intercept: bool) -> tuple[Any, Any]:
    found = LogisticRegression(
        C=1 / (3 * REG), fit_intercept=intercept, solver="newton-cholesky", tol=1e-12, max_iter=1000
    ).fit(data.X, pooled(data.signs))
    return rs.Logistic(data.rows, data.signs, reg=REG, intercept=intercept), joined(found)


def softmax(data: Data, intercept: bool) -> tuple[Any, Any]:
    found = LogisticRegression(
        C=1 / (3 * REG), fit_intercept=intercept, solver="newton-cg", tol=1e-12, max_iter=1000
    ).fit(data.X, pooled(data.names))
    return rs.Softmax(data.rows, data.names, reg=REG, intercept=intercept), joined(found)


def poisson(data: Data, intercept: bool) -> tuple[Any, Any]:
    found = PoissonRegressor(
        alpha=3 * REG / len(data.X), fit_intercept=intercept, solver="newton-cholesky", tol=1e-12, max_iter=1000
    ).fit(data.X, pooled(data.counts))
    return rs.Poisson(data.rows, data.counts, reg=REG, intercept=intercept), joined(found)


def squared_hinge(data: Data, intercept: bool) -> tuple[Any, Any]:
    """LIBLINEAR regularises its intercept, so that SciPy stands for it there."""
    y, problem = pooled(data.signs), rs.SquaredHinge(data.rows, data.signs, reg=REG, intercept=intercept)
    if not intercept:
        found = LinearSVC(C=1 / (3 * REG), dual=False, fit_intercept=False, tol=1e-12, max_iter=10**6).fit(data.X, y)
        return problem, np.ravel(found.coef_)
    return problem, by_scipy(data, lambda t: (np.maximum(0, 1 - y * t) ** 2, -2 * y * np.maximum(0, 1 - y * t)))


def huber(data: Data, intercept: bool) -> tuple[Any, Any]:
    """HuberRegressor estimates a scale as well, so that SciPy stands for it."""
    y, problem = pooled(data.numbers), rs.Huber(data.rows, data.numbers, 0.8, reg=REG, intercept=intercept)

    def loss(t: Any) -> tuple[Any, Any]:
        slope = np.clip(t - y, -0.8, 0.8)
        return slope * (t - y - slope / 2), slope

    return problem, by_scipy(data, loss, intercept)


def quantile(data: Data, intercept: bool) -> tuple[Any, Any]:
    found = QuantileRegressor(quantile=0.3, alpha=0, fit_intercept=intercept).fit(data.X, pooled(data.numbers))
    return rs.Quantile(data.rows, data.numbers, 0.3, intercept=intercept), joined(found)


def by_scipy(data: Data, loss: Callable[[Any], tuple[Any, Any]], intercept: bool = True) -> Any:
    X = np.column_stack([data.X, np.ones(len(data.X))]) if intercept else data.X
    ridge = np.full(X.shape[1], 3 * REG)
    if intercept:
        ridge[-1] = 0

    def f(w: Any) -> tuple[float, Any]:
        value, slope = loss(X @ w)
        return float(value.sum() + ridge @ (w * w) / 2), X.T @ slope + ridge * w

    w = np.zeros(X.shape[1])
    for method in ("L-BFGS-B", "BFGS", "BFGS"):
        w = minimize(f, w, jac=True, method=method, options={"maxiter": 10_000}, tol=1e-13).x
    return w


MODELS = [least_squares, logistic, softmax, poisson, squared_hinge, huber, quantile]
models = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
kinds = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


@quiet
@models
@kinds
@pytest.mark.parametrize("intercept", [False, True], ids=["plain", "intercept"])
def test_minima_are_those_of_the_pooled_rows(make: Any, sparse: bool, intercept: bool) -> None:
    for seed in range(2):
        problem, expected = make(Data(seed, sparse), intercept)
        w = problem.minimiser
        assert w is not None
        if make is softmax:  # a shift of all classes' intercepts changes nothing
            w = w.clone()
            w[problem.intercepts] -= w[problem.intercepts].mean() if intercept else 0
            expected = expected.copy()
            expected[problem.intercepts] -= expected[problem.intercepts].mean() if intercept else 0
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-6, atol=2e-7 * np.abs(expected).max())
        assert float(problem.gap(problem.minimiser.unsqueeze(0))) <= 1e-12 * abs(problem.fstar)


@quiet
@models
def test_runs_find_them(make: Any) -> None:
    problem, _ = make(Data(3), True)
    slow = make is quantile
    run = rs.solve(problem, "fedpi", rounds=40 if slow else 150, anderson=0 if slow else 5)
    assert run.history.gap.iloc[-1] <= (2e-2 if slow else 1e-8) * abs(problem.fstar)
    prediction = problem.predictor.predict(run.model, np.zeros((2, 4)))
    assert prediction.shape == (2,)


def by_torch(make: Any, data: Data, i: int, w: torch.Tensor) -> torch.Tensor:
    """f_i(w) in torch's own words."""
    F, A = torch.nn.functional, torch.from_numpy(data.A[i])
    if make is softmax:
        t = A @ w[:12].reshape(3, 4).T + w[12:]
        codes = torch.from_numpy(np.unique(data.names[i], return_inverse=True)[1])
        return F.cross_entropy(t, codes, reduction="sum") + REG / 2 * w[:12] @ w[:12]
    t, ridge = A @ w[:4] + w[4], REG / 2 * w[:4] @ w[:4]
    if make is poisson:
        return F.poisson_nll_loss(t, torch.from_numpy(data.counts[i]), reduction="sum") + ridge
    if make is huber:
        return F.huber_loss(t, torch.from_numpy(data.numbers[i]), reduction="sum", delta=0.8) + ridge
    return (1 - torch.from_numpy(data.signs[i]) * t).clamp_min(0).square().sum() + ridge


@pytest.mark.parametrize("make", [softmax, poisson, squared_hinge, huber], ids=lambda make: make.__name__)
@kinds
def test_derivatives_are_those_of_autograd(make: Any, sparse: bool) -> None:
    data = Data(4, sparse)
    problem, _ = make(data, True)
    W = 0.3 * torch.from_numpy(np.random.default_rng(0).standard_normal((3, problem.dim)))
    W.requires_grad_(True)
    value = torch.stack([by_torch(make, data, i, w) for i, w in enumerate(W)])
    torch.testing.assert_close(problem.value(W.detach()), value.detach())
    (grad,) = torch.autograd.grad(value.sum(), W)
    torch.testing.assert_close(problem.grad(W.detach()), grad, rtol=1e-11, atol=1e-10)
    W, V = W.detach(), torch.ones_like(W)
    H = problem.hessian(W)
    torch.testing.assert_close(problem.hessian_times(W)(V), (H @ V.unsqueeze(2)).squeeze(2))
    torch.testing.assert_close(problem.hessian_diagonal(W), H.diagonal(dim1=1, dim2=2))
    h = 1e-6 * V / (1 + H.diagonal(dim1=1, dim2=2).sqrt())
    turned = (problem.grad(W + h) - problem.grad(W - h)) / 2
    torch.testing.assert_close((H @ h.unsqueeze(2)).squeeze(2), turned, rtol=1e-4, atol=1e-8)


def test_softmax_of_a_single_feature_has_a_hessian() -> None:
    a, w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.tensor([0.3, -0.1, 0.2], dtype=torch.float64)
    problem = rs.Softmax([a.unsqueeze(1)], [np.array([0, 1, 2])], reg=0.0)
    p = torch.softmax(a.unsqueeze(1) * w, 1)
    expected = torch.diag(a**2 @ p) - p.T @ (p * (a**2).unsqueeze(1))
    torch.testing.assert_close(problem.hessian(w)[0], expected)


@kinds
def test_sparse_rows_have_the_same_bits_alone_and_in_company(sparse: bool) -> None:
    problem, _ = logistic(Data(5, sparse), True)
    W = torch.from_numpy(np.random.default_rng(0).standard_normal((3, problem.dim)))
    some = torch.tensor([2, 0])
    part = problem.take(some)
    assert torch.equal(part.grad(W[some]), problem.grad(W)[some])
    assert torch.equal(part.value(W[some]), problem.value(W)[some])
    assert part.intercept
    torch.testing.assert_close(part.prox(W[some], 0.5), problem.prox(W, 0.5)[some], rtol=1e-12, atol=1e-12)


class TestManyFeatures:
    """Sparse rows and softmax with more parameters than a matrix of d x d numbers per user is made for."""

    def wide(self, seed: int = 0) -> tuple[Any, list[Any], list[Any]]:
        rng = np.random.default_rng(seed)
        S = [sp.random_array((60, 520), density=0.02, rng=rng, format="csr") for _ in range(3)]
        b = [np.where(s @ np.ones(520) + rng.standard_normal(60) > 0, 1.0, -1.0) for s in S]
        return S, b, [s.toarray() for s in S]

    @pytest.mark.parametrize("make", [rs.Logistic, rs.Huber, rs.SquaredHinge], ids=lambda make: make.__name__)
    def test_they_are_solved_without_matrices(self, make: Any) -> None:
        S, b, A = self.wide()
        sparse, dense = make(S, b, reg=0.05), make(A, b, reg=0.05)
        assert sparse.matrix_free
        assert not dense.matrix_free
        assert sparse.minimiser is not None
        torch.testing.assert_close(sparse.minimiser, dense.minimiser, rtol=1e-7, atol=1e-8)
        assert sparse.fstar == pytest.approx(dense.fstar, rel=1e-11)
        U = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 520)))
        torch.testing.assert_close(sparse.prox(U, 2.0), dense.prox(U, 2.0), rtol=1e-9, atol=1e-9)
        if make is rs.Logistic:
            run = rs.solve(sparse, "fedpi", rounds=60, anderson=5)
            assert run.history.gap.iloc[-1] <= 1e-7 * sparse.fstar

    def test_least_squares_is_a_linear_model(self) -> None:
        S, b, _ = self.wide()
        problem: Any = rs.LeastSquares(S, b)
        assert problem.matrix_free
        U = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 520)))
        for s, y, u, x in zip(S, b, U, problem.prox(U, 3.0), strict=True):
            exact = np.linalg.solve(np.eye(520) + 3 * (s.T @ s).toarray(), u.numpy() + 3 * (s.T @ y))
            np.testing.assert_allclose(x.numpy(), exact, rtol=1e-9, atol=1e-9)

    def test_answers_are_as_precise_as_their_bounds_say(self) -> None:
        S, b, _ = self.wide()
        problem = rs.Logistic(S, b, reg=0.05)
        U = torch.from_numpy(3 * np.random.default_rng(2).standard_normal((3, 520)))
        exact = problem.prox(U, 5.0)
        for loose in (0.3, 1e-2, 1e-5):
            for i, part in problem.groups:
                found = matrix_free_prox(part, U[i], 5.0, loose=loose)
                assert 0 < float((found.x - exact[i]).norm()) <= float(found.error) + 1e-12

    def test_runs_go_on_bit_for_bit_and_count_their_products(self) -> None:
        S, b, _ = self.wide()
        problem, scheme = rs.Logistic(S, b, reg=0.05), rs.fedpi("auto")
        whole = rs.solve(problem, scheme, rounds=6)
        half = rs.solve(problem, scheme, rounds=3)
        rest = rs.solve(problem, scheme, rounds=3, start=half.state)
        assert torch.equal(whole.model, rest.model)
        vector = 3 * 520 * 8
        g, H, *_ = krylov(problem, torch.zeros(1, 520, dtype=torch.float64))
        assert len(g) == len(H) >= 16
        assert (
            whole.history.bytes_up.iloc[0] == (2 + len(g)) * vector
        )  # an answer, a gradient, products with the Hessian

    def test_the_curvature_that_automatic_eta_sees_is_all_that_matters(self) -> None:
        """A Krylov space is large enough once Newton's step in it leaves next to nothing of the gradient."""
        rng = np.random.default_rng(0)
        A = rng.standard_normal((2, 40, 60)) * np.geomspace(1, 0.3, 60)
        problem = rs.Softmax(A, rng.integers(0, 10, (2, 40)), reg=0.005)
        w = 0.1 * torch.from_numpy(rng.standard_normal((1, 600)))
        g, T, *_ = krylov(problem, w)
        assert 16 < len(g) < 64
        G, H = problem.weights @ problem.grad(w), torch.tensordot(problem.weights, problem.hessian(w), 1)
        space = [G / G.norm()]
        for _ in range(len(g) - 1):  # an orthonormal basis of G, H G, H^2 G, ...
            v = H @ space[-1]
            for _ in range(2):
                v = v - torch.stack(space).T @ (torch.stack(space) @ v)
            space.append(v / v.norm())
        Q = torch.stack(space)
        torch.testing.assert_close(Q @ H @ Q.T, T, rtol=1e-8, atol=1e-8 * float(T.max()))
        left = [
            float((G - H @ Q[:k].T @ torch.linalg.solve(T[:k, :k], g[:k])).norm() / G.norm())
            for k in (len(g) - 1, len(g))
        ]
        assert left[1] <= RESOLVED < left[0]

    def test_softmax_of_many_parameters(self) -> None:
        rng = np.random.default_rng(3)
        A = [rng.standard_normal((40, 60)) for _ in range(3)]
        y = [rng.integers(0, 10, 40) for _ in range(3)]
        wide: Any = rs.Softmax(A, y, reg=1.0)
        assert wide.matrix_free
        U = torch.from_numpy(rng.standard_normal((3, 600)))
        x = wide.prox(U, 0.7)
        torch.testing.assert_close(x + 0.7 * wide.grad(x), U, rtol=1e-10, atol=1e-10)
        run = rs.solve(wide, "fedpi", rounds=60, anderson=5)
        assert run.history.gap.iloc[-1] <= 1e-9 * wide.fstar
        assert run.history.stationarity.iloc[-1] < 1e-2


def test_gaps_of_softmax_have_digits() -> None:
    """Near the minimiser they are half the curvature times the distance squared."""
    problem, _ = softmax(Data(6), True)
    v = torch.from_numpy(np.random.default_rng(0).standard_normal(problem.dim))
    w = problem.minimiser
    H = problem.weights @ problem.hessian(w.unsqueeze(0)).flatten(1)
    bend = 0.5 * float(v @ H.reshape(problem.dim, -1) @ v)
    for far in (1e-3, 1e-5, 1e-7):
        gap = float(problem.gap((w + far * v).unsqueeze(0)))
        assert gap == pytest.approx(far**2 * bend, rel=30 * far + 1e-4)
    far = (w + v).unsqueeze(0)
    assert float(problem.gap(far)) == pytest.approx(
        float(problem.weights @ problem.value(far)) - problem.fstar, rel=1e-10
    )


def test_the_minimum_of_a_softmax_with_intercepts_is_known_with_the_usual_reg() -> None:
    """Of rare classes and thousands of rows, where reg is tiny; any point is bounded by what its slope allows."""
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((n, 10)) for n in (1500, 750, 450, 250, 50)]
    y = [rng.choice([0, 1, 2], len(a), p=[0.86, 0.1, 0.04]) for a in A]
    problem = rs.Softmax(A, y, intercept=True)
    at, mu = problem.minimiser, float(problem.weights @ problem.reg)
    assert at is not None
    assert problem.fstar is not None
    for far in (0.0, 1e-3, 1.0):
        w = at + far * torch.from_numpy(rng.standard_normal(problem.dim))
        least = at.clone()
        least[problem.intercepts] += (w - at)[problem.intercepts].mean()
        g = problem.weights @ problem.grad(w.unsqueeze(0))
        assert float((w - least).norm()) <= problem._reach(w, mu, float(g.norm()))
    hopeless = rs.Softmax(A, y, reg=1e-20, intercept=True)
    assert "no minimiser could be certified" in str(hopeless.without_minimum)
    assert any("give a larger `reg`" in str(finding) for finding in rs.explain(rs.fedpi(1.0), hopeless).findings)


@pytest.mark.parametrize("seed", range(30))
def test_a_prox_of_quantile_regression_is_within_its_bound(seed: int) -> None:
    """Its optimality conditions, with multipliers of our own: u - x = A^T y for some y in the subdifferentials."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 30)), int(rng.integers(1, 6))
    A, b, q = rng.standard_normal((n, d)), rng.standard_normal(n), float(rng.uniform(0.05, 0.95))
    if seed % 3 == 0:  # ties, repeated rows, rows of zeros
        A, b = np.rint(A), np.rint(b)
    eta, u = 10.0 ** rng.uniform(-2, 2), rng.standard_normal(d)
    found = prox(Pinball(A, b, np.full(n, eta * (q - 1)), np.full(n, eta * q)), u)
    assert found.error <= 1e-6 * (1 + np.linalg.norm(u))

    def F(x: Any) -> float:
        r = b - A @ x
        return float(eta * np.maximum(q * r, (q - 1) * r).sum() + (x - u) @ (x - u) / 2)

    least = F(found.x)
    for size in (1.0, 1e-2, 1e-4):
        for _ in range(30):
            x = found.x + size * rng.standard_normal(d)
            away = float(np.linalg.norm(x - found.x)) - found.error
            assert F(x) >= least - found.excess + max(0.0, away) ** 2 / 2 - 1e-12 * (1 + abs(least))


def test_the_bound_of_a_prox_of_quantile_regression_includes_rounding() -> None:
    """With no residual near 0 the prox is u + A^T y with every y at a bound: here in fractions."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A, b, u = 1e-3 * rng.standard_normal((8, 2)), rng.choice([-2.0, 3.0], 8), 30 * rng.standard_normal(2)
        found = prox(Pinball(A, b, np.full(8, -0.3), np.full(8, 0.7)), u)
        y = [Fraction(0.7 if t > 0 else -0.3) for t in b]
        columns = zip(u, A.T, strict=True)
        exact = [Fraction(v) + sum(Fraction(a) * t for a, t in zip(column, y, strict=True)) for v, column in columns]
        away = [float(Fraction(x) - e) for x, e in zip(found.x, exact, strict=True)]
        assert np.linalg.norm(away) <= found.error <= 1e-13


def test_quantiles_of_one_row_per_user_have_a_formula() -> None:
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((5, 1, 3)), rng.standard_normal((5, 1))
    problem: Any = rs.Quantile(A, b)
    deviations: Any = rs.AbsoluteDeviations(A[:, 0], b[:, 0])
    assert problem.closed_form
    U = torch.from_numpy(rng.standard_normal((5, 3)))
    torch.testing.assert_close(problem.prox(U, 2.0), deviations.prox(U, 1.0), rtol=1e-12, atol=1e-12)
    assert problem.fstar == pytest.approx(deviations.fstar / 2, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_certificates_without_a_regulariser_hold(seed: int) -> None:
    """Of losses whose curvature jumps: wherever a bound is given, the minimum is within it."""
    data = Data(seed)
    for problem in (rs.Huber(data.A, data.numbers, 0.8), rs.SquaredHinge(data.A, data.signs, reg=0)):
        w = problem.minimiser
        if w is None:
            continue
        A, b = data.X, pooled(data.numbers if isinstance(problem, rs.Huber) else data.signs)
        loss = problem.loss(torch.from_numpy(b)).weighted(np.full(len(b), 1 / 3))
        objective = Objective(A, np.zeros(len(b)), loss, 0.0)
        given = 0
        for far in (1e-8, 1e-6, 1e-4, 1e-2):
            z = w.numpy() + far * data.rng.standard_normal(4)
            here = Iterate.at(objective, z)
            if here is not None and np.isfinite((bound := certificate(objective, here)).error):
                given += 1
                assert np.linalg.norm(z - w.numpy()) <= bound.error
                assert objective.value(z) - objective.value(w.numpy()) <= bound.excess * (1 + 1e-9) + 1e-12
        assert given >= 1


class TestOverflow:
    """Poisson's exponential."""

    def test_values_are_infinite_and_not_nan(self) -> None:
        problem = rs.Poisson([np.ones((2, 1))], [[1, 2]])
        assert float(problem.value(torch.tensor([[1000.0]]))) == float("inf")
        assert problem.lipschitz is None

    def test_a_prox_far_out_is_right_or_refused(self) -> None:
        rng = np.random.default_rng(0)
        problem = rs.Poisson([rng.standard_normal((20, 3))], [rng.poisson(1.0, 20)])
        for size in (10.0, 100.0, 1000.0, 1e5):
            U = torch.from_numpy(size * rng.standard_normal((1, 3)))
            try:
                x = problem.prox(U, 1.0)
            except BadAnswer:
                continue
            e = x - U + problem.grad(x)
            assert float(e.norm()) <= 1e-6 * (1 + float(U.norm()))

    @quiet
    def test_gradient_steps_that_overflow_do_not_finish(self) -> None:
        problem = rs.Poisson([5 * np.ones((3, 1))] * 2, [[1.0, 2.0, 30.0]] * 2)
        run = rs.solve(problem, rs.fedavg(eta=1.0), rounds=30)
        assert run.status == "diverged"
        assert bool(torch.isfinite(run.model).all())


class TestWeights:
    A = (np.ones((1, 1)), np.ones((3, 1)))
    b = ([4.0], [0.0, 0.0, 0.0])

    def test_rows_and_users_mean_the_same_for_sums_and_means(self) -> None:
        made: Any = [rs.LeastSquares(list(self.A), list(self.b), weights=name) for name in ("rows", "users")]
        rows, users = made
        assert float(rows.minimiser) == pytest.approx(1.0)  # the mean of all rows
        assert float(users.minimiser) == pytest.approx(2.0)  # the mean of the users' means
        network = torch.nn.Linear(1, 1)
        data = [(torch.ones(n, 1), torch.zeros(n, 1)) for n in (1, 3)]
        loss = torch.nn.functional.mse_loss
        assert rs.Neural(network, data, loss, weights="rows").weights.tolist() == [0.25, 0.75]
        assert rs.Neural(network, data, loss, weights="users").weights.tolist() == [0.5, 0.5]

    def test_weights_in_proportion_to_rows_are_pointed_out(self) -> None:
        with pytest.warns(ResolventWarning, match="each row of a user with n rows counts n times"):
            rs.LeastSquares(list(self.A), list(self.b), weights=[1, 3])

    def test_names_that_mean_nothing_are_refused(self) -> None:
        with pytest.raises(InputError, match="'rows' or 'users'"):
            rs.LeastSquares(list(self.A), list(self.b), weights="sizes")
        with pytest.raises(InputError, match="have no rows"):
            rs.Quadratics([1.0, 2.0], [0.0, 1.0], weights="rows")

    def test_sums_in_networks_are_noticed(self) -> None:
        data = [(torch.ones(2, 1), torch.zeros(2, 1))]
        with pytest.warns(ResolventWarning, match="a sum over rows"):
            rs.Neural(torch.nn.Linear(1, 1), data, torch.nn.MSELoss(reduction="sum"))


class TestInput:
    def test_frames_and_float32(self) -> None:
        data = Data(7)
        plain = rs.Logistic(data.A, data.signs)
        frames = rs.Logistic([pd.DataFrame(a) for a in data.A], [pd.Series(y) for y in data.signs])
        polars = rs.Logistic([pl.DataFrame(a) for a in data.A], [pl.Series(y) for y in data.signs])
        assert plain.fstar == frames.fstar == polars.fstar
        single = rs.Poisson([sp.csr_array(a.astype(np.float32)) for a in data.A], data.counts)
        assert single.weights.dtype == torch.float32
        exact = rs.Poisson([a.astype(np.float32).astype(np.float64) for a in data.A], data.counts)
        assert single.fstar == pytest.approx(exact.fstar, rel=1e-7)  # the weights are in float32 too

    def test_what_cannot_be_is_refused_in_one_sentence(self) -> None:
        A = [np.ones((2, 1)), np.ones((2, 1))]
        for words, make in {
            "partly negative": lambda: rs.Poisson(A, [[1, 2], [-1, 0]]),
            "delta is 0": lambda: rs.Huber(A, [[1, 2], [1, 0]], 0),
            "q is 1": lambda: rs.Quantile(A, [[1, 2], [1, 0]], 1),
            "-1 and \\+1": lambda: rs.SquaredHinge(A, [[0, 1], [1, 0]]),
            "two different labels": lambda: rs.Softmax(A, [["a", "a"], ["a", "a"]]),
            "one of the classes": lambda: rs.Softmax(A, [["a", "c"], ["a", "b"]], classes=["a", "b"]),
            "classes is 3, .* such as range": lambda: rs.Softmax(A, [[0, 1], [1, 2]], classes=3),  # type: ignore[arg-type]
            "y\\[0\\] is 1, ": lambda: rs.Softmax(A, [1, 2]),
            "a list with one matrix per user": lambda: rs.Logistic(sp.csr_array(A[0]), [1, 1]),
        }.items():
            with pytest.raises(InputError, match=words):
                make()

    def test_classes_that_nobody_holds_have_scores_too(self) -> None:
        problem = rs.Softmax([np.eye(2)], [[3, 1]], classes=[1, 2, 3], reg=1.0)
        assert problem.dim == 6
        assert problem.classes == (1, 2, 3)


@models
def test_predictors_survive_json(make: Any) -> None:
    data = Data(8)
    problem, _ = make(data, True)
    again = Predictor.from_dict(json.loads(json.dumps(problem.predictor.as_dict())))
    w = np.random.default_rng(0).standard_normal(problem.dim)
    one, other = again.predict(w, data.X), problem.predictor.predict(w, sp.csr_array(data.X))
    if again.classifies:
        assert list(one) == list(other)
    else:
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_scores_are_those_of_scikit_learn() -> None:
    data = Data(9)
    y = pooled(data.counts)
    found = PoissonRegressor(alpha=0, fit_intercept=True, tol=1e-10, max_iter=1000).fit(data.X, y)
    problem = rs.Poisson(data.A, data.counts, intercept=True)
    assert problem.predictor.score(joined(found), data.X, y) == pytest.approx(found.score(data.X, y), rel=1e-9)
    line = LinearRegression().fit(data.X, pooled(data.numbers))
    predictor = rs.LeastSquares(data.A, data.numbers, intercept=True).predictor
    assert predictor.score(joined(line), data.X, pooled(data.numbers)) == pytest.approx(
        line.score(data.X, pooled(data.numbers)), rel=1e-12
    )


def test_rows_whose_squares_overflow_are_refused() -> None:
    A = [np.full((4, 2), 1e200), np.ones((3, 2))]
    problem = rs.Logistic(A, [np.ones(4), -np.ones(3)])
    with pytest.raises(rs.InputError, match="squares overflow"):
        rs.solve(problem, "fedpi", rounds=3)
