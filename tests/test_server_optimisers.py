"""Server optimisers: the arithmetic of Flower's strategies, and no fixed point moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

DIM, ROUNDS = 6, 12
OPTIMISERS = {
    "FedAdam": (rs.ServerAdam(0.1, 0.8, 0.95, 1e-2), {"eta": 0.1, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2}),
    "FedYogi": (rs.ServerYogi(0.1, 0.8, 0.95, 1e-2), {"eta": 0.1, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2}),
    "FedAdagrad": (rs.ServerAdagrad(0.1, tau=1e-2), {"eta": 0.1, "tau": 1e-2}),
    "FedAvgM": (rs.Momentum(0.7, on="mean"), {"server_momentum": 0.7}),
}


def flower_strategy(name: str, settings: dict[str, Any], start: Any) -> Any:
    pytest.importorskip("flwr")
    from flwr.common import ndarrays_to_parameters
    from flwr.server import strategy

    return getattr(strategy, name)(initial_parameters=ndarrays_to_parameters([start]), **settings)


def aggregated(strategy: Any, t: int, update: Any) -> Any:
    """What the strategy makes of a round in which one client answers."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

    answer = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), num_examples=1, metrics={})
    parameters, _ = strategy.aggregate_fit(t, [(None, answer)], [])
    (point,) = parameters_to_ndarrays(parameters)
    return point


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_arithmetic_is_flowers_on_the_same_updates(name: str) -> None:
    ours, settings = OPTIMISERS[name]
    rng = np.random.default_rng(0)
    at = rng.standard_normal(DIM)
    strategy = flower_strategy(name, settings, at)
    past: Any = ours.begin(torch.zeros(1, DIM))
    for t in range(1, ROUNDS + 1):
        update = rng.standard_normal(DIM)
        theirs = aggregated(strategy, t, update)
        point, past = ours.on_mean(past, torch.from_numpy(at)[None], torch.from_numpy(update)[None], lambda rows: rows)
        np.testing.assert_allclose(point[0], theirs, rtol=0, atol=1e-14)
        at = theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_whole_run_of_fedavg_is_flowers(name: str) -> None:
    """Rounds of two local steps; the strategy is given the mean of the users' answers."""
    ours, settings = OPTIMISERS[name]
    problem = rs.make_least_squares(users=4, dim=DIM, rows=12)
    at, lr = np.zeros(DIM), 0.3 / float(problem.lipschitz.max())
    strategy, seen = flower_strategy(name, settings, at), []
    rs.solve(problem, rs.fedavg(lr, 2), ROUNDS, accelerate=ours, callback=lambda r: seen.append(r.state.met[0].numpy()))
    for t in range(1, ROUNDS + 1):
        y = torch.from_numpy(at).expand(4, -1)
        for _ in range(2):
            y = y - lr * problem.grad(y)
        at = aggregated(strategy, t, (problem.weights @ y).numpy())
        np.testing.assert_allclose(seen[t - 1], at, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ours", [rs.ServerAdam(0.1), rs.ServerYogi(0.1), rs.ServerAdagrad(0.1)])
@pytest.mark.parametrize("make", [rs.fedprox, lambda eta: rs.fedavg(eta, 3), rs.fedpi])
def test_they_move_no_fixed_point(ours: Any, make: Callable[[float], rs.Scheme]) -> None:
    problem = rs.make_least_squares(users=4, dim=DIM, rows=12)
    scheme = make(0.5 / float(problem.lipschitz.max()))
    settled = rs.solve(problem, scheme, 600, progress=False)
    # One round: a step is at most lr/tau = 100 times the residual, which is rounding; more rounds may amplify that.
    after = rs.solve(problem, scheme, 1, start=settled.state, accelerate=ours, progress=False)
    np.testing.assert_allclose(after.model, settled.model, atol=1e-9)


@pytest.mark.parametrize("ours", [rs.ServerAdam(0.02, tau=0.1), rs.ServerYogi(0.02, tau=0.1), rs.ServerAdagrad(1.0)])
def test_they_arrive_there(ours: Any) -> None:
    problem = rs.make_least_squares(users=4, dim=DIM, rows=12)
    scheme = rs.fedprox(0.5 / float(problem.lipschitz.max()))
    exact = rs.solve(problem, scheme, 600, progress=False).model
    np.testing.assert_allclose(rs.solve(problem, scheme, 1000, accelerate=ours, progress=False).model, exact, atol=1e-6)


def test_a_run_goes_on_to_the_bit() -> None:
    problem, ours = rs.make_least_squares(users=4, dim=DIM, rows=12), rs.ServerAdam(0.05)
    whole = rs.solve(problem, rs.fedavg(1e-3), 10, accelerate=ours, progress=False)
    half = rs.solve(problem, rs.fedavg(1e-3), 5, accelerate=ours, progress=False)
    assert torch.equal(
        rs.solve(problem, rs.fedavg(1e-3), 5, accelerate=ours, start=half.state, progress=False).model, whole.model
    )


def test_explain_says_that_no_theorem_covers_it() -> None:
    told = rs.explain(rs.fedprox(0.1), rs.make_least_squares(users=3, dim=2, rows=5), anderson=rs.ServerYogi(0.1))
    assert told.solves == "regularised"
    assert "no theorem covers the server's Yogi" in told.why


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rs.ServerAdam(0), "lr is 0"),
        (lambda: rs.ServerAdam(float("inf")), "lr is inf"),
        (lambda: rs.ServerYogi("fast"), "lr is 'fast'"),  # type: ignore[arg-type]
        (lambda: rs.ServerAdam(0.1, beta1=1), "beta1 is 1"),
        (lambda: rs.ServerYogi(0.1, beta2=-0.1), "beta2 is -0.1"),
        (lambda: rs.ServerAdagrad(0.1, tau=0), "tau is 0"),
        (
            lambda: rs.solve(
                rs.make_least_squares(users=3, dim=2, rows=5), "fedpi", anderson=2, accelerate=rs.ServerAdam(0.1)
            ),
            "one of the two is enough",
        ),
    ],
)
def test_bad_input_is_one_sentence(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(rs.InputError, match=said):
        make()
