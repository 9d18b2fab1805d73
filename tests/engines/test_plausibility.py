"""One poisoned user is pointed out and left out; honest users, however different, are never suspected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from engines.fake_grid import PROMPT, FakeGrid, engine_over
from engines.test_pipes import problem
from resolvent.engines.flower import packets
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.plausibility import REACH, STRIKES, judge
from resolvent.engines.flower.rule import MAX_MOVE, Limits, Rule
from resolvent.errors import BadAnswer
from resolvent.local.choice import local_operator

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

ALL = rs.Trace([[1, 1, 1]])
"""Whoever does not answer holds, as in a federation's runs."""
When = Callable[[int], bool]
ALWAYS: When = lambda t: True  # noqa: E731


def nodes_of(whole: Any) -> list[Node]:
    return [Node(whole.take(torch.tensor([i]))) for i in range(whole.users)]


def poison(user: int, when: When = ALWAYS, by: float = 1e6) -> Callable[[int, Any], list[Any]]:
    """This user's answers of these rounds are p + 1e6."""

    def forge(sender: int, reply: Any) -> list[Any]:
        packet = packets.from_records(reply.content)
        if sender == user and packet.header["verb"] == "local" and when(packet.header["t"]):
            moved = {"p": packet.arrays["p"] + packet.arrays["p"].dtype.type(by)}
            reply.content = packets.to_records(packets.Packet(packet.header, moved))
        return [reply]

    return forge


def solved(
    whole: Any, scheme: Any, rounds: int, forge: Any = None, *, participation: Any = None, **more: Any
) -> tuple[rs.Run, list[tuple[str, str, int]]]:
    """The run, and its events: kind, user, round."""
    events: list[tuple[str, str, int]] = []
    engine = engine_over(
        whole,
        local_operator(scheme, whole),
        scheme.steady,
        grid=FakeGrid(nodes_of(whole), forge=forge),
        note=lambda kind, **about: events.append((kind, about["user"], about["round"])),
        **more,
    )
    run = rs.solve(None, scheme, rounds=rounds, engine=engine, participation=participation)
    return run, events


def others() -> rs.LeastSquares:
    """The problem without user 1."""
    return problem().take(torch.tensor([0, 2]))


LEFT_OUT = [("implausible", "site-01", k) for k in (1, 2, 3)] + [("left_out", "site-01", 3)]


@pytest.mark.parametrize(
    ("scheme", "participation"),
    [(rs.fedpi(0.3), ALL), (rs.fedprox(0.3), ALL), (rs.fedprox(0.3), None), (rs.fedavg(0.05, steps=2), None)],
    ids=str,
)
def test_a_poisoned_user_is_pointed_out_and_left_out(scheme: Any, participation: Any) -> None:
    """With `None` users share one u, and only the mean of their answers is looked at."""
    run, events = solved(problem(), scheme, 20, poison(1), participation=participation)
    assert events == LEFT_OUT
    assert run.history.participants.tolist() == [2] * 20
    expected = rs.solve(others(), scheme, rounds=20)
    torch.testing.assert_close(run.model, expected.model, rtol=1e-9, atol=1e-11)


def test_whoever_turns_bad_later_holds_its_last_good_pair() -> None:
    run, events = solved(problem(), rs.fedpi(0.3), 16, poison(1, lambda t: t >= 10), participation=ALL)
    good, _ = solved(problem(), rs.fedpi(0.3), 10, participation=ALL)
    assert [kind for kind, _, _ in events] == ["implausible"] * 3 + ["left_out"]
    assert [number for _, _, number in events] == [11, 12, 13, 13]
    assert torch.equal(run.state.p[1], good.state.p[1])
    assert torch.equal(run.state.u[1], good.state.u[1])


def test_a_single_implausible_answer_costs_one_round_and_nothing_else() -> None:
    run, events = solved(problem(), rs.fedpi(0.3), 20, poison(1, lambda t: t == 4), participation=ALL)
    assert events == [("implausible", "site-01", 5)]
    absent = rs.Trace([[1, 1, 1]] * 4 + [[1, 0, 1]] + [[1, 1, 1]] * 15)
    expected = rs.solve(problem(), rs.fedpi(0.3), rounds=20, participation=absent)
    torch.testing.assert_close(run.model, expected.model, rtol=1e-10, atol=1e-12)


def test_a_run_that_goes_on_remembers_whom_it_suspects() -> None:
    whole, events = problem(), []
    engine = engine_over(
        whole,
        rs.ExactProx(),
        grid=FakeGrid(nodes_of(whole), forge=poison(1)),
        note=lambda kind, **about: events.append((kind, about["user"], about["round"])),
    )
    first = rs.solve(None, rs.fedpi(0.3), rounds=2, engine=engine, participation=ALL)
    rs.solve(None, rs.fedpi(0.3), rounds=3, engine=engine, participation=ALL, start=first.state)
    assert events == LEFT_OUT


def test_of_two_users_nobody_is_suspected() -> None:
    """It is said all the same: the value has risen."""
    with pytest.warns(rs.DoubtfulResult, match="the value rose from"):
        run, events = solved(others(), rs.fedpi(0.3), 10, poison(1), participation=rs.Trace([[1, 1]]))
    assert events == []
    assert float(run.model.abs().max()) > 1e3


def test_where_all_users_are_needed_the_run_stops_with_a_sentence() -> None:
    with pytest.raises(BadAnswer, match="3 users are needed, but site-01 was left out"):
        solved(problem(), rs.fedpi(0.3), 9, poison(1), participation=ALL, rule=Rule(min_users=3, poll=PROMPT.poll))


# --- honest users ----------------------------------------------------------------------------------------------------


def dirichlet(seed: int) -> Any:
    """Users with very different shares of two classes, and very different numbers of rows."""
    rng = np.random.default_rng(seed)
    A, b = [], []
    for share in rng.dirichlet([0.1, 0.1], 6)[:, 0]:
        n = int(rng.integers(3, 200))
        y = np.where(rng.random(n) < share, 1.0, -1.0)
        A.append(rng.standard_normal((n, 4)) + y[:, None] * rng.standard_normal(4))
        b.append(y)
    return rs.Logistic(A, b, reg=1e-3)


def scales(targets: float, features: float) -> Any:
    """One of five users measures in other units."""
    rng = np.random.default_rng(1)
    A, b = rng.standard_normal((5, 12, 3)), rng.standard_normal((5, 12))
    A[2], b[2] = features * A[2], targets * b[2]
    return rs.LeastSquares(A, b)


def interpolating() -> Any:
    """All users but one agree, to the last digit, on where to be."""
    rng = np.random.default_rng(2)
    A, x = rng.standard_normal((5, 12, 3)), rng.standard_normal(3)
    b = A @ x
    b[4] += rng.standard_normal(12)
    return rs.LeastSquares(A, b)


HONEST = {
    "dirichlet": lambda: dirichlet(0),
    "dirichlet_other": lambda: dirichlet(1),
    "targets_a_thousand_times": lambda: scales(1e3, 1.0),
    "targets_a_thousandth": lambda: scales(1e-3, 1.0),
    "features_a_thousand_times": lambda: scales(1.0, 1e3),
    "features_a_thousandth": lambda: scales(1.0, 1e-3),
    "interpolating": interpolating,
}
SCHEMES = {"fedpi": rs.fedpi, "fedsplit": rs.fedsplit, "fedprox": rs.fedprox}


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize(("name", "eta"), [("fedpi", 1.0), ("fedpi", 1e-3), ("fedsplit", 1e-2), ("fedprox", 10.0)])
def test_honest_users_are_never_suspected(kind: str, name: str, eta: float) -> None:
    """The same answers as over a network, judged after every round, until well after convergence."""
    whole, scheme = HONEST[kind](), SCHEMES[name](eta)
    assert suspected(whole, scheme, 100) == 0


def suspected(whole: Any, scheme: Any, rounds: int, start: Any = None) -> int:
    """How many answers of a run in one process would be withheld."""
    count, memory = 0, dict[str, Any]()

    def look(happened: rs.Round) -> None:
        nonlocal count, memory
        u, p = happened.state.u.expand(whole.users, -1), happened.state.p
        pairs = {i: (u[i], p[i]) for i in range(whole.users)}
        withheld, memory = judge(pairs, memory, whole.users, MAX_MOVE)
        count += len(withheld)

    everybody = rs.Trace([[1] * whole.users])
    rs.solve(whole, scheme, rounds=rounds, participation=everybody, start=start, callback=look)
    assert memory[REACH].min() > 0  # all of them were judged
    return count


def test_a_newcomer_among_users_who_have_arrived_is_not_suspected() -> None:
    """The others begin where all of them want to be, and do not move; the fifth user does."""
    whole = interpolating()
    assert suspected(whole, rs.fedpi(1.0), 50, start=whole.take(torch.arange(4)).minimiser) == 0


def test_honest_runs_keep_their_bits() -> None:
    run, events = solved(problem(), rs.fedpi(0.3), 10, participation=ALL)
    free, _ = solved(problem(), rs.fedpi(0.3), 10, participation=ALL, limits=Limits(move=1e300))
    assert events == []
    assert torch.equal(run.state.u, free.state.u)
    assert torch.equal(run.state.p, free.state.p)


def test_users_are_judged_by_the_median_of_the_others() -> None:
    """Two bad users of five do not vouch for each other."""
    zero, memory = torch.zeros(1, 1), dict[str, Any]()
    pairs = {i: (zero, torch.full((1, 1), x)) for i, x in enumerate((1.0, 1.5, 2.0, 3e4, 4e4))}
    withheld, memory = judge(pairs, memory, 5, 1e4)
    assert [(one.user, one.distance, one.median) for one in withheld] == [(3, 3e4, 2.0), (4, 4e4, 2.0)]
    assert memory[REACH].tolist() == [1.0, 1.5, 2.0, 0.0, 0.0]
    assert memory[STRIKES].tolist() == [0, 0, 0, 1, 1]
    again, memory = judge({3: (zero, 5 * zero + 7)}, memory, 5, 1e4)
    assert again == []
    assert memory[STRIKES].tolist() == [0, 0, 0, 0, 1]
    shrunk = dict.fromkeys((0, 1), (zero, zero + 1e-9)) | {2: (zero, zero + 5.0)}
    assert judge(shrunk, memory, 5, 1e4)[0] == []  # the others have come far, though they hardly move any more
    assert judge({0: (zero, zero + 9.0), 1: (zero, zero + 1e9)}, {}, 5, 1e4)[0] == []  # nobody to compare them with
