"""Logistic regression where it is hard: bad scales, separable data, many features, users without a say."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import resolvent as rs
from hunt.cases.logistic import Exact
from resolvent.errors import BadAnswer, InputError
from resolvent.iteration.engine import Ask
from resolvent.problems import room
from resolvent.problems.linear import curved
from resolvent.problems.logistic import WeightedLogistic
from resolvent.problems.newton import inverses
from resolvent.problems.newton import prox as newton_prox_module
from resolvent.problems.newton.safeguard import prox_with_line_search
from resolvent.problems.problem import objective
from resolvent.problems.reference import Minimum, Unknown, door
from resolvent.problems.reference.objective import Objective
from resolvent.problems.reference.smooth import minimise
from resolvent.problems.sets import Ball, Box, Orthant

quiet = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

STEEP = ([[-31.0, -52.0], [36.0, 263.0]], [1.0, 1.0])
"""Rows on which undamped Newton steps from (12, 5) run away at eta = 1000."""


def gentle(seed: int, rows: int = 6, dim: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, dim)), rng.choice([-1.0, 1.0], rows)


def height(problem: Any, x: Tensor, u: Tensor, eta: float) -> Tensor:
    return problem.value(x) + (x - u).square().sum(1) / (2 * eta)


# --- the prox --------------------------------------------------------------------------------------------------------


def test_the_prox_descends_on_steep_data() -> None:
    problem, u = rs.Logistic([STEEP[0]], [STEEP[1]], reg=0), torch.tensor([[12.0, 5.0]], dtype=torch.float64)
    assert float(height(problem, problem.prox(u, 1000), u, 1000)) == pytest.approx(0.08946816987653504, rel=1e-12)


def test_the_prox_is_found_where_losses_bend_in_thin_layers() -> None:
    """Margins of 1e11 and losses that bend over a width of 1: line searches alone jump from one layer to the next."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        A, b, u = rng.standard_normal((11, 4)) * 4e5, rng.choice([-1.0, 1.0], 11), rng.standard_normal(4) * 1e6
        loss = WeightedLogistic(b, np.full(11, 10.0))
        found = minimise(Objective(A, A @ u, loss, 1.0), np.zeros(4))
        assert found.error <= 1e-12 * np.linalg.norm(u)


@pytest.mark.parametrize("wide", [0, 10**6], ids=["matrix free", "inverses"])
def test_a_start_far_away_does_not_loosen_the_tolerance(wide: int, monkeypatch: Any) -> None:
    """At a large eta the gradient at the start is thousands of times as long as at the solution: its round-off is not
    that of the answer. There a margin's slope is |p - u| / (eta |a|), so that e rounds at about 1e-14."""
    monkeypatch.setattr(curved, "MAX_DENSE_DIM", wide)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        A, eta = 5 * rng.standard_normal((2, 2)), 10 ** rng.uniform(3, 4.5)
        b, u = np.sign(A @ rng.standard_normal(2)), 1e-4 * rng.standard_normal(2)
        p = rs.Logistic([sp.csr_array(A)], [b], reg=0).prox(torch.from_numpy(u).unsqueeze(0), eta)[0].numpy()
        e = p - u - eta * A.T @ (b / (1 + np.exp(b * (A @ p))))
        assert np.linalg.norm(e) <= 5e-13


def test_who_runs_out_of_steps_is_solved_by_the_sure_method(monkeypatch: Any) -> None:
    """Its error is no round-off, though a bound on that from the largest curvature is larger: 2e-9 here."""
    A, b = np.array([[-281.0, -182.0, 274.0], [-71.0, -23.0, 241.0]]), np.array([-1.0, -1.0])
    problem, u, eta = rs.Logistic([A], [b], reg=0), torch.zeros(1, 3, dtype=torch.float64), 720.0
    near = (problem.prox(u, eta) + 1e-10).unsqueeze(1).repeat(1, 4, 1)
    g = torch.stack([problem.grad(x) for x in near.unbind(1)], 1)
    monkeypatch.setattr(newton_prox_module, "MAX_STEPS", 0)
    solved = newton_prox_module.newton_prox(problem, u, eta, newton_prox_module.WarmStart(near, g, torch.ones(1)))
    e = solved.x - u + eta * problem.grad(solved.x)
    assert float(e.norm()) <= 1e-14  # eta |H| is 15 there and |x| 0.06: e rounds by a few 1e-16


def mixed() -> tuple[rs.Logistic, Tensor]:
    """One hard user among gentle ones."""
    users = [gentle(0), (np.array(STEEP[0]), np.array(STEEP[1])), gentle(1), gentle(2, rows=9)]
    problem = rs.Logistic([A for A, _ in users], [b for _, b in users], reg=1e-9)
    return problem, torch.tensor([[1.0, 2.0], [12.0, 5.0], [-3.0, 0.5], [0.0, 7.0]], dtype=torch.float64)


def test_an_answer_of_the_line_search_does_not_depend_on_company() -> None:
    problem, u = mixed()
    p = problem.prox(u, 1000.0)
    for i in range(problem.users):
        alone = problem.take(torch.tensor([i])).prox(u[i : i + 1], 1000.0)
        torch.testing.assert_close(alone[0], p[i], rtol=1e-12, atol=1e-12)


@quiet
@pytest.mark.parametrize("participation", [None, rs.Bernoulli(0.5)], ids=["all", "sampled"])
def test_a_hard_user_is_resumed_with_the_same_bits(participation: Any) -> None:
    problem, u = mixed()
    how: dict[str, Any] = {"participation": participation, "start": u, "seed": 3}
    whole = rs.solve(problem, rs.fedpi(1000.0), rounds=12, **how)
    half = rs.solve(problem, rs.fedpi(1000.0), rounds=5, **how)
    rest = rs.solve(problem, rs.fedpi(1000.0), rounds=7, **(how | {"start": half.state}))
    assert torch.equal(rest.state.u, whole.state.u)
    assert torch.equal(rest.model, whole.model)


def test_what_rounding_leaves_nothing_of_is_an_error_with_a_name() -> None:
    """Margins of 1e17 have no digit behind the point, which is where the losses bend."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((9, 2)) * 1e10, rng.choice([-1.0, 1.0], 9)
    problem = rs.Logistic([gentle(0)[0], A], [gentle(0)[1], b], reg=0)
    u = torch.tensor([[1.0, 1.0], [1e7, 2e7]], dtype=torch.float64)
    with pytest.raises(BadAnswer, match=r"user 1 .*eta = 0.001 .*round-off"):
        problem.prox(u, 1e-3)
    with pytest.raises(BadAnswer, match=r"user 1 in round 1"):
        rs.NewtonProx().bind(problem, True).rows(Ask(0, 1e-3), u, {})
    with pytest.raises(BadAnswer, match=r"user 1 in round 4"):
        rs.NewtonProx().bind(problem, True).rows(Ask(3, 1e-3, who=torch.tensor([1])), u[1:], {})


def test_a_u_that_is_not_finite_is_answered_by_nan() -> None:
    p = rs.make_logistic(users=2, rows=5, dim=2).prox(torch.tensor([[torch.nan, 0.0], [1.0, 1.0]]).double(), 1.0)
    assert bool(p[0].isnan().all())
    assert bool(p[1].isfinite().all())


# --- functions of one's own ------------------------------------------------------------------------------------------


def quartic(**changes: Any) -> rs.Custom:
    own = {
        "value": lambda W: (W**4).sum(1),
        "grad": lambda W: 4 * W**3,
        "hessian": lambda W: torch.diag_embed(12 * W**2),
    }
    return rs.Custom(2, 2, **(own | changes))


def newton(problem: Any, u: Tensor, eta: float) -> Tensor:
    return rs.NewtonProx().bind(problem, True).rows(Ask(0, eta), u, {})[0]


@pytest.mark.parametrize("far", [1.0, 1e3, 1e6])
def test_a_convex_function_of_ones_own(far: float) -> None:
    u = torch.tensor([[far, -far], [1.0, 2.0]], dtype=torch.float64)
    x = newton(quartic(), u, 10.0)
    torch.testing.assert_close(x + 40 * x**3, u, rtol=1e-10, atol=1e-10)


LIES: dict[str, Any] = {
    "of the wrong sign": lambda W: torch.diag_embed(-12 * W**2),
    "not symmetric": lambda W: torch.ones(2, 2, 2) * torch.tensor([[0, 9], [-9, 0]]),
    "nan": lambda W: torch.full((2, 2, 2), torch.nan),
    "a thousandth": lambda W: torch.diag_embed(12e-3 * W**2),
    "a thousandfold": lambda W: torch.diag_embed(12e3 * W**2),
}


@pytest.mark.parametrize("far", [3.0, 1e5])
@pytest.mark.parametrize("lie", LIES)
def test_with_a_wrong_hessian_the_answer_is_right_or_an_error(lie: str, far: float) -> None:
    u = torch.tensor([[far, -2.0], [2.0, 1.0]], dtype=torch.float64)
    try:
        x = newton(quartic(hessian=LIES[lie]), u, 10.0)
    except BadAnswer as error:
        words = str(error)
    else:
        words = "hessian"
        torch.testing.assert_close(x + 40 * x**3, u, rtol=1e-8, atol=1e-8)
    assert "hessian" in words


@pytest.mark.parametrize("lie", [0.7, 1.0, 1.5, -1.0])
def test_the_round_off_of_a_steep_coordinate_is_not_that_of_a_flat_one(lie: float) -> None:
    """(1e8 x^2 + y^2) / 2: |H| |x| is 1e10, but no coordinate of the gradient is beyond 200."""
    steep = torch.tensor([1e8, 1.0], dtype=torch.float64)
    problem = rs.Custom(1, 2, grad=lambda W: steep * W, hessian=lambda W: torch.diag(lie * steep).unsqueeze(0))
    u = torch.tensor([10.0, 200.0], dtype=torch.float64)
    exact = u / (1 + steep)
    solved = prox_with_line_search(problem, u, 1.0, exact + torch.tensor([0.0, 1e-7]), 1e-15)
    assert (solved.wrong is None) == (lie > 0)
    if lie > 0:
        away = float((solved.x - exact).norm())
        assert away <= 1e-12  # 16 units in the last place of 2 |u| + |Q x|
        assert away <= solved.error


def test_a_function_that_is_not_convex_is_an_error() -> None:
    wavy = quartic(grad=lambda W: -3 * torch.sin(W), hessian=lambda W: torch.diag_embed(-3 * torch.cos(W)))
    u = torch.tensor([[30.0, -20.0], [2.0, 1.0]], dtype=torch.float64)
    with pytest.raises(BadAnswer, match=r"user 0.*not convex"):
        newton(wavy, u, 10.0)


# --- the minimum -----------------------------------------------------------------------------------------------------

SEPARABLE: dict[str, tuple[Any, Any]] = {
    "by a margin": ([[[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.5], [-2.0, 0.3]]], [[1, -1], [1, -1]]),
    "one row": ([[[3.0, 1.0]]], [[1]]),
    "but for ties": ([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], [[1, -1, 1]]),
    "but for ties, in odd units": (
        [[[2.0, -(2.0**14), 2.0**-12], [-2.0, 2.0**14, -(2.0**-12)], [-1.0, 0.0, -(2.0**-12)]]],
        [[1, 1, 1]],
    ),
    "with rows of zeros, in small units": (
        np.array([[[0, 0], [0, 0], [2, -2], [-1, -2], [1, -1], [3, -3]]]) * np.array([2.0**-37, 2.0**-22]),
        [[1] * 6],
    ),
    "with a row of zeros": ([[[0.0, 0.0], [1.0, 2.0]]], [[1, -1]]),
}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("case", SEPARABLE)
def test_separable_data_have_no_minimiser_and_true_values(case: str, scale: float) -> None:
    A, b = SEPARABLE[case]
    problem = rs.Logistic(scale * np.array(A), b, reg=0)
    assert problem.minimiser is None
    assert problem.fstar is None
    with pytest.warns(rs.errors.MayNotConverge, match=r"separable.* reg is 0.*gaps are not known"):
        run = rs.solve(problem, rs.fedpi(1.0 / scale**2), rounds=5)
    margins = torch.einsum("mnd,d->mn", torch.tensor(scale * np.array(A)), run.model) * torch.tensor(b)
    value = float(torch.logaddexp(torch.zeros(()).double(), -margins).sum(1).mean())
    assert run.history.value.iloc[-1] == pytest.approx(value, rel=1e-12)
    assert run.history.gap.isna().all()


@pytest.mark.parametrize("units", [(1.0, 1.0), (1e-7, 1e7), (1e8, 1e8)])
def test_a_minimiser_without_regulariser_does_not_mind_units(units: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((2, 30, 2)), rng.choice([-1.0, 1.0], (2, 30))
    problem = rs.Logistic(A * np.array(units), b, reg=0)
    assert problem.minimiser is not None
    assert problem.fstar == pytest.approx(rs.Logistic(A, b, reg=0).fstar, rel=1e-12)


@pytest.mark.parametrize("scale", [1e1, 1e3, 1e8])
def test_no_direction_is_lost_among_rows_of_other_scales(scale: float) -> None:
    """Two users along two diagonals: f* is the mean of two minima on a line, whose scales do not matter."""
    rng = np.random.default_rng(8)
    t, b = rng.standard_normal((2, 20, 1)), rng.choice([-1.0, 1.0], (2, 20))
    A = [scale * t[0] * np.array([1.0, 1.0]), t[1] * np.array([1.0, -1.0]) / scale]
    line = [rs.Logistic([t[i]], [b[i]], reg=0).fstar for i in range(2)]
    found = rs.Logistic(A, list(b), reg=0).fstar
    assert found is None or found == pytest.approx(sum(line) / 2, rel=1e-10)  # type: ignore[arg-type]
    assert found is not None or scale == 1e8


def test_without_a_regulariser_no_certificate_is_exceeded() -> None:
    """Where features nearly depend on each other, their singular vectors are less precise than they are themselves."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((12, 3))
        A[:, 2] = A[:, 0] + 10.0 ** rng.uniform(-10, -7) * A[:, 2]
        b = np.where(A[:, 0] + rng.logistic(size=12) > 0, 1.0, -1.0)
        least = rs.Logistic([A], [b], reg=0).minimum
        if not isinstance(least, Minimum):
            continue
        with mp.workdps(50):
            f = Exact(b[:, None] * A, [1.0] * 12, 0)
            x, left = f.refined(least.w)
            assert left <= 1e-20
            above = float(f.value([mp.mpf(v) for v in least.w]) - f.value(x))
        assert above <= least.bound <= 1e-10 * least.value


def test_no_minimiser_is_claimed_where_features_are_almost_dependent() -> None:
    rng = np.random.default_rng(1)
    A = rng.standard_normal((1, 20, 1))
    A = np.concatenate([A, A * (1 + 1e-14 * rng.standard_normal(A.shape))], 2)
    assert rs.Logistic(A, rng.choice([-1.0, 1.0], (1, 20)), reg=0).minimiser is None


def nearly_cancelling(seed: int) -> tuple[Any, Any]:
    """Rows of 1e5 to 1e7 along one line, but for 1e-7 to 1e-5 of them: a unit in the last place of a . w is 1e-8."""
    rng = np.random.default_rng(seed)
    line = rng.standard_normal((6, 1)) * rng.standard_normal((1, 4))
    A = 10 ** rng.uniform(5, 7) * (line + 10 ** rng.uniform(-7, -5) * rng.standard_normal((6, 4)))
    return A, rng.choice([-1.0, 1.0], 6)


def test_a_certified_minimum_has_the_digits_that_it_promises() -> None:
    """f* is promised to 1e-10, where plain sums of losses round by 1e-9. Gaps have digits of their own size."""
    for seed in range(20):
        A, b = nearly_cancelling(seed)
        problem, rng = rs.Logistic([A], [b], reg=1e-5), np.random.default_rng(seed)
        assert problem.minimiser is not None
        with mp.workdps(50):
            f = Exact(b[:, None] * A, [1.0] * 6, 1e-5)
            x, _ = f.refined(problem.minimiser.numpy())
            w = problem.minimiser.numpy() * (1 + 1e-9 * rng.standard_normal(4))
            least, truth = float(f.value(x)), float(f.value([mp.mpf(v) for v in w]) - f.value(x))
        assert problem.fstar == pytest.approx(least, rel=1e-10)
        gap = problem.gap(torch.from_numpy(w).unsqueeze(0))
        assert gap is not None
        assert float(gap) == pytest.approx(truth, rel=1e-6, abs=1e-12 * least)


def test_a_minimum_with_a_penalty_has_these_digits_too_or_is_not_known() -> None:
    for seed in range(20):
        A, b = nearly_cancelling(seed)
        fstar = rs.Logistic([A], [b], reg=1e-5, penalty=Box(-1e9, 1e9)).fstar
        assert fstar is None or fstar == pytest.approx(rs.Logistic([A], [b], reg=1e-5).fstar, rel=2e-10)
    A, b = gentle(0)
    assert rs.Logistic([A], [b], reg=1e-5, penalty=Box(-1e9, 1e9)).fstar is not None


@quiet
def test_single_precision_has_true_gaps() -> None:
    """Those of the same numbers in double precision, down to 1e-12: weights and reg are no thirds."""
    rng = np.random.default_rng(2)
    A, b = rng.standard_normal((2, 40, 5)).astype(np.float32), rng.choice([-1.0, 1.0], (2, 40)).astype(np.float32)
    problem, double = rs.Logistic(A, b, reg=0.125), rs.Logistic(A.astype(float), b.astype(float), reg=0.125)
    assert problem.minimiser is not None
    assert problem.minimiser.dtype == torch.float32
    assert problem.fstar == pytest.approx(double.fstar, rel=1e-14)
    models: list[Tensor] = []
    history = rs.solve(problem, rs.fedpi(0.1), rounds=30, callback=lambda r: models.append(r.model.double())).history
    np.testing.assert_allclose(history.gap, double.gap(torch.cat(models)), rtol=1e-5)  # type: ignore[arg-type]
    e = models[-1][0] - double.minimiser  # type: ignore[operator]
    bend = double.weights @ (double.hessian(double.minimiser) @ e)  # type: ignore[arg-type]
    assert history.gap.iloc[-1] == pytest.approx(float(e @ bend) / 2, rel=1e-3, abs=0)
    assert history.gap.iloc[-1] < 1e-11


def test_values_far_from_the_minimiser() -> None:
    """Where e^h overflows."""
    problem = rs.make_logistic(users=2, rows=20, dim=3)
    W = torch.tensor([[1e3, -2e3, 5e2], [1e12, 1.0, -1e12]], dtype=torch.float64)
    gap = problem.gap(W)
    assert gap is not None
    torch.testing.assert_close(gap + problem.fstar, objective(problem, W), rtol=1e-12, atol=0)  # type: ignore[operator]


def test_values_far_from_the_minimiser_of_dependent_features() -> None:
    """The minimiser's own rounding leaves a gradient, which is multiplied by much far away."""
    rng = np.random.default_rng(9)
    A = rng.standard_normal((20, 2))
    A = 1e4 * np.concatenate([A, A @ rng.standard_normal((2, 1)) + 1e-6 * rng.standard_normal((20, 1))], 1)
    problem = rs.Logistic([A * np.repeat([1e-3, 1.0], 10)[:, None]], [rng.choice([-1.0, 1.0], 20)], reg=1e-9)
    W = torch.tensor([[0.0, 0.0, 0.0], [100.0, -30.0, 20.0]], dtype=torch.float64)
    gap = problem.gap(W)
    assert gap is not None
    torch.testing.assert_close(gap + problem.fstar, objective(problem, W), rtol=1e-14, atol=0)  # type: ignore[operator]


# --- users without a say ---------------------------------------------------------------------------------------------


@quiet
def test_users_of_weight_zero_have_no_say_in_values() -> None:
    value = lambda W: torch.where(torch.arange(2) == 0, (W**2).sum(1), torch.inf)  # noqa: E731
    for silent in (torch.inf, torch.nan):
        own = rs.Custom(
            2,
            1,
            value=lambda W, silent=silent: torch.where(torch.arange(2) == 0, value(W), silent),
            prox=lambda U, eta: U / (1 + 2 * eta),
            weights=[1, 0],
            minimiser=[0.0],
        )
        history = rs.solve(own, rs.fedpi(1.0), rounds=3, start=torch.ones(1)).history
        assert np.isfinite(history[["value", "gap"]]).all(axis=None)
        assert own.fstar == 0.0


def test_an_indicator_of_weight_zero_has_no_say() -> None:
    problem = rs.Indicators([Orthant(1), Ball([-5.0], 1.0)], weights=[1, 0], minimiser=[1.0])
    assert objective(problem, torch.tensor([[2.0]], dtype=torch.float64)).tolist() == [0.0]
    assert problem.gap(torch.tensor([[2.0]])).tolist() == [0.0]


def test_logistic_users_of_weight_zero_have_no_say_in_the_minimum() -> None:
    A, b = np.random.default_rng(3).standard_normal((2, 20, 2)), np.random.default_rng(4).choice([-1.0, 1.0], (2, 20))
    both, one = rs.Logistic(A, b, reg=0.1, weights=[1, 0]), rs.Logistic(A[:1], b[:1], reg=0.1)
    torch.testing.assert_close(both.minimiser, one.minimiser, rtol=1e-12, atol=1e-12)
    assert both.fstar == pytest.approx(one.fstar, rel=1e-14)
    A[0, :, 1] = 0  # a feature of the silent user alone
    both, one = rs.Logistic(A, b, reg=0, weights=[1, 0]), rs.Logistic(A[:1], b[:1], reg=0)
    assert both.fstar == pytest.approx(one.fstar, rel=1e-14)


# --- many features ---------------------------------------------------------------------------------------------------


def wide(dim: int, sizes: tuple[int, ...] = (5, 5)) -> rs.Logistic:
    rng = np.random.default_rng(5)
    return rs.Logistic([rng.standard_normal((n, dim)) for n in sizes], [rng.choice([-1.0, 1.0], n) for n in sizes])


@quiet
@pytest.mark.parametrize("scheme", [rs.fedavg(1e-4), rs.fedpi(1e-3)], ids=["gradients", "newton"])
def test_nothing_of_size_d_times_d_is_made(scheme: rs.Scheme) -> None:
    """200,000 features: a Hessian of one user would take 320 GB."""
    problem = wide(200_000, (2, 3))
    run = rs.solve(problem, scheme, rounds=3)
    assert run.history.gap.notna().all()
    assert run.history.gap.iloc[-1] < run.history.gap.iloc[0]


@pytest.mark.parametrize("sizes", [(5, 5), (3, 9, 90), (100, 4)], ids=str)
@pytest.mark.parametrize("eta", [1e-2, 10.0])
def test_the_space_of_the_rows_gives_the_same_prox(sizes: tuple[int, ...], eta: float, monkeypatch: Any) -> None:
    problem = wide(80, sizes)
    u = torch.from_numpy(np.random.default_rng(6).standard_normal((len(sizes), 80)))
    thin = newton(problem, u, eta)
    assert isinstance(inverses.empty_inverses(problem, u), inverses.MixedInverses)
    monkeypatch.setattr(inverses, "MANY_FEATURES", 10**6)
    assert isinstance(inverses.empty_inverses(problem, u), inverses.DenseInverses)
    torch.testing.assert_close(thin, newton(problem, u, eta), rtol=1e-10, atol=1e-10)


def test_the_space_of_the_rows_has_the_same_inverse() -> None:
    problem, eta = wide(80, (5, 90, 7)), 30.0
    x, e = torch.from_numpy(np.random.default_rng(7).standard_normal((2, 3, 80)))
    mixed = inverses.empty_inverses(problem, x)
    mixed.renew(problem, torch.tensor([True] * 3), torch.cat([x, torch.full((3, 1), eta)], 1))
    Q = torch.eye(80, dtype=torch.float64) + eta * problem.hessian(x)
    torch.testing.assert_close(mixed.apply(e), torch.linalg.solve(Q, e), rtol=1e-10, atol=1e-12)


@quiet
@pytest.mark.parametrize("participation", [None, rs.Bernoulli(0.5)], ids=["all", "sampled"])
def test_the_space_of_the_rows_is_resumed_with_the_same_bits(participation: Any) -> None:
    problem = wide(80, (5, 90, 7, 5))
    whole = rs.solve(problem, rs.fedpi(0.1), rounds=30, participation=participation)
    half = rs.solve(problem, rs.fedpi(0.1), rounds=11, participation=participation)
    rest = rs.solve(wide(80, (5, 90, 7, 5)), rs.fedpi(0.1), rounds=19, participation=participation, start=half.state)
    assert torch.equal(rest.state.u, whole.state.u)


def test_what_would_not_fit_is_refused_with_its_size(monkeypatch: Any) -> None:
    monkeypatch.setattr(room, "room", lambda: 1_000_000)
    monkeypatch.setattr(door, "room", lambda: 10_000)
    problem = wide(300)
    with pytest.raises(InputError, match=r"1,440,000 bytes"):
        problem.hessian(torch.zeros(1, 300))
    many = rs.Custom(2, 300, grad=lambda W: W, hessian=lambda W: torch.eye(300).expand(2, -1, -1))
    with pytest.raises(InputError, match=r"1,440,000 bytes.*GradientProx"):
        rs.NewtonProx().bind(many, True)
    assert problem.minimiser is None
    assert isinstance(problem.minimum, Unknown)
    assert "bytes" in problem.minimum.why
