"""Users who agree carry one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent.iteration import checkpoint
from resolvent.iteration.table import named
from solving_cases import quietly, same_bits, squares

# --- one vector where users agree ------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize("name", rs.TABLE)
@pytest.mark.parametrize("anderson", [None, 2, rs.Anderson(2, on="mean")], ids=["plain", "on_u", "on_mean"])
def test_fedavg_fedprox_and_fedrp_carry_one_vector(name: str, anderson: Any) -> None:
    run = rs.solve(squares(), named(name, 0.01), rounds=5, anderson=anderson)
    rows = 1 if rs.TABLE[name].beta == 1 else 6
    tensors, _ = checkpoint.pack(run.state)
    assert run.state.u.shape == run.state.p.shape == run.state.next.shape == (rows, 4)
    assert all(len(tensor) <= rows for tensor in tensors.values())


@quietly
def test_whether_they_carry_one_depends_on_beta_and_on_who_is_left_behind() -> None:
    def rows(scheme: rs.Scheme, participation: Any = None) -> int:
        return len(rs.solve(squares(), scheme, rounds=3, participation=participation).state.u)

    assert rows(rs.Scheme(1.7, 1, 0.3, 0.02)) == 1  # whatever alpha and gamma
    assert rows(rs.Scheme(1.7, lambda t: 1.0, 0.3, 0.02)) == 6  # nobody knows what a function will do
    assert rows(rs.fedprox(0.02), rs.Bernoulli(0.5, absent="paper")) == 1
    assert rows(rs.fedprox(0.02), rs.Bernoulli(0.5)) == 6


@quietly
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedrp"])
def test_one_vector_takes_the_way_of_many(name: str) -> None:
    """Started as rows that agree, users are carried one by one: the models must be the same."""
    scheme, rows = named(name, 0.01), torch.ones(6, 4, dtype=torch.float64)
    one = rs.solve(squares(), scheme, rounds=10, start=rows[0])
    many = rs.solve(squares(), scheme, rounds=10, start=rows)
    assert (len(one.state.u), len(many.state.u)) == (1, 6)
    torch.testing.assert_close(one.model, many.model, rtol=1e-11, atol=1e-12)
    for column in ("gap", "residual", "consensus", "stationarity"):
        np.testing.assert_allclose(one.history[column], many.history[column], rtol=1e-6, atol=1e-11)


ONE = rs.LeastSquares([[[1.0, 0.5], [0.2, 2.0], [1.0, 1.0]]], [[1.0, -1.0, 2.0]])


ABSENCES = [
    (name, absent)
    for name, row in rs.TABLE.items()
    for absent in ("everyone", "hold", "paper")
    if absent != "paper" or row.sampling != "none"  # whose papers have everybody present
]


@quietly
@pytest.mark.parametrize(("name", "absent"), ABSENCES)
@pytest.mark.parametrize("anderson", [None, 2, rs.Anderson(2, on="mean")], ids=["plain", "on_u", "on_mean"])
def test_one_user_goes_on_to_the_same_bits(name: str, absent: Any, anderson: Any) -> None:
    """Its one row is no vector that users share: whether they do is a field of the State, not a shape."""
    own_rule = absent == "paper" and rs.TABLE[name].sampling != ""  # not Algorithm 1
    who = None if absent == "everyone" else rs.Trace([[1], [0], [1]], absent)
    more: dict[str, Any] = {"participation": who, "anderson": anderson, "start": [3.0, 1.0]}
    scheme = named(name, 0.1)
    whole = rs.solve(ONE, scheme, rounds=14, **more)
    assert whole.state.together == (rs.TABLE[name].beta == 1 and absent != "hold")
    assert (whole.state.parts.participation.seen is not None) == (absent == "hold" or own_rule)
    for cut in (1, 2, 7):
        half = rs.solve(ONE, scheme, rounds=cut, **more)
        same_bits(half.state, checkpoint.unpack(*checkpoint.pack(half.state)))
        rest = rs.solve(ONE, scheme, rounds=14 - cut, **(more | {"start": half.state}))
        same_bits(whole.state, rest.state)
