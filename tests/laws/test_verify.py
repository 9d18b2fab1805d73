"""A user's own functions are compared with each other before the first round, and refused where they contradict."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rs
from hunt.cases.custom import right_functions, wrong_claims, wrong_functions
from resolvent.errors import BadAnswer, InputError

CENTRES = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], dtype=torch.float64)


def value(W: Tensor) -> Tensor:
    return (W - CENTRES).square().sum(1) / 2


def grad(W: Tensor) -> Tensor:
    return W - CENTRES


def prox(U: Tensor, eta: float) -> Tensor:
    return (U + eta * CENTRES) / (1 + eta)


def hessian(W: Tensor) -> Tensor:
    return torch.eye(2, dtype=W.dtype).expand(3, 2, 2)


def solve(rounds: int = 3, scheme: rs.Scheme | None = None, engine: str = "in_process", **given: Any) -> rs.Run:
    problem = rs.Custom(3, 2, **given)
    if scheme is None:
        scheme = rs.fedpi(0.5) if "prox" in given else rs.fedavg(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rs.ResolventWarning)
        return rs.solve(problem, scheme, rounds=rounds, engine=engine)


def only_user_1(right: Callable[..., Tensor], wrong: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda W, *eta: torch.where(torch.arange(3).unsqueeze(1) == 1, wrong(W, *eta), right(W, *eta))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "the sign of a gradient": ({"value": value, "grad": lambda W: W + CENTRES}, "grad of user subgradient value"),
    "no number": ({"grad": only_user_1(grad, lambda W: W * torch.nan)}, "grad of user 1 not finite where begins"),
    "a factor": ({"value": value, "grad": lambda W: 2 * grad(W)}, "grad of user subgradient"),
    "one user": ({"value": value, "grad": only_user_1(grad, lambda W: grad(W) / 2)}, "grad of user 1 correct"),
    "one coordinate": ({"value": value, "grad": lambda W: grad(W) * torch.tensor([1.0, 1.01])}, "grad of user"),
    "a regulariser left out of grad": (
        {"value": lambda W: value(W) + 0.01 * W.square().sum(1), "grad": grad},
        "grad of user",
    ),
    "a part of value detached": ({"value": lambda W: value(W) + W.detach().square().sum(1)}, "grad of user"),
    "a prox at another eta": ({"value": value, "prox": lambda U, eta: prox(U, 2 * eta)}, "prox of user eta = 0.5"),
    "a prox of one user": ({"value": value, "prox": only_user_1(prox, lambda U, eta: U)}, "prox of user 1 minimise"),
    "a prox of the mean": ({"grad": grad, "prox": lambda U, eta: prox(U, eta / 100)}, "prox of user grad"),
    "a prox that spreads": ({"prox": lambda U, eta: 2 * U}, "prox of user firmly nonexpansive"),
    "a gradient that falls": ({"grad": lambda W: -W}, "grad of user subgradient convex=False"),
    "a hessian": ({"value": value, "grad": grad, "hessian": lambda W: 2 * hessian(W)}, "hessian of user derivative"),
    "a skew hessian": (
        {"grad": grad, "hessian": lambda W: hessian(W) + torch.tensor([[0.0, 1], [0, 0]])},
        "hessian of user symmetric",
    ),
    "no convex function": ({"value": lambda W: torch.cos(W).sum(1)}, "value of user convex=False"),
    "mixed rows": ({"grad": lambda W: W - W.mean(0)}, "grad of user other users' rows"),
    "mixed values": ({"value": lambda W: value(W) + W.mean()}, "value of user other users' rows"),
    "lipschitz": ({"grad": grad, "lipschitz": 0.9}, "lipschitz of user 0.9 larger"),
    "convexity": ({"value": value, "prox": prox, "convexity": 1.1}, "convexity of user 1.1 smaller"),
    "minimiser": ({"value": value, "grad": grad, "minimiser": [1.0, 1.0]}, "minimiser f = leave"),
}


@pytest.mark.parametrize(("given", "words"), WRONG.values(), ids=WRONG.keys())
def test_contradictions_are_refused_before_the_first_round(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        solve(**given)
    message = str(caught.value)
    assert all(word in message for word in words.split()), message
    assert "check=False" in message
    assert "\n" not in message
    assert solve(**given, check=False).status in ("finished", "diverged")


def test_false_claims_of_convexity_hardly_ever_go_unseen() -> None:
    """Waves of any phase, height and width. 70060, 70180, 500005 and 4442465 were taken for convex."""
    ends = [wrong_claims(seed) for seed in (70060, 70180, 500005, 4442465, *range(0, 300, 5))]
    assert ends[:4] == ["refused"] * 4
    assert ends.count("refused") >= len(ends) - 1


@pytest.mark.parametrize("beyond", [1e-8, 1e-7, 1e-6])
def test_a_hessian_may_jump_beside_the_start(beyond: float) -> None:
    """That of a Huber loss: 1 within 1 of the centre, 0 outside. In one of 30 entries every step crosses the jump."""
    start = torch.full((30,), 0.5, dtype=torch.float64)
    start[0] = 1 - beyond
    problem = rs.Custom(1, 30, grad=lambda W: W.clamp(-1, 1), hessian=lambda W: torch.diag_embed((W.abs() <= 1).to(W)))
    assert rs.solve(problem, rs.fedavg(0.1), rounds=1, start=start).status == "finished"
    twice = rs.Custom(1, 30, grad=lambda W: W, hessian=lambda W: 2 * torch.eye(30).to(W).expand(1, 30, 30))
    with pytest.raises(InputError, match=r"hessian of user \d is not the derivative of grad"):
        rs.solve(twice, rs.fedavg(0.1), rounds=1, start=start)


def test_a_hessian_that_is_rounded_to_zero_beside_larger_ones_is_right() -> None:
    """log(1 + exp(-40 x)): far from 0 the curvature is below the rounding of 1 - sigmoid, and the gradient is exact."""

    def curvature(W: Tensor) -> Tensor:
        q = torch.sigmoid(40 * W)
        return (1600 * q * (1 - q)).unsqueeze(2)

    for times in (1, 2):
        problem = rs.Custom(
            1, 1, grad=lambda W: -40 * torch.sigmoid(-40 * W), hessian=lambda W, times=times: times * curvature(W)
        )
        start = torch.tensor([0.01], dtype=torch.float64)  # one of the places is 1 away from it
        if times == 1:
            assert rs.solve(problem, rs.fedavg(1e-4), rounds=1, start=start).status == "finished"
        else:
            with pytest.raises(InputError, match=r"hessian of user \d is not the derivative of grad"):
                rs.solve(problem, rs.fedavg(1e-4), rounds=1, start=start)


@pytest.mark.parametrize("scale", [1.0, 1e10, 1e14])
@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_the_units_of_f_and_w_do_not_make_a_hessian_wrong(scale: float, unit: float) -> None:
    """The first move, eta |grad f|, says nothing of the lengths over which this gradient bends."""

    def slope(W: Tensor) -> Tensor:
        return scale / unit * (torch.tanh(W / unit - CENTRES) + 1e-4 * W / unit)

    def curvature(W: Tensor) -> Tensor:
        return scale / unit**2 * torch.diag_embed(1 / torch.cosh(W / unit - CENTRES).square() + 1e-4)

    assert solve(scheme=rs.fedpi("auto"), grad=slope, hessian=curvature).status == "finished"
    for factor in (0.5, 2.0):
        with pytest.raises(InputError, match=r"hessian of user \d is not the derivative of grad"):
            solve(scheme=rs.fedpi("auto"), grad=slope, hessian=lambda W, by=factor: by * curvature(W))


def test_nor_is_such_a_hessian_refused_in_single_precision() -> None:
    assert right_functions(910290) == "right"


def test_one_wrong_entry_of_a_gradient_is_seen_beside_a_steep_prox() -> None:
    """Entry 8 of 30 is a tenth too large, where curvatures of 1000 hide it along most directions."""
    assert wrong_functions(4441638) == "refused"


def test_the_prox_must_serve_every_eta_of_a_schedule() -> None:
    """At one eta it is the prox of something; where eta changes it must remain that of the same."""
    half: dict[str, Any] = {"prox": lambda U, eta: U / 2}
    assert solve(**half).status == "finished"
    with pytest.raises(InputError, match=r"prox of user 0 at eta = 0.25 is not of the function .* eta = 0.5"):
        solve(**half, scheme=rs.fedprox(rs.schedules.harmonic(0.5)))


RIGHT: dict[str, dict[str, Any]] = {
    "everything": {
        "value": value,
        "grad": grad,
        "prox": prox,
        "hessian": hessian,
        "lipschitz": 1.0,
        "convexity": 1.0,
        "minimiser": CENTRES.mean(0),
    },
    "a minimiser to six digits": {"value": value, "grad": grad, "minimiser": CENTRES.mean(0) + 1e-6},
    "a kink at the start": {"value": lambda W: W.abs().sum(1), "grad": torch.sign},
    "another subgradient at the kink": {"value": lambda W: W.abs().sum(1), "grad": lambda W: torch.sign(W + 1e-300)},
    "no domain": {"value": lambda W: torch.where((W < 0).any(1), math.inf, 0.0), "prox": lambda U, eta: U.relu()},
    "single precision inside": {"value": lambda W: value(W.float()), "grad": lambda W: grad(W).float()},
    "a prox to five digits": {"value": value, "prox": lambda U, eta: prox(U, eta) + 1e-5 * (U - prox(U, eta))},
    "no convexity": {"value": lambda W: torch.cos(W).sum(1), "grad": lambda W: -torch.sin(W), "convex": False},
    "a large constant": {"value": lambda W: value(W) + 1e9, "grad": grad},
}


@pytest.mark.parametrize("engine", ["in-process", "debug"])
@pytest.mark.parametrize("given", RIGHT.values(), ids=RIGHT.keys())
def test_right_functions_are_not_refused(given: dict[str, Any], engine: str) -> None:
    assert solve(**given, engine=engine).status == "finished"


def test_debug_looks_at_every_round() -> None:
    """The gradient is wrong near the minimiser only."""

    def late(W: Tensor) -> Tensor:
        return torch.where((W - CENTRES.mean(0)).norm(dim=1, keepdim=True) < 0.3, grad(W) / 2, grad(W))

    centred: dict[str, Any] = {"value": value, "grad": late, "minimiser": CENTRES.mean(0), "check": True}
    assert solve(rounds=20, **centred, scheme=rs.fedavg(0.2)).status == "finished"
    with pytest.raises(BadAnswer, match=r"user 0 in round \d+ .*: grad is no subgradient of value") as caught:
        solve(rounds=20, **centred, scheme=rs.fedavg(0.2), engine="debug")
    assert isinstance(caught.value.__cause__, InputError)


def counting(calls: Counter[str]) -> dict[str, Any]:
    def counted(name: str, f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any) -> Tensor:
            calls[name] += 1
            return f(*args)

        return call

    return {f.__name__: counted(f.__name__, f) for f in (value, grad, prox, hessian)}


def test_the_calls_are_few_and_a_resumed_run_makes_none() -> None:
    calls: Counter[str] = Counter()
    problem = rs.Custom(3, 2, **counting(calls), minimiser=CENTRES.mean(0), lipschitz=1, convexity=1)
    run = rs.solve(problem, rs.fedpi(0.5), rounds=2)
    assert calls["value"] <= 150
    assert calls["grad"] <= 60
    assert calls["prox"] <= 20
    assert calls["hessian"] <= 10
    calls.clear()
    rs.solve(problem, rs.fedpi(0.5), rounds=2, start=run.state)
    assert calls == {"prox": 2, "value": 4}  # values: two rows of the history, the start, and the end for the monitor


def test_many_users_with_functions_of_their_own_are_sampled() -> None:
    asked: set[int] = set()

    def own(user: int) -> Callable[[Tensor], Tensor]:
        def f(w: Tensor) -> Tensor:
            asked.add(user)
            return w

        return f

    problem = rs.Custom(100, 1, grad=[own(i) for i in range(100)])
    with pytest.warns(rs.SolvesAnotherProblem, match="never come"):
        rs.solve(problem, rs.fedavg(0.5), rounds=1, participation=rs.Trace([[1] + [0] * 99]))
    assert len(asked) in (32, 33)
