"""Splitting in the metric of the mean Hessian: the prox, the certificates, the meeting, and what stays as it was."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
import torch

import resolvent as rs
from bench.eta import KINDS, TARGET, drawn
from bench.metric import rounds as first_and_for_good
from command_line import SMALL, resolvent
from resolvent.engines.in_process import InProcess
from resolvent.iteration.checkpoint import pack, unpack
from resolvent.iteration.engine import Ask
from resolvent.iteration.metric import LEAST, FullMetric, LowRankMetric, change, moved, of_hessian, of_products
from resolvent.iteration.metric_choice import as_metric
from resolvent.iteration.metric_prox import launch
from resolvent.local.choice import best
from resolvent.problems.newton import krylov as products_with_hessians
from resolvent.problems.newton import matrix_free
from resolvent.problems.newton.krylov import krylov

QUIET: dict[str, Any] = {"progress": False}


def random_metric(d: int, seed: int, spread: float = 3.0, since: int = 0) -> FullMetric:
    rng = np.random.default_rng([seed, d])
    V = np.linalg.qr(rng.standard_normal((d, d)))[0]
    s = 10 ** -rng.uniform(0, spread, d)
    return FullMetric(torch.from_numpy(V), torch.from_numpy(s / s.max()), since)


def low_rank(d: int, seed: int) -> LowRankMetric:
    rng = np.random.default_rng([seed, d])
    V = np.linalg.qr(rng.standard_normal((d, 3)))[0]
    return LowRankMetric(torch.from_numpy(V), torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64), 1e-3)


def least_squares(seed: int, rows: int = 12, d: int = 5) -> Any:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((4, rows, d)) * np.geomspace(1, 30, d)
    return rs.LeastSquares(A, A @ rng.standard_normal(d) + rng.standard_normal((4, rows)))


def logistic(seed: int, sparse: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((n, 6)) * np.geomspace(1, 10, 6) for n in (8, 30, 17)]
    y = [np.where(rng.random(len(a)) < 1 / (1 + np.exp(-a.sum(1))), 1.0, -1.0) for a in A]
    return rs.Logistic([sp.csr_array(a) for a in A] if sparse else A, y, reg=0.1, intercept=True)


def softmax(seed: int, features: int = 4) -> Any:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((3, 40, features)) * np.geomspace(0.3, 3, features)
    return rs.Softmax(A, rng.integers(0, 5, (3, 40)), reg=0.2)


PROBLEMS = {
    "least squares": least_squares,
    "least squares, fewer rows than columns": lambda seed: least_squares(seed, rows=3),
    "logistic": logistic,
    "logistic, sparse": lambda seed: logistic(seed, sparse=True),
    "softmax": softmax,
    "softmax, without matrices": lambda seed: softmax(seed, features=120),
    "poisson": lambda seed: rs.Poisson(
        np.random.default_rng(seed).standard_normal((3, 30, 4)) / 2,
        np.random.default_rng(seed).poisson(2.0, (3, 30)).astype(float),
        reg=0.1,
    ),
    "huber": lambda seed: rs.Huber(
        np.random.default_rng(seed).standard_normal((3, 30, 4)), np.random.default_rng(seed).standard_normal((3, 30))
    ),
}


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [random_metric(6, 0), low_rank(6, 0)], ids=["full", "low rank"])
def test_the_verbs_of_a_metric_are_those_of_its_matrix(metric: Any) -> None:
    eye = torch.eye(6, dtype=torch.float64)
    M, C = metric.times(eye), metric.back(eye).T
    torch.testing.assert_close(M, M.T)
    s = torch.linalg.eigvalsh(M)
    assert float(s[-1]) == pytest.approx(1)
    assert float(s[0]) == pytest.approx(metric.least)
    torch.testing.assert_close(C.T @ M @ C, eye)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 6)))
    torch.testing.assert_close(metric.times(x), x @ M)
    torch.testing.assert_close(metric.solve(metric.times(x)), x)
    torch.testing.assert_close(metric.back(metric.coordinates(x)), x)
    torch.testing.assert_close(metric.push(metric.pull(x)), x)
    torch.testing.assert_close(metric.pull(x), x @ C)
    torch.testing.assert_close(metric.coordinates(x).square().sum(1), ((x @ M) * x).sum(1))
    torch.testing.assert_close(metric.curvature(M), eye)


@pytest.mark.parametrize("seed", range(5))
def test_the_metric_of_a_hessian_is_that_hessian_and_flat_directions_are_stiff(seed: int) -> None:
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((3, 5)) * 10 ** rng.uniform(-3, 3)
    H = torch.from_numpy(B.T @ B)
    metric, eta = of_hessian(H, torch.float64)  # type: ignore[misc]
    M = metric.times(torch.eye(5, dtype=torch.float64))
    seen = torch.from_numpy(B.T @ np.linalg.pinv(B.T))  # the projection on what the rows see
    torch.testing.assert_close(seen @ M / eta, H, rtol=1e-9, atol=1e-12 * float(H.abs().max()))
    torch.testing.assert_close((torch.eye(5) - seen) @ M, torch.eye(5) - seen, rtol=0, atol=1e-9)
    assert of_hessian(torch.zeros(2, 2), torch.float64) is None
    assert of_hessian(torch.full((2, 2), math.nan), torch.float64) is None
    steep = torch.diag(torch.tensor([1e-13, 1.0], dtype=torch.float64))
    assert of_hessian(steep, torch.float64)[0].least == LEAST[torch.float64]  # type: ignore[index]


def test_change_is_the_largest_factor_along_any_direction() -> None:
    for old, new in [(random_metric(5, 1), random_metric(5, 2)), (low_rank(5, 1), low_rank(5, 2))]:
        eye = torch.eye(5, dtype=torch.float64)
        ratio = torch.linalg.eigvals(torch.linalg.solve(old.times(eye) / 0.3, new.times(eye) / 0.7)).real
        factor = max(float(ratio.max()), 1 / float(ratio.min()))
        assert change(old, 0.3, new, 0.7) == pytest.approx(factor)
        assert change(old, 0.3, old, 0.3) == pytest.approx(1)


def test_few_products_see_the_steepest_directions() -> None:
    problem = softmax(0, features=120)
    w = torch.from_numpy(np.random.default_rng(0).standard_normal((1, problem.dim))) / 30
    _, T, basis, beyond = krylov(problem, w)
    torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis), dtype=torch.float64), rtol=0, atol=1e-12)
    metric, eta = of_products(T, basis, beyond, 0.2)  # type: ignore[misc]
    H = torch.tensordot(problem.weights, problem.hessian(w), 1)
    s, V = torch.linalg.eigh(H)
    assert eta == pytest.approx(1 / float(s[-1]), rel=1e-6)
    steepest = V[:, -1:].T
    torch.testing.assert_close(metric.times(steepest) / eta, steepest * s[-1], rtol=1e-3, atol=1e-3 * float(s[-1]))


def test_one_direction_is_a_metric_too() -> None:
    """A gradient that is an eigenvector: the Krylov space has no second direction."""
    rows = [sp.csr_array(np.eye(1, 600)) for _ in range(3)]
    problem = rs.Logistic(rows, [np.ones(1)] * 3, reg=0.5)
    run = rs.solve(problem, rs.fedpi("auto"), 20, **QUIET)
    assert isinstance(run.state.metric, LowRankMetric)
    assert run.history.gap.iloc[-1] <= 1e-12


# --- the prox --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("seed", range(3))
def test_the_prox_in_a_metric_has_the_gradient_that_it_must(name: str, seed: int) -> None:
    """p solves M (p - u) + eta grad f_i(p) = 0: from gradients and the matrix M alone."""
    problem = PROBLEMS[name](seed)
    metric: Any = low_rank(problem.dim, seed) if problem.dim > 100 else random_metric(problem.dim, seed)
    rng = np.random.default_rng([seed, 1])
    engine = InProcess(problem, best(problem))
    memory: dict[str, torch.Tensor] = {}
    M = metric.times(torch.eye(problem.dim, dtype=torch.float64))
    for t, eta in enumerate((0.3, 0.3, 0.03)):
        u = torch.from_numpy(rng.standard_normal((problem.users, problem.dim)) / (1 + t))
        p, memory = engine._bound.rows(Ask(t, eta, metric=metric), u, memory)
        e = (p - u) @ M + eta * problem.grad(p)
        size = float((u @ M).norm() + eta * problem.grad(p).norm())
        loose = 1e-6 if problem.matrix_free else 1e-9  # answers of conjugate gradients become exact as a run settles
        assert float(e.norm()) <= max(loose * size, float(memory.get("error", torch.zeros(1)).max()) * 1.01)


@pytest.mark.parametrize("seed", range(4))
def test_the_prox_in_a_metric_is_the_minimum_that_scipy_finds(seed: int) -> None:
    problem, metric = logistic(seed), random_metric(7, seed)
    M = metric.times(torch.eye(7, dtype=torch.float64)).numpy()
    u = np.random.default_rng(seed).standard_normal((3, 7))
    p, _ = InProcess(problem, best(problem))._bound.rows(Ask(0, 0.5, metric=metric), torch.from_numpy(u), {})
    for i in range(3):

        def height(x: Any, i: int = i) -> float:
            at = torch.from_numpy(x).expand(3, -1)
            return float(problem.value(at)[i]) + float((x - u[i]) @ M @ (x - u[i])) / (2 * 0.5)

        found = scipy.optimize.minimize(height, u[i], tol=1e-14)
        assert height(p[i].numpy()) <= height(found.x) + 1e-12
        np.testing.assert_allclose(p[i], found.x, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_new_metric_keeps_answers_and_subgradients(seed: int) -> None:
    rng = np.random.default_rng(seed)
    u, p = (torch.from_numpy(rng.standard_normal((3, 5))) for _ in range(2))
    old, new = (0.3, random_metric(5, seed)), (2.0, random_metric(5, seed + 9))
    there = moved(u, p, old, new)
    torch.testing.assert_close(new[1].times(there - p) / new[0], old[1].times(u - p) / old[0])
    torch.testing.assert_close(moved(u, p, old, (0.6, old[1])), p + 2 * (u - p))
    torch.testing.assert_close(moved(there, p, new, (0.1, None)), p + 0.1 * old[1].times(u - p) / old[0])


def test_the_inverse_beside_a_diagonal_is_exact_where_the_hessian_is_what_it_is_taken_for() -> None:
    metric, rng = low_rank(9, 3), np.random.default_rng(0)
    more = torch.from_numpy(rng.uniform(0, 2, (2, 9)))
    g = torch.from_numpy(rng.standard_normal((2, 9)))
    M, H = metric.times(torch.eye(9, dtype=torch.float64)), (metric.V * metric.s) @ metric.V.T
    inverse = metric.beside(H.diagonal() + more)
    for i in range(2):
        torch.testing.assert_close(inverse(g)[i], torch.linalg.solve(M + H + torch.diag(more[i]), g[i]))
    full = random_metric(4, 0)
    torch.testing.assert_close(full.beside(more[:, :4])(g[:, :4]), full.solve(g[:, :4]))


def test_columns_of_different_scales_take_fewer_products_than_with_the_metric_alone(monkeypatch: Any) -> None:
    """Conjugate gradients see the diagonals of Hessians in a metric too."""
    rng, products = np.random.default_rng(2), list[int]()
    rare = rng.random((3, 200, 1200)) < 0.02
    rows = [sp.csr_array(10 * rng.standard_normal(seen.shape) * seen / np.arange(1, 1201)) for seen in rare]
    problem = rs.Logistic(rows, [np.where(rng.random(200) < 0.5, 1.0, -1.0) for _ in rows], reg=1e-3)
    own = products_with_hessians.conjugate

    def counted(times: Any, *rest: Any) -> Any:
        return own(lambda v: products.append(1) or times(v), *rest)

    monkeypatch.setattr(matrix_free, "conjugate", counted)
    models, counts = list[Any](), list[int]()
    for beside in (LowRankMetric.beside, LowRankMetric.solve):
        monkeypatch.setattr(LowRankMetric, "beside", beside if counts == [] else lambda self, _: self.solve)
        models.append(rs.solve(problem, rs.fedpi("auto"), 5, **QUIET).state)
        counts.append(len(products) - sum(counts))
    assert isinstance(models[0].metric, LowRankMetric)
    assert counts[0] < 0.7 * counts[1]
    for p in (state.p for state in models):  # both are the proxes of their own u
        assert float((models[0].p - p).norm()) <= 1e-2 * float(p.norm())


# --- the meeting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("spread", [1.0, 4.0, 8.0])
@pytest.mark.parametrize(
    "penalty",
    [rs.L1(0.3), rs.ElasticNet(0.2, 0.5), rs.Orthant(), rs.Box(-0.2, 0.4)],
    ids=["l1", "net", "orthant", "box"],
)
def test_the_prox_of_a_penalty_in_a_metric(penalty: Any, spread: float, seed: int) -> None:
    """W = prox(y) and (y - W) / s is a subgradient of g at W, which must balance M (W - v) / s."""
    metric, s = random_metric(8, seed, spread), 0.7
    v = torch.from_numpy(np.random.default_rng(seed).standard_normal((1, 8)))
    y = launch(penalty.prox, penalty.value, metric, v, s)
    W = penalty.prox(y, s)
    pull = metric.times(v - W) / s
    assert float(penalty.distance(W, pull)) <= 1e-11 * (1 + float(pull.norm()))
    torch.testing.assert_close((y - W) / s, pull, rtol=1e-9, atol=1e-11)


# --- whole runs ------------------------------------------------------------------------------------------------------


def textbook(problem: Any, gamma: float, rounds: int) -> list[Any]:
    """FedPi or FedSplit on least squares in the mean Hessian, with matrices written out."""
    H = [problem.hessian(torch.zeros(1, problem.dim))[i].numpy() for i in range(problem.users)]
    h = [-g for g in problem.grad(torch.zeros(problem.users, problem.dim, dtype=torch.float64)).numpy()]
    M = sum(H) / len(H)  # at the scale 1
    u, models = np.zeros((len(H), problem.dim)), []
    for _ in range(rounds):
        p = np.array([np.linalg.solve(Hi + M, hi + M @ ui) for Hi, hi, ui in zip(H, h, u, strict=True)])
        z = 2 * p - u
        models.append(z.mean(0))
        u = (1 - gamma) * u + gamma * (2 * z.mean(0) - z)
    return models


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scheme", ["fedpi", "fedsplit"])
def test_on_least_squares_it_is_the_textbook_s_iteration(scheme: str, seed: int) -> None:
    problem, models = least_squares(seed), []
    rs.solve(problem, scheme, 12, eta="auto", callback=lambda r: models.append(r.model[0].numpy()), **QUIET)
    for ours, theirs in zip(models, textbook(problem, 0.5 if scheme == "fedpi" else 1.0, 12), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_certificates_are_those_of_the_users_gradients(name: str) -> None:
    """Stationarity is |mean of grad f_i(p_i)|, up to the bounds on rounding and on the answers."""
    problem = PROBLEMS[name](3)

    def check(r: Any) -> None:
        g = problem.weights @ problem.grad(r.state.p)
        assert float(g.norm()) <= r.stationarity * (1 + 1e-9) + 1e-12
        error = 0.0 if r.state.error is None else float(r.state.error.max()) / r.eta
        assert r.stationarity <= float(g.norm()) + 2 * error + 1e-6 * (1 + float(problem.grad(r.state.p).norm()))
        apart = r.state.p - problem.weights @ r.state.p
        assert r.consensus == pytest.approx(
            float((problem.weights @ apart.square().sum(1)).sqrt()), rel=1e-6, abs=1e-12
        )

    run = rs.solve(problem, rs.fedpi("auto"), 12, anderson=3, callback=check, **QUIET)
    assert run.state.metric is not None
    assert (run.history.metric > 0).all()


@pytest.mark.parametrize("mode", [{}, {"anderson": 5}, {"participation": 0.5},
                                  {"participation": rs.Stragglers([1.0, 2.0, 3.7, 1.3])}, {"average": "suffix"}],
                         ids=["plain", "anderson", "sampled", "stragglers", "average"])  # fmt: skip
def test_it_ends_at_the_same_minimum(mode: dict[str, Any]) -> None:
    problem = least_squares(5)
    run = rs.solve(problem, rs.fedpi("auto"), 400, **mode, **QUIET)
    column = "average_gap" if "average" in mode else "gap"
    assert run.history[column].iloc[-1] <= 1e-9 * float(problem.gap(torch.zeros(1, 5, dtype=torch.float64))[0])
    torch.testing.assert_close(run.model, problem.minimiser, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("penalty", [rs.L1(3.0), rs.Orthant(), rs.ElasticNet(1.0, 2.0)], ids=str)
@pytest.mark.parametrize("make", [least_squares, logistic])
def test_with_a_penalty_it_ends_at_the_same_minimum_with_exact_zeros(make: Any, penalty: Any) -> None:
    problem = make(2)
    curved, plain = (
        rs.solve(
            problem, rs.fedpi("auto"), 600, anderson=5, metric=metric, penalty=penalty, stop=rs.Stop(certificates=1e-9),
            **QUIET,
        )
        for metric in ("auto", "identity")
    )  # fmt: skip
    assert (curved.status, plain.status) == ("stopped", "stopped")
    assert curved.state.metric is not None
    assert plain.state.metric is None
    torch.testing.assert_close(curved.model, plain.model, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(curved.model.numpy() == 0, np.abs(plain.model.numpy()) <= 1e-9)


@pytest.mark.parametrize("name", ["logistic", "softmax, without matrices", "least squares"])
@pytest.mark.parametrize("at", [1, 2, 3, 5, 8])
def test_a_run_that_goes_on_has_the_bits_of_one_that_never_stopped(name: str, at: int) -> None:
    """Also where the metric changes in the round after the pause."""
    problem = PROBLEMS[name](1)
    whole = rs.solve(problem, rs.fedpi("auto"), 12, anderson=3, **QUIET)
    first = rs.solve(problem, rs.fedpi("auto"), at, anderson=3, **QUIET)
    state = unpack(*pack(first.state))
    rest = rs.solve(PROBLEMS[name](1), rs.fedpi("auto"), 12 - at, anderson=3, start=state, **QUIET)
    assert torch.equal(whole.state.u, rest.state.u)
    assert torch.equal(whole.state.w, rest.state.w)
    assert rest.history.residual.tolist() == whole.history.residual.tolist()[at:]


def test_answers_under_way_when_the_first_metric_comes_belong_to_it() -> None:
    problem, late = least_squares(2), rs.Stragglers([1.0, 2.0, 3.7, 9.3], close=0.5)
    begun = rs.solve(problem, rs.fedpi(0.01), 7, participation=late, **QUIET)

    def check(r: Any) -> None:
        g = problem.grad(r.state.p)
        torch.testing.assert_close(r.state.metric.times(r.state.u - r.state.p) / r.eta, g, rtol=1e-7, atol=1e-7)

    rs.solve(problem, rs.fedpi("auto"), 40, participation=late, start=begun.state, callback=check, **QUIET)


def test_where_somebody_is_away_at_a_look_the_metric_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    own, looks = InProcess.curvature, []

    def curvature(self: Any, w: Any) -> Any:
        looks.append(w)
        return own(self, w) if len(looks) == 1 else None

    monkeypatch.setattr(InProcess, "curvature", curvature)
    run = rs.solve(logistic(0), rs.fedpi("auto"), 20, **QUIET)
    assert len(looks) == 6
    assert set(run.history.metric) == {1}
    assert run.history.eta.nunique() == 1


def test_the_model_of_least_norm_is_still_reached() -> None:
    """Where no user sees a direction, rounding moves nothing along it."""
    problem = least_squares(1, rows=1, d=9)
    run = rs.solve(problem, rs.fedpi("auto"), 300, anderson=5, **QUIET)
    torch.testing.assert_close(run.model, problem.minimiser, rtol=1e-6, atol=1e-8)


def test_the_messages_are_counted() -> None:
    """Least squares: one Hessian and one gradient up, the metric down. Logistic: again where it has changed."""
    d, m = 5, 4
    history = rs.solve(least_squares(0), rs.fedpi("auto"), 9, **QUIET).history
    assert history.bytes_up.tolist() == [8 * m * (d + (d * (d + 3)) // 2)] + [8 * m * d] * 8
    assert history.bytes_down.tolist() == [8 * m * (d + d + d * (d + 1))] + [8 * m * d] * 8
    assert (history.metric == 1).all()
    history = rs.solve(logistic(0), rs.fedpi("auto"), 9, **QUIET).history
    looked = [r for r, up in zip(history["round"], history.bytes_up, strict=True) if up > 8 * 3 * 7]
    assert looked == [1, 2, 3, 5, 9]
    sent = [r for r, down in zip(history["round"], history.bytes_down, strict=True) if down > 8 * 3 * 7 * 2]
    assert sent == sorted(set(history.metric))


def test_the_debug_engine_agrees() -> None:
    problem = logistic(4)
    run = rs.solve(problem, rs.fedpi("auto"), 10, engine="debug", participation=0.7, **QUIET)
    other = rs.solve(problem, rs.fedpi("auto"), 10, participation=0.7, **QUIET)
    torch.testing.assert_close(run.state.u, other.state.u, rtol=1e-6, atol=1e-8)


def test_single_precision() -> None:
    rng = np.random.default_rng(0)
    A = (rng.standard_normal((5, 60, 4)) * [1, 3, 10, 30]).astype(np.float32)
    y = np.where(rng.random((5, 60)) < 0.5, 1, -1).astype(np.float32)
    problem = rs.Logistic(A, y, reg=0.1)
    run = rs.solve(problem, rs.fedpi("auto"), 30, anderson=5, **QUIET)
    assert run.state.u.dtype == torch.float32
    assert run.state.metric is not None
    first: Any = problem.gap(torch.zeros(1, 4))
    assert run.history.gap.iloc[-1] <= 1e-5 * float(first[0])


# --- how many rounds -------------------------------------------------------------------------------------------------


def rounds_needed(problem: Any, metric: str, most: int = 300) -> float:
    first = float(problem.gap(problem.weights.new_zeros(1, problem.dim))[0])
    stop = rs.Stop(gap=TARGET * first)
    run = rs.solve(problem, rs.fedpi("auto"), most, stop=stop, anderson=5, metric=metric, **QUIET)
    return run.state.round if run.status == "stopped" else math.inf


SMOOTH = [kind for kind in KINDS if "deviations" not in kind]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SMOOTH)
def test_rounds_on_random_problems(kind: str) -> None:
    """Beside the identity: no more in the median, and at most half as many again in any."""
    pairs = []
    for seed in range(6):
        problem = KINDS[kind](np.random.default_rng([3, seed]))
        if problem.fstar is not None:
            pairs.append((rounds_needed(problem, "auto"), rounds_needed(problem, "identity")))
    assert np.median([a for a, _ in pairs]) <= np.median([b for _, b in pairs]) + 1
    assert all(a <= max(1.5 * b, b + 3) for a, b in pairs)


def test_rounds_for_good_are_counted_where_the_first_time_was_by_chance() -> None:
    first, settled = first_and_for_good(drawn("least squares, thin users", 60000), "plain", "auto")
    assert 2 * first + 5 < settled < math.inf


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [5, 6, 21, 51])
def test_rounds_where_the_scale_used_to_wander_under_a_penalty(seed: int) -> None:
    problem = KINDS["lasso"](np.random.default_rng(seed))
    assert rounds_needed(problem, "auto") <= 1.5 * rounds_needed(problem, "identity")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalty", [rs.L1(1.0), rs.ElasticNet(1.0, 0.1)], ids=str)
def test_under_a_penalty_directions_that_no_user_sees_are_soft(penalty: Any, seed: int) -> None:
    """More columns than rows, and columns that are there twice: where f is flat, the penalty decides."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((8, 3, 30))
    A = np.concatenate([A, A[:, :, :10] + 1e-8 * rng.standard_normal((8, 3, 10))], 2)
    problem = rs.LeastSquares(A, A[:, :, :4].sum(2) + 0.05 * rng.standard_normal((8, 3)), penalty=penalty)
    assert rounds_needed(problem, "auto") <= 0.6 * rounds_needed(problem, "identity")


def test_under_a_penalty_users_who_are_alike_keep_the_scale_of_the_hessian() -> None:
    """Their subgradients differ in nothing, but their mean must still find that of the penalty."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((30, 6)), rng.standard_normal(30)
    problem = rs.LeastSquares([A] * 4, [b] * 4, penalty=rs.L1(2.0))
    history = rs.solve(problem, rs.fedpi("auto"), 20, **QUIET).history
    np.testing.assert_allclose(history.eta, 1 / np.linalg.eigvalsh(A.T @ A)[-1], rtol=1e-12)
    assert history.gap.iloc[0] <= 1e-20  # the reflection of f is a constant: they meet at the minimum at once


def test_users_who_are_alike_need_a_handful_of_rounds_however_ill_conditioned() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 400, 6)) * np.geomspace(1, 1e4, 6)
    problem = rs.LeastSquares(A, A @ (rng.standard_normal(6) / np.geomspace(1, 1e4, 6)) + rng.standard_normal((5, 400)))
    assert rounds_needed(problem, "auto") <= 12
    assert rounds_needed(problem, "identity") >= 30


# --- a matrix of one's own -------------------------------------------------------------------------------------------


def positive_definite(d: int, seed: int) -> np.ndarray:
    B = np.random.default_rng([seed, d]).standard_normal((d, d))
    return np.asarray(7 * (B @ B.T + 0.1 * np.eye(d)))


def plain_douglas_rachford(problem: Any, M: np.ndarray, eta: float, rounds: int) -> Any:
    """FedPi on least squares in the metric M, with matrices written out."""
    H = problem.hessian(torch.zeros(1, problem.dim)).numpy()
    h = -problem.grad(torch.zeros(problem.users, problem.dim, dtype=torch.float64)).numpy()
    u = np.zeros((len(H), problem.dim))
    for _ in range(rounds):
        p = np.array([np.linalg.solve(M / eta + Hi, M @ ui / eta + hi) for Hi, hi, ui in zip(H, h, u, strict=True)])
        z = 2 * p - u
        u = (u + 2 * z.mean(0) - z) / 2
    return u


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_a_matrix_of_one_s_own_counts_up_to_its_largest_eigenvalue(kind: Any, seed: int) -> None:
    problem, M = least_squares(seed), positive_definite(5, seed)
    run = rs.solve(problem, rs.fedpi(0.01), 12, metric=kind(M), **QUIET)
    by_hand = plain_douglas_rachford(problem, M / np.linalg.eigvalsh(M)[-1], 0.01, 11)
    np.testing.assert_allclose(run.state.u, by_hand, rtol=1e-8, atol=1e-8)
    assert run.explanation.metric == "a matrix of 5 x 5 numbers, whose largest eigenvalue counts as 1"
    assert run.history.bytes_down.iloc[0] == 8 * 4 * (5 + 30)
    assert (run.history.bytes_down.iloc[1:] == 8 * 4 * 5).all()


@pytest.mark.parametrize("make", [least_squares, logistic])
@pytest.mark.parametrize("penalty", [None, rs.L1(1.0)], ids=str)
def test_in_a_matrix_of_one_s_own_runs_end_at_the_same_minimum(make: Any, penalty: Any) -> None:
    problem = make(3)
    M = np.cov(np.random.default_rng(0).standard_normal((problem.dim, 50))) + np.eye(problem.dim)
    run = rs.solve(problem, rs.fedpi("auto"), 400, anderson=5, metric=M, penalty=penalty, **QUIET)
    enough = rs.Stop(certificates=1e-9)
    plain = rs.solve(
        problem, rs.fedpi("auto"), 400, anderson=5, metric="identity", penalty=penalty, stop=enough, **QUIET
    )
    assert plain.status == "stopped"
    torch.testing.assert_close(run.model, plain.model, rtol=1e-5, atol=1e-6)
    assert run.history.stationarity.iloc[-1] <= 1e-6 * run.history.stationarity.iloc[0]
    assert run.history.eta.nunique() <= 4


@pytest.mark.parametrize("eta", ["auto", 0.01])
@pytest.mark.parametrize("make", [least_squares, logistic])
def test_a_run_in_a_matrix_of_one_s_own_goes_on_bit_for_bit_and_into_another(make: Any, eta: Any) -> None:
    problem = make(1)
    M, other = positive_definite(problem.dim, 0), positive_definite(problem.dim, 1)
    whole = rs.solve(problem, rs.fedpi(eta), 12, anderson=3, metric=M, **QUIET)
    state = unpack(*pack(rs.solve(problem, rs.fedpi(eta), 5, anderson=3, metric=M, **QUIET).state))
    rest = rs.solve(make(1), rs.fedpi(eta), 7, anderson=3, metric=M, start=state, **QUIET)
    assert torch.equal(whole.state.u, rest.state.u)
    changed = rs.solve(make(1), rs.fedpi(eta), 400, anderson=3, metric=other, start=state, **QUIET)
    assert changed.state.metric.since == 5  # so that users take nothing that they remember for their answers in it
    assert changed.history.stationarity.iloc[-1] <= 1e-5 * whole.history.stationarity.iloc[0]


@pytest.mark.parametrize("eta", ["auto", 0.01])
def test_a_saved_run_in_a_matrix_of_one_s_own_goes_on_without_being_given_it(eta: Any, tmp_path: Path) -> None:
    M, more = positive_definite(7, 0), {"anderson": 3, **QUIET}
    whole = rs.solve(logistic(1), rs.fedpi(eta), 12, metric=M, **more)
    run = rs.solve(logistic(1), rs.fedpi(eta), 3, metric=M, **more)
    for rounds in (6, 12):
        run = rs.open(run.save(tmp_path / str(rounds))).resume(logistic(1), rs.fedpi(eta), rounds=rounds, **more)
    assert torch.equal(whole.state.u, run.state.u)
    assert run.state.metric.since == 0


@pytest.mark.parametrize("scale", [1e-300, 1e300, 1e308])
def test_a_matrix_of_one_s_own_may_have_any_scale(scale: float) -> None:
    M = np.diag([1.0, 0.25, 0.5])
    torch.testing.assert_close(
        as_metric(scale * M).matrix.times(torch.eye(3)), torch.diag(torch.tensor([1, 0.25, 0.5]))
    )


def test_a_matrix_that_is_no_metric_is_refused() -> None:
    problem, M = least_squares(0), positive_definite(5, 0)
    deviations = rs.AbsoluteDeviations(np.eye(3), np.ones(3))
    cases: list[tuple[Any, Any, Any, dict[str, Any], str]] = [
        (problem, "fedpi", -M, {}, "a matrix that is not positive definite, but a symmetric positive definite matrix"),
        (problem, "fedpi", M + np.triu(M), {}, "a matrix that is not symmetric"),
        (problem, "fedpi", M[:2], {}, "of shape (2, 5), but a symmetric positive definite matrix (d, d) is needed"),
        (problem, "fedpi", M * np.nan, {}, "partly NaN or infinite"),
        (problem, "fedpi", np.eye(5) * 1j, {}, "real numbers are needed"),
        (problem, "fedpi", np.eye(3), {}, "a matrix of 3 x 3 numbers, but 5 x 5 are needed"),
        (problem, "fedpi", np.diag([1, 1, 1, 1, 1e-12]), {}, "its least eigenvalue is 1e-12 of its largest"),
        (problem, "fedpi", [[1.0]], {}, '"auto", "identity" or a matrix'),
        (problem, rs.fedprox(0.1), M, {}, "FedProx solves a problem that depends on the metric"),
        (problem, "fedpi", M, {"penalty": rs.Ball(0.0, 1.0)}, "is no sum over coordinates"),
        (deviations, rs.fedpi(0.1), np.eye(3), {}, "have no Hessians"),
    ]
    for given, scheme, metric, more, said in cases:
        with pytest.raises(rs.InputError) as error:
            rs.solve(given, scheme, 3, metric=metric, **more, **QUIET)
        assert said in str(error.value)
        assert "\n" not in str(error.value)


# --- what is refused, and what is said -------------------------------------------------------------------------------


def test_what_cannot_be_had_is_refused_where_it_is_demanded() -> None:
    problem = least_squares(0)
    deviations = rs.AbsoluteDeviations(np.eye(3), np.ones(3))
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (problem, rs.fedpi(0.1), {}, 'eta is 0.1, and the metric comes with its own scale: it needs eta="auto"'),
        (problem, rs.fedprox(0.1), {}, "FedProx solves a problem that depends on the metric"),
        (deviations, rs.fedpi("auto"), {}, "have no Hessians"),
        (problem, rs.fedpi("auto"), {"penalty": rs.Ball(0.0, 1.0)}, "is no sum over coordinates"),
    ]
    for given, scheme, more, said in cases:
        with pytest.raises(rs.InputError) as error:
            rs.solve(given, scheme, 3, metric="auto", **more, **QUIET)
        assert said in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(rs.InputError, match="there is no metric 'hessian'"):
        rs.solve(problem, rs.fedpi("auto"), 3, metric="hessian", **QUIET)
    with pytest.raises(rs.InputError, match="metric is 3"):
        rs.solve(problem, rs.fedpi("auto"), 3, metric=3, **QUIET)


def test_without_hessians_it_is_the_identity_and_that_is_said() -> None:
    deviations = rs.AbsoluteDeviations(np.eye(3), np.ones(3))
    run = rs.solve(deviations, rs.fedpi("auto"), 3, **QUIET)
    assert run.state.metric is None
    assert "metric" not in run.history
    assert "the identity, since the users' functions (AbsoluteDeviations) have no Hessians" in str(run.explanation)
    assert rs.explain(rs.fedpi(0.1), least_squares(0)).metric == ""
    said = rs.explain(rs.fedpi("auto"), least_squares(0)).metric
    assert said == "the mean Hessian, for which every user sends 20 numbers before round 1 only"
    assert "before rounds 1, 2, 3, 5, 9" in rs.explain(rs.fedpi("auto"), logistic(0)).metric
    sampled = rs.explain(rs.fedpi(), logistic(0), participation=0.3).metric
    assert "in the first round, when everybody has come" in sampled
    assert "also of who is absent" in sampled
    assert rs.explain(rs.fedpi("auto"), logistic(0), metric="identity").metric == "the identity, as was asked for"


def test_from_the_command_line_and_a_file(tmp_path: Path) -> None:
    command = ("run", "least-squares", *SMALL, "--algorithm", "fedpi", "--rounds", "5")
    said = resolvent(*command, "--eta", "auto", "--metric", "identity", "--out", tmp_path / "a")
    assert said.code == 0, said.err
    assert 'kind = "identity"' in next(tmp_path.glob("**/config.toml")).read_text()
    said = resolvent(*command, "--eta", "0.1", "--metric", "auto", "--out", tmp_path / "b")
    assert said.code == 2
    assert "its own scale" in said.err
    assert "Traceback" not in said.err


def test_matrices_that_differ_in_the_middle_are_told_apart() -> None:
    """By ranks, which compare what they were given as text."""
    one, two = np.eye(40), np.eye(40)
    two[20, 20] = 50.0
    assert repr(as_metric(one)) != repr(as_metric(two))
    assert repr(as_metric(one)) == repr(as_metric(torch.from_numpy(one)))
