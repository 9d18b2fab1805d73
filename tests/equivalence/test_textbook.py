"""Every algorithm against the loop the paper prints, iterate by iterate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resolvent as rs
import textbook
from textbook import DIM, WEIGHTS, Array, Grand

pytestmark = [
    pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem"),
    pytest.mark.filterwarnings("ignore::resolvent.errors.MayNotConverge"),
    pytest.mark.filterwarnings("ignore::resolvent.errors.DoubtfulResult"),  # a few rounds may end above the start
]

USERS = len(WEIGHTS)
ETA = {"squares": 0.02, "logits": 0.3}
"""Below 2/L for both problems, and large enough that every method is well on its way after twenty rounds."""
SEEDS = (0, 1, 2)
KINDS = ("squares", "logits")
close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}


def problem_of(kind: str, seed: int) -> tuple[Any, list[Any]]:
    """The same users twice: as a problem, and as the textbook's."""
    users = getattr(textbook, kind)(seed)
    build = rs.LeastSquares if kind == "squares" else rs.Logistic
    return build(*textbook.data(users), weights=WEIGHTS), users


def start(seed: int, rows: bool = True) -> Array:
    """Where users start: apart, or together but not at zero."""
    rng = np.random.default_rng(1000 + seed)
    return rng.standard_normal((USERS, DIM)) if rows else np.tile(rng.standard_normal(DIM), (USERS, 1))


def record(problem: Any, scheme: rs.Scheme, rounds: int, **how: Any) -> list[rs.Round]:
    seen: list[rs.Round] = []
    rs.solve(problem, scheme, rounds=rounds, callback=seen.append, **how)
    return seen


def asked_at(happened: rs.Round) -> Array:
    return happened.state.u.expand(USERS, -1).numpy()


def left_at(happened: rs.Round) -> Array:
    """u after the round; in an empty round, where nothing happens, that of the round before."""
    ahead = happened.state.u if happened.state.next is None else happened.state.next
    return ahead.expand(USERS, -1).numpy()


def agree(
    run: list[rs.Round], loop: textbook.Rounds, u: Callable[[rs.Round], Array] = left_at, **tolerance: float
) -> None:
    """Models and rows u of every round are those of the loop."""
    for happened, (model, rows) in zip(run, islice(loop, len(run)), strict=True):
        message = f"round {happened.number}"
        np.testing.assert_allclose(happened.model[0].numpy(), model, err_msg=message, **(close | tolerance))
        np.testing.assert_allclose(u(happened), rows, err_msg=message, **(close | tolerance))


# --- the rows of Table 1 ---------------------------------------------------------------------------------------------

NAMED: dict[str, tuple[Callable[[float], rs.Scheme], Callable[..., textbook.Rounds]]] = {
    "fedavg": (rs.fedavg, textbook.fedavg),
    "fedavg 4": (lambda eta: rs.fedavg(eta, steps=4), lambda *a: textbook.fedavg(*a, steps=4)),  # type: ignore[misc]
    "fedprox": (rs.fedprox, textbook.fedprox),
    "fedsplit": (rs.fedsplit, textbook.fedsplit),
    "fedpi": (rs.fedpi, textbook.fedpi),
    "fedrp": (rs.fedrp, textbook.fedrp),
    "reflect_gradient": (rs.reflect_gradient, textbook.reflect_gradient),
    "reflect_prox": (rs.reflect_prox, textbook.reflect_prox),
}
GRAND = {
    "fedavg": Grand(1, 1, 1, 0.0, textbook.descend(1)),
    "fedavg 4": Grand(1, 1, 1, 0.0, textbook.descend(4)),
    "fedprox": Grand(1, 1, 1, 0.0),
    "fedsplit": Grand(2, 2, 1, 0.0),
    "fedpi": Grand(2, 2, 0.5, 0.0),
    "fedrp": Grand(2, 1, 1, 0.0),
    "reflect_gradient": Grand(1, 2, 1, 0.0, textbook.descend(1)),
    "reflect_prox": Grand(1, 2, 1, 0.0),
}
"""Table 1 once more, for the loops that take any scheme; eta is filled in by `grand_of`."""


def grand_of(name: str, eta: float) -> Grand:
    row = GRAND[name]
    return Grand(row.alpha, row.beta, row.gamma, eta, row.local)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMED)
def test_named_rows(name: str, kind: str, seed: int) -> None:
    scheme, loop = NAMED[name]
    problem, users = problem_of(kind, seed)
    u = start(seed, rows=seed != 0)  # together once, apart otherwise
    agree(record(problem, scheme(ETA[kind]), 20, start=u), loop(users, WEIGHTS, u, ETA[kind]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fedavg", "fedavg 4", "fedprox", "fedrp"])
def test_one_shared_vector(name: str, kind: str) -> None:
    """Users who start together and project carry one vector; rows do the same, only more slowly."""
    scheme, loop = NAMED[name]
    problem, users = problem_of(kind, 3)
    u = start(3, rows=False)
    shared = record(problem, scheme(ETA[kind]), 15, start=u[0])
    rows = record(problem, scheme(ETA[kind]), 15, start=u)
    assert shared[-1].state.u.shape == (1, DIM)
    assert rows[-1].state.u.shape == (USERS, DIM)
    agree(shared, loop(users, WEIGHTS, u, ETA[kind]))
    agree(rows, loop(users, WEIGHTS, u, ETA[kind]))
    for one, many in zip(shared, rows, strict=True):  # the users' answers are never formed, but their spread is known
        for metric in ("residual", "consensus", "stationarity"):
            assert getattr(one, metric) == pytest.approx(getattr(many, metric), rel=1e-7, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("absent", ["hold", "paper"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMED)
def test_history_says_what_the_rounds_say(name: str, kind: str, absent: Any) -> None:
    """It reads many rounds at a time: through changes of eta, empty rounds and full ones."""
    problem, _ = problem_of(kind, 3)
    scheme = NAMED[name][0](rs.schedules.halving(ETA[kind], 4))  # type: ignore[arg-type]
    for who in (None, rs.Trace(some_masks(3), absent=absent)):
        seen: list[rs.Round] = []
        history = rs.solve(problem, scheme, rounds=14, participation=who, callback=seen.append).history
        for metric in ("residual", "consensus", "stationarity"):
            expected = [getattr(happened, metric) for happened in seen]
            np.testing.assert_allclose(history[metric], expected, rtol=1e-9, atol=1e-12)
        assert history["eta"].tolist() == [happened.eta for happened in seen]


@pytest.mark.parametrize("who", [None, rs.Bernoulli(0.6, absent="paper")], ids=["everyone", "some"])
@pytest.mark.parametrize("together", [True, False])
def test_going_on_is_never_having_stopped(together: bool, who: Any) -> None:
    """Whichever of the two is carried, also by users who started apart: rounds, steps and models go on."""
    problem, _ = problem_of("squares", 3)
    u, scheme = start(3, rows=not together), rs.fedprox(rs.schedules.harmonic(0.1))
    whole = record(problem, scheme, 12, start=u[0] if together else u, participation=who)
    half = record(problem, scheme, 6, start=u[0] if together else u, participation=who)
    rest = record(problem, scheme, 6, start=half[-1].state, participation=who)
    assert [happened.number for happened in rest] == [7, 8, 9, 10, 11, 12]
    for happened, uninterrupted in zip(rest, whole[6:], strict=True):
        np.testing.assert_array_equal(happened.model, uninterrupted.model)


# --- the grand scheme ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    alpha=st.floats(0, 2),
    beta=st.one_of(st.floats(0, 2), st.just(1.0)),
    gamma=st.floats(0, 1),
    eta=st.floats(1e-3, 10),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 5),
    together=st.booleans(),
)
def test_any_prox_scheme(
    alpha: float, beta: float, gamma: float, eta: float, kind: str, seed: int, together: bool
) -> None:
    problem, users = problem_of(kind, seed)
    u = start(seed, rows=not together)
    run = record(problem, rs.Scheme(alpha, beta, gamma, eta), 6, start=u[0] if together else u)
    agree(run, textbook.grand(users, WEIGHTS, u, Grand(alpha, beta, gamma, eta)), rtol=1e-7, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(
    alpha=st.floats(0, 2),
    beta=st.floats(0, 2),
    gamma=st.floats(0, 1),
    steps=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 5),
)
def test_any_gradient_scheme(alpha: float, beta: float, gamma: float, steps: int, kind: str, seed: int) -> None:
    problem, users = problem_of(kind, seed)
    u, eta = start(seed), ETA[kind]
    scheme = rs.Scheme(alpha, beta, gamma, eta, rs.GradientSteps(steps))
    agree(
        record(problem, scheme, 6, start=u),
        textbook.grand(users, WEIGHTS, u, Grand(alpha, beta, gamma, eta, textbook.descend(steps))),
    )


SCHEDULES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "harmonic": (rs.schedules.harmonic(0.1), lambda t: 0.1 / (t + 1)),
    "inverse_sqrt": (rs.schedules.inverse_sqrt(0.1), lambda t: 0.1 / np.sqrt(t + 1)),
    "inverse_log": (rs.schedules.inverse_log(0.1), lambda t: 0.1 / (np.log10(t + 1) + 1)),
    "natural log": (rs.schedules.inverse_log(0.1, natural=True), lambda t: 0.1 / np.log(t + np.e)),
    "halving": (rs.schedules.halving(0.1, 3), lambda t: 0.1 / 2 ** (t // 3)),
    "callable": (lambda t: 0.05 + 0.04 * (-1) ** t, lambda t: 0.05 + 0.04 * (-1) ** t),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("scheme", "loop"), [(rs.fedprox, textbook.fedprox), (rs.fedrp, textbook.fedrp)])
def test_schedules_of_eta(scheme: Any, loop: Any, name: str, kind: str) -> None:
    problem, users = problem_of(kind, 4)
    given_eta, eta = SCHEDULES[name]
    u = start(4)
    agree(record(problem, scheme(given_eta), 12, start=u), loop(users, WEIGHTS, u, eta))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("gamma", [0.5, 1.0, 0.8])
def test_schedules_of_eta_where_the_solution_does_not_depend_on_it(gamma: float, name: str) -> None:
    """alpha = beta = 2: every change of eta keeps p and g."""
    problem, users = problem_of("squares", 4)
    given_eta, eta = SCHEDULES[name]
    u = start(4)
    run = record(problem, rs.Scheme(2, 2, gamma, given_eta), 12, start=u)
    agree(run, textbook.rescaled(users, WEIGHTS, u, eta, gamma), asked_at)


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_of_everything(kind: str) -> None:
    problem, users = problem_of(kind, 5)
    numbers = (lambda t: 2 / (t + 1), lambda t: 1 + (t % 2) / 2, lambda t: 1 - 0.1 * (t % 3), lambda t: 0.1 / (t + 1))
    u = start(5)
    run = record(problem, rs.Scheme(*numbers), 9, start=u)
    agree(run, textbook.grand(users, WEIGHTS, u, Grand(*numbers)))


# --- other forms of the same thing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_fedpi_is_admm(kind: str) -> None:
    """(eq:pi-1..3) with v = w + dual is (eq:DR); the dual stays orthogonal to consensus."""
    problem, users = problem_of(kind, 6)
    u = start(6)
    run = record(problem, rs.fedpi(ETA[kind]), 25, start=u)
    for happened, (w, dual) in zip(run, textbook.admm(users, WEIGHTS, u, ETA[kind]), strict=False):
        np.testing.assert_allclose(left_at(happened), w + dual, **close)
        # In our letters w is mean(p), and the dual what is left of the next u.
        ours = left_at(happened) - WEIGHTS @ happened.state.p.numpy()
        np.testing.assert_allclose(ours, dual, **close)
        np.testing.assert_allclose(WEIGHTS @ ours, 0, atol=1e-11)


def test_fedprox_is_gradient_descent_on_the_envelopes() -> None:
    problem, users = problem_of("squares", 7)
    eta, w = 0.1, start(7, rows=False)[0]
    for happened in record(problem, rs.fedprox(eta), 20, start=w):
        slope = sum(weight * f.envelope_grad(w, eta) for weight, f in zip(WEIGHTS, users, strict=True))
        w = w - eta * slope
        np.testing.assert_allclose(happened.model[0].numpy(), w, **close)


def test_fedprox_is_gradient_descent_on_the_envelopes_of_logistic_losses() -> None:
    """With the gradient taken by differences of the envelopes' values."""
    problem, users = problem_of("logits", 7)
    eta, w, h = 0.5, start(7, rows=False)[0], 1e-5

    def f_tilde(x: Array) -> float:
        return sum(weight * textbook.envelope(f, x, eta) for weight, f in zip(WEIGHTS, users, strict=True))

    for happened in record(problem, rs.fedprox(eta), 3, start=w):
        slope = np.array([(f_tilde(w + h * e) - f_tilde(w - h * e)) / (2 * h) for e in np.eye(DIM)])
        np.testing.assert_allclose(happened.model[0].numpy(), w - eta * slope, atol=1e-8)
        w = happened.model[0].numpy()


# --- who takes part --------------------------------------------------------------------------------------------------


def some_masks(seed: int, rounds: int = 14) -> Any:
    """Random presence with an empty round, a full one and one with a single user; everybody is there at some time."""
    masks = np.random.default_rng(seed).random((rounds, USERS)) < 0.5
    masks[0, 0] = True  # somebody is there at the beginning (for an empty beginning there is a test of its own)
    masks[3], masks[6] = False, True
    masks[9] = np.arange(USERS) == 2
    return masks


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMED)
def test_algorithm_1(name: str, kind: str, seed: int) -> None:
    problem, users = problem_of(kind, seed)
    masks, u = some_masks(seed), start(seed, rows=seed != 0)
    given_start = u if seed else u[0]
    who = rs.Trace(masks, absent="paper")
    run = record(problem, NAMED[name][0](ETA[kind]), len(masks), start=given_start, participation=who)
    assert [happened.participants for happened in run] == masks.sum(1).tolist()
    agree(run, textbook.algorithm_1(users, WEIGHTS, u, grand_of(name, ETA[kind]), masks))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMED)
def test_random_blocks(name: str, kind: str, seed: int) -> None:
    problem, users = problem_of(kind, seed)
    masks, u = some_masks(seed), start(seed, rows=seed != 0)
    run = record(problem, NAMED[name][0](ETA[kind]), len(masks), start=u, participation=rs.Trace(masks, absent="hold"))
    agree(run, textbook.held(users, WEIGHTS, u, grand_of(name, ETA[kind]), masks), asked_at)


@pytest.mark.parametrize("kind", KINDS)
def test_random_blocks_where_the_server_keeps_one_vector(kind: str) -> None:
    problem, users = problem_of(kind, 8)
    masks, u = some_masks(8, 30), start(8)
    masks[0] = True
    run = record(problem, rs.fedpi(ETA[kind]), len(masks), start=u, participation=rs.Trace(masks))
    agree(run, textbook.held_fedpi(users, WEIGHTS, u, ETA[kind], masks), asked_at)


@pytest.mark.parametrize("absent", ["hold", "paper"])
@pytest.mark.parametrize("name", ["fedprox", "fedpi"])
def test_everybody_in_every_round_is_full_participation(name: str, absent: Any) -> None:
    problem, users = problem_of("squares", 9)
    u = start(9)
    masks = np.ones((1, USERS))
    run = record(problem, NAMED[name][0](0.02), 10, start=u, participation=rs.Trace(masks, absent=absent))
    agree(run, NAMED[name][1](users, WEIGHTS, u, 0.02))


@pytest.mark.parametrize("absent", ["hold", "paper"])
@pytest.mark.parametrize("name", ["fedprox", "fedpi"])
def test_nobody_comes_at_first(name: str, absent: Any) -> None:
    """Nothing happens then, and the history says so: its rows belong to their rounds."""
    problem, _ = problem_of("squares", 9)
    u, scheme, masks = start(9), NAMED[name][0](0.02), np.ones((5, USERS))
    masks[:2] = 0
    seen: list[rs.Round] = []
    late = rs.Trace(masks, absent=absent)
    run = rs.solve(problem, scheme, rounds=5, start=u, participation=late, callback=seen.append)
    for happened in seen[:2]:
        np.testing.assert_allclose(happened.model.numpy(), [WEIGHTS @ u], rtol=1e-13)
    np.testing.assert_allclose(rs.solve(problem, scheme, 2, start=u, participation=late).model, WEIGHTS @ u, rtol=1e-13)
    plain = record(problem, scheme, 3, start=u)
    for happened, before in zip(seen[2:], plain, strict=True):
        np.testing.assert_allclose(happened.model.numpy(), before.model.numpy(), rtol=1e-13)
    averaged = rs.solve(problem, scheme, rounds=5, start=u, participation=late, average="ergodic")
    np.testing.assert_allclose(averaged.model, np.mean([now.model[0].numpy() for now in seen[2:]], 0), rtol=1e-12)
    values = [float(problem.weights @ problem.value(happened.model)) for happened in seen]
    np.testing.assert_allclose(run.history["value"], values, rtol=1e-9)
    assert run.history["participants"].tolist() == [0, 0, USERS, USERS, USERS]


# --- Anderson acceleration -------------------------------------------------------------------------------------------

ACCELERATED = ["fedavg", "fedprox", "fedsplit", "fedpi", "fedrp"]


@pytest.mark.parametrize("memory", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ACCELERATED)
def test_anderson_by_its_definition(name: str, kind: str, memory: int) -> None:
    """G^+ 1 / (1^T G^+ 1) in the lambda inner product, while the residuals are far from dependent."""
    problem, users = problem_of(kind, 10)
    raw = rs.Anderson(memory, safeguard=False, ridge=0.0)
    u, eta = start(10), ETA[kind]
    run = record(problem, NAMED[name][0](eta), 5, start=u, anderson=raw)
    loop = textbook.anderson(users, WEIGHTS, u, grand_of(name, eta), memory)
    agree(run, loop, asked_at, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("memory", [1, 2])
@pytest.mark.parametrize("name", ACCELERATED)
def test_anderson_on_the_mean_by_its_definition(name: str, memory: int) -> None:
    problem, users = problem_of("squares", 10)
    raw = rs.Anderson(memory, on="mean", safeguard=False, ridge=0.0)
    u = start(10)
    run = record(problem, NAMED[name][0](0.02), 5, start=u, anderson=raw)
    loop = textbook.anderson_on_mean(users, WEIGHTS, u, grand_of(name, 0.02), memory)
    agree(run, loop, asked_at, rtol=1e-5, atol=1e-7)


def test_anderson_on_one_shared_vector() -> None:
    """One vector and equal rows are accelerated alike; and for FedProx the mean is u."""
    problem, users = problem_of("squares", 11)
    u = start(11, rows=False)
    for on in ("u", "mean"):
        raw = rs.Anderson(2, on=on, safeguard=False, ridge=0.0)
        run = record(problem, rs.fedprox(0.02), 5, start=u[0], anderson=raw)
        assert run[-1].state.u.shape == (1, DIM)
        agree(run, textbook.anderson(users, WEIGHTS, u, grand_of("fedprox", 0.02), 2), asked_at, rtol=1e-5, atol=1e-7)


def test_anderson_uses_the_weights() -> None:
    """In the Euclidean inner product the points would be others, by far more than the tolerance above."""
    problem, _ = problem_of("squares", 10)
    u = start(10)
    run = record(problem, rs.fedpi(0.02), 4, start=u, anderson=rs.Anderson(2, safeguard=False, ridge=0.0))
    equal = np.full(USERS, 1 / USERS)
    U = np.stack([asked_at(happened) for happened in run[:3]])
    T = np.stack([happened.step[1].numpy() for happened in run[:3] if happened.step])
    ours, euclid = (np.einsum("s,sid->id", textbook.anderson_weights(U - T, lam), T) for lam in (WEIGHTS, equal))
    np.testing.assert_allclose(asked_at(run[3]), ours, rtol=1e-5, atol=1e-7)
    assert np.abs(ours - euclid).max() > 1e-2
