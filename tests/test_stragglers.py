"""rs.Stragglers: answers that take time, against a loop written by hand, and what a run with them keeps."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.engines.in_process import InProcess
from resolvent.iteration import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def squares(users: int = 6, seed: int = 0) -> rs.LeastSquares:
    return rs.make_least_squares(users=users, dim=3, rows=8, seed=seed)


def by_hand(problem: Any, who: rs.Stragglers, alpha: float, beta: float, gamma: float, eta: float, rounds: int) -> Any:
    """Events in a heap, users in plain lists. Models, clocks and how many answered, one per round."""
    m, d = problem.users, problem.dim
    lam = problem.weights.numpy()
    u, p, sent = np.zeros((m, d)), np.zeros((m, d)), np.zeros((m, d))
    seen, at_work, clock = [False] * m, [False] * m, 0.0
    events: list[tuple[float, int, Any, Any]] = []
    found = []
    for t in range(rounds):
        takes = who.seconds(5, t, m)
        for i in range(m):
            if not at_work[i]:
                at = sent[i] if seen[i] else u[i]
                answer = problem.prox(torch.tensor(np.tile(at, (m, 1))), eta)[i].numpy()
                heapq.heappush(events, (clock + takes[i], i, at.copy(), answer))
                at_work[i] = True
        came = 0
        while came < int(np.ceil(who.close * m)):
            clock, i, at, answer = heapq.heappop(events)
            u[i], p[i], seen[i], at_work[i] = at, answer, True, False
            came += 1
        z = (1 - alpha) * u + alpha * p
        share = lam * seen
        w = share @ z / share.sum()
        sent = (1 - gamma) * u + gamma * ((1 - beta) * z + beta * w)
        found.append((w, clock, came))
    return [np.array(part) for part in zip(*found, strict=True)]


@pytest.mark.parametrize("scheme", [rs.fedpi(0.1), rs.fedsplit(0.1), rs.fedprox(0.1), rs.fedrp(0.1)], ids=str)
@pytest.mark.parametrize("close", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("times", [20.0, [1, 1, 2, 3, 50, 9]], ids=["factor", "given"])
def test_against_a_loop_by_hand(scheme: rs.Scheme, close: float, times: Any) -> None:
    problem, who = squares(), rs.Stragglers(times, close=close)
    models: list[Any] = []
    run = rs.solve(problem, scheme, rounds=40, seed=5, participation=who, callback=lambda r: models.append(r.model[0]))
    expected, clock, came = by_hand(problem, who, *scheme.mixing(0), 0.1, 40)
    np.testing.assert_allclose(np.stack(models), expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(run.history.clock, clock, rtol=1e-12)
    assert run.history.participants.tolist() == came.tolist()


@pytest.mark.parametrize("scheme", [rs.fedpi(0.05), rs.fedsplit(0.05), rs.fedpi("auto")], ids=str)
@pytest.mark.parametrize("factor", [10.0, 30.0])
def test_late_answers_do_not_move_the_solution(scheme: rs.Scheme, factor: float) -> None:
    run = rs.solve(squares(20), scheme, rounds=1500, participation=rs.Stragglers(factor, close=0.3))
    assert float(run.history.gap.iloc[-1]) < 1e-20
    assert float(run.history.stationarity.iloc[-1]) < 1e-9


def test_absolute_deviations_get_there_too() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((40, 5))
    problem = rs.AbsoluteDeviations(A, A @ rng.standard_normal(5) + rng.standard_normal(40))
    run = rs.solve(problem, rs.fedpi(0.1), rounds=3000, participation=rs.Stragglers(30.0), every=1000)
    gaps = run.history.gap.tolist()
    begun = problem.gap(torch.zeros(1, 5, dtype=torch.float64))
    assert begun is not None
    first = float(begun)
    assert gaps[-1] < 1e-3 * first
    assert gaps[-1] < gaps[0]


def test_not_waiting_for_the_slowest_pays() -> None:
    """The gap after the same simulated time; a synchronous round waits for the slowest user."""
    problem, eta = squares(20), 0.05
    waits, goes_on = (
        rs.solve(problem, rs.fedpi(eta), rounds=400, participation=rs.Stragglers(30.0, close=close)).history
        for close in (1.0, 0.5)
    )
    time = float(goes_on.clock.iloc[-1])
    assert float(goes_on.gap.iloc[-1]) < 1e-3 * float(waits.gap[waits.clock <= time].iloc[-1])


@pytest.mark.parametrize("eta", [0.1, "auto", rs.schedules.halving(0.4, period=7)], ids=str)
@pytest.mark.parametrize("problem", [squares(), rs.make_logistic(users=4, dim=3, rows=20)], ids=["squares", "logistic"])
def test_a_resumed_run_has_the_same_bits(problem: Any, eta: Any) -> None:
    """What is under way, and the clock, are part of the State."""
    more: dict[str, Any] = {"participation": rs.Stragglers(8.0, close=0.4), "seed": 1}
    whole = rs.solve(problem, rs.fedpi(eta), rounds=30, **more)
    for cut in (1, 8, 19):
        half = rs.solve(problem, rs.fedpi(eta), rounds=cut, **more)
        state = checkpoint.unpack(*checkpoint.pack(half.state))
        rest = rs.solve(problem, rs.fedpi(eta), rounds=30 - cut, start=state, **more)
        assert torch.equal(whole.state.u, rest.state.u)
        assert torch.equal(whole.state.w, rest.state.w)
        assert rest.history.clock.tolist() == whole.history.clock.tolist()[cut:]


@pytest.mark.parametrize("who", [None, rs.Bernoulli(0.5), rs.FixedSize(2)], ids=str)
@pytest.mark.parametrize("problem", [squares(), rs.make_logistic(users=4, dim=3, rows=20)], ids=["squares", "logistic"])
def test_a_run_with_delays_goes_on_without_them_and_back(problem: Any, who: Any) -> None:
    late = rs.Stragglers(8.0, close=0.4)
    half = rs.solve(problem, rs.fedpi(0.1), rounds=9, participation=late)
    prompt = rs.solve(problem, rs.fedpi(0.1), rounds=2000, start=half.state, participation=who)
    assert float(prompt.history.gap.iloc[-1]) < 1e-12
    assert not [name for name in prompt.state.memory if name.startswith("delayed.")]
    again = rs.solve(problem, rs.fedpi(0.1), rounds=5, start=prompt.state, participation=late)
    assert again.history.clock.iloc[0] > 0


def test_a_late_answer_belongs_to_today_s_eta() -> None:
    """Every pair of the State is a prox at the eta of the round, whenever the question was asked."""
    problem = squares()

    def pairs_fit(happened: rs.Round) -> None:
        state = happened.state
        if state.complete:
            torch.testing.assert_close(problem.prox(state.u, happened.eta), state.p, rtol=1e-8, atol=1e-10)

    scheme = rs.fedpi(rs.schedules.halving(0.4, period=5))
    rs.solve(problem, scheme, rounds=40, participation=rs.Stragglers(20.0, close=0.4), callback=pairs_fit)


def test_slow_users_stay_slow_and_times_scatter_around_theirs() -> None:
    who = rs.Stragglers(100.0, spread=0.3)
    times = np.array([who.seconds(0, t, 50) for t in range(2000)])
    centre = np.exp(np.log(times).mean(0))
    assert centre.min() * 1.1 >= 1
    assert centre.max() <= 110
    assert centre.max() / centre.min() > 20
    np.testing.assert_allclose(np.log(times).std(0), 0.3, rtol=0.1)
    np.testing.assert_allclose(rs.Stragglers([1.0, 3.0], spread=0).seconds(0, 4, 2), [1, 3])


SLOW: Any = "slow"
CLASS: Any = InProcess


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rs.Stragglers(0.5), "times is 0.5, but a factor >= 1"),
        (lambda: rs.Stragglers([1, -1]), "a finite number > 0 per user"),
        (lambda: rs.Stragglers("slow"), "times is 'slow'"),
        (lambda: rs.Stragglers(2, close=0), r"close is 0, but a share in \(0, 1\]"),
        (lambda: rs.Stragglers(2, spread=-1), "spread is -1"),
        (lambda: rs.Stragglers(2, spread=1000.0), r"spread is 1000.0, but a number in \[0, 10\]"),
        (lambda: rs.Stragglers(1e308), "up to 1e\\+100"),
        (lambda: rs.Stragglers(True), "times is True"),
        (lambda: rs.Stragglers(2, close=SLOW), "close is 'slow'"),
        (lambda: rs.Stragglers(2, spread=SLOW), "spread is 'slow'"),
        (lambda: rs.Momentum(SLOW), "theta is 'slow'"),
        (lambda: rs.solve(squares(), rs.fedpi(0.1), engine=CLASS), "engine is"),
        (
            lambda: rs.solve(squares(), rs.fedpi(0.1), engine=InProcess(squares(seed=1), rs.ExactProx())),
            "the engine has its own users",
        ),
        (lambda: rs.solve(squares(), rs.fedpi(0.1), participation=rs.Stragglers([1, 2])), "the problem has 6 users"),
    ],
)
def test_bad_input(make: Any, words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        make()
