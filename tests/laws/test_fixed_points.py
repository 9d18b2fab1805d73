"""Where each scheme ends: closed forms, the law of the effective step, the paper's examples and theorems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import resolvent as rs
import textbook
from resolvent import theory
from textbook import DIM, WEIGHTS, Array

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem")

USERS = len(WEIGHTS)
SEEDS = (0, 1, 2)


def users_of(seed: int) -> list[textbook.Squares]:
    """Users who want different things, all of them well-conditioned: what converges does so within the rounds given."""
    return textbook.squares(seed, (20, 22, 25, 40, 60))


def least_squares(seed: int) -> rs.LeastSquares:
    return rs.LeastSquares(*textbook.data(users_of(seed)), weights=WEIGHTS)


def step_below(problem: Any, share: float) -> float:
    """A step size as a share of 1/L."""
    return share / float(problem.lipschitz.max())


def end(problem: Any, scheme: rs.Scheme, rounds: int = 3000, **how: Any) -> rs.Run:
    """Run until nothing moves any more."""
    return rs.solve(problem, scheme, rounds, every=rounds, stop=lambda now: now.residual < 1e-14, **how)


def models(problem: Any, scheme: rs.Scheme, rounds: int, **how: Any) -> Array:
    """The models of all rounds, (rounds, d)."""
    seen: list[Tensor] = []
    rs.solve(problem, scheme, rounds=rounds, callback=lambda happened: seen.append(happened.model[0]), **how)
    return torch.stack(seen).numpy()


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm())


# --- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_fedavg_ends_where_the_paper_says(seed: int, k: int) -> None:
    """The formula after (eq:FB), with weights; against `theory`, and against a long run."""
    users = users_of(seed)
    problem = least_squares(seed)
    eta = step_below(problem, 0.5)
    matrix, vector = np.zeros((DIM, DIM)), np.zeros(DIM)
    for lam, f in zip(WEIGHTS, users, strict=True):
        H = f.A.T @ f.A
        powers = sum(np.linalg.matrix_power(np.eye(DIM) - eta * H, j) for j in range(k)) / k
        matrix += lam * H @ powers
        vector += lam * powers @ f.A.T @ f.b
    w = np.linalg.solve(matrix, vector)
    np.testing.assert_allclose(theory.fedavg_fixed_point(problem, eta, k), w, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(end(problem, rs.fedavg(eta, steps=k)).model, w, rtol=1e-9, atol=1e-10)
    biased = distance(torch.from_numpy(w), problem.minimiser)
    assert biased < 1e-10 if k == 1 else biased > 1e-3


@pytest.mark.parametrize("eta", [0.01, 0.3, 10.0])
def test_fedprox_ends_where_the_envelopes_are_least(eta: float) -> None:
    """By their gradients, which the textbook has without a prox; thin users too."""
    users = textbook.squares(1)
    problem = rs.LeastSquares(*textbook.data(users), weights=WEIGHTS)
    w = theory.regularised_minimiser(problem, eta)
    slope = sum(lam * f.envelope_grad(w.numpy(), eta) for lam, f in zip(WEIGHTS, users, strict=True))
    np.testing.assert_allclose(slope, 0, atol=1e-11)
    assert distance(end(problem, rs.fedprox(eta)).model, w) < 1e-10
    assert distance(w, problem.minimiser) > 1e-3


def test_the_regularisation_fades_with_eta() -> None:
    """env_eta f -> f: without any, as for FedPi, whose effective step is zero, it is the original problem."""
    problem = least_squares(0)
    apart = [distance(theory.regularised_minimiser(problem, eta), problem.minimiser) for eta in (1e-1, 1e-3, 1e-5)]
    assert apart[0] > 10 * apart[1] > 100 * apart[2] > 0
    assert distance(theory.regularised_minimiser(problem, 1e-11), problem.minimiser) < 1e-8
    assert theory.effective_eta(2, 2, 0.1) == 0
    assert distance(theory.regularised_minimiser(problem, 0.0), problem.minimiser) < 1e-10


def test_endless_local_steps_average_the_users_minimisers() -> None:
    """k -> infinity, as eta -> infinity: the mean of what each user wants."""
    users = users_of(2)
    problem = least_squares(2)
    own = WEIGHTS @ np.stack([np.linalg.lstsq(f.A, f.b)[0] for f in users])
    np.testing.assert_allclose(theory.fedavg_fixed_point(problem, step_below(problem, 1.0), 10_000), own, atol=1e-9)
    np.testing.assert_allclose(theory.regularised_minimiser(problem, 1e9), own, atol=1e-6)


# --- the effective step ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    alpha=st.floats(0.5, 2),
    beta=st.floats(0.5, 2),
    gamma=st.floats(0.4, 1),
    share=st.floats(0.3, 3),
    seed=st.integers(0, 20),
)
def test_prox_schemes_end_at_the_effective_step(
    alpha: float, beta: float, gamma: float, share: float, seed: int
) -> None:
    """At the minimiser of the envelopes at eta (alpha + beta - alpha beta) / beta, whatever gamma."""
    problem = least_squares(seed)
    eta = step_below(problem, share)
    eta_eff = eta * (alpha + beta - alpha * beta) / beta
    assert theory.effective_eta(alpha, beta, eta) == pytest.approx(eta_eff)
    goal = problem.minimiser if eta_eff == 0 else theory.regularised_minimiser(problem, eta_eff)
    for g in (gamma, 0.5):
        run = end(problem, rs.Scheme(alpha, beta, g, eta))
        assert distance(run.model, goal) < 1e-8
        # Every user sits at its prox of the model at the effective step.
        torch.testing.assert_close(run.personal, problem.prox(run.model, eta_eff), rtol=0, atol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_prox_rows_of_table_1(seed: int) -> None:
    """FedRP ends where FedProx does, R_H P where FedProx at half the step does, FedPi and FedSplit at the solution."""
    problem = least_squares(seed)
    eta = step_below(problem, 2.0)
    whole, half = (theory.regularised_minimiser(problem, e) for e in (eta, eta / 2))
    assert min(distance(whole, half), distance(half, problem.minimiser)) > 1e-3
    for scheme, goal in (
        (rs.fedprox(eta), whole),
        (rs.fedrp(eta), whole),
        (rs.reflect_prox(eta), half),
        (rs.fedpi(eta), problem.minimiser),
        (rs.fedsplit(eta), problem.minimiser),
    ):
        assert distance(end(problem, scheme).model, goal) < 1e-10, scheme.name


@pytest.mark.parametrize(("scheme", "factor"), [(rs.fedprox, 1.0), (rs.fedrp, 1.0), (rs.reflect_prox, 0.5)])
def test_the_effective_step_beyond_quadratics(scheme: Any, factor: float) -> None:
    """Logistic losses: with w the model, sum_i lambda_i (w - prox_{eta_eff} f_i(w)) = 0."""
    users = textbook.logits(3, (20, 25, 30, 35, 40))
    problem = rs.Logistic(*textbook.data(users), weights=WEIGHTS, reg=0.1)
    eta = 0.5
    w = end(problem, scheme(eta)).model
    torch.testing.assert_close(problem.weights @ problem.prox(w, factor * eta), w, rtol=0, atol=1e-10)
    assert distance(problem.weights @ problem.prox(w, 3 * factor * eta), w) > 1e-4


# --- gradient schemes ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(alpha=st.floats(0.5, 1.9), beta=st.floats(0.5, 2), gamma=st.floats(0.4, 1), seed=st.integers(0, 20))
def test_one_gradient_step_ends_where_u_balances(alpha: float, beta: float, gamma: float, seed: int) -> None:
    """u_i = mean(z) + eta alpha (beta - 1) / beta grad f_i(u_i)."""
    problem = least_squares(seed)
    eta = step_below(problem, 0.3)
    run = end(problem, rs.Scheme(alpha, beta, gamma, eta, rs.GradientSteps(1)))
    u = run.state.u.expand(USERS, -1)
    pull = eta * alpha * (beta - 1) / beta
    torch.testing.assert_close(u, run.model + pull * problem.grad(u), rtol=0, atol=1e-9)
    torch.testing.assert_close(problem.weights @ problem.grad(u), torch.zeros_like(run.model), rtol=0, atol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_reflected_gradient_steps_solve_neither_problem(seed: int) -> None:
    """R_H G: u_i = mean + (eta / 2) grad f_i(u_i)."""
    problem = least_squares(seed)
    eta = step_below(problem, 0.5)
    run = end(problem, rs.reflect_gradient(eta))
    u = run.state.u
    torch.testing.assert_close(u, run.model + eta / 2 * problem.grad(u), rtol=0, atol=1e-10)
    others = [problem.minimiser] + [theory.regularised_minimiser(problem, c * eta) for c in (0.25, 0.5, 1.0)]
    assert min(distance(run.model, w) for w in others) > 1e-4


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.7, 2.0])
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_one_gradient_step_is_exact_where_users_project(alpha: float, gamma: float) -> None:
    problem = least_squares(0)
    scheme = rs.Scheme(alpha, 1, gamma, step_below(problem, 0.9), rs.GradientSteps(1))
    assert distance(end(problem, scheme).model, problem.minimiser) < 1e-10


@pytest.mark.parametrize("k", [2, 5, 10])
def test_fedavg_is_close_to_fedprox_at_half_the_path(k: int) -> None:
    """At eta (k-1) / 2, and not at the eta (k-1) one might read out of the paper."""
    problem = least_squares(1)
    eta = step_below(problem, 0.02 / k)
    w = theory.fedavg_fixed_point(problem, eta, k)
    half, whole = (theory.regularised_minimiser(problem, c * eta * (k - 1)) for c in (0.5, 1.0))
    assert distance(w, half) < distance(w, whole) / 50


# --- the paper's examples --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.floats(0.1, 10))
def test_two_unequal_parabolas(eta: float) -> None:
    """f_+ and 2 f_-: FedProx ends at 1 / (3 + 4 eta), not at 1/3."""
    run = end(rs.plus_minus(2.0), rs.fedprox(eta))
    assert float(run.model) == pytest.approx(1 / (3 + 4 * eta), rel=1e-12)
    assert float(rs.plus_minus(2.0).minimiser) == pytest.approx(1 / 3)


STEPS = {
    "harmonic": rs.schedules.harmonic(1.0),
    "inverse_sqrt": rs.schedules.inverse_sqrt(1.0),
    "halving": rs.schedules.halving(1.0, 2),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore::resolvent.errors.MayNotConverge")
def test_two_parabolas(name: str) -> None:
    """f_+ and f_-: w_t = w_0 prod 1 / (1 + eta_t), which vanishes exactly if sum eta_t diverges."""
    eta = STEPS[name]
    w = models(rs.plus_minus(), rs.fedprox(eta), 400, start=[5.0])[:, 0]
    np.testing.assert_allclose(w, 5 / np.cumprod([1 + eta(t) for t in range(400)]), rtol=1e-12, atol=1e-15)
    if name == "harmonic":
        np.testing.assert_allclose(w, 5 / np.arange(2, 402), rtol=1e-12)  # telescopes
    if eta.sum_diverges:
        assert w[-1] < 0.02
    else:
        assert w[-1] == pytest.approx(w[100], rel=1e-12)
        assert w[-1] > 0.2


def test_a_step_that_vanishes_too_fast_is_warned_of() -> None:
    with pytest.warns(rs.MayNotConverge, match="stops before it arrives"):
        rs.solve(rs.plus_minus(), rs.fedprox(STEPS["halving"]), rounds=1)


@pytest.mark.parametrize("weights", [None, [0.8, 0.2]])
def test_fedsplit_never_meets_on_two_crossing_lines(weights: list[float] | None) -> None:
    """R_H R is an isometry there: it goes round the solution for ever, and FedPi does not."""
    lines = [rs.AffineSet([[0.0, 1.0]], [0.0]), rs.AffineSet([[math.sin(1.0), -math.cos(1.0)]], [0.0])]
    problem = rs.Indicators(lines, weights=weights, minimiser=[0.0, 0.0])
    start = torch.tensor([2.0, 1.0], dtype=torch.float64)
    residuals: list[float] = []
    with pytest.warns(rs.MayNotConverge, match="FedSplit needs strongly convex"):
        run = rs.solve(
            problem,
            rs.fedsplit(1.0),
            2000,
            start=start,
            callback=lambda happened: residuals.append(happened.residual),
        )
    np.testing.assert_allclose(residuals, residuals[0], rtol=1e-9)
    assert residuals[0] > 0.1
    assert run.status == "finished"
    assert float(rs.solve(problem, rs.fedpi(1.0), rounds=600, start=start).model.norm()) < 1e-12


# --- theorems --------------------------------------------------------------------------------------------------------


def alike(seed: int) -> rs.LeastSquares:
    """Users of few rows each, who share a minimiser (and most of them many more)."""
    users = textbook.squares(seed, (1, 2, 3, 3, 5))
    w_star = np.random.default_rng(seed).standard_normal(DIM)
    return rs.LeastSquares([f.A for f in users], [f.A @ w_star for f in users], weights=WEIGHTS)


PRESENT: dict[str, Any] = {
    "half": rs.Bernoulli(0.5, absent="paper"),
    "rarely": rs.Bernoulli(0.15, absent="paper"),
    "two": rs.FixedSize(2, absent="paper"),
    "one after the other": rs.Trace(np.eye(USERS), absent="paper"),
    "unfairly": rs.Trace(np.array([[1, 0, 0, 1, 0]] * 9 + [[0, 1, 1, 0, 1], [0] * USERS]), absent="paper"),
}


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("eta", [5.0, lambda t: 5 + 4 * math.sin(t)], ids=["constant", "varying"])
def test_homogeneous_users_may_come_and_go(name: str, eta: Any) -> None:
    """Theorem thm:fp-hom: FedProx converges to a common minimiser as long as everybody comes again and again."""
    for seed in SEEDS:
        run = rs.solve(alike(seed), rs.fedprox(eta), 1000, every=1000, participation=PRESENT[name], seed=seed)
        assert float(run.history.gap.iloc[-1]) < 1e-16
        assert run.state.u.shape == (1, DIM)


def test_heterogeneous_users_may_not() -> None:
    """The same sampling without a common minimiser: the model keeps moving about."""
    problem = least_squares(0)
    w = models(problem, rs.fedprox(0.5), 600, participation=PRESENT["half"])
    assert np.linalg.norm(w[-100:] - w[-100:].mean(0), axis=1).mean() > 1e-2


def test_harmonic_steps_lead_to_the_solution_on_average() -> None:
    """Theorem thm:fp. The first models weigh 1 / (1 + ... + 1/t) in the average, and that is its error."""
    problem, scheme = rs.plus_minus(2.0), rs.fedprox(rs.schedules.harmonic(1.0))
    errors, masses = [], []
    for rounds in (30, 300, 3000):
        run = rs.solve(problem, scheme, rounds=rounds, every=rounds, start=[3.0], average="ergodic")
        assert run.state.parts.average is not None
        errors.append(abs(float(run.model) - 1 / 3))
        masses.append(run.state.parts.average.mass)
    assert masses[-1] == pytest.approx(sum(1 / t for t in range(1, 3001)))
    assert errors[0] > 1.3 * errors[1] > 1.3**2 * errors[2]
    assert errors[1] * masses[1] == pytest.approx(errors[2] * masses[2], rel=0.02)


def test_averages_by_their_definition() -> None:
    """sum eta_s w_s / sum eta_s over all rounds, or since the last power of two."""
    problem, eta = least_squares(3), rs.schedules.inverse_sqrt(0.05)
    w = models(problem, rs.fedprox(eta), 21)
    weights = np.array([eta(t) for t in range(21)])
    for kind, first in (("ergodic", 0), ("suffix", 15)):  # round 16 is the last power of two, t = 15
        run = rs.solve(problem, rs.fedprox(eta), rounds=21, average=kind)
        expected = weights[first:] @ w[first:] / weights[first:].sum()
        np.testing.assert_allclose(run.model, expected, rtol=1e-11)


def test_harmonic_steps_lead_to_the_solution_itself_where_users_are_strongly_convex() -> None:
    """Theorem of Passty: no average needed; and the suffix average is near where the ergodic one still remembers."""
    problem = least_squares(1)
    eta = rs.schedules.harmonic(20 * step_below(problem, 1.0))
    far = torch.full((DIM,), 100.0, dtype=torch.float64)
    gaps = {}
    for average in ("ergodic", "suffix"):
        run = rs.solve(problem, rs.fedprox(eta), rounds=1000, every=1000, start=far, average=average)
        gaps[average] = float(run.history.average_gap.iloc[-1])
        assert float(run.history.gap.iloc[-1]) < 1e-3
        assert gaps[average] == pytest.approx(float(problem.gap(run.model.unsqueeze(0))), rel=1e-9)
    assert gaps["suffix"] < 1e-3 < 1 < gaps["ergodic"]


# --- changing eta where the solution does not depend on it -----------------------------------------------------------


@pytest.mark.parametrize("factor", [0.01, 0.3, 7.0, 100.0])
@pytest.mark.parametrize("scheme", [rs.fedpi, rs.fedsplit])
def test_a_jump_of_eta_moves_nothing_once_converged(scheme: Any, factor: float) -> None:
    problem = least_squares(2)
    best = theory.best_eta(problem)
    run = rs.solve(problem, scheme(lambda t: best if t < 400 else factor * best), rounds=440)
    assert float(run.history.gap.iloc[395:].max()) < 1e-20


@pytest.mark.parametrize("gamma", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_jump_of_eta_keeps_p_and_g(gamma: float, factor: float) -> None:
    """Half-way too: u <- p + (eta'/eta)(u - p) is asked at eta' as u was at eta, and the scheme goes on from there."""
    problem = least_squares(2)
    eta = theory.best_eta(problem)
    before = rs.solve(problem, rs.Scheme(2, 2, gamma, eta), rounds=3).state
    u = before.p + factor * (before.u - before.p)
    torch.testing.assert_close(problem.prox(u, factor * eta), before.p, rtol=1e-11, atol=1e-11)
    z = 2 * before.p - u
    moved = (1 - gamma) * u + gamma * (2 * problem.weights @ z - z)
    after = rs.solve(problem, rs.Scheme(2, 2, gamma, factor * eta), rounds=1, start=before).state
    torch.testing.assert_close(after.u, moved, rtol=1e-11, atol=1e-11)
    assert distance(after.u, before.next if before.next is not None else after.u) > 1e-3  # it did make a difference


def test_a_jump_of_eta_moves_the_others() -> None:
    """FedProx solves another problem at another eta, and goes there."""
    problem = least_squares(2)
    run = rs.solve(problem, rs.fedprox(lambda t: 0.1 if t < 400 else 0.2), rounds=800)
    assert distance(run.model, theory.regularised_minimiser(problem, 0.2)) < 1e-10
    assert distance(run.model, theory.regularised_minimiser(problem, 0.1)) > 1e-3
