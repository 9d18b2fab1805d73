"""What the ranks of a test do: every function is called on all ranks at the same time, and compares there.

A job that must fail in a certain way returns the sentence; the last one of a list may leave the group.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import resolvent as rs
from engines.cases import CASES, SCHEMES, built
from engines.contract import assert_same_trajectory, check, trajectory
from resolvent.engines.process_group import join
from resolvent.engines.rank import RankEngine
from resolvent.errors import BlewUp
from resolvent.iteration import checkpoint

TIMEOUT = 60.0
"""Seconds that a rank waits for the others before a test has failed."""


def rank() -> int:
    return join(TIMEOUT).rank


def mine(users: int) -> list[int]:
    join(TIMEOUT)
    return [int(i) for i in torch.arange(users).tensor_split(dist.get_world_size())[dist.get_rank()]]


def _whole(problem: Any, operator: Any, steady: bool) -> RankEngine:
    return rs.AllReduce(whole=True).join(problem, operator, steady)


def _same_bits(tensor: Tensor) -> None:
    """What all ranks share must be the same everywhere, to the bit."""
    said = join().gathered(hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest())
    assert len(set(said)) == 1


# --- the same numbers ------------------------------------------------------------------------------------------------


def contract(case: str) -> None:
    """A case of the contract; all ranks have made the whole problem."""
    found = check(_whole, case, mine(built(CASES[case].problem).users))
    _same_bits(torch.stack([points["w"] for points in found.points]))


def news_alone() -> list[int]:
    """Bytes that this rank has put in and got out, dense and with the largest coordinates."""
    problem = rs.make_least_squares(users=3, dim=600, rows=10, seed=1)
    moved = list[int]()
    for send in (None, rs.TopK(0.02)):
        given: dict[str, Any] = {"rounds": 8, "send": send, "every": 8, "progress": False}
        alone = rs.solve(problem, rs.fedpi(1e-3), **given)
        run = rs.solve(problem, rs.fedpi(1e-3), engine=rs.AllReduce(whole=True), **given)
        torch.testing.assert_close(run.model, alone.model, rtol=1e-9, atol=1e-12)
        _same_bits(run.model)
        half = rs.solve(problem, rs.fedpi(1e-3), engine=rs.AllReduce(whole=True), **given | {"rounds": 3})
        rest = rs.solve(
            problem, rs.fedpi(1e-3), engine=rs.AllReduce(whole=True), start=half.state, **given | {"rounds": 5}
        )
        assert torch.equal(rest.model, run.model)
        moved.append(int(run.history.bytes_up.sum() + run.history.bytes_down.sum()))
    return moved


def own_users(kind: str) -> None:
    """Every rank passes its own users only, and the weights of the whole."""
    whole = built("logistic")
    here = mine(whole.users)
    sizes = whole.sizes.double()
    weights = {"given": whole.weights[here].tolist(), "users": "users", "equal": None}[kind]
    lam = {"given": whole.weights, "users": (1 / sizes) / (1 / sizes).sum(), "equal": torch.full_like(sizes, 0.2)}[kind]
    A, b = zip(*(whole.rows.one(i) for i in range(whole.users)), strict=True)
    more: dict[str, Any] = {"anderson": 2, "participation": rs.FixedSize(2)}
    expected = trajectory(rs.Logistic(list(A), list(b), reg=0.1, weights=lam), rs.fedpi("auto"), **more)
    own = rs.Logistic([A[i] for i in here], [b[i] for i in here], reg=0.1)
    found = trajectory(own, rs.fedpi("auto"), engine=rs.AllReduce(weights), **more)
    assert_same_trajectory(found, expected, here, ("gap", "bytes_up", "bytes_down"))
    assert bool(found.history.gap.isna().all())  # nobody knows f*
    assert found.run.explanation.facts == expected.run.explanation.facts


def network(kind: str) -> None:
    """Batch norm's buffers, dropout, personal models and metrics; float64, so that nothing hides in rounding."""
    scheme, _, participation = kind.partition("+")
    rng = np.random.default_rng(0)
    sizes = (7, 12, 4, 8, 6)
    data = [(torch.from_numpy(rng.standard_normal((n, 4))), torch.from_numpy(rng.integers(0, 3, n))) for n in sizes]
    held = [(torch.from_numpy(rng.standard_normal((4, 4))), torch.from_numpy(rng.integers(0, 3, 4))) for _ in data]

    def problem(some: list[int], seed: int = 0) -> rs.Neural:
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
        test = [held[i] for i in some]
        return rs.Neural(layers.double(), [data[i] for i in some], validation=test, test=held[0])

    described = {
        "fedavg": rs.fedavg(0.05, local=rs.GradientSteps(2, batch=4)),
        "fedpi": rs.fedpi(0.1, local=rs.GradientProx(2, lr=0.05, batch=4)),
    }[scheme]
    who = {"": None, "hold": rs.FixedSize(2), "paper": rs.FixedSize(2, absent="paper")}[participation]
    here = mine(5)
    more: dict[str, Any] = {"rounds": 4, "seed": 2, "participation": who, "progress": False}
    expected = rs.solve(problem(list(range(5))), described, **more)
    # Networks that begin elsewhere on other ranks begin where rank 0's does.
    own = rs.solve(problem(here, rank()), described, engine=rs.AllReduce(), **more)
    whole = rs.solve(problem(list(range(5))), described, engine=rs.AllReduce(whole=True), **more)
    for run in (own, whole):
        torch.testing.assert_close(run.model, expected.model, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(run.personal, expected.personal[here], rtol=1e-9, atol=1e-10)
        for name in expected.history.columns.drop(["seconds", "bytes_up", "bytes_down"]):
            np.testing.assert_allclose(run.history[name], expected.history[name], rtol=1e-8, atol=1e-9, err_msg=name)
        assert run.module()(held[0][0]).shape == (4, 3)  # on each rank, without the others
        _same_bits(run.model)


# --- a rank never leaves the loop alone ------------------------------------------------------------------------------


def _problem() -> tuple[rs.LeastSquares, list[int]]:
    whole = built("least_squares")
    return whole, mine(whole.users)


def _solve(**more: Any) -> rs.Run:
    given: dict[str, Any] = {"rounds": 20, "engine": rs.AllReduce(whole=True), "progress": False} | more
    return rs.solve(_problem()[0], given.pop("scheme", rs.fedpi(0.1)), **given)


def _everywhere(value: Any) -> Any:
    """What all ranks say, once they are seen to say the same."""
    said = join().gathered(value)
    assert all(each == said[0] for each in said), said
    return said[0]


def stop_on_one_rank() -> Any:
    """A function `stop` says so on the last rank alone."""
    run = _solve(stop=lambda r: rank() == dist.get_world_size() - 1 and r.number == 4)
    return _everywhere([run.status, run.reason, run.state.round])


def clock_on_one_rank() -> Any:
    """Ranks whose clocks differ stop together."""
    import time

    from resolvent.solving import steps

    true = time.perf_counter
    try:
        began = true()
        steps.time.perf_counter = lambda: (true() - began) * (1 + 100 * rank())  # type: ignore[attr-defined]
        run = _solve(rounds=500, stop=rs.Stop(seconds=0.2))
    finally:
        steps.time.perf_counter = true  # type: ignore[attr-defined]
    return _everywhere([run.status, run.state.round > 0, run.state.round]) and run.status


def interrupt_on_one_rank() -> Any:
    """Ctrl-C reaches rank 1 alone after round 5; all ranks stop after round 6, with a state to go on from."""

    def strike(happened: rs.Round) -> None:
        if rank() == 1 and happened.number == 5:
            os.kill(os.getpid(), signal.SIGINT)

    run = _solve(callback=strike)
    rounds = _everywhere([run.status, run.state.round, len(run.history)])
    rest = _solve(rounds=20 - run.state.round, start=checkpoint.unpack(*checkpoint.pack(run.state)))
    assert torch.equal(rest.state.u, _solve().state.u)
    return rounds


def _broken(on_round: int, raise_it: Callable[[], None]) -> rs.Custom:
    """Users of whom the last one fails in a certain round."""
    asked = 0

    def last(u: Tensor, eta: float) -> Tensor:
        nonlocal asked
        asked += 1
        if asked == on_round:
            raise_it()
        return u / (1 + eta)

    def others(u: Tensor, eta: float) -> Tensor:
        return u / (1 + eta)

    values = [lambda w: w @ w / 2] * 5
    return rs.Custom(5, 2, value=values, grad=[lambda w: w] * 5, prox=[others] * 4 + [last], check=False)


def user_code_fails() -> Any:
    """Code of a user on the last rank raises: every rank raises, in the same round, with the run so far."""

    def fail() -> None:
        raise ZeroDivisionError("a user's own mistake")

    try:
        rs.solve(_broken(4, fail), rs.fedpi(0.5), engine=rs.AllReduce(whole=True), start=[1.0, 2.0], progress=False)
    except Exception as error:
        run: rs.Run = error.run  # type: ignore[attr-defined]
        assert [len(run.history), run.state.round] == [3, 3]
        return f"{type(error).__name__}: {error}"


def answer_not_finite() -> Any:
    """A user's loss becomes infinite on the last rank: the run has diverged on all of them."""

    def fail() -> None:
        raise BlewUp("user 4 answered NaN")

    with_one = _broken(4, fail)
    run = rs.solve(with_one, rs.fedpi(0.5), engine=rs.AllReduce(whole=True), start=[1.0, 2.0], progress=False)
    _same_bits(run.model)
    return _everywhere([run.status, run.reason, len(run.history)])


def divergence() -> Any:
    """All ranks see it in the same round and hand back the same state."""
    run = _solve(scheme=rs.fedavg(5.0), rounds=200)
    alone = rs.solve(_problem()[0], rs.fedavg(5.0), rounds=200, progress=False)
    _same_bits(run.model)
    assert (run.status, run.state.round, len(run.history)) == (alone.status, alone.state.round, len(alone.history))
    return run.status


def personal_models_without_the_others() -> None:
    """FedProx shares one u: its personal models are computed again, by whoever asks."""
    run = _solve(scheme=rs.fedprox(0.1))
    expected = rs.solve(_problem()[0], rs.fedprox(0.1), rounds=20, progress=False)
    if rank() == 1:
        torch.testing.assert_close(run.personal, expected.personal[_problem()[1]], rtol=1e-9, atol=1e-10)


def callback_fails_on_one_rank() -> Any:
    """It is the last job: the rank leaves, the others are told why, and none of them waits."""

    def fail(happened: rs.Round) -> None:
        if rank() == 1 and happened.number == 3:
            raise OSError("the disk is full")

    try:
        _solve(callback=fail)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(what: str) -> str:
    """Ranks that do not fit together: the same sentence on all of them."""
    try:
        _misfits()[what]()
    except rs.InputError as error:
        sentence = str(error)
    else:
        sentence = "not refused"
    said: str = _everywhere(sentence)
    return said


def _misfits() -> dict[str, Callable[[], Any]]:
    k, whole, here = rank(), *_problem()
    rng = np.random.default_rng(0)

    def own(dim: int = 3, **more: Any) -> rs.LeastSquares:
        return rs.LeastSquares(rng.standard_normal((2, 4, dim)), rng.standard_normal((2, 4)), **more)

    def solve(problem: Any, scheme: rs.Scheme = SCHEMES["fedpi"], **more: Any) -> rs.Run:
        weights = more.pop("weights", None)
        return rs.solve(problem, scheme, engine=rs.AllReduce(weights), rounds=more.pop("rounds", 3), **more)

    def partly_frozen(seed: int) -> rs.Neural:
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(4, 6).requires_grad_(False), nn.ReLU(), nn.Linear(6, 3))
        return rs.Neural(layers, [(torch.ones(3, 4), torch.zeros(3, dtype=torch.long))] * 2)

    def other_version() -> None:
        rs.__version__, true = f"0.{k}", rs.__version__
        try:
            solve(own())
        finally:
            rs.__version__ = true

    return {
        "few_users": lambda: rs.solve(whole.take(torch.tensor([0])), SCHEMES["fedpi"], engine=rs.AllReduce(whole=True)),
        "dim": lambda: solve(own(dim=3 + k)),
        "kind": lambda: solve(own() if k else built("logistic").take(torch.tensor(here))),
        "version": other_version,
        "seed": lambda: solve(own(), seed=k),
        "rounds": lambda: solve(own(), rounds=3 + k),
        "scheme": lambda: solve(own(), rs.fedpi(0.1 + 0.1 * k)),
        "start": lambda: solve(own(), start=[0.0, 0.0, float(k)]),
        "frozen": lambda: solve(partly_frozen(k), rs.fedavg(0.1)),
        "own_weights": lambda: solve(own(weights=[1, 2])),
        "negative_weights": lambda: solve(own(), weights=[1.0, -1.0] if k else [1.0, 1.0]),
        "kinds_of_weights": lambda: solve(own(), weights="rows" if k else [1.0, 1.0]),
        "robust": lambda: solve(own(), meet=rs.CoordinateMedian()),
        "no_weight": lambda: solve(own(), weights=[0.0, 0.0]),
    }
