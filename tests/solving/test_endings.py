"""Ctrl-C and divergence: how a run ends early, and what is handed back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.engines.in_process import InProcess
from resolvent.iteration import checkpoint
from solving_cases import logistic, quietly, same_bits, squares

# --- Ctrl-C and divergence -------------------------------------------------------------------------------------------


class Impatient(InProcess):
    """Somebody presses Ctrl-C while users compute."""

    left = 4

    def local(self, *asked: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().local(*asked)


def in_the_callback(problem: Any, **more: Any) -> rs.Run:
    def callback(happened: rs.Round) -> None:
        if happened.number == 4:
            raise KeyboardInterrupt

    return rs.solve(problem, rs.fedpi(0.3), rounds=50, callback=callback, **more)


def while_users_compute(problem: Any, **more: Any) -> rs.Run:
    engine = Impatient(problem, rs.NewtonProx())
    return rs.solve(problem, rs.fedpi(0.3), rounds=50, engine=engine, **more)


@quietly
@pytest.mark.parametrize("pressed", [in_the_callback, while_users_compute])
@pytest.mark.parametrize(
    "more",
    [{}, {"anderson": 2}, {"participation": rs.FixedSize(2)}],
    ids=["plain", "anderson", "sampled"],
)
def test_an_interrupted_run_goes_on_to_the_same_bits(pressed: Callable[..., rs.Run], more: dict[str, Any]) -> None:
    run = pressed(logistic(), **more)
    assert (run.status, run.state.round) == ("interrupted", 4)
    assert "4" in run.reason
    assert run.history["round"].tolist() == [1, 2, 3, 4]
    rest = rs.solve(logistic(), rs.fedpi(0.3), rounds=8, start=run.state, **more)
    same_bits(rest.state, rs.solve(logistic(), rs.fedpi(0.3), rounds=12, **more).state)


def test_an_interrupt_before_the_first_round_ends_gives_the_start() -> None:
    engine = Impatient(squares(), rs.ExactProx())
    engine.left = 0
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=5, engine=engine, start=torch.ones(4, dtype=torch.float64))
    assert (run.status, run.state.round, len(run.history)) == ("interrupted", 0, 0)
    assert torch.equal(run.model, torch.ones(4, dtype=torch.float64))
    assert run.personal.shape == (6, 4)
    assert "interrupted" in repr(run)


@pytest.mark.filterwarnings("ignore::resolvent.errors.MayNotConverge")
@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        pytest.param(rs.fedavg(1.0), {}, id="fedavg"),
        pytest.param(rs.fedavg(1.0), {"every": 100}, id="seldom_looked_at"),
        pytest.param(rs.reflect_gradient(1.0), {}, id="reflect_gradient"),
        pytest.param(rs.fedavg(0.3), {"participation": rs.Bernoulli(0.5)}, id="sampled"),
    ],
)
@pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem")
def test_divergence_is_noticed_named_and_the_best_state_handed_back(scheme: rs.Scheme, more: dict[str, Any]) -> None:
    with pytest.warns(rs.DivergenceWarning, match=f"{scheme.name} diverged by round") as caught:
        run = rs.solve(squares(), scheme, rounds=1000, **more)
    named = [str(w.message) for w in caught if w.category is rs.DivergenceWarning]
    assert (run.status, [run.reason]) == ("diverged", named)
    assert int(run.reason.split("by round ")[1].split(":")[0]) <= 20
    assert run.state.round < 15
    tensors, _ = checkpoint.pack(run.state)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert bool(torch.isfinite(run.model).all())
    assert f"round {run.state.round}" in run.reason
    rest = rs.solve(squares(), rs.fedavg(0.01), rounds=300, start=run.state)
    assert rest.status == "finished"


@quietly
def test_nan_from_a_user_is_divergence_and_the_start_is_kept() -> None:
    broken = rs.Custom(2, 1, prox=[lambda u, eta: u / 2, lambda u, eta: u * math.nan], check=False)
    run = rs.solve(broken, rs.fedpi(1.0), rounds=50, start=[3.0])
    assert (run.status, run.state.round) == ("diverged", 0)
    assert torch.equal(run.model, torch.tensor([3.0], dtype=torch.float64))


@pytest.mark.parametrize("eta", [1e-7, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("scheme", [rs.fedpi, rs.fedprox, rs.fedsplit, rs.fedrp])
@quietly
def test_a_prox_scheme_is_never_called_divergent(scheme: Callable[[float], rs.Scheme], eta: float) -> None:
    assert rs.solve(squares(), scheme(eta), rounds=300, every=50).status == "finished"


@quietly
def test_first_rounds_that_move_nothing_are_no_yardstick() -> None:
    """The first user asked is content with the start, so that the first residual is zero."""
    apart = rs.Quadratics([1.0, 1.0], [[0.0], [5.0]])
    for scheme in (rs.fedpi(1.0), rs.fedprox(1.0)):
        run = rs.solve(apart, scheme, rounds=100, participation=rs.Trace([[1, 0], [0, 1]]))
        assert (run.status, run.reason) == ("finished", "100 rounds")
    sets = rs.Indicators([rs.Halfspace([1.0, 0.0], 2.0), rs.Halfspace([-1.0, 0.0], -1.0)])
    run = rs.solve(sets, rs.fedpi(1.0), rounds=200, participation=rs.FixedSize(1), start=[0.0, 0.0])
    assert (run.status, run.reason) == ("finished", "200 rounds")


@quietly
@pytest.mark.parametrize("idle", [1, 9])
def test_a_first_visit_may_tell_how_far_away_the_solution_is(idle: int) -> None:
    """Values are unknown, and the user who pulls at all comes after many rounds in which nothing moved."""
    blind = rs.Custom(2, 1, prox=[lambda u, eta: u / (1 + eta), lambda u, eta: (u + eta * 1e8) / (1 + eta)])
    who = rs.Trace([[1, 0]] * idle + [[0, 1]])
    run = rs.solve(blind, rs.fedpi(1.0), rounds=400, participation=who, start=[0.0])
    assert (run.status, run.reason) == ("finished", "400 rounds")
    assert float(run.model) == pytest.approx(5e7, rel=1e-6)


RUNAWAY = rs.LeastSquares([[[1.0, 0.3]], [[1.0, 0.4]]], [[1.0], [0.0]])


@quietly
@pytest.mark.parametrize("every", [1, 1000])
def test_an_eta_that_runs_away_is_divergence_whoever_chose_it(every: int) -> None:
    """Residuals over eta stay small, and steps are as long as eta says: f alone tells."""
    run = rs.solve(RUNAWAY, rs.fedpi(lambda t: 4.0 ** min(t, 45)), rounds=120, every=every)
    assert run.status == "diverged"
    assert "the value rose from 0.25 to" in run.reason
    assert float(RUNAWAY.gap(run.model[None])) < 0.25


@quietly
def test_what_is_handed_back_of_a_run_that_diverged_is_its_best_and_the_row_shown_is_its_own() -> None:
    steep = rs.LeastSquares([np.diag([1.0, 0.1])], [np.ones(2)])
    run = rs.solve(steep, rs.fedavg(2.2), rounds=500, start=[1 + 1e-6, 5.0])  # one coordinate comes, the other goes
    table = run.history
    best: Any = table.value.idxmin()
    assert run.status == "diverged"
    assert 20 < run.state.round == table["round"][best] < 100
    assert float(steep.value(run.model[None])[0]) == pytest.approx(table.value[best], rel=1e-12)
    assert f"the state after round {run.state.round}, of value {table.value[best]:.6g}, is handed back" in run.reason
    assert f"value {table.value[best]:.3g}, gap {table.gap[best]:.3g}" in repr(run)
    assert table["round"].iloc[-1] > run.state.round  # the history has all rows
    again = rs.solve(steep, rs.fedavg(1.0), rounds=200, start=run.state)
    assert (again.status, again.state.round) == ("finished", run.state.round + 200)


@quietly
def test_without_values_the_best_state_is_that_of_the_smallest_residual() -> None:
    blind = rs.Custom(2, 2, grad=lambda W: W * torch.tensor([1.0, 0.1], dtype=W.dtype))
    run = rs.solve(blind, rs.fedavg(2.2), rounds=500, start=[1e-6, 5.0])
    assert run.status == "diverged"
    assert run.state.round == run.history["round"][run.history.residual.idxmin()]  # type: ignore[call-overload]
    assert f"of residual {run.history.residual.min():.3g}, is handed back" in run.reason


@quietly
def test_a_run_in_parts_is_judged_by_where_it_began() -> None:
    """Each part for itself would see nothing: in ten rounds u grows six-fold."""
    problem, scheme = rs.LeastSquares([[[1.0]]], [[1.0]]), rs.fedavg(2.2)
    whole = rs.solve(problem, scheme, rounds=500, start=[0.0])
    state: Any = [0.0]
    for _ in range(50):
        part = rs.solve(problem, scheme, rounds=10, start=state)
        state = part.state
        if part.status == "diverged":
            break
    assert part.status == whole.status == "diverged"
    assert part.reason.split(";")[0] == whole.reason.split(";")[0]


@quietly
def test_the_last_rounds_are_looked_at_too() -> None:
    """f overflows in round 3, of which u knows nothing before round 4."""
    steep = rs.Custom(
        1, 1, value=lambda W: torch.exp(5 * W.abs()).sum(1), grad=lambda W: 5 * W.sign() * torch.exp(5 * W.abs())
    )
    for rounds in (1, 2, 3, 4):
        run = rs.solve(steep, rs.fedavg(1.0), rounds=rounds, start=[1.0])
        assert run.status == "diverged"
        assert float(run.model) == 1.0


@quietly
@pytest.mark.parametrize("rounds", range(6, 10))
def test_nan_in_the_last_rounds_is_divergence_whatever_their_number(rounds: int) -> None:
    blind = rs.Custom(1, 1, grad=lambda W: W * (math.nan if float(W[0, 0]) < 0.6 else 1.0))  # from round 6 on
    run = rs.solve(blind, rs.fedavg(0.1), rounds=rounds, start=[1.0])
    assert (run.status, run.state.round) == ("diverged", 5)
    assert bool(run.model.isfinite())


def test_a_run_that_ends_above_where_it_began_says_so() -> None:
    """FedProx solves another problem: from the minimiser of this one it can only rise. A fact, not an error."""
    with (
        pytest.warns(rs.SolvesAnotherProblem),
        pytest.warns(rs.DoubtfulResult, match="FedProx finished after 50 rounds"),
    ):
        run = rs.solve(squares(), rs.fedprox(0.1), rounds=50, start=squares().minimiser)
    first, last = float(squares().fstar), run.history.value.iloc[-1]
    assert (run.status, run.reason) == ("finished", f"50 rounds; the value rose from {first:.6g} to {last:.6g}")
    with pytest.warns(rs.SolvesAnotherProblem):
        assert rs.solve(squares(), rs.fedprox(0.1), rounds=50).reason == "50 rounds"
    assert rs.solve(squares(), rs.fedpi(0.1), rounds=50, start=squares().minimiser).reason == "50 rounds"


@quietly
def test_an_indicator_that_is_infinite_at_the_end_has_not_diverged() -> None:
    """f may be infinite a hair's breadth outside a set which the models come to from outside."""
    low = lambda x: torch.where(x[..., 0] >= 1, 0.0, torch.inf).to(x)  # noqa: E731
    users = rs.Custom(
        2,
        1,
        value=[low, lambda x: x.square().sum(-1) / 2],
        prox=[lambda u, eta: u.clamp_min(1), lambda u, eta: u / (1 + eta)],
    )
    run = rs.solve(users, rs.fedpi(1.0), rounds=20, start=[2.0])
    assert run.status == "finished"
    assert float(run.model) == pytest.approx(1, abs=1e-2)
    assert (run.history.value.iloc[-1], run.reason) == (math.inf, "20 rounds; the value rose from 1 to inf")


@pytest.mark.parametrize("scheme", [rs.fedpi(1.0), rs.fedprox(1.0), rs.fedsplit(1.0)], ids=str)
@quietly
def test_sets_that_do_not_meet_are_named(scheme: rs.Scheme) -> None:
    halves = rs.Indicators([rs.Halfspace([1.0, 0.0], 0.0), rs.Halfspace([-1.0, 0.0], -2.0)])
    run = rs.solve(halves, scheme, rounds=500, start=[0.3, 0.4])
    assert run.status == "finished"
    assert "the sets do not meet, or only far away: the users' points stay 1 apart (root mean square)" in run.reason
    meet = rs.Indicators([rs.Halfspace([1.0, 0.0], 2.0), rs.Halfspace([-1.0, 0.0], -2.0)])
    assert rs.solve(meet, scheme, rounds=500, start=[0.3, 0.4]).reason == "500 rounds"


@quietly
@pytest.mark.parametrize("company", [rs.Bernoulli(0.5), rs.FixedSize(1)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_sets_that_do_not_meet_are_named_whoever_came_how_often(company: Any, seed: int) -> None:
    """Users who come more often are pushed farther, so that what pushes them is not in balance."""
    walls = [rs.Halfspace([1.0, 0.0], 0.0), rs.Halfspace([-1.0, 1.0], -1.0), rs.Halfspace([-0.5, -1.0], -1.0)]
    room = [rs.Halfspace([1.0, 0.0], 2.0), rs.Halfspace([-1.0, 1.0], 1.0), rs.Halfspace([-0.5, -1.0], 1.0)]
    how: dict[str, Any] = {"rounds": 300, "every": 100, "participation": company, "seed": seed, "start": [9.0, -9.0]}
    named = "the sets do not meet, or only far away"
    assert named in rs.solve(rs.Indicators(walls), rs.fedpi(1.0), **how).reason
    assert rs.solve(rs.Indicators(room), rs.fedpi(1.0), **how).reason == "300 rounds"


@quietly
def test_multiples_of_normals_that_are_not_found_end_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def given_up(*_: Any) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", given_up)
    halves = rs.Indicators([rs.Halfspace([1.0, 0.0], 0.0), rs.Halfspace([-1.0, 0.0], -2.0)])
    assert "the sets do not meet" in rs.solve(halves, rs.fedpi(1.0), rounds=100, start=[0.3, 0.4]).reason
