"""Names of metrics become columns of histories and files: odd ones, and those that are taken, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resolvent as rs
from resolvent.engines.flower.messages import Description
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.packets import Malformed
from resolvent.errors import InputError
from resolvent.iteration.metric_names import FIRST, LAST, checked
from resolvent.runs.metrics import Metrics, heading, read

TAKEN = [*FIRST, *LAST, "bytes"]
ODD = ["a,b", "a\nb", "", " ", 'a"b', "=cmd", "-x", "a" * 61, "a\x00b", 3, None]


def problem() -> rs.Logistic:
    return rs.Logistic(np.eye(3)[None], np.array([[1.0, -1.0, 1.0]]), reg=0.1)


@pytest.mark.parametrize("name", [*TAKEN, *ODD])
def test_solve_refuses_them(name: Any) -> None:
    test = rs.HeldOut([np.eye(3)], [np.array([1.0, -1.0, 1.0])])
    with pytest.raises(InputError, match="metrics"):
        rs.solve(problem(), "fedpi", rounds=2, test=test, metrics={name: lambda truth, scores: 0.0})


@pytest.mark.parametrize("name", [*TAKEN[4:], "eta", "round", *ODD])
def test_problems_that_measure_are_refused_too(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `inspect` of one's own, as networks have it: its names are the columns."""
    one = problem()
    monkeypatch.setattr(type(one), "offers", one.offers | {"inspect"})
    monkeypatch.setattr(type(one), "inspect", lambda *_: {"value": 1.0, name: 2.0}, raising=False)
    with pytest.raises(InputError, match="metrics"):
        rs.solve(one, "fedpi", rounds=2)


@pytest.mark.parametrize("name", [*TAKEN, *ODD])
def test_nodes_and_their_server_refuse_them(name: Any) -> None:
    node = Node(problem(), metrics=lambda w: {name: 1.0})
    with pytest.raises(InputError, match="a metric of this node"):
        node._measured(problem().weights.new_zeros(3), {})
    good = Description("Logistic", 3, "float64", 3, (), True, False, rows=3).as_dict() | {
        "offers": [],
        "intercepts": [],
    }
    assert Description.of(good | {"metrics": ["top-1", "auc@5", "größe"]}).metrics == ("top-1", "auc@5", "größe")
    for metrics in ([name], ["a", "a"]):
        with pytest.raises(Malformed, match="metrics"):
            Description.of(good | {"metrics": metrics})


def test_columns_are_written_so_that_they_come_back(tmp_path: Path) -> None:
    """Whatever a saved frame calls them; plain rows have the bytes that they always had."""
    rows = Metrics(tmp_path / "metrics.csv")
    rows.append({"round": 1, "gap": 0.1, "x": float("nan")})
    rows.append({"round": 2, "gap": 1e-300})
    rows.close()
    assert (tmp_path / "metrics.csv").read_bytes() == b"round,gap,x\n1,0.1,nan\n2,1e-300,nan\n"
    odd = Metrics(tmp_path / "odd.csv")
    odd.append({"round": 1, "a,b": 2.0, 'c"d': 3.0})
    odd.close()
    assert read(tmp_path / "odd.csv").to_dict("list") == {"round": [1], "a,b": [2.0], 'c"d': [3.0]}
    assert heading((tmp_path / "odd.csv").read_bytes()) == ["round", "a,b", 'c"d']
    again = Metrics(tmp_path / "odd.csv", odd.length)
    again.append({"round": 2, "a,b": 5.0})
    again.close()
    assert read(tmp_path / "odd.csv")["a,b"].tolist() == [2.0, 5.0]


def test_names_that_are_fine() -> None:
    fine = ["brier", "top-1", "auc@5", "F1.macro", "test_value"]
    assert [checked(name) for name in fine] == fine
