"""Bytes of a history: every question and every answer of every round, in the row that comes next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.engines.in_process import InProcess
from resolvent.iteration.engine import Traffic

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
USERS, DIM = 6, 4
VECTOR = DIM * 8


def problem() -> Any:
    return rs.make_least_squares(users=USERS, dim=DIM, rows=12, seed=0)


def late(seed: int = 3) -> list[tuple[int, int]]:
    """Questions and answers of each round with stragglers: a round closes after half of the users."""
    who, free, clock, counts = rs.Stragglers(5.0, close=0.5), dict.fromkeys(range(USERS), True), 0.0, []
    due: dict[int, float] = {}
    for t in range(12):
        takes = who.seconds(seed, t, USERS)
        asked = [i for i in range(USERS) if free[i]]
        for i in asked:
            due[i], free[i] = clock + takes[i], False
        clock = sorted(due.values())[2]
        arrived = [i for i, when in due.items() if when <= clock]
        for i in arrived:
            free[i] = True
            del due[i]
        counts.append((len(asked), len(arrived)))
    return counts


@pytest.mark.parametrize("every", [1, 5])
def test_stragglers_are_sent_questions_whose_answers_come_later(every: int) -> None:
    run = rs.solve(
        problem(), rs.fedpi(0.05), rounds=12, every=every, seed=3, participation=rs.Stragglers(5.0, close=0.5)
    )
    counts = np.cumsum(late(), 0) * VECTOR
    assert counts[0].tolist() == [6 * VECTOR, 3 * VECTOR]
    rows = run.history["round"].to_numpy() - 1
    assert run.history.bytes_down.cumsum().tolist() == counts[rows, 0].tolist()
    assert run.history.bytes_up.cumsum().tolist() == counts[rows, 1].tolist()


OPTIONS: list[dict[str, Any]] = [
    {"every": 3},
    {"every": 4, "validate_every": 3},
    {"every": 5, "stop": rs.Stop(gap=0.0)},
    {"every": 3, "participation": rs.Bernoulli(0.4)},
    {"every": 3, "participation": rs.Stragglers(5.0, close=0.5)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scheme", [rs.fedpi("auto"), rs.fedavg(0.01)], ids=["auto", "fedavg"])
def test_a_row_has_the_bytes_of_all_rounds_since_the_one_before(options: dict[str, Any], scheme: rs.Scheme) -> None:
    """An automatic eta asks for curvature in rounds 1, 2, 3, 5, 9, 17, so rounds are not alike."""
    some = rs.solve(problem(), scheme, rounds=20, **options).history
    each = rs.solve(problem(), scheme, rounds=20, participation=options.get("participation")).history
    assert some["round"].tolist() != each["round"].tolist()
    for name in ("bytes_up", "bytes_down"):
        so_far = each[name].cumsum()
        assert some[name].cumsum().tolist() == so_far[some["round"] - 1].tolist()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_run_that_goes_on_has_the_same_rows(options: dict[str, Any], tmp_path: Path) -> None:
    whole = rs.solve(problem(), rs.fedpi("auto"), rounds=20, **options)
    first = rs.solve(problem(), rs.fedpi("auto"), rounds=7, **options)
    stored = rs.open(first.save(tmp_path / "it"))
    again = stored.resume(problem(), rs.fedpi("auto"), rounds=20, **options)
    for part in (first.resume(rounds=11).resume(rounds=20), again):
        assert part.history.drop(columns="seconds").equals(whole.history.drop(columns="seconds"))


def test_a_run_that_was_interrupted_between_two_rows_reports_what_it_had_sent() -> None:
    def interrupt(happened: rs.Round) -> None:
        if happened.number == 8:
            raise KeyboardInterrupt

    whole = rs.solve(problem(), rs.fedpi("auto"), rounds=12, every=5)
    left = rs.solve(problem(), rs.fedpi("auto"), rounds=12, every=5, callback=interrupt)
    assert left.status == "interrupted"
    assert left.history["round"].tolist() == [5]
    on = left.resume(rounds=12)
    assert on.history.drop(columns="seconds").equals(whole.history.drop(columns="seconds"))


class Wired(InProcess):
    """An engine over which bytes really move: seven up and eleven down in every round."""

    moved = 0

    @property
    def traffic(self) -> Traffic:
        return Traffic(7 * self.moved, 11 * self.moved)

    def local(self, *asked: Any) -> Any:
        self.moved += 1
        return super().local(*asked)


@pytest.mark.parametrize("options", [{"every": 3}, {"every": 5, "stop": rs.Stop(gap=0.0)}], ids=str)
def test_bytes_that_really_moved_are_reported_alike(options: dict[str, Any]) -> None:
    run = rs.solve(None, rs.fedpi(0.05), rounds=13, engine=Wired(problem(), rs.ExactProx()), **options)
    assert run.history.bytes_up.cumsum().tolist() == (7 * run.history["round"]).tolist()
    assert run.history.bytes_down.cumsum().tolist() == (11 * run.history["round"]).tolist()
    torch.testing.assert_close(run.model, rs.solve(problem(), rs.fedpi(0.05), rounds=13).model)
