"""The bits of a run, its history included, do not depend on the threads that torch had before it began."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent as rs
from command_line import model, rows
from resolvent import config, experiment
from resolvent.runs import Folder
from resolvent.runs.recorder import Recorder
from resolvent.solving import prepare

LOGISTIC = {"problem": {"name": "logistic", "users": 6, "dim": 60, "rows": 1000}, "run": {"rounds": 4}}
OWN = "import resolvent as rs\ndef make(): return rs.make_logistic(users=6, dim=60, rows=1000)\n"
CASES = {
    "made": LOGISTIC,
    "two threads asked for": LOGISTIC | {"run": {"rounds": 4, "threads": 2}},
    "own": {"problem": {"name": "own.py:make"}, "run": {"rounds": 4}, "scheme": {"eta": 0.01}},
    "own, two threads asked for": {
        "problem": {"name": "own.py:make"},
        "run": {"rounds": 4, "threads": 2},
        "scheme": {"eta": 0.01},
    },
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    yield
    torch.set_num_threads(1)


def begun(tree: dict[str, Any], out: str, until: int | None = None) -> Folder:
    torch.set_num_threads(2)
    keep = Recorder.__call__

    def press(recorder: Any, happened: Any, *rest: Any) -> Any:
        if happened.number == until:
            raise KeyboardInterrupt
        return keep(recorder, happened, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "__call__", press)
        return experiment.begin(experiment.build(config.read(tree)), Path(out), progress=False).run


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_has_the_same_history(name: str) -> None:
    whole, torn = begun(CASES[name], "whole"), begun(CASES[name], "torn", until=3)
    torch.set_num_threads(2)
    assert experiment.resume(torn, progress=False).status == "finished"
    assert rows(torn) == rows(whole)
    assert model(torn) == model(whole)


def test_runs_of_a_sweep_have_the_bits_of_runs_alone() -> None:
    """A problem that several runs share is made as each alone would make it."""
    from resolvent.cli import many

    make = many._making()
    for threads in (1, 2):
        tree = LOGISTIC | {"run": {"rounds": 4, "threads": threads}}
        asked = config.read(tree)
        built = experiment.build(asked, make(asked.problem, asked.run.seed, asked.run.threads))
        swept = experiment.begin_or_resume(built, Path("swept"), False).run
        assert rows(swept) == rows(begun(tree, f"alone-{threads}"))


@pytest.mark.parametrize("name", ["short", "long"])
def test_short_products_take_one_thread_and_the_caller_has_its_own_afterwards(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "long":
        monkeypatch.setattr(prepare, "SHORT", 0)
    problem, seen = rs.make_logistic(users=4, dim=30, rows=2000), []

    def note(happened: Any) -> None:
        seen.append(torch.get_num_threads())

    def solved(threads: int) -> Any:
        torch.set_num_threads(threads)
        return rs.solve(problem, rs.fedpi(1e-2), 3, callback=note, progress=False)

    one, two = solved(1), solved(2)
    assert torch.get_num_threads() == 2
    assert seen == [1, 1, 1, *([1, 1, 1] if name == "short" else [2, 2, 2])]
    if name == "short":
        assert torch.equal(one.model, two.model)

    def fail(happened: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        rs.solve(problem, rs.fedpi(1e-2), 3, callback=fail, progress=False)
    assert torch.get_num_threads() == 2
