"""A run that has ended gets more rounds: every bit is that of a run which had them from the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import resolvent as rs
from command_line import SMALL, model, resolvent, rows
from resolvent import config, experiment
from resolvent.runs import Folder, checkpoints, folders
from resolvent.solving.recording import MonitorState
from runs.test_opening import table

SETTINGS = {
    "plain": ("--eta", "0.02"),
    "seldom": ("--eta", "0.02", "--every", "5"),
    "sampled": ("--eta", "0.02", "--participation", "0.5", "--anderson", "2"),
    "averaged": ("--algorithm", "fedavg", "--eta", "0.01", "--average", "suffix"),
    "automatic": ("--every", "3"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(*arguments: object) -> Folder:
    said = resolvent(*arguments, "--format", "json", "--quiet")
    assert said.code == 0, said
    return Folder(Path(said.json["folder"]))


def everything(run: Folder) -> tuple[dict[str, bytes], str, str]:
    """All that a run computed but the time it took."""
    found, complaints = checkpoints.newest(run.checkpoints)
    assert found is not None
    assert not complaints
    timed = dict.fromkeys(("run", "metrics", "metrics_sha256"))
    numbers = found.numbers | timed | {"pulse": MonitorState(*found.numbers["pulse"])._replace(seconds=0.0)}
    return {name: t.numpy().tobytes() for name, t in found.tensors.items()}, repr(numbers), rows(run)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_more_rounds_have_the_bits_of_a_longer_run(settings: tuple[str, ...]) -> None:
    start = ("run", "least-squares", *SMALL, *settings)
    run, longer = ran(*start, "--rounds", 12), ran(*start, "--rounds", 21, "--out", "longer")
    more = ran("resume", run.id, "--rounds", 17)  # twice: first to 17, then to 21
    assert more.row()["round"] == 17
    more = ran("resume", run.id, "--rounds", 21)
    assert everything(more) == everything(longer)
    assert more.status == "finished"
    assert more.config["run"]["rounds"] == 21
    assert not more.verify()
    assert resolvent("resume", run.id).code == 0  # it has ended, and is verified
    assert resolvent("show", run.id, "--format", "json").json["config"]["run"]["rounds"] == 21


@pytest.mark.parametrize("survives", [0, 1, 2, 3, 4])
def test_a_run_that_is_killed_while_it_gets_more_rounds_goes_on(survives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = ("run", "least-squares", *SMALL, "--eta", "0.02", "--every", 5)
    run, longer = ran(*start, "--rounds", 12), ran(*start, "--rounds", 16, "--out", "longer")
    with killed(monkeypatch, survives):
        experiment.resume(run, False, rounds=16)
    assert everything(ran("resume", run.id, "--rounds", 16)) == everything(longer)


class Killed(BaseException):
    pass


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, survives: int) -> Iterator[None]:
    """As if the process were killed at the checkpoint after so many."""
    left, write = [survives], checkpoints.write

    def dies(*arguments: Any, **more: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        write(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", dies)
        with pytest.raises(Killed):
            yield


def test_what_a_run_with_more_rounds_computes_is_not_taken_for_what_it_was() -> None:
    run = ran("run", "least-squares", *SMALL, "--eta", "0.02", "--rounds", 6)
    short = experiment.build(config.read(run.config)).fingerprint
    assert experiment.find(short, Path("runs")) is not None
    ran("resume", run.id, "--rounds", 8)
    assert experiment.find(short, Path("runs")) is None
    longer = experiment.build(config.read(Folder(run.path).config)).fingerprint
    found = experiment.find(longer, Path("runs"))
    assert found is not None
    assert found.id == run.id


def test_what_cannot_have_more_rounds_says_why() -> None:
    run = ran("run", "least-squares", *SMALL, "--eta", "0.02", "--rounds", 6)
    said = resolvent("resume", run.id, "--rounds", 5)
    assert (said.code, "has 6: give more" in said.err) == (2, True)
    stopped = ran("run", "least-squares", *SMALL, "--eta", "0.02", "--rounds", 99, "--stop-gap", "1")
    said = resolvent("resume", stopped.id, "--rounds", 200)
    assert said.code == 2
    assert "since it stopped (gap" in said.err
    assert "resolvent fork" in said.err


def test_an_opened_run_of_one_vector_asks_its_users_again() -> None:
    opened = rs.open(ran("run", "logistic", *SMALL, "--algorithm", "fedprox", "--eta", "0.1", "--rounds", 4).path)
    assert opened.state.together
    problem = experiment.build(config.read(opened.config)).task.problem
    with pytest.warns(rs.SolvesAnotherProblem):
        run = rs.solve(problem, rs.fedprox(0.1), rounds=4)
    assert opened.personal.equal(run.personal)


def test_python_gives_a_run_of_the_command_line_more_rounds() -> None:
    start = ("run", "logistic", *SMALL, "--eta", "0.1")
    run, longer = ran(*start, "--rounds", 4), ran(*start, "--rounds", 7, "--out", "longer")
    opened = rs.open(run.path)
    assert (opened.status, opened.state.round) == ("finished", 4)
    more = opened.resume(rounds=7)
    assert more.model.numpy().tobytes() == model(longer)
    assert rows(Folder(run.path)) == rows(longer)
    assert (more.predict([[1.0] * 5]) == rs.open(longer.path).predict([[1.0] * 5])).all()
    with pytest.raises(rs.InputError, match="give rounds alone"):
        opened.resume(rs.make_logistic(), rounds=9)


@pytest.mark.parametrize("survives", [0, 3, 6])
def test_the_best_model_on_disk_survives_a_kill(survives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table().to_csv("patients.csv", index=False)
    start = ("run", "patients.csv", "--user-column", "ward", "--target", "ill", "--impute", "mean", "--test", "0.3",
             "--eta", "0.3", "--rounds", 60, "--stop-metric", "test_log_loss", "--patience", 4,
             "--validate-every", 2)  # fmt: skip
    whole = ran(*start, "--out", "whole")
    assert whole.status == "stopped"
    with killed(monkeypatch, survives):
        resolvent(*start, "--quiet")
    (run,) = folders(Path("runs"))
    assert everything(ran("resume", run.id)) == everything(whole)
    opened = rs.open(run.path)
    losses = opened.history.set_index("round").test_log_loss
    assert (opened.best.round, opened.best.value) == (losses.idxmin(), losses.min())
    assert opened.predict(table()).tolist() == rs.open(whole.path).predict(table()).tolist()
