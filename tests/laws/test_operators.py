"""Laws of local operators on least squares and logistic regression: proximal maps, gradient steps, minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

import resolvent as rs
import textbook
from resolvent.iteration.engine import Ask
from resolvent.local.descent import batches
from textbook import Array, User

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
laws = settings(deadline=None, max_examples=50)

ETA = st.floats(1e-3, 1e2)
SEED = st.integers(0, 10_000)
KIND = st.sampled_from(["squares", "logits"])
FACTORS = st.floats(0, 2)


@st.composite
def federations(draw: Any, kind: st.SearchStrategy[str] = KIND) -> tuple[Any, list[User]]:
    """Users of any sizes, thin ones and rank-deficient ones among them, twice: as a problem and as the textbook's."""
    dim = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    users = getattr(textbook, draw(kind))(draw(SEED), sizes, dim)
    if dim > 1 and draw(st.booleans()):  # a column twice
        for f in users:
            f.A[:, -1] = f.A[:, 0]
    weights = draw(st.lists(st.floats(0.01, 1), min_size=len(sizes), max_size=len(sizes)))
    return problem_of(users, weights), users


def problem_of(users: Sequence[User], weights: Sequence[float] | Array | None = None) -> Any:
    build = rs.LeastSquares if isinstance(users[0], textbook.Squares) else rs.Logistic
    return build(*textbook.data(users), weights=weights)


def points(problem: Any, seed: int, scale: float = 3.0) -> Tensor:
    """A row a user."""
    return scale * torch.from_numpy(np.random.default_rng(seed).standard_normal((problem.users, problem.dim)))


def answers(operator: Any, problem: Any, u: Tensor, eta: float, steady: bool = True, **ask: Any) -> Tensor:
    """What users answer to u."""
    return operator.bind(problem, steady).rows(Ask(ask.pop("t", 0), eta, **ask), u, {})[0]


def by_hand(step: Callable[[User, Array], Array], users: Sequence[User], u: Tensor) -> Array:
    return np.stack([step(f, x) for f, x in zip(users, u.numpy(), strict=True)])


def heights(problem: Any, x: Tensor, u: Tensor, eta: float) -> Tensor:
    """f_i(x_i) + |x_i - u_i|^2 / (2 eta)."""
    return problem.value(x) + (x - u).square().sum(1) / (2 * eta)


# --- proximal maps ---------------------------------------------------------------------------------------------------


@laws
@given(federations(), ETA, SEED)
def test_prox_is_firmly_nonexpansive(federation: Any, eta: float, seed: int) -> None:
    problem, _ = federation
    u, v = points(problem, seed), points(problem, seed + 1)
    p, q = problem.prox(u, eta), problem.prox(v, eta)
    inner = ((p - q) * (u - v)).sum(1)
    assert bool(((p - q).square().sum(1) <= inner + 1e-9 * (1 + inner.abs())).all())


@laws
@given(federations(), ETA, SEED)
def test_prox_is_optimal(federation: Any, eta: float, seed: int) -> None:
    """(u - p) / eta is the gradient at p, and no point nearby is lower."""
    problem, _ = federation
    u = points(problem, seed)
    p = problem.prox(u, eta)
    slope = eta * problem.grad(p)
    torch.testing.assert_close(u - p, slope, rtol=1e-8, atol=1e-9 * (1 + float(eta * problem.lipschitz.max())))
    for nearby in (1e-3, 0.1):
        x = p + nearby * points(problem, seed + 2)
        assert bool((heights(problem, x, u, eta) >= heights(problem, p, u, eta) - 1e-9).all())


@laws
@given(federations(), ETA, SEED)
def test_prox_is_that_of_the_textbook(federation: Any, eta: float, seed: int) -> None:
    problem, users = federation
    u = points(problem, seed)
    expected = by_hand(lambda f, x: f.prox(x, eta), users, u)
    np.testing.assert_allclose(problem.prox(u, eta), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("eta", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("kind", ["squares", "logits"])
def test_prox_is_what_scipy_finds(kind: str, eta: float) -> None:
    """Thin users, unequal sizes; SciPy knows only values and gradients."""
    users = getattr(textbook, kind)(1, (2, 3, 8, 20), 5)
    problem = problem_of(users)
    u = points(problem, 1)
    for f, x, p in zip(users, u.numpy(), problem.prox(u, eta).numpy(), strict=True):
        found = minimize(
            lambda y, f=f, x=x: eta * f.value(y) + (y - x) @ (y - x) / 2,
            x,
            jac=lambda y, f=f, x=x: eta * f.grad(y) + y - x,
            method="BFGS",
            options={"gtol": 1e-9},
        )
        np.testing.assert_allclose(p, found.x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_prox_of_rank_deficient_least_squares(rows: int) -> None:
    """Exact copies of rows: along what no row sees, u stays where it is."""
    rng = np.random.default_rng(rows)
    A = np.repeat(rng.standard_normal((2, 1, 5)), rows, axis=1)
    b = rng.standard_normal((2, rows))
    problem = rs.LeastSquares(A, b)
    u = points(problem, 0)
    for eta in (1e-3, 1.0, 1e6):
        moved = (problem.prox(u, eta) - u).numpy()
        for a, step in zip(A[:, 0], moved, strict=True):
            np.testing.assert_allclose(step, a * (a @ step) / (a @ a), atol=1e-12)
    assert problem.convexity.tolist() == [0.0, 0.0]
    # In the limit every user's least-squares solution nearest to u: the pseudo-inverse's, shifted.
    nearest = [x + np.linalg.pinv(a) @ (y - a @ x) for a, y, x in zip(A, b, u.numpy(), strict=True)]
    np.testing.assert_allclose(problem.prox(u, 1e9), np.stack(nearest), atol=1e-7)


@laws
@given(federations(), ETA, SEED)
def test_moreau_identity(federation: Any, eta: float, seed: int) -> None:
    """u = prox_eta f(u) + eta prox_{1/eta} f*(u / eta): g = (u - p) / eta minimises f*(g) + eta |g - u/eta|^2 / 2.

    f* is had without a prox: by Fenchel-Young f*(g') >= g'.x - f(x) for every x, with equality at (p, g).
    """
    problem, _ = federation
    u = points(problem, seed)
    p = problem.prox(u, eta)
    g = (u - p) / eta

    def bound(slope: Tensor, x: Tensor) -> Tensor:
        """A lower bound on f*(slope) + eta/2 |slope - u/eta|^2, tight where slope = grad f(x)."""
        return (slope * x).sum(1) - problem.value(x) + eta / 2 * (slope - u / eta).square().sum(1)

    least = bound(g, p)
    size = 1 + least.abs() + problem.value(p)
    for x in (points(problem, seed + 3), p + 0.01 * points(problem, seed + 4)):
        assert bool((bound(problem.grad(x), x) >= least - 1e-8 * size).all())
    # And both optimal values add up to |u|^2 / 2: env_eta f + env_{1/eta} f* = |.|^2 / (2 eta).
    both = heights(problem, p, u, eta) + least
    torch.testing.assert_close(both, u.square().sum(1) / (2 * eta), rtol=1e-8, atol=1e-8 * float(size.max()))


@laws
@given(federations(), ETA, SEED)
def test_reflector_is_a_gradient_step_after_a_prox(federation: Any, eta: float, seed: int) -> None:
    """R = G o P."""
    problem, _ = federation
    u = points(problem, seed)
    p = problem.prox(u, eta)
    tolerance = 1e-9 * (1 + float(eta * problem.lipschitz.max()))
    torch.testing.assert_close(2 * p - u, p - eta * problem.grad(p), rtol=1e-8, atol=tolerance)


def lowest(f: User) -> Array:
    """A minimiser of f."""
    return np.linalg.pinv(f.A) @ f.b if isinstance(f, textbook.Squares) else f.prox(np.zeros(f.A.shape[1]), 1e12)


@laws
@given(federations(), SEED)
def test_envelopes_lie_between_the_least_value_and_the_value(federation: Any, seed: int) -> None:
    """min f <= env_eta f <= f, and as near as this: f - eta/2 |grad f|^2 <= env_eta f <= min f + |u - x*|^2 / (2 eta).

    So the envelope tends to f as eta -> 0, and to min f as eta -> infinity.
    """
    problem, users = federation
    u = points(problem, seed, 1.0)
    f, slope = problem.value(u).numpy(), problem.grad(u).square().sum(1).numpy()
    bottoms = [lowest(g) for g in users]
    least = np.array([g.value(x) for g, x in zip(users, bottoms, strict=True)])
    away = ((u.numpy() - np.stack(bottoms)) ** 2).sum(1)
    for eta in (1e-9, 1e-3, 1.0, 1e3, 1e9):
        envelope, slack = heights(problem, problem.prox(u, eta), u, eta).numpy(), 1e-9 * (1 + f)
        assert (np.maximum(least, f - eta / 2 * slope) <= envelope + slack).all()
        assert (envelope <= np.minimum(f, least + away / (2 * eta)) + slack).all()


@laws
@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=4), ETA, st.floats(-50, 50), SEED)
def test_envelopes_are_near_for_lipschitz_functions(M: list[float], eta: float, w: float, seed: int) -> None:
    """f - f~ <= sum_i lambda_i eta M_i^2 / 2, with equality for M|w| where |w| >= eta M."""
    lam = np.random.default_rng(seed).dirichlet(np.ones(len(M)))
    problem = rs.AbsoluteDeviations(np.array(M)[:, None], np.zeros(len(M)), weights=lam)
    u = torch.full((len(M), 1), w, dtype=torch.float64)
    apart = problem.weights @ (problem.value(u) - heights(problem, problem.prox(u, eta), u, eta))
    most = float(problem.weights @ (eta * torch.tensor(M, dtype=torch.float64) ** 2 / 2))
    assert -1e-9 <= float(apart) <= most * (1 + 1e-9) + 1e-9
    if abs(w) >= eta * max(M):
        assert float(apart) == pytest.approx(most, rel=1e-9)


# --- derivatives and constants ---------------------------------------------------------------------------------------


def in_torch(f: User) -> Callable[[Tensor], Tensor]:
    A, b = torch.from_numpy(f.A), torch.from_numpy(f.b)
    if isinstance(f, textbook.Squares):
        return lambda w: (A @ w - b).square().sum() / 2
    return lambda w: torch.nn.functional.softplus(-b * (A @ w)).sum() + f.reg / 2 * w @ w


@laws
@given(federations(), SEED)
def test_values_gradients_and_hessians(federation: Any, seed: int) -> None:
    problem, users = federation
    W = points(problem, seed, 1.0)
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
    for i, f in enumerate(users):
        function, w = in_torch(f), W[i].clone().requires_grad_()
        value = function(w)
        torch.testing.assert_close(problem.value(W)[i], value.detach(), **close)
        torch.testing.assert_close(problem.grad(W)[i], torch.autograd.grad(value, w)[0], **close)
        torch.testing.assert_close(problem.hessian(W)[i], torch.autograd.functional.hessian(function, W[i]), **close)


@laws
@given(federations(), SEED)
def test_lipschitz_and_convexity(federation: Any, seed: int) -> None:
    """mu |x-y|^2 <= <grad f(x) - grad f(y), x - y> and |grad f(x) - grad f(y)| <= L |x-y|; L is attained."""
    problem, users = federation
    x, y = points(problem, seed), points(problem, seed + 1)
    d, dg = x - y, problem.grad(x) - problem.grad(y)
    assert bool((dg.norm(dim=1) <= problem.lipschitz * d.norm(dim=1) * (1 + 1e-9) + 1e-9).all())
    assert bool(((dg * d).sum(1) >= problem.convexity * d.square().sum(1) * (1 - 1e-9) - 1e-9).all())
    curvature = np.linalg.eigvalsh(problem.hessian(torch.zeros_like(x)).numpy())  # where logistic losses bend most
    np.testing.assert_allclose(problem.lipschitz, curvature[:, -1], rtol=1e-9, atol=1e-12)
    if isinstance(users[0], textbook.Squares):
        np.testing.assert_allclose(problem.convexity, curvature[:, 0], atol=1e-9 * curvature[:, -1].max())
    else:
        np.testing.assert_allclose(problem.convexity, [f.reg for f in users])


@laws
@given(SEED, st.floats(1e-3, 1e3))
def test_norm_of_the_reflector(seed: int, eta: float) -> None:
    rng = np.random.default_rng(seed)
    problem = rs.LeastSquares(rng.standard_normal((1, 9, 4)), rng.standard_normal((1, 9)))
    zero = problem.prox(torch.zeros(1, 4, dtype=torch.float64), eta)
    linear = torch.cat([2 * (problem.prox(e.unsqueeze(0), eta) - zero) - e for e in torch.eye(4, dtype=torch.float64)])
    mu, L = float(problem.convexity), float(problem.lipschitz)
    norm = rs.theory.reflector_norm(mu, L, eta)
    assert norm == pytest.approx(float(torch.linalg.matrix_norm(linear, 2)), rel=1e-9)
    assert norm >= rs.theory.reflector_norm(mu, L, rs.theory.best_eta(problem)) - 1e-12


# --- gradient steps and inexact proximal maps ------------------------------------------------------------------------


@laws
@given(federations(), SEED, st.integers(1, 6), st.booleans(), st.floats(0, 0.9))
def test_gradient_steps_are_gradient_steps(
    federation: Any, seed: int, steps: int, steady: bool, momentum: float
) -> None:
    """k at once by filtering eigenvalues, or one after the other: the same."""
    problem, users = federation
    u = points(problem, seed)
    eta = 1 / float(problem.lipschitz.max())

    def heavy_ball(f: User, x: Array) -> Array:
        v = np.zeros_like(x)
        for _ in range(steps):
            v = momentum * v + f.grad(x)
            x = x - eta * v
        return x

    plain = answers(rs.GradientSteps(steps), problem, u, eta, steady)
    np.testing.assert_allclose(plain, by_hand(lambda f, x: textbook.descend(steps)(f, x, eta), users, u), atol=1e-9)
    heavy = answers(rs.GradientSteps(steps, momentum=momentum), problem, u, eta, steady)
    np.testing.assert_allclose(heavy, by_hand(heavy_ball, users, u), atol=1e-9)


@laws
@given(federations(), SEED, st.integers(1, 6), st.floats(0.01, 10), st.sampled_from([0.0, 0.5]), st.booleans())
def test_gradient_prox_is_gradient_steps_on_the_prox(
    federation: Any, seed: int, steps: int, eta: float, momentum: float, given_lr: bool
) -> None:
    problem, users = federation
    u = points(problem, seed)
    lr = 0.5 / (float(problem.lipschitz.max()) + 1 / eta) if given_lr else None
    rates = [lr or 1 / (float(L) + 1 / eta) for L in problem.lipschitz]

    def descend(f: User, x0: Array, rate: float) -> Array:
        x, v = x0, np.zeros_like(x0)
        for _ in range(steps):
            v = momentum * v + f.grad(x) + (x - x0) / eta
            x = x - rate * v
        return x

    p = answers(rs.GradientProx(steps, lr, momentum=momentum), problem, u, eta)
    expected = [descend(f, x, rate) for f, x, rate in zip(users, u.numpy(), rates, strict=True)]
    np.testing.assert_allclose(p, np.stack(expected), atol=1e-9)


@laws
@given(federations(), SEED, st.floats(0.01, 3))
def test_gradient_prox_tends_to_the_prox(federation: Any, seed: int, eta: float) -> None:
    """Linearly: with lr = 1/(L + 1/eta) the distance shrinks by 1 - 1/(1 + eta L) a step at least."""
    problem, _ = federation
    u = points(problem, seed)
    exact = problem.prox(u, eta)
    shrinks = 1 - 1 / (1 + eta * problem.lipschitz)
    away = (u - exact).norm(dim=1)
    for steps in (1, 5, 25):
        left = (answers(rs.GradientProx(steps), problem, u, eta) - exact).norm(dim=1)
        assert bool((left <= shrinks**steps * away * (1 + 1e-6) + 1e-9).all())
    many = int(30 * (1 + eta * float(problem.lipschitz.max())))
    assert bool(((answers(rs.GradientProx(many), problem, u, eta) - exact).norm(dim=1) <= 1e-7 * (1 + away)).all())


@pytest.mark.parametrize("kind", ["squares", "logits"])
@pytest.mark.parametrize("seed", range(4))
def test_anderson_inside_a_prox_helps(kind: str, seed: int) -> None:
    """At equal steps every user is closer to its prox."""
    problem = problem_of(getattr(textbook, kind)(seed, (4, 12, 30), 6))
    u, eta = points(problem, seed), 1.0
    exact = problem.prox(u, eta)
    plain, helped = (answers(rs.GradientProx(12, anderson=m), problem, u, eta) - exact for m in (0, 3))
    assert bool((helped.norm(dim=1) < plain.norm(dim=1) / 2).all())


def test_anderson_inside_a_prox_is_exact_once_it_remembers_everything() -> None:
    """On a quadratic of d dimensions d + 1 residuals span the space."""
    problem = problem_of(textbook.squares(0, (9, 10), 3))
    u = points(problem, 0)
    p = answers(rs.GradientProx(6, anderson=4), problem, u, 1.0)
    torch.testing.assert_close(p, problem.prox(u, 1.0), rtol=1e-5, atol=1e-6)
    assert float((answers(rs.GradientProx(6), problem, u, 1.0) - problem.prox(u, 1.0)).norm()) > 1e-2


@laws
@given(federations(), SEED, st.floats(1e-2, 30), st.sampled_from([1e-2, 1e-5, 1e-9, 1e-13]))
def test_newton_prox_knows_its_error(federation: Any, seed: int, eta: float, tol: float) -> None:
    """|p - prox| <= error <= tol (1 + |u|), from a cold start, from a warm one, and after eta has changed."""
    problem, users = federation
    memory: dict[str, Tensor] = {}
    bound = rs.NewtonProx(tol).bind(problem, True)
    for t, step in enumerate((eta, eta, 2 * eta, 0.3 * eta)):
        u = points(problem, seed + t)
        p, memory = bound.rows(Ask(t, step), u, memory)
        exact = torch.from_numpy(by_hand(lambda f, x, step=step: f.prox(x, step), users, u))  # type: ignore[misc]
        size = 1 + u.norm(dim=1)
        noise = 1e-13 * (size + step * problem.lipschitz * size)  # round-off, ours and the textbook's
        assert bool(((p - exact).norm(dim=1) <= memory["error"] + noise).all())
        assert bool((memory["error"] <= tol * size + noise).all())


def test_newton_prox_stops_where_it_is_told() -> None:
    """A loose tolerance is used, not only promised: the answer is visibly inexact, and cheaper ones are no better."""
    users = textbook.logits(5, (40, 50), 6)
    problem = problem_of(users)
    u = points(problem, 5)
    loose, tight = (answers(rs.NewtonProx(tol), problem, u, 1.0) - problem.prox(u, 1.0) for tol in (1e-2, 1e-13))
    assert float(loose.norm()) > 1e-9 > 1e-11 > float(tight.norm())


@laws
@given(federations(), SEED, st.data())
def test_answers_do_not_depend_on_who_else_is_asked(federation: Any, seed: int, data: Any) -> None:
    problem, _ = federation
    u = points(problem, seed)
    who = torch.tensor(data.draw(st.lists(st.integers(0, problem.users - 1), min_size=1, unique=True).map(sorted)))
    rate = 1 / float(problem.lipschitz.max())
    operators = (rs.ExactProx(), rs.NewtonProx(), rs.GradientProx(4), rs.GradientSteps(3), rs.GradientSteps(2, batch=3))
    for operator in operators:
        everyone = answers(operator, problem, u, rate)
        some = answers(operator, problem, u[who], rate, who=who)
        torch.testing.assert_close(some, everyone[who], rtol=1e-9, atol=1e-9)


@laws
@given(federations(), SEED)
def test_the_mean_of_the_answers(federation: Any, seed: int) -> None:
    """Where users share u their mean answer and its spread are had without the answers."""
    problem, _ = federation
    u = points(problem, seed)[:1]
    eta = 1 / float(problem.lipschitz.max())
    for operator in (rs.ExactProx(), rs.NewtonProx(), rs.GradientProx(4), rs.GradientSteps(3)):
        p = answers(operator, problem, u, eta).expand(problem.users, -1)
        mean, spread, _ = operator.bind(problem, True).mean(Ask(0, eta), u, {})
        torch.testing.assert_close(mean[0], problem.weights @ p, rtol=1e-9, atol=1e-9)
        expected = problem.weights @ (p - mean).square().sum(1)
        assert float(spread(u)) == pytest.approx(float(expected), rel=1e-7, abs=1e-9)


# --- minibatches -----------------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def an_epoch(sizes: Sequence[int], batch: int, seed: int = 0, t: int = 0, epoch: int = 0) -> list[tuple[Array, Array]]:
    who = np.arange(len(sizes))
    return [(rows.numpy(), mask.numpy()) for rows, mask in batches(torch.tensor(sizes), batch, seed, t, who, epoch)]


def orders(sizes: Sequence[int], seed: int = 0, t: int = 0, epoch: int = 0) -> list[list[int]]:
    """In which order each user goes through its rows."""
    passes = an_epoch(sizes, 4, seed, t, epoch)
    return [[int(r) for rows, mask in passes for r in rows[i][mask[i]]] for i in range(len(sizes))]


@laws
@given(SIZES, st.integers(1, 15), SEED, st.integers(0, 100))
def test_an_epoch_meets_every_row_once(sizes: list[int], batch: int, seed: int, t: int) -> None:
    passes = an_epoch(sizes, batch, seed, t)
    for i, n in enumerate(sizes):
        mine = [rows[i][mask[i]] for rows, mask in passes]
        assert sorted(np.concatenate(mine).tolist()) == list(range(n))
        counts = [len(rows) for rows in mine]
        full, rest = divmod(n, batch)
        assert counts[: full + (rest > 0)] == [batch] * full + [rest] * (rest > 0)  # the last may be short
        assert not any(counts[full + (rest > 0) :])


@laws
@given(federations(), st.integers(1, 15), SEED)
def test_batch_gradients_are_unbiased(federation: Any, batch: int, seed: int) -> None:
    """Over an epoch, weighted by the sizes of its batches, they average to the gradient."""
    problem, _ = federation
    W = points(problem, seed)
    total = torch.zeros_like(W)
    for rows, mask in batches(problem.sizes, batch, seed, 0, np.arange(problem.users), 0):
        share = mask.sum(1, keepdim=True).double() / problem.sizes.unsqueeze(1)
        total += share * problem.batch_grad(W, rows, mask.to(W))
    torch.testing.assert_close(total, problem.grad(W), rtol=1e-9, atol=1e-9)


@laws
@given(federations(), st.integers(1, 15), st.integers(1, 3), st.sampled_from([0.0, 0.5]), SEED)
def test_minibatch_steps_by_hand(federation: Any, batch: int, epochs: int, momentum: float, seed: int) -> None:
    """Algorithm 2 for one user after the other: a user does not move in batches that it lacks."""
    problem, users = federation
    u, eta = points(problem, seed), 0.3 / float(problem.lipschitz.max())
    passes = [an_epoch([len(f.b) for f in users], batch, 7, 5, k) for k in range(epochs)]
    lr = 0.5 / (float(problem.lipschitz.max()) + 1 / eta)

    def descend(i: int, f: User, x: Array, rate: float, pull: float) -> Array:
        start, v = x, np.zeros_like(x)
        for one_pass in passes:
            for rows, mask in one_pass:
                if mask[i].any():
                    mine = rows[i][mask[i]]
                    reg = getattr(f, "reg", 0.0)
                    loss = type(f)(f.A[mine], f.b[mine], *([0.0] if isinstance(f, textbook.Logit) else []))
                    v = momentum * v + len(f.b) / len(mine) * loss.grad(x) + reg * x + pull * (x - start)
                    x = x - rate * v
        return x

    for operator, rate, pull in (
        (rs.GradientSteps(epochs, batch, momentum), eta, 0.0),
        (rs.GradientProx(epochs, lr, batch, momentum), lr, 1 / eta),
    ):
        p = answers(operator, problem, u, eta, t=5, seed=7)
        expected = [descend(i, f, x, rate, pull) for i, (f, x) in enumerate(zip(users, u.numpy(), strict=True))]
        np.testing.assert_allclose(p, np.stack(expected), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("operator", [rs.GradientSteps, rs.GradientProx])
def test_minibatch_steps_do_not_depend_on_how_users_are_batched(operator: Any, momentum: float) -> None:
    """A small user beside large ones, alone, or on another machine: the same draws, the same answer."""
    problem = problem_of(textbook.logits(0, (3, 7, 20)))
    u = points(problem, 0)
    local = operator(3, batch=4, momentum=momentum)
    together = answers(local, problem, u, 0.01, t=2, seed=1)
    some = torch.tensor([0, 2])
    torch.testing.assert_close(answers(local, problem, u[some], 0.01, t=2, seed=1, who=some), together[some])
    for i in range(3):
        name = torch.tensor([i])
        alone = answers(local, problem.take(name), u[name], 0.01, t=2, seed=1, names=name)
        torch.testing.assert_close(alone, together[name], rtol=1e-12, atol=1e-12)


def test_shuffles_differ_between_users_rounds_epochs_and_seeds() -> None:
    sizes = [12, 12, 12]
    first = orders(sizes)
    assert len({tuple(order) for order in first}) == 3
    assert first == orders(sizes)  # and are drawn alike when asked again
    for other in (orders(sizes, seed=1), orders(sizes, t=1), orders(sizes, epoch=1)):
        assert all(a != b for a, b in zip(first, other, strict=True))


def test_shuffles_are_fair() -> None:
    """In 3000 rounds each row comes in each place about equally often, and neighbours' draws are unrelated."""
    rounds, n = 3000, 6
    drawn = np.array([orders([n, n], t=t) for t in range(rounds)])  # (rounds, users, places)
    deviation = np.sqrt(rounds / n * (1 - 1 / n))
    for user in range(2):
        counts = np.array([np.bincount(drawn[:, user, place], minlength=n) for place in range(n)])
        assert np.abs(counts - rounds / n).max() < 5 * deviation
    for same in (drawn[:, 0, 0] == drawn[:, 1, 0], drawn[1:, 0, 0] == drawn[:-1, 0, 0]):
        assert abs(same.sum() - rounds / n) < 5 * deviation


def test_algorithm_2_is_gradient_descent_on_average() -> None:
    """One batch a user and round, of a pass cut short: over many rounds its steps average to the full gradient's."""
    problem = problem_of(textbook.logits(3, (9, 12)))
    W = points(problem, 3, 1.0)
    draws = []
    for t in range(2000):
        rows, mask = next(batches(problem.sizes, 4, 0, t, np.arange(2), 0))
        draws.append(problem.batch_grad(W, rows, mask.to(W)))
    steps = torch.stack(draws)
    error = steps.std(0) / len(draws) ** 0.5
    assert bool(((steps.mean(0) - problem.grad(W)).abs() < 5 * error).all())
    assert float((steps[0] - problem.grad(W)).norm()) > float(error.norm())  # a single one is far off


# --- the scheme as a map ---------------------------------------------------------------------------------------------


def mapped(problem: Any, scheme: rs.Scheme, u: Tensor) -> Tensor:
    """T u."""
    after = rs.solve(problem, scheme, rounds=1, start=u).state.next
    assert after is not None
    return after


@settings(deadline=None, max_examples=80)
@given(federations(), FACTORS, FACTORS, st.floats(0, 1), ETA, SEED)
def test_scheme_is_nonexpansive_in_the_lambda_norm(
    federation: Any, alpha: float, beta: float, gamma: float, eta: float, seed: int
) -> None:
    problem, _ = federation
    scheme = rs.Scheme(alpha, beta, gamma, eta)
    u, v = points(problem, seed), points(problem, seed + 1)
    before = problem.weights @ (u - v).square().sum(1)
    after = problem.weights @ (mapped(problem, scheme, u) - mapped(problem, scheme, v)).square().sum(1)
    assert float(after) <= float(before) * (1 + 1e-8)


@settings(deadline=None, max_examples=30)
@given(SEED, FACTORS, FACTORS, st.floats(0, 1), ETA)
def test_scheme_is_nonexpansive_where_nothing_is_smooth(
    seed: int, alpha: float, beta: float, gamma: float, eta: float
) -> None:
    rng = np.random.default_rng(seed)
    problem = rs.AbsoluteDeviations(rng.standard_normal((4, 3)), rng.standard_normal(4), rng.dirichlet(np.ones(4)))
    u, v = points(problem, seed), points(problem, seed + 1)
    scheme = rs.Scheme(alpha, beta, gamma, eta)
    moved = mapped(problem, scheme, u) - mapped(problem, scheme, v)
    before = problem.weights @ (u - v).square().sum(1)
    assert float(problem.weights @ moved.square().sum(1)) <= float(before) * (1 + 1e-8)


def test_scheme_can_expand_in_the_euclidean_norm() -> None:
    """Two users of weights .95 and .05 who hardly pull: R_H sends (1, 0) to (.9, 1.9)."""
    problem = rs.Quadratics([1e-9, 1e-9], [0.0, 0.0], weights=[0.95, 0.05])
    moved = mapped(problem, rs.fedsplit(1.0), torch.tensor([[1.0], [0.0]])) - mapped(
        problem, rs.fedsplit(1.0), torch.tensor([[0.0], [0.0]])
    )
    torch.testing.assert_close(moved, torch.tensor([[0.9], [1.9]], dtype=torch.float64), rtol=0, atol=1e-7)
    assert float(moved.norm()) > 2.1
    assert float(problem.weights @ moved.square().sum(1)) <= 0.95 + 1e-9
