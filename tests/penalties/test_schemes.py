"""What schemes solve with a penalty: fixed points against a direct solver, certificates, accelerations, sampling."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.iteration.penalties import penalty_of
from resolvent.problems.least_squares import squares, triangle
from resolvent.problems.reference import Minimum, minimum
from resolvent.problems.reference.pooled_rows import PooledRows
from resolvent.problems.reference.terms import terms

pytestmark = pytest.mark.filterwarnings("ignore")
USERS, DIM = 4, 5


def drawn(seed: int, penalty: Any, tall: bool = False, **more: Any) -> tuple[rs.LeastSquares, list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(8, 12, USERS) if tall else rng.integers(3, 9, USERS)
    A, b = [rng.standard_normal((n, DIM)) for n in sizes], [rng.standard_normal(n) for n in sizes]
    return rs.LeastSquares(A, b, weights=rng.uniform(0.2, 3, USERS), penalty=penalty, **more), A, b


def envelopes(problem: Any, A: list[Any], b: list[Any], eta: float) -> Any:
    """argmin of sum_i lambda_i env_eta f_i + g; env_eta of |r|^2 / 2, r = A w - b, is |(I + eta A A^T)^-1/2 r|^2/2."""
    parts = []
    for X, y, weight in zip(A, b, problem.weights.tolist(), strict=True):
        root = np.linalg.cholesky(np.linalg.inv(np.eye(len(X)) + eta * X @ X.T)).T
        parts.append(np.column_stack([root @ X, root @ y]) * np.sqrt(weight))
    C, target, constant = triangle(parts)
    g = penalty_of(problem)
    assert g is not None
    least = minimum(PooledRows(squares(C, target), terms(g, problem.dim), 0.0, constant))
    assert isinstance(least, Minimum)
    return least.w


PENALTIES = [rs.L1(0.3), rs.L1([0.0, 0.1, 0.3, 0.5, 1.0]), rs.ElasticNet(0.2, 0.5), rs.Box(-0.1, 0.2), rs.Simplex(),
             rs.Ball(0.0, 0.3), rs.L1(0.2).free([1]), rs.L2(0.7)]  # fmt: skip


MIXINGS = [(2, 2, 0.5), (1, 1, 1), (2, 1, 1), (1, 2, 0.8), (0.7, 1.3, 1), (1.5, 1.5, 0.7)]


@pytest.mark.parametrize(
    ("penalty", "mixing"), [(g, MIXINGS[(k + 3 * j) % 6]) for k, g in enumerate(PENALTIES) for j in range(2)], ids=str
)
def test_fixed_points_of_a_prox_scheme(penalty: Any, mixing: tuple[float, float, float]) -> None:
    """min sum_i lambda_i env f_i + g at eta_eff = eta (alpha + beta - alpha beta) / beta, with unequal weights."""
    problem, A, b = drawn(len(str(penalty)), penalty, tall=True)
    (alpha, beta, gamma), eta = mixing, 0.2
    run = rs.solve(problem, rs.Scheme(alpha, beta, gamma, eta), rounds=500, every=500)
    expected = envelopes(problem, A, b, eta * (alpha + beta - alpha * beta) / beta)
    np.testing.assert_allclose(run.model.numpy(), expected, rtol=0, atol=1e-12)
    assert (run.model == 0).tolist() == (expected == 0).tolist()
    p = run.personal.numpy()
    eta_eff = eta * (alpha + beta - alpha * beta) / beta
    for i, (X, y) in enumerate(zip(A, b, strict=True)):
        answer = np.linalg.solve(np.eye(DIM) + eta_eff * X.T @ X, expected + eta_eff * X.T @ y)
        np.testing.assert_allclose(p[i], answer, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["fedsplit", "fedpi", "fedavg", "fedprox", "fedrp", "reflect_prox", "reflect_gradient"]
)
@pytest.mark.parametrize("penalty", [rs.L1(0.4), rs.Box(-0.1, 0.3)], ids=str)
def test_every_row_of_the_table(name: str, penalty: Any) -> None:
    """Stationarity of the fixed point, from the definitions alone: -mean((u - p) / eta) is a subgradient of g at W."""
    problem, A, b = drawn(3, penalty, tall=True)
    eta = 0.05
    run = rs.solve(problem, name, eta=eta, rounds=600, every=600)
    w, u = run.model, run.state.u.expand(USERS, -1)
    operator = problem.prox(u, eta) if name not in ("fedavg", "reflect_gradient") else u - eta * problem.grad(u)
    pull = problem.weights @ (u - operator) / eta
    assert float(penalty.distance(w, -pull)) < 1e-9
    row = rs.TABLE[name]
    np.testing.assert_allclose(u - w, row.alpha * (row.beta - 1) / row.beta * (u - operator), atol=1e-10)
    solves = rs.explain(rs.TABLE[name].scheme(eta), problem)
    if solves.solves == "original":
        np.testing.assert_allclose(w, problem.minimiser, atol=1e-10)
        assert solves.exactly
    elif solves.solves == "regularised":
        np.testing.assert_allclose(w, envelopes(problem, A, b, solves.eta_eff), atol=1e-10)
    assert solves.solves == {"fedprox": "regularised", "fedrp": "regularised", "reflect_prox": "regularised",
                             "reflect_gradient": "neither"}.get(name, "original")  # fmt: skip
    assert "+ g" in str(solves) or solves.solves == "neither"


def test_k_gradient_steps_count_k_times() -> None:
    """FedAvg with k steps solves about the envelopes at eta (k-1)/2 plus g, and not g / k."""
    problem, A, b = drawn(4, rs.L1(1.5), tall=True)
    for k, eta in ((2, 4e-3), (5, 2e-3)):
        run = rs.solve(problem, rs.fedavg(eta, steps=k), rounds=2500, every=2500)
        about = envelopes(problem, A, b, eta * (k - 1) / 2)
        assert np.abs(run.model.numpy() - about).max() < 0.05 * np.abs(about - problem.minimiser.numpy()).max()
        assert (run.model == 0).tolist() == (about == 0).tolist()


def test_fednova_counts_g_once_however_far_the_meeting_goes() -> None:
    """At a fixed point W = prox_{s eta g}(W + s D), s being the scale: W is the same, and solves about f + g."""
    problem, _, _ = drawn(4, rs.L1(1.5), tall=True)
    eta = 1e-3
    models = [
        rs.solve(problem, rs.fednova(eta, (4, 4, 1, 2), scale=s), 500, every=500, anderson=5).model
        for s in (None, 1.0, 4.0)
    ]
    for other in models[1:]:
        torch.testing.assert_close(other, models[0], rtol=0, atol=1e-9)
    fell, all_of_it = problem.gap(models[0][None]), problem.gap(torch.zeros(1, DIM))
    assert fell is not None
    assert all_of_it is not None
    assert float(fell) < 0.01 * float(all_of_it)


@pytest.mark.parametrize(
    "scheme",
    [
        lambda L: rs.fedavg(0.5 / L, steps=4),
        lambda L: rs.fedavg(0.2 / L, local=rs.GradientSteps(4, momentum=0.5)),
        lambda L: rs.fednova(0.2 / L, 3),
        lambda L: rs.fedprox(1 / L, local=rs.GradientProx(2, lr=0.3 / L)),
    ],
)
def test_the_error_that_explain_gives_is_that_of_pulls_beside_g(scheme: Any) -> None:
    """One user with one curvature h: where g pulls with t w, its own pull is that of the envelope but for the error."""
    rng, t = np.random.default_rng(0), 2.0
    A, b = rng.normal(size=(1, 8, 1)), rng.normal(size=(1, 8))
    h, c = float(A[0, :, 0] @ A[0, :, 0]), float(A[0, :, 0] @ b[0])
    problem = rs.LeastSquares(A, b, penalty=rs.L2(t))
    explained = rs.explain(scheme(h), problem)
    w = float(rs.solve(problem, scheme(h), rounds=500, every=500).model[0])
    assert explained.error == pytest.approx(abs(t * w * (1 + explained.eta_eff * h) / (c - h * w) - 1), rel=1e-9)
    assert explained.error > 0.01


@pytest.mark.parametrize("present", [None, 0.5])
@pytest.mark.parametrize("penalty", [rs.L1(1.5), rs.Box(-0.1, 0.3), rs.L2(2.0)], ids=str)
def test_scaffold_solves_the_sum(penalty: Any, present: float | None) -> None:
    problem, _, _ = drawn(4, penalty, tall=True, intercept=True)
    lr = 0.25 / float(problem.lipschitz.max())
    for scheme in (rs.scaffold(lr, 1), rs.scaffold(lr, 4)):
        run = rs.solve(problem, scheme, 3000, every=3000, participation=present, stop=rs.Stop(residual=1e-14))
        np.testing.assert_allclose(run.model, problem.minimiser, rtol=0, atol=1e-9)
        assert rs.explain(scheme, problem).solves == "original"


# --- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheme", [rs.fedpi(0.2), rs.fedprox(0.2), rs.fedrp(0.1), rs.Scheme(1.4, 1.7, 0.6, 0.2)], ids=str
)
@pytest.mark.parametrize("penalty", [rs.L1(0.3), rs.Ball(0.1, 0.2)], ids=str)
def test_certificates_are_what_they_say(scheme: rs.Scheme, penalty: Any) -> None:
    problem, *_ = drawn(5, penalty)
    seen: list[Any] = []
    rs.solve(problem, scheme, rounds=7, callback=seen.append)
    for r in seen[1:]:
        u, eta = r.step[0].expand(USERS, -1), r.eta
        p, alpha, beta = problem.prox(u, eta), scheme.alpha(0), scheme.beta(0)
        mean = problem.weights @ ((1 - alpha) * u + alpha * p)
        w = penalty.prox(mean, alpha * eta / beta)
        n = (mean - w) / (alpha * eta / beta)
        assert float(penalty.distance(w, n)) < 1e-10
        stationarity = float((problem.weights @ (u - p) / eta + n).norm())
        consensus = math.sqrt(float(problem.weights @ (p - w).square().sum(1)))
        assert r.stationarity == pytest.approx(stationarity, rel=1e-9, abs=1e-12)
        assert r.consensus == pytest.approx(consensus, rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(r.model[0], w, atol=1e-13)


@pytest.mark.parametrize("users", [1, 3])
def test_identical_users_of_fedprox_do_not_look_converged(users: int) -> None:
    """Their answers agree, and the pulls balance: only the way to the model shows that f + g is not solved."""
    rng = np.random.default_rng(6)
    X, y = rng.standard_normal((8, 3)), rng.standard_normal(8)
    problem = rs.LeastSquares([X] * users, [y] * users, penalty=rs.L1(0.5))
    run = rs.solve(problem, rs.fedprox(0.5), rounds=200)
    last = run.history.iloc[-1]
    assert last.stationarity < 1e-12
    assert last.consensus > 1e-2
    assert last.gap > 1e-3
    assert rs.explain(rs.fedprox(0.5), problem).solves == "regularised"
    good = rs.solve(problem, rs.fedpi(0.5), rounds=300).history.iloc[-1]
    assert max(good.stationarity, good.consensus) < 1e-12
    assert abs(good.gap) < 1e-20


def test_one_gradient_step_certifies() -> None:
    problem, *_ = drawn(7, rs.L1(0.3), tall=True)
    last = rs.solve(problem, rs.fedavg(0.05), rounds=500).history.iloc[-1]
    assert max(last.stationarity, last.consensus) < 1e-10
    assert last.gap < 1e-20
    more = rs.solve(problem, rs.fedavg(0.01, steps=2), rounds=5).history.iloc[-1]
    assert math.isnan(more.stationarity)


# --- what else a run may have ----------------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "anderson on u": {"anderson": 5},
    "anderson on the mean": {"anderson": rs.Anderson(5, on="mean")},
    "momentum": {"accelerate": rs.Momentum(0.3)},
    "sampling": {"participation": rs.Bernoulli(0.5)},
    "fixed size": {"participation": rs.FixedSize(2)},
    "stragglers": {"participation": rs.Stragglers(3.0)},
    "debug": {"engine": "debug"},
    "automatic eta": {"eta": "auto"},
    "halving": {"eta": rs.schedules.halving(0.5, 100)},
}


@pytest.mark.parametrize("way", WAYS, ids=WAYS)
@pytest.mark.parametrize("penalty", [rs.L1(0.4), rs.Simplex()], ids=str)
def test_fedpi_ends_at_the_minimiser_of_the_sum(way: str, penalty: Any) -> None:
    problem, *_ = drawn(8, penalty, tall=True)
    options = dict(WAYS[way])
    run = rs.solve(problem, rs.fedpi(options.pop("eta", 0.1)), rounds=400, every=400, **options)
    np.testing.assert_allclose(run.model, problem.minimiser, atol=1e-10)
    assert (run.model == 0).tolist() == (problem.minimiser == 0).tolist()
    last = run.history.iloc[-1]
    assert last.value == pytest.approx(problem.fstar)
    assert -1e-15 < last.gap < 1e-18
    assert max(last.stationarity, last.consensus) < 1e-8


@pytest.mark.parametrize("name", ["fedprox", "fedavg"])
@pytest.mark.parametrize("on", ["u", "mean"])
def test_acceleration_of_users_who_share_a_point(name: str, on: Any) -> None:
    problem, A, b = drawn(9, rs.L1(0.4), tall=True)
    run = rs.solve(problem, name, eta=0.05, rounds=200, anderson=rs.Anderson(5, on=on))
    expected = envelopes(problem, A, b, 0.05 if name == "fedprox" else 0.0)
    np.testing.assert_allclose(run.model, expected, atol=1e-10)


def test_a_vanishing_eta_ends_at_the_sum() -> None:
    problem, *_ = drawn(10, rs.L1(0.4), tall=True)
    scheme = rs.fedprox(rs.schedules.harmonic(0.5))
    run = rs.solve(problem, scheme, rounds=800, every=800)
    assert float((run.model - problem.minimiser).abs().max()) < 2e-2
    said = rs.explain(scheme, problem)
    assert (said.solves, "thm:fp" in str(said.theorem)) == ("original", True)


@pytest.mark.parametrize("average", ["ergodic", "suffix"])
def test_the_average_of_models_is_measured_with_g(average: str) -> None:
    problem, *_ = drawn(11, rs.L1(0.4))
    run = rs.solve(problem, rs.fedpi(0.1), rounds=40, average=average)
    w = run.model
    assert run.history.average_value.iloc[-1] == pytest.approx(
        float(problem.weights @ problem.value(w[None])) + 0.4 * float(w.abs().sum())
    )
    plain = run.state.w
    assert run.history.value.iloc[-1] == pytest.approx(
        float(problem.weights @ problem.value(plain)) + 0.4 * float(plain.abs().sum())
    )


@pytest.mark.parametrize(
    "options", [{"anderson": 3}, {"participation": 0.5}, {"eta": "auto"}, {"accelerate": rs.Momentum(0.5)}], ids=str
)
def test_a_run_goes_on_to_the_same_bits(options: dict[str, Any]) -> None:
    problem, *_ = drawn(12, rs.ElasticNet(0.3, 0.1))
    options = dict(options)
    scheme = rs.fedpi(options.pop("eta", 0.1))
    whole = rs.solve(problem, scheme, rounds=30, **options)
    half = rs.solve(problem, scheme, rounds=13, **options)
    rest = rs.solve(problem, scheme, rounds=17, start=half.state, **options)
    assert torch.equal(whole.model, rest.model)
    assert whole.history.gap.iloc[-1] == rest.history.gap.iloc[-1]


# --- where the penalty comes from ------------------------------------------------------------------------------------


def test_a_penalty_given_to_solve_and_users_elsewhere() -> None:
    from resolvent.engines.in_process import InProcess

    problem, A, b = drawn(13, rs.L1(0.3), tall=True)
    plain = rs.LeastSquares(A, b, weights=problem.weights)
    star, scheme = problem.minimiser, rs.fedpi(0.1)
    first = rs.solve(problem, scheme, rounds=50)
    given = rs.solve(plain, scheme, rounds=50, penalty=rs.L1(0.3))
    assert torch.equal(first.model, given.model)
    assert first.history.gap.tolist() == given.history.gap.tolist()
    assert plain.penalty is None
    assert plain.fstar < problem.fstar
    remote = rs.solve(None, scheme, rounds=50, engine=InProcess(plain, rs.ExactProx()), penalty=rs.L1(0.3))
    assert torch.equal(first.model, remote.model)
    np.testing.assert_allclose(remote.history.value, first.history.value, rtol=1e-12)
    assert remote.history.gap.isna().all()  # f* of the users is that of f alone
    assert "L1(0.3)" in str(remote.explanation)
    inside = rs.solve(None, scheme, rounds=50, engine=InProcess(problem, rs.ExactProx()))
    assert inside.history.gap.tolist() == first.history.gap.tolist()
    late = rs.Stragglers(3.0)
    one = rs.solve(problem, scheme, rounds=50, participation=late).model
    assert torch.equal(
        one,
        rs.solve(
            None, scheme, rounds=50, engine=InProcess(plain, rs.ExactProx()), penalty=rs.L1(0.3), participation=late
        ).model,
    )
    with pytest.raises(rs.InputError, match="there is one already"):
        rs.solve(problem, scheme, rounds=2, penalty=rs.L1(1.0))
    assert float((first.model - star).abs().max()) < 1e-3


def test_schemes_that_cannot_apply_a_penalty_are_refused() -> None:
    problem, *_ = drawn(14, rs.L1(0.3))
    for alpha, beta in ((0, 1), (1, 0)):
        with pytest.raises(rs.InputError, match="alpha eta / beta"):
            rs.solve(problem, rs.Scheme(alpha, beta, 1, 0.1), rounds=2)
    with pytest.raises(rs.InputError, match="not positive in this round"):
        rs.solve(problem, rs.Scheme(lambda t: 1.0 if t < 2 else 0.0, 1, 1, 0.1), rounds=4)


def test_other_problems_are_measured_with_g_and_know_no_gap() -> None:
    points = rs.AbsoluteDeviations(np.eye(3), [1.0, 2.0, 3.0], penalty=rs.L1(0.1))
    run = rs.solve(points, rs.fedpi(0.5), rounds=400)
    np.testing.assert_allclose(run.model, [1.0, 2.0, 3.0], atol=1e-8)
    assert run.history.value.iloc[-1] == pytest.approx(0.6)
    assert run.history.gap.isna().all()
    box = rs.solve(rs.Quadratics([1.0, 3.0], [-1.0, 1.0], penalty=rs.Box(-1.0, 0.2)), rs.fedpi(0.5), rounds=200)
    assert float(box.model) == pytest.approx(0.2)
    halves = rs.solve(rs.HalfSquares(2, 1, [1.0, 2.0], penalty=rs.L1(0.25)), rs.fedpi(1.0), rounds=300)
    assert float(halves.model) == pytest.approx(1.5)
    squares_ = rs.Custom(
        2, 2, value=lambda W: W.square().sum(1), grad=lambda W: 2 * W, minimiser=[0.0, 0.0], penalty=rs.L1(1.0)
    )
    custom = rs.solve(squares_, rs.fedavg(0.1), rounds=200, start=[1.0, -2.0])
    assert custom.model.tolist() == [0.0, 0.0]
    assert custom.history.gap.isna().all()


def test_a_network_with_a_penalty() -> None:
    """One linear layer: FedAvg with an l1 penalty is proximal gradient descent, and its value has g."""
    rng = np.random.default_rng(15)
    X, y = rng.standard_normal((2, 12, 3)), rng.standard_normal((2, 12))
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    users = [(torch.tensor(a), torch.tensor(c)[:, None]) for a, c in zip(X, y, strict=True)]
    network = rs.Neural(module, users, torch.nn.functional.mse_loss)
    run = rs.solve(network, rs.fedavg(0.1), rounds=400, penalty=rs.L1(0.3))
    direct = rs.LeastSquares(list(X), list(y), penalty=rs.L1(0.3 * 12 / 2))
    np.testing.assert_allclose(run.model.double(), direct.minimiser, atol=1e-5)
    assert run.history.value.iloc[-1] == pytest.approx(direct.fstar * 2 / 12, rel=1e-5)


@pytest.mark.parametrize("penalty", [rs.L1(1.2), rs.Orthant(), rs.L1(1.0).free([0])], ids=str)
def test_automatic_eta_looks_at_the_coordinates_that_move(penalty: Any) -> None:
    """In the end it is 1 / sqrt(mu L) of the Hessian over them, to the factor below which it is not changed."""
    problem, *_ = drawn(16, penalty, tall=True)
    run = rs.solve(problem, "fedpi", rounds=150)
    moving = (run.model != 0).nonzero().flatten()
    assert 0 < len(moving) < DIM
    H = torch.tensordot(problem.weights, problem.hessian(run.model[None]), 1)[moving][:, moving]
    s = torch.linalg.eigvalsh(H)
    best = 1 / math.sqrt(float(s[0] * s[-1]))
    assert best / 2.0001 < run.history.eta.iloc[-1] < best * 2.0001


class Group:
    """0.3 |w|, written as a user would."""

    share = 1.0

    def value(self, w: Any) -> Any:
        return 0.3 * w.norm(dim=-1)

    def prox(self, w: Any, step: float) -> Any:
        return w * (1 - 0.3 * self.share * step / w.norm(dim=-1, keepdim=True)).clamp_min(0)


class OfNumPy:
    """0.3 |w|_1, of NumPy's functions."""

    def value(self, w: Any) -> Any:
        return 0.3 * np.abs(w).sum(-1)

    def prox(self, w: Any, step: float) -> Any:
        return np.sign(w) * np.maximum(np.abs(w) - 0.3 * step, 0)


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_a_penalty_of_numpy_is_given_arrays() -> None:
    ours, torchs = (
        rs.solve(drawn(0, g, tall=True)[0], rs.fedpi(0.1), rounds=40).model for g in (OfNumPy(), rs.L1(0.3))
    )
    assert torch.allclose(ours, torchs, rtol=0, atol=1e-12)


class InPlace(OfNumPy):
    """Its functions write to the arrays that they are given."""

    def value(self, w: Any) -> Any:
        np.abs(w, out=w)
        return 0.3 * w.sum(-1)

    def prox(self, w: Any, step: float) -> Any:
        w[...] = super().prox(w, step)
        return w


class Filled(OfNumPy):
    """Its prox answers with the same array every time."""

    def __init__(self) -> None:
        self.answers: dict[Any, Any] = {}

    def prox(self, w: Any, step: float) -> Any:
        answer = self.answers.setdefault(w.shape, np.empty(w.shape))
        answer[...] = super().prox(w, step)
        return answer


@pytest.mark.parametrize("penalty", [InPlace, Filled])
@pytest.mark.parametrize("options", [{}, {"anderson": 3}, {"average": "suffix"}, {"participation": 0.5}], ids=str)
def test_a_penalty_may_write_to_its_arrays(penalty: Any, options: dict[str, Any]) -> None:
    plain, other = (
        rs.solve(drawn(0, g, tall=True)[0], rs.fedprox(0.1), rounds=15, **options) for g in (OfNumPy(), penalty())
    )
    assert plain.model.equal(other.model)
    for column in ("value", "residual", "consensus", "stationarity"):
        np.testing.assert_array_equal(plain.history[column], other.history[column])


def test_a_penalty_of_ones_own_is_a_value_and_a_prox() -> None:
    problem = drawn(0, Group(), tall=True, intercept=True)[0]
    run = rs.solve(problem, "fedpi", rounds=300, anderson=5, stop=rs.Stop(certificates=1e-9))
    assert run.status == "stopped"
    w = run.model[:-1]  # 0 = gradient of f + 0.3 w / |w|, and the intercept pays nothing
    pull = problem.weights @ problem.grad(run.model.expand(USERS, -1))
    assert float((pull[:-1] + 0.3 * w / w.norm()).norm()) < 1e-7
    assert abs(float(pull[-1])) < 1e-7
    assert math.isnan(run.history["gap"].iloc[-1])


def test_a_penalty_of_ones_own_is_looked_at() -> None:
    wrong = Group()
    wrong.share = 2.0
    with pytest.raises(rs.InputError, match="prox of Group does not minimise"):
        rs.solve(drawn(0, wrong)[0], rs.fedpi(0.1), rounds=3)
    wrong.prox = lambda w, step: None  # type: ignore[method-assign]
    with pytest.raises(rs.InputError, match="prox of Group is a NoneType, but a tensor or an array"):
        rs.solve(drawn(0, wrong)[0], rs.fedpi(0.1), rounds=3)
