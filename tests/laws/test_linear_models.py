"""A new loss is a page: Poisson's and Huber's, written here, are compared with SciPy and mpmath in all that a linear
model computes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import huber
from torch import Tensor

import resolvent as rs
from resolvent.problems.linear.loss import InNumpy, Loss
from resolvent.problems.linear.model import LinearModel
from resolvent.problems.logistic import LogisticLoss
from resolvent.problems.reference.curvature import Iterate, certificate
from resolvent.problems.reference.objective import Objective
from resolvent.problems.reference.smooth import minimise

quiet = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


@dataclass(frozen=True, eq=False)
class Poisson(Loss):
    """e^t - b t for counts b >= 0."""

    b: Tensor
    curvature_rate = 1.0

    def check(self) -> None:
        if bool((self.b < 0).any()):
            rs.errors.refuse("b", "partly negative", "counts are needed")

    def value(self, t: Tensor) -> Tensor:
        return t.exp() - self.b * t

    def slope(self, t: Tensor) -> Tensor:
        return t.exp() - self.b

    def slope_size(self, t: Tensor) -> Tensor:
        return t.exp() + self.b

    def curvature(self, t: Tensor) -> Tensor:
        return t.exp()

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        series = lambda h: h * h * (1 / 2 + h * (1 / 6 + h * (1 / 24 + h / 120)))  # noqa: E731
        return lambda h: t.exp() * torch.where(h.abs() < 1e-3, series(h), torch.expm1(h) - h)


@dataclass(frozen=True, eq=False)
class Huber(Loss):
    """r^2 / 2 of the residual r = t - b up to |r| = delta, and linear beyond."""

    b: Tensor
    delta: float
    largest_curvature = 1.0

    @property
    def largest_slope(self) -> float:
        return self.delta

    def value(self, t: Tensor) -> Tensor:
        r = t - self.b
        near = r.clamp(-self.delta, self.delta)
        return near * (r - near / 2)

    def slope(self, t: Tensor) -> Tensor:
        return (t - self.b).clamp(-self.delta, self.delta)

    def curvature(self, t: Tensor) -> Tensor:
        return ((t - self.b).abs() <= self.delta).to(t)

    def divergence(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """(n' - n) (r + h - (n + n') / 2), with n and n' the slopes at t and at t + h."""
        n, r = self.slope(t), t - self.b

        def divergence(h: Tensor) -> Tensor:
            k = torch.where(self.curvature(t) * self.curvature(t + h) > 0, h, self.slope(t + h) - n)
            return k * (r - n + (h - k / 2))

        return divergence


class Case:
    """A random problem of one of the two losses, and the same in mpmath, with 40 digits."""

    def __init__(self, name: str, seed: int, reg: float | None = None) -> None:
        rng = np.random.default_rng(seed)
        sizes, self.dim = rng.integers(4, 9, 3), int(rng.integers(1, 4))
        self.name, self.delta = name, 0.7
        self.A = [rng.standard_normal((n, self.dim)) for n in sizes]
        self.b = [rng.poisson(2.0, n) + 1.0 if name == "poisson" else 2 * rng.standard_normal(n) for n in sizes]
        self.lam, self.reg = rng.dirichlet(np.ones(3)), rng.random(3) if reg is None else np.full(3, reg)
        self.rng = rng

    @property
    def model(self) -> LinearModel:
        loss = Poisson if self.name == "poisson" else partial(Huber, delta=self.delta)
        return LinearModel(loss, self.A, self.b, self.reg, self.lam)

    def draw(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape))

    def value(self, i: int, w: Any) -> float:
        """f_i(w) by SciPy."""
        t, b = self.A[i] @ w, self.b[i]
        each = np.exp(t) - b * t if self.name == "poisson" else huber(self.delta, t - b)
        return float(each.sum() + self.reg[i] / 2 * (w @ w))

    def exact_value(self, i: int, w: Any) -> Any:
        total = self.reg[i] / 2 * mpmath.fdot(w, w)
        for a, b in zip(self.A[i], self.b[i], strict=True):
            t = mpmath.fdot(a, w)
            far = abs(t - b) > self.delta
            bent = self.delta * (abs(t - b) - mpmath.mpf(self.delta) / 2) if far else (t - b) ** 2 / 2
            total += mpmath.exp(t) - b * t if self.name == "poisson" else bent
        return total

    def exact_grad(self, i: int, w: Any) -> list[Any]:
        g = [self.reg[i] * x for x in w]
        for a, b in zip(self.A[i], self.b[i], strict=True):
            t = mpmath.fdot(a, w)
            slope = mpmath.exp(t) - b if self.name == "poisson" else max(-self.delta, min(self.delta, t - b))
            g = [x + slope * y for x, y in zip(g, a, strict=True)]
        return g

    def exact_hessian(self, i: int, w: Any) -> Any:
        return mpmath.matrix(
            [
                [
                    mpmath.diff(lambda x, j=j, k=k: self.exact_grad(i, [*w[:k], x, *w[k + 1 :]])[j], w[k])
                    for k in range(self.dim)
                ]
                for j in range(self.dim)
            ]
        )

    def root(self, gradient: Callable[[Any], Any], hessian: Callable[[Any], Any], start: Any) -> Any:
        """A zero of a gradient to 40 digits, by Newton's method from a good start."""
        x = mpmath.matrix([mpmath.mpf(float(v)) for v in start])
        for _ in range(6):
            x = x - mpmath.lu_solve(hessian(list(x)), mpmath.matrix(gradient(list(x))))
        assert mpmath.norm(mpmath.matrix(gradient(list(x)))) < 1e-30
        return x

    def exact_prox(self, i: int, u: Any, eta: float, start: Any) -> Any:
        u = [mpmath.mpf(float(v)) for v in u]

        def gradient(x: Any) -> list[Any]:
            return [a - b + eta * c for a, b, c in zip(x, u, self.exact_grad(i, x), strict=True)]

        return self.root(gradient, lambda x: mpmath.eye(self.dim) + eta * self.exact_hessian(i, x), start)

    def exact_minimiser(self, start: Any) -> Any:
        def gradient(x: Any) -> list[Any]:
            parts = [self.exact_grad(i, x) for i in range(3)]
            return [sum(x * part[k] for x, part in zip(self.lam.tolist(), parts, strict=True)) for k in range(self.dim)]

        def hessian(x: Any) -> Any:
            return sum((y * self.exact_hessian(i, x) for i, y in enumerate(self.lam.tolist())), mpmath.zeros(self.dim))

        return self.root(gradient, hessian, start)

    def exact_objective(self, w: Any) -> Any:
        return sum(x * self.exact_value(i, list(w)) for i, x in enumerate(self.lam.tolist()))


both = pytest.mark.parametrize("name", ["poisson", "huber"])
seeds = pytest.mark.parametrize("seed", range(8))


@pytest.fixture(autouse=True)
def digits() -> Any:
    with mpmath.workdps(40):
        yield


def distance(x: Any, y: Any) -> float:
    return float(mpmath.norm(mpmath.matrix([mpmath.mpf(float(v)) for v in x]) - y))


@both
@seeds
def test_values_gradients_and_hessians(name: str, seed: int) -> None:
    case = Case(name, seed)
    W = case.draw(3, case.dim)
    model, some = case.model, torch.tensor([2, 0])
    torch.testing.assert_close(
        model.value(W).tolist(), [case.value(i, W[i].numpy()) for i in range(3)], rtol=1e-13, atol=0
    )
    grad = torch.tensor([[float(x) for x in case.exact_grad(i, W[i].tolist())] for i in range(3)], dtype=torch.float64)
    torch.testing.assert_close(model.grad(W), grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.take(some).grad(W[some]), grad[some], rtol=1e-12, atol=1e-12)
    for i, H in enumerate(model.hessian(W)):
        exact = case.exact_hessian(i, [mpmath.mpf(x) for x in W[i].tolist()])
        np.testing.assert_allclose(H.numpy(), np.array(exact.tolist(), float), rtol=1e-10, atol=1e-10)


@both
@seeds
def test_a_batch_counts_for_all_rows(name: str, seed: int) -> None:
    """Rows 1 and 3 of each user: n / 2 times their gradient, and the regulariser's."""
    case, rows = Case(name, seed), [1, 3]
    W, sizes = case.draw(3, case.dim), case.model.sizes.unsqueeze(1)
    part = LinearModel(case.model.loss, [A[rows] for A in case.A], [b[rows] for b in case.b], reg=0)
    expected = sizes / 2 * part.grad(W) + torch.from_numpy(case.reg).unsqueeze(1) * W
    found = case.model.batch_grad(W, torch.tensor([[*rows, 0]] * 3), torch.tensor([[1.0, 1.0, 0.0]] * 3))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@both
@seeds
@pytest.mark.parametrize("eta", [1e-2, 1.0, 100.0])
def test_the_prox_is_exact_and_so_is_the_careful_one_within_its_error(name: str, seed: int, eta: float) -> None:
    case = Case(name, seed)
    U = 3 * case.draw(3, case.dim)
    P = case.model.prox(U, eta)
    for i in range(3):
        exact = case.exact_prox(i, U[i], eta, P[i])
        assert distance(P[i], exact) <= 1e-12 * (1 + float(U[i].norm()))
        careful = case.model.take(torch.tensor([i])).careful_prox(U[i], eta, torch.zeros(case.dim).double(), 1e-12)
        assert careful.wrong is None
        assert distance(careful.x, exact) <= careful.error <= 1e-10 * (1 + eta)


@quiet
@both
@seeds
def test_gaps_have_digits_far_from_the_minimiser_and_near(name: str, seed: int) -> None:
    case = Case(name, seed)
    model = case.model
    assert model.minimiser is not None
    star = case.exact_minimiser(model.minimiser)
    least = case.exact_objective(star)
    assert model.fstar == pytest.approx(float(least), rel=1e-14)
    v = case.draw(case.dim)
    W = torch.stack([model.minimiser + v * far for far in (1.0, 1e-2, 1e-4, 1e-6)])
    gaps = model.gap(W)
    assert gaps is not None
    exact = [float(case.exact_objective([mpmath.mpf(x) for x in w.tolist()]) - least) for w in W]
    np.testing.assert_allclose(gaps.numpy(), exact, rtol=1e-7)


@both
def test_a_run_finds_the_minimiser(name: str) -> None:
    model = Case(name, 3).model
    run = rs.solve(model, rs.fedpi(0.5), rounds=300)
    assert run.history.gap.iloc[-1] < 1e-20
    torch.testing.assert_close(run.model, model.minimiser, rtol=1e-9, atol=1e-9)


@seeds
def test_poisson_without_a_regulariser(seed: int) -> None:
    """Counts are positive: there is a minimiser where the rows span the space."""
    case = Case("poisson", seed, reg=0.0)
    assert case.model.minimiser is not None
    assert distance(case.model.minimiser, case.exact_minimiser(case.model.minimiser)) <= 1e-10


def test_no_minimum_is_claimed_where_there_is_none() -> None:
    A = np.abs(np.random.default_rng(0).standard_normal((2, 5, 2)))
    model = LinearModel(Poisson, A, np.zeros((2, 5)), reg=0)
    assert model.minimiser is None
    assert model.without_minimum is not None
    assert model.gap(torch.zeros(1, 2)) is None


def test_constants() -> None:
    poisson, huber_ = Case("poisson", 0).model, Case("huber", 0).model
    assert poisson.lipschitz is None
    assert huber_.lipschitz is not None
    for i in range(3):
        L = np.linalg.eigvalsh(huber_.rows.one(i)[0].T @ huber_.rows.one(i)[0])[-1] + float(huber_.reg[i])
        assert float(huber_.lipschitz[i]) == pytest.approx(L, rel=1e-12)


def test_targets_that_a_loss_cannot_have_are_refused() -> None:
    with pytest.raises(rs.errors.InputError, match="counts are needed"):
        LinearModel(Poisson, [np.ones((2, 1)), np.ones((3, 1))], [[1, 2], [1, -1, 0]])


def test_targets_that_are_not_finite_are_refused() -> None:
    with pytest.raises(rs.errors.InputError, match="b is NaN or infinite for user 1"):
        LinearModel(partial(Huber, delta=1.0), np.ones((2, 2, 1)), [[1, 2], [np.nan, 0]])


def test_a_logistic_problem_can_be_pickled_after_its_gaps_were_asked_for() -> None:
    problem = rs.make_logistic(users=2, rows=20, dim=3)
    W = torch.ones(1, 3, dtype=torch.float64)
    gap = problem.gap(W)
    assert gap is not None
    assert torch.equal(pickle.loads(pickle.dumps(problem)).gap(W), gap)


@both
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
def test_the_rounding_error_of_a_gradient_is_within_its_bound(name: str, scale: float) -> None:
    for seed in range(4):
        case = Case(name, seed)
        W = scale * case.draw(3, case.dim)
        g, bound = case.model.grad(W), case.model.rounding(W)
        for i in range(3):
            error = distance(g[i], mpmath.matrix(case.exact_grad(i, [mpmath.mpf(x) for x in W[i].tolist()])))
            assert error <= float(bound[i]) or not np.isfinite(float(bound[i]))


@seeds
def test_any_loss_can_be_certified_through_torch(seed: int) -> None:
    """Logistic regression has NumPy functions of its own, exact in the tails; without them the minimum is the same."""
    rng = np.random.default_rng(seed)
    A, b, weight = rng.standard_normal((30, 3)), rng.choice([-1.0, 1.0], 30), rng.random(30)
    loss = LogisticLoss(torch.from_numpy(b))
    own, general = (
        minimise(Objective(A, np.zeros(30), face, 0.1), np.zeros(3))
        for face in (loss.weighted(weight), InNumpy(loss, weight))
    )
    assert np.linalg.norm(own.z - general.z) <= own.error + general.error <= 1e-12


@both
@seeds
@pytest.mark.parametrize("far", [1e-6, 1e-3, 1.0])
def test_a_certificate_holds_wherever_it_is_given(name: str, seed: int, far: float) -> None:
    """Of the prox of a user at eta = 1, at points that are no solutions: F is the objective of that prox."""
    case = Case(name, seed)
    one, u = case.model.take(torch.tensor([0])), case.draw(case.dim)
    exact = case.exact_prox(0, u, 1.0, one.prox(u, 1.0)[0])
    c = 1 + case.reg[0]
    A, loss = case.A[0], case.model.loss(torch.from_numpy(case.b[0])).weighted(np.ones(len(case.A[0])))
    objective = Objective(A, A @ u.numpy() / c, loss, c)
    z = np.array([float(x) for x in exact]) - u.numpy() / c
    here = Iterate.at(objective, z + far * case.draw(case.dim).numpy() / case.dim)
    assert here is not None
    found = certificate(objective, here)
    assert distance(here.z + u.numpy() / c, exact) <= found.error
    assert objective.value(here.z) - objective.value(z) <= found.excess + 1e-14
    assert np.isfinite(found.error) or far == 1.0


@pytest.mark.parametrize("delta", [1e-3, 1e-2, 0.1])
def test_newtons_method_does_not_cycle_between_kinks(delta: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A, b = rng.standard_normal((1, 30, 6)), 2 * rng.standard_normal((1, 30))
        assert LinearModel(partial(Huber, delta=delta), A, b, reg=1e-3).minimiser is not None
