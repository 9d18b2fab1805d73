"""What crosses over Flower: compressed answers and questions, the centre of tilted steps, and robust meetings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from engines.fake_grid import FakeGrid, engine_over
from resolvent.engines.flower.engine import AFTER
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.rule import Rule
from resolvent.iteration import checkpoint
from resolvent.iteration.sending import Send
from test_compression import ETA, error, squares

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
SENDS = [rs.TopK(0.25), rs.RandomK(0.25), rs.Quantised(4), rs.Quantised(1)]
PROBLEM = squares(users=4, dim=12)


def nodes() -> list[Node]:
    return [Node(PROBLEM.take(torch.tensor([i]))) for i in range(PROBLEM.users)]


def over(scheme: rs.Scheme, operator: Any = None, grid: FakeGrid | None = None, **given: Any) -> rs.Run:
    engine = given.pop("on", None) or engine_over(PROBLEM, operator or rs.ExactProx(), grid=grid)
    return rs.solve(None, scheme, engine=engine, progress=False, **given)


@pytest.mark.parametrize("scheme", [rs.fedprox(ETA), rs.fedrp(ETA)], ids=str)
@pytest.mark.parametrize("send", SENDS, ids=str)
@pytest.mark.parametrize("down", [None, rs.TopK(0.5), rs.RandomK(0.5)], ids=str)
def test_where_beta_is_one_it_is_the_way_of_one_process(scheme: rs.Scheme, send: Send, down: Send | None) -> None:
    """There T u is the meeting point, whoever goes on with z_i or zhat_i."""
    if isinstance(send, rs.Quantised) and isinstance(down, rs.TopK):
        pytest.skip("coordinates that are equal but for rounding are as large: either may be among the largest")
    given: dict[str, Any] = {"rounds": 12, "send": send, "down": down}
    here = rs.solve(PROBLEM, scheme, progress=False, **given)
    there = over(scheme, **given)
    torch.testing.assert_close(there.model, here.model, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(there.state.u, here.state.u, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("present", [1.0, 0.5])
@pytest.mark.parametrize(("send", "down"), [(SENDS[0], None), (SENDS[2], rs.TopK(0.5)), (None, rs.Quantised(4))])
def test_the_original_problem_is_solved(send: Send | None, down: Send | None, present: float) -> None:
    given: dict[str, Any] = {"participation": None if present == 1 else present}
    run = over(rs.fedpi(ETA), rounds=130, every=65, send=send, down=down, **given)
    assert error(run, PROBLEM) < 1e-2
    assert run.history.stationarity.isna().all() == (send is not None)


def test_the_residual_counts_what_was_not_sent() -> None:
    """It bounds that of T with the whole z at the points where users answered."""
    seen = list[rs.Round]()
    over(rs.fedpi(ETA), rounds=20, send=rs.TopK(0.1), callback=seen.append)
    for each in seen:
        whole = rs.solve(PROBLEM, rs.fedpi(ETA), rounds=1, start=each.state.u, progress=False).history.residual.iloc[0]
        assert whole <= each.residual * (1 + 1e-9)


def test_top_ten_per_cent_is_less_than_a_quarter_of_the_bytes() -> None:
    """d = 100,000; headers, places and all. What goes down as well."""
    dim, rng = 100_000, np.random.default_rng(0)
    centres = torch.from_numpy(rng.standard_normal((2, dim)))

    def user(i: int) -> rs.Custom:
        def prox(U: torch.Tensor, eta: float) -> torch.Tensor:
            return (U + eta * centres[i]) / (1 + eta)

        return rs.Custom(1, dim, prox=prox, check=False)

    moved = {}
    for part in (None, rs.TopK(0.1)):
        grid = FakeGrid([Node(user(i)) for i in range(2)])
        engine = engine_over(rs.Custom(2, dim, prox=lambda U, eta: U, check=False), rs.ExactProx(), grid=grid)
        run = rs.solve(None, rs.fedpi(1.0), rounds=4, engine=engine, send=part, down=part, progress=False)
        moved[part] = run.history
        assert engine.traffic.up >= run.history.bytes_up.sum()
    dense, sent = moved[None], moved[rs.TopK(0.1)]
    assert sent.bytes_up.sum() <= dense.bytes_up.sum() / 4
    models = 2 * dim * 8 * (1 + 4)  # the first question has all of u, and every round's model is evaluated whole
    assert sent.bytes_down.sum() <= dense.bytes_down.sum() / 4 + models


def test_a_node_that_has_forgotten_sends_and_is_sent_everything() -> None:
    """And goes on from there: nobody computes with two different copies."""
    grid = FakeGrid(nodes())
    engine = engine_over(PROBLEM, rs.ExactProx(), grid=grid)

    def lose(happened: rs.Round) -> None:
        if happened.number in (5, 9):
            grid.nodes[happened.number % 4] = nodes()[happened.number % 4]  # with an empty memory

    run = over(rs.fedpi(ETA), on=engine, rounds=130, every=65, send=rs.TopK(0.25), down=rs.TopK(0.5), callback=lose)
    assert error(run, PROBLEM) < 1e-2
    assert sum(engine.refused.values()) == 2  # what is new in u was of no use to them


def test_late_answers_and_a_server_that_goes_on() -> None:
    given: dict[str, Any] = {"send": rs.TopK(0.25), "down": rs.Quantised(6)}
    late = FakeGrid(nodes(), late=lambda t, user: 2 * (user == 1))
    engine = engine_over(PROBLEM, rs.ExactProx(), grid=late, rule=Rule(close=0.75, poll=1e-4, timeout=20.0))
    run = over(rs.fedpi(ETA), on=engine, rounds=150, every=75, **given)
    assert error(run, PROBLEM) < 1e-2
    grid = FakeGrid(nodes())
    whole = over(rs.fedpi(ETA), rounds=12, **given)
    half = over(rs.fedpi(ETA), grid=grid, rounds=5, **given)
    state = checkpoint.unpack(*checkpoint.pack(half.state))
    assert state.memory[AFTER].tolist() == [4] * 4
    rest = over(rs.fedpi(ETA), grid=grid, rounds=7, start=state, **given)
    assert torch.equal(rest.model, whole.model)


def test_what_is_no_encoding_is_refused() -> None:
    from resolvent.engines.flower.messages import NEWS

    class Wrong(Node):
        def handle(self, packet: Any) -> Any:
            answer = super().handle(packet)
            if NEWS + "places" in answer.arrays:
                answer.arrays[NEWS + "places"] = np.zeros_like(answer.arrays[NEWS + "places"])
            return answer

    grid = FakeGrid([Wrong(PROBLEM.take(torch.tensor([0]))), *nodes()[1:]])
    engine = engine_over(PROBLEM, rs.ExactProx(), grid=grid)
    over(rs.fedpi(ETA), on=engine, rounds=3, send=rs.TopK(0.25))
    assert engine.refused["site-00"] > 0


# --- the centre, and robust meetings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [rs.scaffold(0.002, 5), rs.scaffnew(0.002, 5)], ids=["scaffold", "scaffnew"])
@pytest.mark.parametrize("present", [None, 0.5])
def test_scaffolds_centre_crosses(scheme: rs.Scheme, present: float | None) -> None:
    given: dict[str, Any] = {"rounds": 15, "participation": present, "seed": 3}
    here = rs.solve(PROBLEM, scheme, progress=False, **given)
    there = over(scheme, scheme.local, **given)
    torch.testing.assert_close(there.model, here.model, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("present", [None, 0.5])
def test_every_node_takes_its_own_number_of_fednovas_steps(present: float | None) -> None:
    scheme = rs.fednova(0.002, (1, 2, 3, 5), scale=2.75)
    given: dict[str, Any] = {"rounds": 6, "participation": present}
    here = rs.solve(PROBLEM, scheme, progress=False, **given)
    torch.testing.assert_close(over(scheme, scheme.local, **given).model, here.model, rtol=1e-12, atol=1e-12)


def test_scaffold_compressed_both_ways_solves_the_original_problem() -> None:
    scheme = rs.scaffold(0.004, 5)
    run = over(scheme, scheme.local, rounds=150, every=75, send=rs.TopK(0.25), down=rs.TopK(0.5))
    assert error(run, PROBLEM) < 1e-2


@pytest.mark.parametrize("meet", [rs.TrimmedMean(0.3), rs.CoordinateMedian(), rs.GeometricMedian()], ids=str)
@pytest.mark.parametrize("send", [None, rs.TopK(0.25)], ids=str)
def test_robust_meetings(meet: Any, send: Send | None) -> None:
    scheme = rs.fedprox(ETA)
    here = rs.solve(PROBLEM, scheme, rounds=10, meet=meet, send=send, progress=False)
    there = over(scheme, rounds=10, meet=meet, send=send)
    torch.testing.assert_close(there.model, here.model, rtol=1e-9, atol=1e-10)


def test_a_process_that_is_a_node_alone_knows_every_part_that_a_server_may_name() -> None:
    """It imports the node's module, and not the whole package."""
    code = (
        "import resolvent.engines.flower.node;"
        "from resolvent.engines.flower.messages import compressor_of, operator_of;"
        "print(compressor_of('send', {'kind': 'top', 'share': 0.1}), operator_of({'kind': 'tilted-steps', 'steps': 5}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("TopK(share=0.1) TiltedSteps(steps=5")
