"""What every engine promises, whatever lies behind it.

An engine that lives in this process is one more line in ENGINES: a function of (problem, operator, steady) that gives
an engine, or a context manager that opens one and closes it again. Other engines bring such a function themselves:

    @pytest.mark.parametrize("name", CASES)
    def test_my_engine_takes_the_same_way(name: str) -> None:
        check(make, name)

`check` runs the case by that engine and compares it with the in-process engine to 1e-10, round by round: every tensor
of the state, and every column of the history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import resolvent as rs
from engines.cases import CASES, built
from resolvent.engines.debug import Debug
from resolvent.engines.in_process import InProcess
from resolvent.iteration.engine import Engine
from resolvent.local.choice import local_operator

Make = Callable[[Any, Any, bool], Any]
"""(problem, operator, steady) -> an engine, or a context manager that opens one."""

ENGINES: dict[str, Make] = {
    "in_process": InProcess,
    "debug": Debug,
}

TOLERANCE = 1e-10
ROUNDS = 15


@contextmanager
def opened(name: str, problem: Any, operator: Any, steady: bool = True) -> Iterator[Engine]:
    """The engine of that name for these users, closed again afterwards where it wants to be."""
    made = ENGINES[name](problem, operator, steady)
    with made if hasattr(made, "__enter__") else nullcontext(made) as engine:
        yield engine


def opened_for(name: str, problem: Any, scheme: rs.Scheme) -> Any:
    """The engine that `solve` would build for this scheme."""
    return opened(name, problem, local_operator(scheme, problem), scheme.steady)


# --- runs, as numbers ------------------------------------------------------------------------------------------------


class Trajectory(NamedTuple):
    """Every round's state by field, the history without its seconds, and the run itself."""

    points: list[dict[str, Tensor]]
    history: Any
    run: rs.Run


def trajectory(problem: Any, scheme: rs.Scheme, **more: Any) -> Trajectory:
    """A run, round by round."""
    seen: list[dict[str, Tensor]] = []
    given = {"rounds": ROUNDS, "seed": 7, "progress": False, **more}
    run = rs.solve(problem, scheme, callback=lambda r: seen.append(_tensors(r.state)), **given)
    return Trajectory(seen, run.history.drop(columns="seconds"), run)


ROWS = ("u", "p", "next", "z")
"""Fields of a State with a row for every user here; with one row where users share u."""


def _tensors(state: Any) -> dict[str, Tensor]:
    average = None if state.parts.average is None else state.parts.average.model
    kept = {"z": state.parts.participation.z, "average": average}
    found = {name: getattr(state, name) for name in (*ROWS, "w", "met") if name != "z"} | kept
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def assert_same_trajectory(
    found: Trajectory, expected: Trajectory, here: Sequence[int] | None = None, unknown: Collection[str] = ()
) -> None:
    """Round by round, so that a failure names the first round that differs, and in what.

    here: the users whose rows `found` has; None: everybody. unknown: columns of the history that its engine cannot
    know, such as the gap where nobody knows f*.
    """
    assert len(found.points) == len(expected.points)
    together = expected.run.state.together
    for t, (points, wanted) in enumerate(zip(found.points, expected.points, strict=True)):
        assert points.keys() == wanted.keys(), f"round {t + 1}"
        for name, tensor in wanted.items():
            rows = tensor if here is None or together or name not in ROWS else tensor[list(here)]
            _assert_close(points[name], rows, f"{name} in round {t + 1}")
    table, other = found.history, expected.history
    assert list(table.columns) == list(other.columns)
    for column in table.columns.difference(list(unknown)):
        a, b = (torch.tensor(history[column].to_numpy(float)) for history in (table, other))
        _assert_close(a, b, f"the column {column}")


def _assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True, msg=lambda words: f"{what}: {words}"
    )


@cache
def expected_of(name: str) -> Trajectory:
    """A case computed by the in-process engine."""
    problem, scheme, more = CASES[name]
    return trajectory(built(problem), scheme, **more)


def check(make: Make, name: str, here: Sequence[int] | None = None, unknown: Collection[str] = ()) -> Trajectory:
    """Let the engine that `make` gives run a case, and compare it with the in-process engine round by round.

    An engine with a `problem` of its own is given that problem; for others `solve` goes by the engine's facts. Where
    the engine counts the bytes that it moved, the history's count is not compared.
    """
    problem, scheme, more = CASES[name]
    users = built(problem)
    made = make(users, local_operator(scheme, users), scheme.steady)
    with made if hasattr(made, "__enter__") else nullcontext(made) as engine:
        own = getattr(engine, "problem", None) is users
        found = trajectory(users if own else None, scheme, engine=engine, **more)
        moved = () if engine.traffic is None else ("bytes_up", "bytes_down")
    assert_same_trajectory(found, expected_of(name), here, (*unknown, *moved))
    return found
