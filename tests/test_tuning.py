"""Automatic eta: where it comes from, that it settles, and that nothing runs away."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from bench.eta import KINDS, ratios_to_best
from resolvent.iteration.tuning import LOOKS, RELEVANT, WIDEST, Tuning, balanced, travelled

FEW: dict[str, Any] = {"progress": False, "metric": "identity"}


def hundred_rows(seed: int = 0, users: int = 6, d: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((users, 20, d)) * np.array([1, 2, 4, 8])
    return A, A @ np.ones(d) + rng.standard_normal((users, 20))


def gap_at_zero(problem: Any) -> float:
    return float(problem.gap(torch.zeros(1, problem.dim, dtype=torch.float64))[0])


def test_on_quadratics_it_is_the_geometric_mean_of_the_curvatures_of_f_from_the_first_round_on() -> None:
    A, b = hundred_rows()
    run = rs.solve(rs.LeastSquares(A, b), rs.fedpi("auto"), rounds=40, **FEW)
    s = np.linalg.eigvalsh(np.mean([a.T @ a for a in A], axis=0))
    np.testing.assert_allclose(run.history.eta, 1 / math.sqrt(s[0] * s[-1]), rtol=1e-9)


def test_directions_in_which_there_is_nothing_to_gain_have_no_say() -> None:
    H = torch.diag(torch.tensor([1e-6, 1.0, 4.0], dtype=torch.float64))
    g = torch.tensor([1e-9, 1.0, 1.0], dtype=torch.float64)
    gain = g.square() / (2 * H.diagonal())
    assert gain[0] < RELEVANT * gain.sum()
    assert balanced(Tuning(0.9), 0, g, H).eta == 0.9  # 1/2 is not worth a change
    assert balanced(Tuning(100.0), 0, g, H).eta == pytest.approx(0.5)
    g[0] = 1e-3
    assert balanced(Tuning(100.0), 0, g, H).eta == pytest.approx(1 / math.sqrt(4e-6))


@pytest.mark.parametrize("flat", [0.0, math.nan, math.inf])
def test_without_curvature_it_stays(flat: float) -> None:
    H = torch.full((2, 2), flat, dtype=torch.float64)
    assert balanced(Tuning(3.0), 0, torch.ones(2, dtype=torch.float64), H).eta == 3.0


def test_it_is_reconsidered_after_powers_of_two_and_finitely_often() -> None:
    tuning, looks = Tuning(1.0), []
    for t in range(3000):
        if tuning.wanted(t):
            looks.append(t)
            tuning = tuning.looked(t, None)
    assert looks == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert not Tuning(1.0, looks=LOOKS).wanted(10**9)


def test_small_changes_are_not_made_and_large_ones_in_steps() -> None:
    assert Tuning(1.0, looks=1).looked(1, 1.9).eta == 1.0
    assert Tuning(1.0, looks=1).looked(1, 2.1).eta == 2.1
    assert Tuning(1.0, looks=1).looked(1, 1e9).eta == WIDEST
    assert Tuning(1.0, looks=1).looked(1, 1e-9).eta == 1 / WIDEST
    assert Tuning(1.0).looked(0, 1e9).eta == 1e9


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_what_was_travelled_scales_with_the_units(scale: float) -> None:
    """eta has the unit of p over g."""
    rng = np.random.default_rng(0)
    u, p, before = (torch.from_numpy(rng.standard_normal((5, 3))) for _ in range(3))
    weigh = torch.full((1, 5), 0.2, dtype=torch.float64)

    def found(c: float) -> float:
        start = Tuning(1.0 * c, looks=1, p=before * c, g=torch.zeros_like(p))
        after = travelled(
            start, 1, u * c, p * c, lambda x: weigh @ x, lambda rows: 0.2 * (rows.flatten(1) @ rows.flatten(1).T)
        )
        return after.eta / c

    assert found(scale) == pytest.approx(found(1.0), rel=1e-9)


def test_thin_users_do_not_let_it_run_away() -> None:
    problem = rs.LeastSquares([[[1, 0.3]], [[1, 0.4]]], [[1], [0]])
    run = rs.solve(problem, rs.fedpi("auto"), rounds=600, **FEW)
    assert run.status == "finished"
    assert run.history.gap.iloc[-1] < 1e-10
    assert run.state.eta < 100


def test_an_inexact_prox_leaves_it_where_it_starts() -> None:
    rng = np.random.default_rng(0)
    problem = rs.Logistic(rng.standard_normal((6, 30, 5)) * 3, rng.choice([-1.0, 1.0], (6, 30)))
    with pytest.warns(rs.SolvesAnotherProblem):
        run = rs.solve(problem, rs.fedpi("auto", local=rs.GradientProx(steps=5)), rounds=100, **FEW)
    assert run.history.eta.nunique() == 1
    assert run.state.eta == pytest.approx(1 / float(problem.lipschitz.max()))
    assert run.history.gap.iloc[-1] < gap_at_zero(problem)


def test_an_inexact_prox_of_unknown_curvature_is_refused() -> None:
    problem = rs.Custom(2, 1, value=lambda W: (W**2).sum(1))
    with pytest.raises(rs.InputError, match=r'eta is "auto".*GradientProx.*give eta a number'):
        rs.solve(problem, rs.fedpi("auto"), rounds=3, **FEW)


def test_on_deviations_under_sampling_it_does_not_drift() -> None:
    rng = np.random.default_rng(1)
    A = rng.standard_normal((40, 5))
    problem = rs.AbsoluteDeviations(A, A @ np.ones(5) + rng.standard_normal(40))
    run = rs.solve(problem, rs.fedpi("auto"), rounds=4000, participation=0.1, every=50, **FEW)
    eta = run.history.eta.dropna()
    assert 1e-3 < eta.min() <= eta.max() < 1e2
    assert run.history.gap.iloc[-1] < 1e-3 * gap_at_zero(problem)


def test_users_of_different_scales_under_sampling() -> None:
    """As good as the best constant of a decade grid, within twice, on nine of ten problems."""
    within = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        A = [rng.standard_normal((8, 5)) * 10 ** rng.uniform(-2, 2) for _ in range(8)]
        problem = rs.LeastSquares(A, [a @ np.ones(5) + 0.1 * np.abs(a).mean() * rng.standard_normal(8) for a in A])
        stop = rs.Stop(gap=1e-6 * gap_at_zero(problem))
        auto = rs.solve(problem, rs.fedpi("auto"), rounds=1500, participation=0.3, stop=stop, **FEW)
        half = max(1, (auto.state.round - 1) // 2)  # a constant that is there by then needs less than half the rounds
        constants = (rs.fedpi(auto.state.eta * 10.0**k) for k in (-1, 0, 1))
        runs = (rs.solve(problem, scheme, half, participation=0.3, stop=stop, **FEW) for scheme in constants)
        within.append(all(run.status != "stopped" for run in runs))
    assert sum(within) >= 9


def test_what_it_asks_of_users_is_counted() -> None:
    A, b = hundred_rows()
    auto = rs.solve(rs.LeastSquares(A, b), rs.fedpi("auto"), rounds=9, **FEW).history
    plain = rs.solve(rs.LeastSquares(A, b), rs.fedpi(0.01), rounds=9, **FEW).history
    asked = (auto.bytes_up - plain.bytes_up).to_numpy()
    assert np.flatnonzero(asked).tolist() == [0, 1, 2, 4, 8]
    assert set(asked[asked > 0]) == {6 * (4 + 4 * 5 // 2) * 8}
    assert set((auto.bytes_down - plain.bytes_down)[asked > 0]) == {6 * 4 * 8}


def test_long_models_do_without_hessians(monkeypatch: pytest.MonkeyPatch) -> None:
    from resolvent.engines import in_process as inprocess

    monkeypatch.setattr(inprocess, "MAX_HESSIAN_DIM", 3)
    A, b = hundred_rows()
    problem = rs.LeastSquares(A, b)
    run = rs.solve(problem, rs.fedpi("auto"), rounds=400, **FEW)
    assert run.history.gap.iloc[-1] < 1e-6 * gap_at_zero(problem)
    assert (run.history.bytes_up == run.history.bytes_up.iloc[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_it_needs_at_most_twice_the_rounds_of_the_best_constant_on_nine_of_ten_problems(kind: str) -> None:
    """Plain and sampled together. `python -m bench.eta` prints them apart, and the accelerated ones."""
    ratios = [ratio for mode in ("plain", "sampled") for ratio in ratios_to_best(kind, mode, 10)]
    assert len(ratios) >= 10
    assert np.mean(np.array(ratios) <= 2) >= 0.9


def alike(kind: str, d: int, difference: float, **more: Any) -> Any:
    """Four users with the same rows but for relative differences."""
    rng = np.random.default_rng(d)
    A, true = rng.standard_normal((40, d)), rng.standard_normal(d) / math.sqrt(d)
    t = A @ true + rng.standard_normal(40)
    rows = A * (1 + difference * rng.standard_normal((4, 40, d)))
    b: Any = {"Huber": t, "Poisson": np.round(np.exp(np.minimum(t, 3)))}.get(kind, np.sign(t))
    if kind != "Custom":
        return getattr(rs, kind)(rows, np.stack([b] * 4), **more)
    X, y = torch.from_numpy(rows), torch.from_numpy(b)

    def value(W: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-y * torch.einsum("und,ud->un", X, W)).sum(1) + W.square().sum(1) / 2

    return rs.Custom(4, d, value=value, hessian=True, **more)


@pytest.mark.parametrize("difference", [0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("kind", ["Logistic", "Poisson", "Huber", "SquaredHinge", "Custom"])
@pytest.mark.parametrize("d", [2, 20])
def test_users_who_are_alike_converge_in_the_metric(kind: str, d: int, difference: float) -> None:
    """What their g travel is rounding: its inverse must not become the scale."""
    weights = [0.1, 0.2, 0.3, 0.4] if d == 2 else None
    problem = alike(kind, d, difference, weights=weights)
    for memory in (0, 5):
        run = rs.solve(problem, "fedpi", rounds=25, anderson=memory, progress=False)
        grad = torch.as_tensor(weights or [0.25] * 4, dtype=torch.float64) @ problem.grad(run.model.unsqueeze(0))
        start = problem.grad(torch.zeros(1, d, dtype=torch.float64)).norm()
        assert float(grad.norm()) < 1e-9 * float(start)


def test_users_who_are_alike_converge_with_a_penalty() -> None:
    run = rs.solve(alike("Logistic", 6, 0.0, penalty=rs.L1(0.1)), "fedpi", rounds=80, progress=False)
    assert run.history[["stationarity", "consensus"]].iloc[-1].max() < 1e-9
