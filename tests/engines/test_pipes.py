"""The seam bears a network: users in processes of their own, answers that are late or never come, one that dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from engines.pipes import Pipes

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

USERS, DIM, ETA = 3, 2, 0.3


def problem() -> rs.LeastSquares:
    rng = np.random.default_rng(0)
    return rs.LeastSquares(rng.standard_normal((USERS, 4, DIM)), rng.standard_normal((USERS, 4)), weights=[1, 2, 3])


def late(t: int, user: int) -> int:
    """User 2 answers two rounds late, in the first round as well; user 0 at times one round late."""
    return 2 if user == 2 else (t % 3 == 1) * (user == 0)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Pipes]]:
    """Processes take seconds to start: every engine is used by several tests."""
    whole = problem()
    users = [whole.take(torch.tensor([i])) for i in range(USERS)]
    made = {"prompt": Pipes(users, whole.weights, rs.ExactProx())}
    made["late"] = Pipes(users, whole.weights, rs.ExactProx(), late)
    with made["prompt"], made["late"]:
        for engine in made.values():  # `solve` opens and closes what it is given: here the processes stay
            engine.__class__ = Lasting
        yield made
        for engine in made.values():
            engine.__class__ = Pipes


class Lasting(Pipes):
    def __enter__(self) -> Lasting:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize("scheme", [rs.fedpi(ETA), rs.fedsplit(ETA), rs.fedprox(ETA), rs.fedrp(ETA)], ids=str)
@pytest.mark.parametrize("more", [{}, {"anderson": 2}, {"participation": rs.FixedSize(2)}], ids=str)
def test_prompt_users_elsewhere_compute_what_users_here_do(
    engines: dict[str, Pipes], scheme: rs.Scheme, more: dict[str, Any]
) -> None:
    """`solve` has no problem here: the engine's facts are enough."""
    here = rs.solve(problem(), scheme, rounds=20, **more)
    there = rs.solve(None, scheme, rounds=20, engine=engines["prompt"], **more)
    torch.testing.assert_close(there.state.u, here.state.u, rtol=1e-9, atol=1e-12)
    columns = ["round", "eta", "value", "residual", "participants"]
    np.testing.assert_allclose(there.history[columns], here.history[columns], rtol=1e-7, atol=1e-12)
    assert (there.history.bytes_up > 0).all()  # bytes that really moved, not counted ones
    assert str(there.explanation.scheme) == str(here.explanation.scheme)


def by_hand(rounds: int) -> list[Tensor]:
    """FedPi with these delays, one user after the other: the models of its rounds."""
    users, lam = problem(), problem().weights
    u, p = torch.zeros(USERS, DIM, dtype=torch.float64), torch.zeros(USERS, DIM, dtype=torch.float64)
    at, answer, due = u.clone(), u.clone(), [-1] * USERS
    sent, seen, models = u.clone(), [False] * USERS, []
    for t in range(rounds):
        for i in range(USERS):
            if due[i] < 0:
                at[i] = sent[i] if seen[i] else u[i]
                answer[i] = users.prox(at, ETA)[i]
                due[i] = t + late(t, i)
        for i in range(USERS):
            if due[i] == t:
                u[i], p[i], due[i], seen[i] = at[i], answer[i], -1, True
        z = 2 * p - u
        share = lam * torch.tensor(seen)
        w = (share / share.sum()) @ z
        models.append(w)
        sent = 0.5 * u + 0.5 * (2 * w - z)
    return models


def test_late_answers_are_taken_when_they_come_with_the_point_they_belong_to(engines: dict[str, Pipes]) -> None:
    models: list[Tensor] = []
    run = rs.solve(
        None,
        rs.fedpi(ETA),
        rounds=120,
        engine=engines["late"],
        participation=rs.Trace([[1, 1, 1]]),
        callback=lambda r: models.append(r.model[0]),
    )
    torch.testing.assert_close(torch.stack(models), torch.stack(by_hand(120)), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(run.model, problem().minimiser, rtol=1e-8, atol=1e-8)
    assert set(run.history.participants) == {1, 2, 3}


def test_a_process_that_dies_is_held_and_the_run_goes_on() -> None:
    """The others meet with the last answer of the user who is gone: no error, no waiting."""
    whole = problem()
    engine = Pipes([whole.take(torch.tensor([i])) for i in range(USERS)], whole.weights, rs.ExactProx())

    models: list[Tensor] = []

    def pull_the_plug(happened: rs.Round) -> None:
        models.append(happened.model)
        if happened.number == 5:
            engine.kill(1)

    run = rs.solve(
        None, rs.fedpi(ETA), rounds=60, engine=engine, participation=rs.Trace([[1, 1, 1]]), callback=pull_the_plug
    )
    assert run.status == "finished"
    assert run.history.participants.tolist() == [3] * 5 + [2] * 55
    before = rs.solve(problem(), rs.fedpi(ETA), rounds=5, participation=rs.Trace([[1, 1, 1]])).state
    assert torch.equal(run.state.u[1], before.u[1])
    assert torch.equal(run.state.p[1], before.p[1])
    assert not torch.equal(run.state.u[0], before.u[0])
    assert float((models[-1] - models[-2]).norm()) < 1e-6  # those left have come to rest
    assert bool(run.history.value.isna().all())  # models are measured later, when nobody knows the f_i of who is gone


def test_the_engine_s_operator_is_the_one_that_is_spoken_of() -> None:
    whole = problem()
    engine = Pipes([whole.take(torch.tensor([i])) for i in range(USERS)], whole.weights, rs.GradientSteps(3))
    with pytest.raises(rs.InputError, match=r"users compute GradientSteps.* but FedPi takes a prox"):
        rs.solve(None, rs.fedpi(ETA), engine=engine)
    with pytest.raises(rs.InputError, match=r"compute GradientSteps\(steps=3.* but FedAvg takes 5 gradient steps"):
        rs.solve(None, rs.fedavg(ETA, steps=5), engine=engine)
    with pytest.raises(rs.InputError, match=r"but FedAvg takes GradientSteps\(steps=2"):
        rs.solve(None, rs.fedavg(ETA, local=rs.GradientSteps(2)), engine=engine)
