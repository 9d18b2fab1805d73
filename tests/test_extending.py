"""docs/extending.md, run as a stranger would run it: every block in order, then what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    return names


pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def test_an_algorithm_in_one_row(page: dict[str, Any]) -> None:
    said = page["rs"].explain(page["midpoint"], page["problem"])
    assert said.solves == "regularised"
    assert said.eta_eff == pytest.approx(0.05)
    expected = page["rs"].theory.regularised_minimiser(page["problem"], 0.05)
    torch.testing.assert_close(page["run"].model, expected, rtol=1e-6, atol=1e-8)


def test_a_problem_in_one_file(page: dict[str, Any]) -> None:
    """At the geometric median the unit vectors towards the points add up to nothing."""
    pull = page["points"].grad(page["median"].expand(4, -1)).sum(0)
    assert float(pull.norm()) < 1e-6


def test_a_local_operator_in_one_file(page: dict[str, Any]) -> None:
    """About the problem at twice the step, which FedPi does not depend on."""
    assert page["twice"].explanation.solves == "original"
    assert not page["twice"].explanation.exactly
    assert float(page["twice"].history.residual.iloc[-1]) < 1e-6


def test_a_compressor_in_one_file(page: dict[str, Any]) -> None:
    """It moves no fixed point, says so, and two numbers of each user cross."""
    run = page["compressed"]
    torch.testing.assert_close(run.model, page["problem"].minimiser, rtol=1e-5, atol=1e-6)
    assert "what is left out of z" in run.explanation.why
    assert set(run.history.bytes_up) == {2 * 8 * page["problem"].users}


def test_an_acceleration_in_one_file(page: dict[str, Any], tmp_path: Path) -> None:
    """It converges like 1/t, as Halpern's iteration does, and goes on from a stored state."""
    rs, problem, run = page["rs"], page["problem"], page["anchored"]
    assert run.state.parts.accelerate.taken == 400
    assert float(run.history.residual.iloc[-1]) < 0.02 * float(run.history.residual.iloc[0])
    assert run.explanation.theorem is None
    accelerate = page["Halpern"](torch.zeros(1, 3, dtype=torch.float64))
    half = rs.solve(problem, rs.fedpi(eta=0.05), rounds=150, accelerate=accelerate)
    state = rs.Run.load(half.save(tmp_path / "half")).state
    rest = rs.solve(problem, rs.fedpi(eta=0.05), rounds=250, accelerate=accelerate, start=state)
    assert torch.equal(rest.state.next, run.state.next)


def test_an_engine_in_one_file(page: dict[str, Any]) -> None:
    lossy = page["lossy"]
    assert set(lossy.history.participants) == {3, 4}
    torch.testing.assert_close(lossy.model, page["problem"].minimiser, rtol=1e-8, atol=1e-8)
