"""Runs on disk, and the progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import resolvent as rs
from resolvent.engines.in_process import InProcess
from resolvent.solving import progress
from resolvent.solving.prepare import prepare
from solving_cases import case, logistic, quietly, same_bits, squares

# --- on disk ---------------------------------------------------------------------------------------------------------


@quietly
@pytest.mark.parametrize(
    ("problem", "scheme", "more"),
    [
        case(squares, rs.fedpi(0.02), "plain"),
        case(squares, rs.fedprox(0.02), "one_u", average="ergodic"),
        case(logistic, rs.fedpi("auto"), "newton_auto", anderson=2, participation=rs.Bernoulli(0.5)),
        case(squares, rs.fedpi(0.02), "paper", participation=rs.FixedSize(2, absent="paper")),
    ],
)
def test_a_saved_run_comes_back(tmp_path: Path, problem: Any, scheme: Any, more: dict[str, Any]) -> None:
    run = rs.solve(problem(), scheme, rounds=9, seed=4, **more)
    folder = run.save(tmp_path / "new" / "run")
    back = rs.Run.load(folder)
    same_bits(run.state, back.state)
    pd.testing.assert_frame_equal(run.history, back.history, check_exact=True)
    assert (back.status, back.reason) == (run.status, run.reason)
    assert torch.equal(run.model, back.model)
    assert repr(back) == repr(run)
    rest, expected = (rs.solve(problem(), scheme, rounds=3, seed=4, start=r.state, **more) for r in (back, run))
    same_bits(rest.state, expected.state)


def test_personal_models_of_a_loaded_run(tmp_path: Path) -> None:
    run = rs.solve(squares(), rs.fedpi(0.02), rounds=9)
    assert torch.equal(rs.Run.load(run.save(tmp_path)).personal, run.personal)


@quietly
def test_a_run_of_one_vector_that_was_saved_without_its_users_says_that_personal_models_need_them() -> None:
    run = rs.solve(squares(), rs.fedprox(0.02), rounds=3)
    alone = rs.Run(run.state, run.history, run.status, run.reason, "")
    with pytest.raises(rs.InputError, match="personal models of users who share one vector need the users"):
        _ = alone.personal


# --- progress --------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is a long one."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "REFRESH", 0.0)


@pytest.mark.usefixtures("impatient")
def test_no_bar_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    rs.solve(squares(), rs.fedpi(0.02), rounds=5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_bar_when_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    rs.solve(squares(), rs.fedpi(0.02), rounds=50, progress=True, callback=lambda r: None)
    out, err = capsys.readouterr()
    assert out == ""
    assert "FedPi" in err
    assert "/50" in err
    assert "residual" in err


def test_no_bar_for_a_short_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    rs.solve(squares(), rs.fedpi(0.02), rounds=5, progress=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("terminal", "notebook"), [(True, False), (False, True), (False, False)])
def test_a_bar_is_wanted_where_somebody_looks(monkeypatch: pytest.MonkeyPatch, terminal: bool, notebook: bool) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    if notebook:
        monkeypatch.setitem(__import__("sys").modules, "ipykernel", object())
    assert progress.wanted(None) is (terminal or notebook)
    assert progress.wanted(False) is False
    assert progress.wanted(True) is True


@pytest.mark.parametrize("at", ["inspect", "measure"])
def test_an_interrupt_in_the_middle_of_a_row_leaves_that_row_out(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a round is recorded is an interrupt like any other, not a failure."""
    problem, scheme = rs.make_least_squares(users=3, dim=4, rows=10), rs.fedprox(0.01)
    from resolvent.engines.in_process import InProcess

    plain, calls = getattr(InProcess, at), []

    def interrupted(self: InProcess, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    whole = prepare(problem, scheme, 10, stop=rs.Stop(gap=0.0), explanation=rs.explain(scheme, problem)).run()
    monkeypatch.setattr(InProcess, at, interrupted)
    run = prepare(problem, scheme, 10, stop=rs.Stop(gap=0.0), explanation=rs.explain(scheme, problem)).run()
    assert run.status == "interrupted"
    rows = run.history.drop(columns="seconds")
    assert 4 <= len(rows) < 10
    assert rows.equals(whole.history.drop(columns="seconds").iloc[: len(rows)])
