"""A fork goes on from a run's state with other settings; the run itself is left alone."""

from pathlib import Path

import pytest

from command_line import SMALL, model, resolvent, rows
from resolvent.runs import Folder, folders

RUN = ("run", "least-squares", *SMALL, "--eta", "0.02", "--rounds", 12, "--quiet")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(*arguments: object) -> Folder:
    said = resolvent(*arguments, "--format", "json")
    assert said.code == 0, said
    return Folder(Path(said.json["folder"]))


def test_a_fork_with_nothing_changed_but_its_rounds_has_the_bits_of_a_longer_run() -> None:
    run, longer = ran(*RUN), ran(*RUN, "--rounds", 20, "--out", "longer")
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    fork = ran("fork", run.id, "--rounds", 20, "--quiet")
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files
    assert model(fork) == model(longer)
    assert rows(fork).splitlines()[1:][0].split(",")[1] == "13"
    assert fork.about["forked"] == {"run": run.id, "round": 12}


def test_other_settings_take_effect() -> None:
    run = ran(*RUN)
    fork = ran("fork", run.id, "--set", "scheme.eta=0.5", "--rounds", 14, "--quiet")
    assert fork.history()["eta"].tolist() == [0.5, 0.5]
    assert fork.config["scheme"]["eta"] == 0.5
    parted = ran("run", "least-squares", *SMALL, "--algorithm", "fedprox", "--eta", "0.02", "--rounds", 5, "--quiet")
    fork = ran("fork", parted.id, "--algorithm", "fedpi", "--rounds", 9, "--quiet")  # users who shared u must part
    assert fork.history()["round"].tolist() == [6, 7, 8, 9]
    assert fork.state().round == 9


def test_a_fork_that_lost_its_checkpoints_begins_where_it_began() -> None:
    run = ran(*RUN)
    whole = ran("fork", run.id, "--rounds", 20, "--quiet")
    torn = ran("fork", run.id, "--rounds", 20, "--quiet")
    events = torn.path / "events.jsonl"
    events.write_bytes(events.read_bytes().splitlines(keepends=True)[0])
    for path in torn.checkpoints.iterdir():
        path.unlink()
    assert resolvent("resume", torn.id, "--quiet").code == 0
    assert rows(torn) == rows(whole)


def test_no_sweep_is_served_a_fork() -> None:
    run = ran(*RUN)
    fork = ran("fork", run.id, "--set", "scheme.eta=0.5", "--rounds", 14, "--quiet")
    sweep = ("sweep", "least-squares", *SMALL, "--rounds", 14, "--grid", "scheme.eta=0.5", "--quiet")
    assert resolvent(*sweep).code == 0
    assert len(folders(Path("runs"))) == 3
    assert fork.damage() == []


def test_what_cannot_be_forked_is_one_sentence() -> None:
    run = ran(*RUN)
    cases = {
        (): "run.rounds is 12, but run",
        ("--rounds", "12"): "run.rounds is 12, but run",
        ("--dim", "9", "--rounds", "20"): "the state is of shape",
        ("--preset", "quick"): "--preset is quick",
        ("--set", "scheme.etta=1"): "no key scheme.etta",
    }
    for arguments, words in cases.items():
        said = resolvent("fork", run.id, *arguments)
        assert said.code == 2
        assert words in said.err
        assert said.err.count("\n") == 1
    assert len(folders(Path("runs"))) == 1
