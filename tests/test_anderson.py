"""Anderson acceleration: exact where it should be, never far from the plain iteration where raw Anderson is lost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.iteration import checkpoint
from resolvent.iteration.anderson import Past

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem")

Map = Callable[[Tensor], Tensor]


@cache
def squares() -> rs.LeastSquares:
    return rs.make_least_squares(users=6, dim=8, rows=20, shift=1.0)


@cache
def logistic() -> rs.Logistic:
    return rs.make_logistic(users=5, dim=6, rows=40)


@cache
def deviations(seed: int, users: int = 40, dim: int = 5) -> rs.AbsoluteDeviations:
    rng = np.random.default_rng(seed)
    A, w = rng.standard_normal((users, dim)), rng.standard_normal(dim)
    return rs.AbsoluteDeviations(A, A @ w + rng.laplace(size=users))


def gap(run: rs.Run, problem: Any) -> float:
    return float(problem.gap(run.model.unsqueeze(0)))


def same_bits(one: rs.Run, other: rs.Run) -> None:
    (tensors, _), (others, _) = checkpoint.pack(one.state), checkpoint.pack(other.state)
    for name in ("u", "p", "w", "next"):
        assert torch.equal(tensors[name], others[name]), name


# --- exact on affine maps --------------------------------------------------------------------------------------------


def euclidean(rows: Tensor) -> Tensor:
    return rows.flatten(1) @ rows.flatten(1).T


def affine(eigenvalues: list[float], dim: int, seed: int = 0) -> tuple[Map, Tensor]:
    """T u = u* + M (u - u*) with these eigenvalues, each several times, in an orthogonal basis; and u*."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    values = torch.tensor(eigenvalues, dtype=torch.float64).repeat(dim)[:dim]
    M, centre = basis @ torch.diag(values) @ basis.T, torch.randn(1, dim, generator=generator, dtype=torch.float64)
    return lambda u: centre + (u - centre) @ M, centre


def iterate(anderson: rs.Anderson, T: Map, u: Tensor, times: int, gram: Any = euclidean) -> Tensor:
    past = Past()
    for _ in range(times):
        u, past = anderson.advance(past, u, T(u), gram)
    return u


SPECTRA = [[0.9], [0.9, -0.5], [0.9, 0.5, 0.1], [0.9, 0.6, 0.3, 0.1, -0.8]]


@pytest.mark.parametrize("spectrum", SPECTRA, ids=lambda s: f"{len(s)}_eigenvalues")
@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("safeguard", [True, False], ids=["safe", "raw"])
def test_exact_with_at_most_tau_distinct_eigenvalues(spectrum: list[float], more: int, safeguard: bool) -> None:
    """tau + 1 values of T determine its fixed point; with less memory they do not."""
    tau, start = len(spectrum), torch.zeros(1, 12, dtype=torch.float64)
    T, solution = affine(spectrum, dim=12)
    exact = rs.Anderson(tau + more, ridge=0.0, safeguard=safeguard)
    assert float((iterate(exact, T, start, tau + 1) - solution).norm()) < 1e-7
    assert float((iterate(rs.Anderson(tau + more), T, start, tau + 1) - solution).norm()) < 1e-4  # its usual ridge
    if tau > 1:
        short = rs.Anderson(tau - 1, ridge=0.0, safeguard=safeguard)
        assert float((iterate(short, T, start, tau + 1) - solution).norm()) > 1e-4


@pytest.mark.parametrize("distinct", [1, 2, 4])
def test_exact_in_a_run(distinct: int) -> None:
    """FedAvg's one step is the map w - eta H (w - w*), with as many eigenvalues as the mean Hessian H."""
    curvatures = np.array([1.0, 2.0, 5.0, 7.0][:distinct]).repeat(4)
    A = np.diag(np.sqrt(curvatures))
    users = rs.LeastSquares([A, A], np.random.default_rng(0).standard_normal((2, len(A))))
    plain, fast = (rs.solve(users, rs.fedavg(0.2), rounds=distinct + 2, anderson=tau) for tau in (None, distinct))
    assert gap(fast, users) < 1e-12
    assert gap(plain, users) > 1e-6 or distinct == 1


def test_the_lambda_inner_product_decides() -> None:
    """Weights in the Gram matrix are the same as users' rows scaled by the roots of their weights."""
    lam = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    root = lam.sqrt().unsqueeze(1)
    T, _ = affine([0.9, 0.5, -0.3, 0.2, 0.7], dim=12, seed=1)

    def rows(u: Tensor) -> Tensor:
        return T(u.reshape(1, 12)).reshape(3, 4)

    start = torch.ones(3, 4, dtype=torch.float64)
    weighted = iterate(rs.Anderson(2), rows, start, 6, gram=lambda x: euclidean(x * root))
    scaled = iterate(rs.Anderson(2), lambda v: rows(v / root) * root, start * root, 6)
    torch.testing.assert_close(weighted, scaled / root, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(weighted, iterate(rs.Anderson(2), rows, start, 6), rtol=1e-3)


HELPED = {
    "fedpi": (rs.fedpi(0.05), "u"),
    "fedsplit": (rs.fedsplit(0.05), "u"),
    "fedprox": (rs.fedprox(0.05), "u"),
    "fedavg": (rs.fedavg(0.005, steps=2), "u"),
    "fedprox_on_mean": (rs.fedprox(0.05), "mean"),
    "fedavg_on_mean": (rs.fedavg(0.005, steps=2), "mean"),
}


@pytest.mark.parametrize(("scheme", "on"), HELPED.values(), ids=HELPED.keys())
@pytest.mark.parametrize("problem", [squares, logistic])
def test_on_smooth_problems_it_helps(problem: Callable[[], Any], scheme: rs.Scheme, on: Any) -> None:
    """On the way to the run's own limit: those of FedProx and FedAvg are not the minimiser."""
    limit = rs.solve(problem(), scheme, rounds=1500, every=1500).model
    plain, fast = (rs.solve(problem(), scheme, rounds=25, anderson=a).model for a in (None, rs.Anderson(5, on=on)))
    assert float((fast - limit).norm()) < 0.2 * float((plain - limit).norm()) + 1e-9


# --- nothing, started anew, or refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "none", [0, rs.Anderson(0), rs.Anderson(0, on="mean"), rs.Anderson(0, safeguard=False)], ids=str
)
@pytest.mark.parametrize("scheme", [rs.fedpi(0.05), rs.fedprox(0.05), rs.fedpi("auto")], ids=["rows", "one_u", "auto"])
def test_without_memory_it_is_the_plain_iteration(none: Any, scheme: rs.Scheme) -> None:
    same_bits(rs.solve(squares(), scheme, rounds=9, anderson=none), rs.solve(squares(), scheme, rounds=9))


def test_with_memory_it_is_not() -> None:
    one, other = (rs.solve(squares(), rs.fedpi(0.05), rounds=9, anderson=a) for a in (1, None))
    assert not torch.allclose(one.model, other.model)


def test_memory_is_bounded() -> None:
    held: list[int] = []
    rs.solve(
        squares(),
        rs.fedpi(0.05),
        rounds=9,
        anderson=3,
        callback=lambda r: held.append(len(r.state.parts.accelerate.points)),
    )
    assert held == [1, 2, 3, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("on", ["u", "mean"])
def test_it_starts_anew_when_eta_changes(on: Any) -> None:
    schedule = rs.schedules.Schedule(lambda t: 0.05 if t < 5 else 0.02, "two values", changes="sometimes")
    held: list[int] = []
    anderson = rs.Anderson(3, on=on)
    rs.solve(
        squares(),
        rs.fedpi(schedule),
        rounds=8,
        anderson=anderson,
        callback=lambda r: held.append(len(r.state.parts.accelerate.points)),
    )
    assert held == [1, 2, 3, 4, 4, 1, 2, 3]


def test_it_starts_anew_when_the_automatic_eta_changes() -> None:
    etas: list[float] = []
    held: list[int] = []

    def look(happened: rs.Round) -> None:
        etas.append(happened.eta)
        held.append(len(happened.state.parts.accelerate.points))

    rng = np.random.default_rng(0)
    problem = rs.AbsoluteDeviations(rng.standard_normal((20, 3)), 100 * rng.standard_normal(20))
    rs.solve(problem, "fedpi", rounds=20, anderson=3, callback=look)
    changed = [t for t in range(1, 20) if etas[t] != etas[t - 1]]
    assert changed
    assert all(held[t] == 1 for t in changed)


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_where_eta_changes_every_round_it_does_nothing() -> None:
    scheme = rs.fedpi(rs.schedules.inverse_sqrt(0.1))
    same_bits(rs.solve(squares(), scheme, rounds=9, anderson=3), rs.solve(squares(), scheme, rounds=9))


def test_weights_that_are_too_large_are_refused() -> None:
    timid = rs.Anderson(3, largest=1e-12)
    same_bits(
        rs.solve(squares(), rs.fedpi(0.05), rounds=9, anderson=timid), rs.solve(squares(), rs.fedpi(0.05), rounds=9)
    )
    bold = rs.Anderson(3, largest=1e-12, safeguard=False)
    run = rs.solve(squares(), rs.fedpi(0.05), rounds=9, anderson=bold)
    assert not torch.allclose(run.model, rs.solve(squares(), rs.fedpi(0.05), rounds=9).model)


def test_damping_goes_a_part_of_the_way() -> None:
    T, _ = affine([0.9, 0.5, -0.3], dim=12)
    start = torch.zeros(1, 12, dtype=torch.float64)
    plain, whole, half = (
        iterate(a, T, start, 2) for a in (rs.Anderson(0), rs.Anderson(1), rs.Anderson(1, damping=0.5))
    )
    torch.testing.assert_close(half, (plain + whole) / 2, rtol=1e-9, atol=1e-12)


def test_a_map_at_rest_stays_at_rest() -> None:
    solution = rs.solve(squares(), rs.fedpi(0.05), rounds=1000, every=1000).state.next
    run = rs.solve(squares(), rs.fedpi(0.05), rounds=50, anderson=5, start=solution)
    assert run.history.gap.max() < 1e-20


# --- safeguards, on what is not smooth -------------------------------------------------------------------------------

ROUNDS, TAIL = 500, 100


def typical(run: rs.Run) -> float:
    """The geometric mean of the last gaps: on deviations they go up and down."""
    return float(np.exp(np.log(run.history.gap.iloc[-TAIL:] + 1e-13).mean()))


@cache
def plainly(seed: int, eta: float) -> rs.Run:
    return rs.solve(deviations(seed), rs.fedpi(eta), rounds=ROUNDS)


@cache
def safely(seed: int, eta: float, memory: int) -> rs.Run:
    return rs.solve(deviations(seed), rs.fedpi(eta), rounds=ROUNDS, anderson=memory)


SEEDS, ETAS, MEMORIES = (0, 1, 2), (0.1, 1.0, 10.0), (2, 5, 10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_safeguarded_it_never_hurts(seed: int, eta: float, memory: int) -> None:
    """By the residual, which the plain iteration never lets grow: a gap may pass through anything on its way."""
    fast, plain = safely(seed, eta, memory), plainly(seed, eta)
    assert fast.history.residual.iloc[-1] < 1.5 * plain.history.residual.iloc[-1] + 1e-12
    assert typical(fast) < 5 * typical(plain)


def test_safeguarded_it_helps_on_the_whole() -> None:
    cases = itertools.product(SEEDS, ETAS, MEMORIES)
    ratios = [typical(safely(*case)) / typical(plainly(*case[:2])) for case in cases]
    assert np.exp(np.log(ratios).mean()) < 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_it_gets_to_the_end_sooner(seed: int) -> None:
    """With a fair eta the minimiser of deviations is found to round-off, where the plain iteration is still far."""
    fast = rs.solve(deviations(seed), rs.fedpi(0.1), rounds=1500, every=1500, anderson=10)
    plain = rs.solve(deviations(seed), rs.fedpi(0.1), rounds=1500, every=1500)
    assert gap(fast, deviations(seed)) < 1e-12 < gap(plain, deviations(seed))


@pytest.mark.filterwarnings("ignore::resolvent.errors.DivergenceWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_raw_anderson_does_hurt(seed: int) -> None:
    """Safeguards off, the iteration is thrown far out and does not come back; with them it ends well."""
    problem, scheme = deviations(seed, users=20, dim=3), rs.fedpi(0.1)
    raw = rs.solve(problem, scheme, rounds=ROUNDS, anderson=rs.Anderson(2, safeguard=False))
    safe = rs.solve(problem, scheme, rounds=ROUNDS, anderson=2)
    plain = rs.solve(problem, scheme, rounds=ROUNDS)
    assert raw.status == "diverged" or raw.history.gap.iloc[-TAIL:].min() > 1e3 * raw.history.gap.iloc[0]
    assert typical(safe) < 2 * typical(plain) < 1e-2 * raw.history.gap.iloc[0]


def test_an_iteration_that_is_thrown_out_is_called_divergent() -> None:
    """Where f is not smooth residuals stay small however far out u is: it must be noticed nevertheless."""
    problem = deviations(1, users=20, dim=3)
    with pytest.warns(rs.DivergenceWarning):
        raw = rs.solve(problem, rs.fedpi(0.1), rounds=ROUNDS, anderson=rs.Anderson(2, safeguard=False))
    assert raw.status == "diverged"
    assert gap(raw, problem) < 100


# --- a point that is given up ----------------------------------------------------------------------------------------


def rounds_of(problem: Any, scheme: rs.Scheme, rounds: int, anderson: Any) -> list[rs.Round]:
    seen: list[rs.Round] = []
    rs.solve(problem, scheme, rounds=rounds, anderson=anderson, callback=seen.append)
    return seen


@pytest.mark.parametrize("on", ["u", "mean"])
def test_the_model_stays_the_last_accepted_one(on: Any) -> None:
    seen = rounds_of(deviations(0), rs.fedpi(1.0), 300, rs.Anderson(10, on=on, damping=1.0, ridge=1e-10))
    given_up = [t for t in range(1, 300) if not seen[t].state.parts.accelerate.accepted]
    assert given_up
    for t in given_up:
        assert torch.equal(seen[t].model, seen[t - 1].model)
    for t in range(1, 300):
        if t not in given_up:
            z = 2 * seen[t].state.p - seen[t].state.u
            torch.testing.assert_close(seen[t].model, z.mean(0, keepdim=True), rtol=1e-10, atol=1e-10)


def test_the_iteration_goes_back_to_where_it_would_have_gone() -> None:
    seen = rounds_of(deviations(0), rs.fedpi(1.0), 300, 10)
    for before, after in itertools.pairwise(seen):
        if after.state.parts.accelerate.accepted:
            continue
        launched_from, plain = before.step  # type: ignore[misc]
        assert torch.equal(after.state.next, plain)  # type: ignore[arg-type]
        assert len(after.state.parts.accelerate.points) == 0
        assert after.residual > before.residual
        assert not torch.equal(after.state.u, launched_from)


def test_a_point_far_worse_is_given_up_at_once() -> None:
    """A map that is one thing near the start and another where acceleration lands."""
    T, _ = affine([0.9, 0.8], dim=4)
    anderson, past = rs.Anderson(2), Past()
    u = torch.zeros(1, 4, dtype=torch.float64)
    for _ in range(2):
        u, past = anderson.advance(past, u, T(u), euclidean)
    assert math.isfinite(past.launched)
    back, past_after = anderson.advance(past, u, u + 100.0, euclidean)
    assert torch.equal(back, past.points[-1])
    assert not past_after.accepted
    raw, _ = rs.Anderson(2, safeguard=False).advance(past, u, u + 100.0, euclidean)
    assert not torch.equal(raw, past.points[-1])


def test_a_plain_step_is_never_given_up() -> None:
    """Residuals may grow by themselves: only acceleration is answerable for the points it chose."""
    anderson, past, u = rs.Anderson(2), Past(), torch.zeros(1, 2, dtype=torch.float64)
    u, past = anderson.advance(past, u, u + 1.0, euclidean)
    _, past = anderson.advance(past, u, u + 1000.0, euclidean)
    assert past.accepted


def test_nan_is_not_spread_by_acceleration() -> None:
    anderson, past, u = rs.Anderson(3), Past(), torch.zeros(1, 2, dtype=torch.float64)
    T, _ = affine([0.9, 0.8], dim=2)
    for _ in range(3):
        u, past = anderson.advance(past, u, T(u), euclidean)
    back, past = anderson.advance(past, u, u * math.nan, euclidean)
    assert bool(torch.isfinite(back).all())
    assert not past.accepted


@pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem")
def test_a_point_far_out_with_a_small_residual_is_not_kept() -> None:
    """The gradient of a logistic loss is small far out where few rows are on the wrong side, but the loss is not."""
    problem = rs.make_logistic()
    scheme = rs.fedavg(3e-4, steps=2)
    plain = rs.solve(problem, scheme, rounds=150, every=150)
    for memory in (4, 10):
        fast = rs.solve(problem, scheme, rounds=150, every=150, anderson=memory)
        assert fast.history.gap.iloc[-1] < 0.1 * plain.history.gap.iloc[-1]
        assert float(fast.model.norm()) < 3 * float(problem.minimiser.norm())
