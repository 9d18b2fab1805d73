"""Code of the user's that raises in a round: what was done is kept, and it is said what happened, where."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from command_line import model, resolvent, rows
from resolvent.runs import folders

OWN = """
import os
import sys
import resolvent as rs
import torch

CALLS = 0


class Mine(Exception):
    pass


def prox(i):
    def mine(u, eta):
        global CALLS
        CALLS += 1
        if os.environ.get("BREAK") and CALLS == 42:
            {how}
        return (u + eta * i) / (1 + eta)

    return mine


def make():
    value = [lambda x, i=i: 0.5 * ((x - i) ** 2).sum() for i in range(4)]
    return rs.Custom(users=4, dim=3, prox=[prox(i) for i in range(4)], value=value)
"""
HOW = {
    "an error": ("raise Mine('something is wrong')", "Mine: something is wrong"),
    "an exit": ("sys.exit(0)", "SystemExit: 0"),
    "an operating system's error": ("open('nowhere/at/all')", "FileNotFoundError: [Errno 2]"),
    "a lack of memory": ("raise MemoryError", "MemoryError"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def custom(failing: Any) -> rs.Custom:
    prox = [lambda u, eta, i=i: failing((u + eta * i) / (1 + eta)) for i in range(4)]
    return rs.Custom(users=4, dim=3, prox=prox)


@pytest.mark.parametrize("engine", ["in-process", "debug"])
@pytest.mark.parametrize("name", HOW)
def test_the_run_is_kept_and_goes_on(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, words = HOW[name]
    Path("own.py").write_text(OWN.format(how=code))
    asked = ("run", "own.py:make", "--eta", "0.5", "--rounds", 12, "--set", f"run.engine={engine}", "--quiet")
    monkeypatch.setenv("BREAK", "1")
    said = resolvent(*asked)
    assert said.code == 4, said
    (run,) = folders(Path("runs"))
    done = run.state().round
    sentence, *below = said.err.splitlines()
    assert sentence.startswith(f"resolvent: round {done + 1} of run {run.id} failed (")
    assert words in sentence
    assert f"`resolvent resume {run.id}`" in sentence
    assert below[0] == "Traceback (most recent call last):"
    assert "own.py" in below[1]
    assert words in below[-1]
    assert run.status == "failed"
    assert words in run.events[-1]["reason"]
    assert run.events[-1]["round"] == done >= 1
    assert len(run.history()) == done
    assert resolvent("ls", "--format", "json").json[0]["status"] == "failed"
    monkeypatch.delenv("BREAK")
    assert resolvent("resume", run.id, "--quiet").code == 0
    whole = resolvent(*asked, "--out", "whole")
    assert whole.code == 0
    (expected,) = folders(Path("whole"))
    assert rows(run) == rows(expected)
    assert model(run) == model(expected)


def test_a_fork_goes_on_with_mended_code(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own.py").write_text(OWN.format(how="raise Mine('no')"))
    monkeypatch.setenv("BREAK", "1")
    assert resolvent("run", "own.py:make", "--eta", "0.5", "--rounds", 12, "--quiet").code == 4
    (run,) = folders(Path("runs"))
    Path("own.py").write_text(OWN.format(how="pass"))
    said = resolvent("resume", run.id)
    assert said.code == 2
    assert "is not the file that this run began with" in said.err
    assert "resolvent fork" in said.err
    said = resolvent("fork", run.id, "--format", "json", "--quiet")
    assert said.code == 0, said
    assert said.json["round"] == 12


@pytest.mark.parametrize(
    "error", [KeyError("no"), SystemExit(0), OSError("no")], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("engine", ["in-process", "debug"])
def test_in_the_library_the_run_so_far_is_on_the_exception(error: BaseException, engine: str) -> None:
    left = [42]

    def failing(x: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise error
        return x

    with pytest.raises((KeyError, SystemExit, OSError, RuntimeError)) as caught:
        rs.solve(custom(failing), rs.fedpi(0.5), 50, engine=engine, progress=False)
    run = caught.value.run  # type: ignore[attr-defined]
    assert run.status == "failed"
    assert 1 <= run.state.round < 50
    assert len(run.history) == run.state.round
    left[0] = -1
    more = rs.solve(
        custom(failing), rs.fedpi(0.5), 50 - run.state.round, start=run.state, engine=engine, progress=False
    )
    whole = rs.solve(custom(failing), rs.fedpi(0.5), 50, engine=engine, progress=False)
    assert torch.equal(more.model, whole.model)


def test_a_value_that_fails_leaves_what_was_measured() -> None:
    calls = [0]

    def value(x: Any) -> Any:
        calls[0] += 1
        if calls[0] > 290:
            raise ZeroDivisionError
        return 0.5 * (x**2).sum()

    problem = rs.Custom(users=4, dim=3, prox=[lambda u, eta: u / (1 + eta)] * 4, value=[value] * 4)
    with pytest.raises(ZeroDivisionError) as caught:
        rs.solve(problem, rs.fedpi(0.5), 400, progress=False)
    run = caught.value.run  # type: ignore[attr-defined]
    assert run.state.round >= len(run.history)
    assert np.isfinite(run.history["value"]).all()


def test_a_callback_that_fails_keeps_its_round() -> None:
    def callback(happened: Any) -> None:
        if happened.number == 7:
            raise LookupError

    with pytest.raises(LookupError) as caught:
        rs.solve(custom(lambda x: x), rs.fedpi(0.5), 50, callback=callback, progress=False)
    assert caught.value.run.state.round == 7  # type: ignore[attr-defined]
