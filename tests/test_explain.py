"""What `explain` says, and that it is true: every claim about a limit is held against the limit of a run."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
import textbook
from resolvent.iteration.participation import Participation
from resolvent.iteration.table import named
from resolvent.local.law import Law, UserFacts
from resolvent.theory.trends import judge

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

ORIGINAL, REGULARISED, NEITHER = "original", "regularised", "neither"
ETA = 0.05


@cache
def squares() -> rs.LeastSquares:
    """Five strongly convex users who disagree; 1/L is about 0.05."""
    return rs.make_least_squares(users=5, dim=3, rows=10, shift=1.0)


@cache
def thin() -> rs.LeastSquares:
    """Fewer rows than unknowns: convex, not strongly."""
    return rs.make_least_squares(users=5, dim=4, rows=2, shift=1.0)


@cache
def deviations() -> rs.AbsoluteDeviations:
    """Convex, not smooth; at its minimiser several users are on their kink."""
    rng = np.random.default_rng(4)
    return rs.AbsoluteDeviations(rng.standard_normal((7, 2)), rng.standard_normal(7))


def step(problem: Any = None) -> float:
    """Half of what gradient steps of every single user bear."""
    return 1 / float((problem or squares()).lipschitz.max())


# --- what is said ----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    scheme: rs.Scheme
    solves: str
    eta_eff: float
    exactly: bool = True
    theorem: bool = True
    problem: Callable[[], Any] = squares
    more: dict[str, Any] = {}  # noqa: RUF012 (never written to)


def forward(alpha: float, beta: float, gamma: float, factor: float = 1.0) -> rs.Scheme:
    return rs.Scheme(alpha, beta, gamma, factor * step(), forward=True)


SAMPLED, PAPER = {"participation": rs.Bernoulli(0.5)}, {"participation": rs.Bernoulli(0.5, absent="paper")}
SAID = {
    "FedAvg": Row(rs.fedavg(step()), ORIGINAL, 0),
    "FedAvg k=5": Row(rs.fedavg(step() / 10, steps=5), REGULARISED, step() / 5, exactly=False, theorem=False),
    "FedProx": Row(rs.fedprox(ETA), REGULARISED, ETA),
    "FedSplit": Row(rs.fedsplit(ETA), ORIGINAL, 0),
    "FedPi": Row(rs.fedpi(ETA), ORIGINAL, 0),
    "FedRP": Row(rs.fedrp(ETA), REGULARISED, ETA),
    "R_H G": Row(rs.reflect_gradient(step()), NEITHER, math.nan),
    "R_H P": Row(rs.reflect_prox(ETA), REGULARISED, ETA / 2),
    # gamma never moves a fixed point
    "(2, 2, 0.7)": Row(rs.Scheme(2, 2, 0.7, ETA), ORIGINAL, 0),
    "(1, 1, 0.3)": Row(rs.Scheme(1, 1, 0.3, ETA), REGULARISED, ETA),
    "a gamma that changes": Row(rs.Scheme(2, 2, lambda t: 0.5 + 0.2 * (t % 2), ETA), ORIGINAL, 0, theorem=False),
    # eta_eff = eta (alpha + beta - alpha beta) / beta
    "(1.5, 1.5, 1)": Row(rs.Scheme(1.5, 1.5, 1, ETA), REGULARISED, ETA / 2),
    "(1.2, 0.8, 0.6)": Row(rs.Scheme(1.2, 0.8, 0.6, ETA), REGULARISED, ETA * 1.04 / 0.8),
    "(0.5, 2, 1)": Row(rs.Scheme(0.5, 2, 1, ETA), REGULARISED, ETA * 0.75),
    "(3, 1.5, 0.2) on purpose": Row(rs.Scheme(3, 1.5, 0.2, ETA, beyond=True), ORIGINAL, 0, theorem=False),
    # one gradient step: exact for any alpha if beta = 1
    "forward (0.5, 1, 1)": Row(forward(0.5, 1, 1), ORIGINAL, 0),
    "forward (1.5, 1, 0.5)": Row(forward(1.5, 1, 0.5), ORIGINAL, 0),
    # and with beta < 1 the envelopes at eta alpha (1 - beta) / beta
    "forward (1, 0.5, 1)": Row(forward(1, 0.5, 1), REGULARISED, step()),
    "forward (0.8, 0.8, 0.9)": Row(forward(0.8, 0.8, 0.9), REGULARISED, step() * 0.2),
    # other operators
    "Newton": Row(rs.fedpi(ETA, local=rs.NewtonProx()), ORIGINAL, 0),
    "gradient prox": Row(rs.fedpi(ETA, local=rs.GradientProx(2)), ORIGINAL, 0, exactly=False, theorem=False),
    "gradient FedProx": Row(rs.fedprox(ETA, local=rs.GradientProx(4)), REGULARISED, ETA, exactly=False, theorem=False),
    "FedProx by one step": Row(rs.fedprox(step(), local=rs.GradientSteps(1)), ORIGINAL, 0),
    # nobody moves, nobody meets, or nobody computes
    "(0, 1, 1)": Row(rs.Scheme(0, 1, 1, ETA), NEITHER, math.nan),
    "(1, 0, 1)": Row(rs.Scheme(1, 0, 1, ETA), NEITHER, math.nan),
    "(1, 1, 0)": Row(rs.Scheme(1, 1, 0, ETA), NEITHER, math.nan, theorem=False),
    # schedules and automatic eta
    "auto": Row(rs.fedpi("auto"), ORIGINAL, 0),
    "harmonic": Row(rs.fedprox(rs.schedules.harmonic(1.0)), ORIGINAL, 0),
    "inverse_sqrt": Row(rs.fedprox(rs.schedules.inverse_sqrt(ETA)), ORIGINAL, 0, theorem=False),
    "harmonic FedAvg k=3": Row(rs.fedavg(rs.schedules.harmonic(step()), steps=3), ORIGINAL, 0, theorem=False),
    # other problems
    "FedPi on thin data": Row(rs.fedpi(ETA), ORIGINAL, 0, problem=thin),
    "FedSplit on thin data": Row(rs.fedsplit(ETA), ORIGINAL, 0, theorem=False, problem=thin),
    "FedAvg on thin data": Row(rs.fedavg(step(thin())), ORIGINAL, 0, problem=thin),
    "FedPi on deviations": Row(rs.fedpi(1.0), ORIGINAL, 0, problem=deviations),
    "FedSplit on deviations": Row(rs.fedsplit(1.0), ORIGINAL, 0, theorem=False, problem=deviations),
    # sampling and acceleration
    "FedPi held": Row(rs.fedpi(ETA), ORIGINAL, 0, more=SAMPLED),
    "FedSplit held": Row(rs.fedsplit(ETA), ORIGINAL, 0, more=SAMPLED),
    "FedProx held": Row(rs.fedprox(ETA), REGULARISED, ETA, more=SAMPLED),
    "FedAvg held": Row(rs.fedavg(step()), ORIGINAL, 0, more=SAMPLED),
    "auto held": Row(rs.fedpi("auto"), ORIGINAL, 0, more=SAMPLED),
    "FedPi on deviations held": Row(rs.fedpi(1.0), ORIGINAL, 0, problem=deviations, more=SAMPLED),
    "Anderson": Row(rs.fedprox(ETA), REGULARISED, ETA, theorem=False, more={"anderson": 2}),
    "Anderson on the mean": Row(
        rs.fedpi(ETA), ORIGINAL, 0, theorem=False, more={"anderson": rs.Anderson(3, on="mean")}
    ),
}
rows = pytest.mark.parametrize("row", SAID.values(), ids=SAID.keys())


@rows
def test_what_is_said(row: Row) -> None:
    said = rs.explain(row.scheme, row.problem(), **row.more)
    assert said.solves == row.solves
    assert said.eta_eff == pytest.approx(row.eta_eff, nan_ok=True)
    assert said.exactly is row.exactly
    assert (said.theorem is not None) is row.theorem


@pytest.mark.parametrize("name", rs.TABLE)
def test_solve_keeps_what_explain_says(name: str) -> None:
    scheme = named(name, 0.01)
    run = rs.solve(squares(), scheme, rounds=1, participation=0.5)
    assert str(run.explanation) == str(rs.explain(scheme, squares(), 0.5))


def test_the_words_hold_the_data() -> None:
    words = str(rs.explain(rs.reflect_prox(0.1), squares(), 0.5, 2))
    assert "R_H P" in words
    assert "regularised problem" in words
    assert "eta = 0.05" in words
    assert "random blocks" in words
    assert "pFedMe" in words
    for finding in rs.explain(rs.reflect_prox(0.1), squares(), 0.5, 2).findings:
        assert f"- {finding.what}; {finding.advice}." in words
    assert "about the regularised" in str(rs.explain(rs.fedavg(0.01, steps=4), squares()))
    assert "no theorem" in str(rs.explain(rs.fedsplit(0.1), deviations()))


@pytest.mark.parametrize("name", rs.TABLE)
def test_without_a_problem_what_holds_for_any_convex_one_is_said(name: str) -> None:
    row = rs.TABLE[name]
    said, known = rs.explain(named(name, 0.01)), rs.explain(named(name, 0.01), squares())
    assert (said.solves, said.exactly) == (known.solves, known.exactly)
    reflects = row.gamma == 1 and 2 in (row.alpha, row.beta)
    assert (said.theorem is None) is (reflects or row.local is not None)


def test_a_name_will_do() -> None:
    assert rs.explain("fedpi").solves == ORIGINAL
    assert rs.explain("FedSplit", squares()).theorem is not None


# --- that it is true -------------------------------------------------------------------------------------------------

ROUNDS = {"harmonic": 3000, "inverse_sqrt": 3000, "harmonic FedAvg k=3": 3000, "FedPi on deviations held": 3000}
UNTRIED = {"(3, 1.5, 0.2) on purpose", "FedSplit on thin data", "FedSplit on deviations"}  # no theorem, no claim


@pytest.mark.parametrize("name", [name for name in SAID if name not in UNTRIED])
def test_runs_end_where_explain_says(name: str) -> None:
    row = SAID[name]
    hold_against_its_limit(row.scheme, row.problem(), ROUNDS.get(name, 500), **row.more)


@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        pytest.param(rs.fedpi(ETA), PAPER, id="FedPi as the paper samples"),
        pytest.param(rs.fedprox(ETA), PAPER, id="FedProx as the paper samples"),
        pytest.param(rs.fedprox(rs.schedules.halving(ETA, 5)), {}, id="FedProx that stops short"),
        pytest.param(rs.fedpi(rs.schedules.halving(ETA, 2)), {}, id="FedPi that stops short"),
        pytest.param(rs.fedavg(rs.schedules.halving(step() / 10, 5)), {}, id="FedAvg that stops short"),
        pytest.param(rs.fedavg(step() / 20, local=rs.GradientSteps(1, batch=2)), {}, id="FedAvg in five batches"),
    ],
)
def test_where_nothing_gets_there_nothing_is_claimed(scheme: rs.Scheme, more: dict[str, Any]) -> None:
    hold_against_its_limit(scheme, squares(), rounds=500, **more)


def hold_against_its_limit(scheme: rs.Scheme, problem: Any, rounds: int, **more: Any) -> None:
    """Run, and compare the end with what is said of it, unless it is said as well that it may never be reached."""
    said = rs.explain(scheme, problem, **more)
    if said.theorem is None and said.solves == ORIGINAL and any(f.about is rs.MayNotConverge for f in said.findings):
        return
    noisy = getattr(scheme.local, "batch", None) is not None
    run = rs.solve(problem, scheme, rounds=rounds, every=rounds, average="suffix" if noisy else None, **more)
    assert run.status == "finished"
    w, at_start = run.model, float(problem.gap(torch.zeros(1, problem.dim, dtype=torch.float64)))
    excess = float(problem.gap(w.unsqueeze(0)))
    if said.solves == ORIGINAL and not said.exactly:
        assert 1e-10 < excess < 0.1 * at_start
    elif said.solves == ORIGINAL:
        vanishing = not scheme.auto and scheme.eta.vanishes
        assert excess < (1e-3 * at_start if vanishing else 1e-10)
    elif said.solves == REGULARISED:
        there = rs.theory.regularised_minimiser(problem, said.eta_eff)
        bias = float((there - problem.minimiser).norm())
        assert float((w - there).norm()) < (1e-6 if said.exactly else 0.4) * bias
        assert excess > 1e-6, "nothing to tell apart"
    else:
        assert distance_to_every_regularised(problem, w) > 1e-3


def distance_to_every_regularised(problem: Any, w: Tensor) -> float:
    """How far w is from the curve of all regularised minimisers, which begins at the original one."""
    curve = [rs.theory.regularised_minimiser(problem, float(eta)) for eta in np.geomspace(1e-4, 1e2, 300)]
    return min(float((w - point).norm()) for point in [problem.minimiser, *curve])


def test_the_tools_of_this_file_tell_apart() -> None:
    for eta in (1e-3, 0.02, 1.0):
        assert distance_to_every_regularised(squares(), rs.theory.regularised_minimiser(squares(), eta)) < 1e-3
    with pytest.raises(AssertionError):
        hold_against_its_limit(rs.fedprox(ETA), squares(), rounds=3)
    with pytest.raises(AssertionError):
        hold_against_its_limit(rs.fedpi(ETA), squares(), rounds=3)


# --- that theorems hold: from rows that disagree, and on thin data ---------------------------------------------------

PROMISED = {
    **{name: (row.alpha, row.beta, row.gamma, row.forward) for name, row in rs.TABLE.items() if not row.kin},
    "(1.5, 1.5, 1)": (1.5, 1.5, 1, False),
    "(2, 2, 0.9)": (2, 2, 0.9, False),
    "forward (1, 1.5, 1)": (1, 1.5, 1, True),
    "forward (1, 2, 0.5)": (1, 2, 0.5, True),
    "forward (2, 1, 1)": (2, 1, 1, True),
}


def promised(name: str, problem: Callable[[], Any]) -> rs.Scheme:
    alpha, beta, gamma, forward = PROMISED[name]
    return rs.Scheme(alpha, beta, gamma, 0.9 * step(problem()) if forward else 0.3, forward=forward)


def named_theorems() -> Iterator[Any]:
    """Each scheme on each problem, with and without sampling, of which a theorem is named."""
    for name, problem in itertools.product(PROMISED, (squares, thin)):
        ways: dict[str, dict[str, Any]] = {"everyone": {}, "held": SAMPLED}
        for how, more in ways.items():
            if rs.explain(promised(name, problem), problem(), **more).theorem is not None:
                yield pytest.param(promised(name, problem), problem, more, id=f"{how}-{problem.__name__}-{name}")


def test_theorems_are_named_where_they_should_be() -> None:
    """On strongly convex users of everything; on thin data of all but the reflections without averaging."""
    named = {case.id for case in named_theorems()}
    assert len(named) == 40
    unproved = {f"{how}-thin-{name}" for how in ("everyone", "held") for name in ("fedsplit", "fedrp")}
    unproved |= {f"{how}-thin-{name}" for how in ("everyone", "held") for name in ("reflect_prox", "reflect_gradient")}
    assert not named & unproved


@pytest.mark.parametrize(("scheme", "problem", "more"), list(named_theorems()))
def test_where_a_theorem_is_named_the_iteration_converges(
    scheme: rs.Scheme, problem: Callable[[], Any], more: dict[str, Any]
) -> None:
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((5, problem().dim)))
    run = rs.solve(problem(), scheme, rounds=1500, every=1500, start=start, **more)
    assert run.status == "finished"
    assert run.history.residual.iloc[-1] < 1e-6


def test_a_step_that_bears_with_everyone_may_not_bear_with_some() -> None:
    """Under "hold" users keep their own u, and the steepest of them alone limits eta: what is named must hold there."""
    curvatures = [10.0] + [0.1] * 9
    users = rs.LeastSquares([np.eye(2) * math.sqrt(c) for c in curvatures], np.ones((10, 2)))
    scheme = rs.fedavg(0.9 * 2 / float(users.lipschitz.mean()))
    assert rs.solve(users, scheme, rounds=300).status == "finished"
    held = rs.solve(users, scheme, rounds=300, participation=rs.Bernoulli(0.5))
    assert held.status == "diverged"
    assert any(f.about is rs.MayNotConverge for f in rs.explain(scheme, users, rs.Bernoulli(0.5)).findings)


def test_twice_a_step_must_bear_as_well() -> None:
    """alpha = 2 takes twice the gradient step; of that 2/L must be said."""
    eta = 1.5 / float(squares().lipschitz.mean())
    scheme = rs.Scheme(2, 1, 1, eta, forward=True)
    assert rs.solve(squares(), scheme, rounds=300).status == "diverged"
    assert any(f.about is rs.MayNotConverge for f in rs.explain(scheme, squares()).findings)


def test_fedsplit_need_not_converge_where_no_theorem_is_named() -> None:
    """Two crossing lines: FedSplit turns round their common point for ever."""
    lines = rs.Indicators([rs.AffineSet([[1.0, 0.0]], [0.0]), rs.AffineSet([[1.0, 1.0]], [0.0])])
    assert rs.explain(rs.fedsplit(1.0), lines).theorem is None
    split, pi = (rs.solve(lines, scheme(1.0), rounds=500, start=[1.0, 2.0]) for scheme in (rs.fedsplit, rs.fedpi))
    assert split.history.residual.min() > 0.1
    assert pi.history.residual.iloc[-1] < 1e-12
    assert float(pi.model.norm()) < 1e-12


# --- personal models -------------------------------------------------------------------------------------------------


def test_what_is_said_of_personal_models() -> None:
    run = rs.solve(squares(), rs.fedpi(ETA), rounds=800, every=800)
    assert "agrees with the model" in run.explanation.personal
    torch.testing.assert_close(run.personal, run.model.expand(5, -1), rtol=1e-9, atol=1e-9)
    run = rs.solve(squares(), rs.fedprox(ETA), rounds=800, every=800)
    assert "prox_eta f_i of the model" in run.explanation.personal
    torch.testing.assert_close(run.personal, squares().prox(run.model, ETA), rtol=1e-8, atol=1e-8)
    run = rs.solve(squares(), rs.fedavg(step(), steps=2), rounds=800, every=800)
    assert "the model after its local steps" in run.explanation.personal
    w = run.model.expand(5, -1)
    for _ in range(2):
        w = w - step() * squares().grad(w)
    torch.testing.assert_close(run.personal, w, rtol=1e-8, atol=1e-8)


def test_personal_models_of_any_alpha_and_beta() -> None:
    """At a fixed point p_i = prox f_i(model) at eta_eff, which is eta for beta = 1 alone."""
    for alpha, beta in ((1, 2), (1.5, 1.5), (1.2, 0.8), (0.5, 2), (2, 1)):
        run = rs.solve(squares(), rs.Scheme(alpha, beta, 0.7, ETA), rounds=700, every=700)
        said = run.explanation
        assert f"at eta = {said.eta_eff:g}" in said.personal or beta == 1
        torch.testing.assert_close(run.personal, squares().prox(run.model, said.eta_eff), rtol=1e-8, atol=1e-8)
    run = rs.solve(squares(), forward(1, 0.5, 1), rounds=700, every=700)
    assert "after its local steps" in run.explanation.personal
    near = squares().prox(run.model, run.explanation.eta_eff)
    torch.testing.assert_close(run.personal, near - step() * squares().grad(near), rtol=1e-8, atol=1e-8)


# --- gradient steps with momentum ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "momentum"), [(2, 0.5), (5, 0.0), (20, 0.9), (40, 0.95), (7, 0.3)])
def test_the_effective_eta_counts_momentum(steps: int, momentum: float) -> None:
    """Measured at two small eta, where what is left of the law is of the order of eta."""
    users = users_of(squares())
    off = []
    for eta in (2e-6, 1e-6):
        said = rs.explain(rs.fedavg(eta, local=rs.GradientSteps(steps, momentum=momentum)), squares())
        assert said.solves == REGULARISED
        off.append(abs(said.eta_eff - measured_eta(*users, eta, steps, momentum)) / said.eta_eff)
    assert off[1] < 0.02
    assert off[1] < 0.6 * off[0] + 1e-4
    assert said.eta_eff == pytest.approx(1e-6 * rs.theory.step_sums(steps, momentum)[1])


def users_of(problem: rs.LeastSquares) -> tuple[Any, Any]:
    """Hessians and gradients at 0 of all users, by asking the problem."""
    basis = torch.eye(problem.dim, dtype=torch.float64)
    h = problem.grad(torch.zeros(1, problem.dim, dtype=torch.float64))
    H = torch.stack([problem.grad(row.unsqueeze(0)) - h for row in basis], 2)
    return H.numpy(), h.numpy()


def measured_eta(H: Any, h: Any, eta: float, steps: int, momentum: float) -> float:
    """The eta whose envelopes' minimiser is nearest to the fixed point of these steps, both by plain solves."""
    m, d = h.shape
    x = -np.linalg.solve(H, h[..., None])[..., 0]
    left, v = np.tile(np.eye(d), (m, 1, 1)), np.zeros((m, d, d))
    for _ in range(steps):
        v = momentum * v + H @ left
        left = left - eta * v
    pull = np.eye(d) - left
    w = np.linalg.solve(pull.sum(0), (pull @ x[..., None]).sum(0)[:, 0])

    def minimiser(e: float) -> Any:
        inner = np.linalg.solve(np.eye(d) + e * H, H)
        return np.linalg.solve(inner.sum(0), (inner @ x[..., None]).sum(0)[:, 0])

    origin, unit = minimiser(0.0), 1e-5
    along = (minimiser(unit) - origin) / unit
    return float((w - origin) @ along / (along @ along))


def test_too_long_steps_are_not_said_to_solve_anything() -> None:
    far = rs.explain(rs.fedavg(0.9 * 2 / float(squares().lipschitz.max()), steps=7), squares())
    assert far.solves == NEITHER
    assert "local steps" in str(far)


# --- an inexact prox -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eta", "operator", "solves"),
    [
        (10.0, rs.GradientProx(1), NEITHER),
        (10.0, rs.GradientProx(5), NEITHER),
        (ETA, rs.GradientProx(20, lr=1.0), NEITHER),  # diverges
        (ETA, rs.GradientProx(5), ORIGINAL),
        (ETA, rs.GradientProx(5, momentum=0.2), ORIGINAL),
        (ETA, rs.NewtonProx(tol=0.1), ORIGINAL),
    ],
)
def test_of_an_inexact_prox_no_theorem_is_claimed(eta: float, operator: Any, solves: str) -> None:
    said = rs.explain(rs.fedpi(eta, local=operator), squares())
    assert said.solves == solves
    assert said.theorem is None
    assert solves == NEITHER or not said.exactly
    assert "inexact prox" in str(said)


def test_the_error_of_an_inexact_prox_bounds_the_slope_at_the_limit() -> None:
    for k in (3, 4, 6, 10):
        run = rs.solve(squares(), rs.fedpi(ETA, local=rs.GradientProx(k)), rounds=1500, every=1500)
        error = run.explanation.error
        g = squares().grad(run.model.unsqueeze(0))
        assert 0 < float(g.mean(0).norm()) <= error * float(g.norm(dim=1).mean())


# --- functions of the round ------------------------------------------------------------------------------------------


def test_an_eta_that_oscillates_has_no_theorem() -> None:
    """FedSplit at two eta in turn diverges, although it contracts at each."""
    scheme = rs.fedsplit(lambda t: 0.01 if t % 2 else 1.0)
    assert rs.solve(squares(), scheme, rounds=300).status == "diverged"
    for made in (rs.fedsplit, rs.fedpi):
        said = rs.explain(made(lambda t: 0.01 if t % 2 else 1.0), squares())
        assert said.theorem is None
        assert any(f.about is rs.MayNotConverge for f in said.findings)
        assert str(said).startswith("Where it converges")


FUNCTIONS: dict[str, tuple[Callable[[int], float], str, float, bool]] = {
    "constant": (lambda t: 0.1, REGULARISED, 0.1, True),
    "settles": (lambda t: 0.3 if t < 100 else 0.1, REGULARISED, 0.1, True),
    "harmonic": (lambda t: 1 / (t + 1), ORIGINAL, 0, True),
    "a root": (lambda t: (t + 1) ** -0.5, ORIGINAL, 0, False),
    "too fast": (lambda t: 1 / (t + 1) ** 2, NEITHER, math.nan, False),
    "a power": (lambda t: 0.9**t, NEITHER, math.nan, False),
    "oscillates": (lambda t: 0.1 + 0.05 * (t % 2), "unknown", math.nan, False),
    "grows": (lambda t: 0.1 * (t + 1), "unknown", math.nan, False),
    "a list that ends": (lambda t: ([0.1] * 50 + [0.2])[t], "unknown", math.nan, False),
    "returns rarely": (lambda t: 0.1 if t % 1900 else 0.2, "unknown", math.nan, False),
    "seems to vanish": (lambda t: 0.002 + (t + 1) ** -0.5, "unknown", math.nan, False),
    "falls slowly, and stops": (lambda t: 0.0176 + (t + 1) ** -0.217, "unknown", math.nan, False),
    "stops above zero": (lambda t: 0.1 + (t + 1) ** -0.3, "unknown", math.nan, False),
}


@pytest.mark.parametrize(("eta", "solves", "eta_eff", "theorem"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions_of_the_round_are_judged_by_their_values(
    eta: Callable[[int], float], solves: str, eta_eff: float, theorem: bool
) -> None:
    said = rs.explain(rs.fedprox(eta), squares())
    assert said.solves == solves
    assert said.eta_eff == pytest.approx(eta_eff, nan_ok=True)
    assert (said.theorem is not None) is theorem


@pytest.mark.parametrize("s", [0.18, 0.217, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("part", [0.05, 0.3, 1.0, 10.0])
def test_a_limit_above_zero_is_told_from_a_slow_decay(s: float, part: float) -> None:
    """The limit is a part of what is left of t^-s in round 10^6: the exponents that values show fall, if slowly."""
    limit = part * 1e6**-s
    assert judge(lambda t: limit + (t + 1) ** -s).kind not in ("vanishes", "constant")
    assert judge(lambda t: limit + (1 + 0.5 * math.sin(t)) * (t + 1) ** -s).kind not in ("vanishes", "constant")
    assert judge(lambda t: (t + 1) ** -s).kind == judge(lambda t: (t + 20) ** -s).kind == "vanishes"


@pytest.mark.parametrize("h", [1e7, 1e8, 1e10])
def test_values_that_drift_are_not_taken_to_stay(h: float) -> None:
    assert judge(lambda t: 1 / (t + h)).kind == judge(lambda t: t + h).kind == "unclear"
    assert judge(lambda t: 1 + 0.01 * (t + 1) ** -0.2).kind == "varies"  # a drift that dies out


def test_zeros_between_values_say_nothing_of_their_sum() -> None:
    trend = judge(lambda t: t % 2 * (t + 1) ** -1.5)
    assert (trend.kind, trend.sum_diverges) == ("unclear", None)


@pytest.mark.parametrize(
    ("numbers", "solves"),
    [
        ((2, 2, lambda t: 0.5), ORIGINAL),
        ((2, 2, lambda t: 0.5**t), NEITHER),  # u stops short
        ((2, 2, lambda t: 1 / (t + 1) ** 0.7), ORIGINAL),
        ((lambda t: 2.0, 2, 0.5), ORIGINAL),
        ((lambda t: 1.0 if t < 50 else 2.0, 2, 0.5), ORIGINAL),
        ((lambda t: 1.0 + t % 2, 2, 0.5), "unknown"),
        ((2, lambda t: 1 + 1 / (t + 1), 0.5), "unknown"),
    ],
)
def test_so_are_alpha_beta_and_gamma(numbers: tuple[Any, Any, Any], solves: str) -> None:
    said = rs.explain(rs.Scheme(*numbers, ETA), squares())
    assert said.solves == solves
    run = rs.solve(squares(), rs.Scheme(*numbers, ETA), rounds=2000, every=2000)
    if solves == ORIGINAL:
        assert float(squares().gap(run.model.unsqueeze(0))) < 1e-9
    else:
        assert float(squares().gap(run.model.unsqueeze(0))) > 1e-6


# --- who takes part --------------------------------------------------------------------------------------------------


def test_a_user_who_never_comes_has_no_say() -> None:
    masks = np.array([[1, 1, 0, 1, 1], [0, 1, 0, 1, 1]], dtype=bool)
    said = rs.explain(rs.fedpi(ETA), squares(), rs.Trace(masks))
    assert said.solves == NEITHER
    assert said.theorem is None
    assert "user 2 never comes" in str(said)
    run = rs.solve(squares(), rs.fedpi(ETA), rounds=1000, participation=rs.Trace(masks))
    others = squares().take(torch.tensor([0, 1, 3, 4]))
    assert float(others.gap(run.model.unsqueeze(0))) < 1e-9 < float(squares().gap(run.model.unsqueeze(0)))
    weights = [0.2, 0.2, 0.0, 0.2, 0.4]
    A, b = np.ones((5, 2, 1)), np.arange(10.0).reshape(5, 2)
    without = rs.LeastSquares(A, b, weights=weights)  # a user without weight has no say anyway
    assert rs.explain(rs.fedpi(ETA), without, rs.Trace(masks)).solves == ORIGINAL


def test_a_given_order_is_not_random() -> None:
    masks = np.array([[1, 1, 1, 1, 0], [0, 1, 0, 1, 1]], dtype=bool)
    said = rs.explain(rs.fedpi(ETA), squares(), rs.Trace(masks))
    assert (said.solves, said.theorem) == (ORIGINAL, None)
    assert "given order" in str(said)
    everyone = rs.explain(rs.fedpi(ETA), squares(), rs.Trace(np.ones((3, 5), dtype=bool)))
    assert everyone.theorem is not None
    assert "random" not in everyone.theorem


def test_answers_at_different_eta_count_differently() -> None:
    """One user comes when eta is large, the other when it is small: FedAvg then weighs them by their eta."""

    def eta(t: int) -> float:
        return 0.01 if t % 2 else 0.1

    assert rs.explain(rs.fedavg(eta), rs.plus_minus(1.0)).solves == ORIGINAL
    assert rs.explain(rs.fedavg(eta), rs.plus_minus(1.0), rs.Trace([[1, 0], [0, 1]])).solves == "unknown"
    users = [textbook.Squares(np.eye(1), np.array([centre])) for centre in (-1.0, 1.0)]  # the same two
    lam, scheme = np.array([0.5, 0.5]), textbook.Grand(1, 1, 1, eta, textbook.descend(1))
    masks = [[t % 2 == 0, t % 2 == 1] for t in range(1000)]
    *_, (model, _) = textbook.held(users, lam, np.zeros((2, 1)), scheme, masks)
    assert model.item() < -0.5  # the minimiser is 0


def test_participation_of_ones_own_is_asked_who_comes() -> None:
    class Weekdays(Participation):
        def present(self, seed: int, t: int, users: int) -> Tensor:
            return torch.arange(users - 1)

    said = rs.explain(rs.fedpi(ETA), squares(), Weekdays())
    assert said.solves == NEITHER
    assert "user 4 never comes" in str(said)


# --- one user, unequal batches, weights of zero, nobody moves --------------------------------------------------------


def test_one_user_solves_its_own_problem_whatever_the_scheme() -> None:
    alone = rs.LeastSquares(np.eye(3)[None], np.ones((1, 3)))
    for scheme in (rs.fedprox(0.5), rs.reflect_prox(0.5), rs.fedavg(0.5, steps=4)):
        run = rs.solve(alone, scheme, rounds=300)
        assert (run.explanation.solves, run.explanation.eta_eff) == (ORIGINAL, 0)
        assert float(alone.gap(run.model.unsqueeze(0))) < 1e-12


def test_users_with_more_batches_pull_harder() -> None:
    """FedAvg in batches weighs users by their numbers of steps: nothing is claimed of it."""
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((n, 2)) for n in (4, 40)]
    problem = rs.LeastSquares(A, [a @ [1.0, k] for k, a in enumerate(A)])
    said = rs.explain(rs.fedavg(1e-4, local=rs.GradientSteps(1, batch=4)), problem)
    assert said.solves == NEITHER
    assert "between 1 and 10 steps" in str(said)
    assert rs.explain(rs.fedavg(1e-3, local=rs.GradientSteps(1, batch=40)), problem).exactly  # one batch of all rows


def test_where_users_only_reflect_nothing_converges() -> None:
    """alpha = 0, beta = 2: u_i and its mirror image in turn, however convex the f_i are."""
    scheme = rs.Scheme(0, 2, 1, ETA)
    assert rs.explain(scheme, squares()).theorem is None
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 3)))
    assert rs.solve(squares(), scheme, rounds=100, start=start).history.residual.iloc[-1] > 0.1


def test_steps_above_two_over_l_have_no_theorem() -> None:
    top = 2 / float(squares().lipschitz.mean())
    assert rs.explain(rs.fedavg(0.99 * top), squares()).theorem is not None
    assert rs.explain(rs.fedavg(1.01 * top), squares()).theorem is None
    assert rs.explain(rs.fedavg(0.99 * top), squares(), 0.5).theorem is None  # there the steepest user counts
    assert "eta < 2/L" in (rs.explain(rs.fedavg(1.0)).theorem or "")
    assert rs.explain(rs.Scheme(-1, 1, 0.5, ETA, beyond=True), squares()).theorem is None


def test_effective_steps_below_zero_are_no_envelopes() -> None:
    said = rs.explain(rs.Scheme(2.5, 2.5, 0.1, ETA, beyond=True), squares())
    assert (said.solves, said.theorem) == (NEITHER, None)


def test_acceleration_has_no_theorem_of_its_own() -> None:
    said = rs.explain(rs.fedpi(ETA), squares(), anderson=2)
    assert said.theorem is None
    assert "without it: Douglas-Rachford" in str(said)
    assert said.findings == ()


# --- operators state their own law -----------------------------------------------------------------------------------


class Damped:
    """An operator of a user's: half a prox, which states what its fixed points solve."""

    needs, forward, certifies = frozenset({"prox"}), False, None

    def bind(self, problem: Any, steady: bool) -> Any:
        raise NotImplementedError

    def law(self, alpha: float, beta: float, eta: float, users: UserFacts) -> Law:
        return rs.ExactProx().law(alpha, beta, 3 * eta, users)._replace(steps=(7,))


class Silent(Damped):
    """The same, but it states nothing."""

    law = None  # type: ignore[assignment]


def test_explain_asks_the_operator_and_guesses_nothing() -> None:
    said = rs.explain(rs.fedprox(ETA, local=Damped()), squares())
    assert (said.solves, said.exactly, said.error) == (REGULARISED, True, 0.0)
    assert said.eta_eff == pytest.approx(3 * ETA)
    assert said.theorem is not None
    less = rs.explain(rs.fedprox(ETA, local=Silent()), squares())
    assert (less.solves, less.exactly, less.eta_eff) == (REGULARISED, False, ETA)
    assert (less.theorem, less.why) == (None, "no theorem covers an inexact prox")


def test_no_operator_is_known_by_its_type() -> None:
    for path in Path(rs.theory.__file__).parent.glob("*.py"):
        assert not re.search(r"\b(ExactProx|NewtonProx|GradientProx|GradientSteps)\b", _code(path)), path.name


def _code(path: Path) -> str:
    """A module's source without its texts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return " ".join(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def test_networks_are_advised_only_what_they_can_do() -> None:
    def advice(problem: rs.Neural | rs.LeastSquares, lr: float) -> str:
        scheme = rs.fedpi(eta=0.1, local=rs.GradientProx(steps=5, lr=lr))
        return " ".join(finding.advice for finding in rs.explain(scheme, problem).findings)

    x, y = torch.randn(8, 3), torch.tensor([0, 1] * 4)
    network = rs.Neural(torch.nn.Linear(3, 2), [(x, y), (x, y)])
    squares = rs.make_least_squares(users=2, dim=3, rows=5)
    for lr in (0.01, 100.0):
        assert "take more local steps" in advice(network, lr)
        assert "Prox" not in advice(network, lr)
        assert "rs.NewtonProx" in advice(squares, lr)
