"""The index of runs: what it says is what is on disk, and only what has changed is read again."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resolvent as rs
from command_line import resolvent
from resolvent import config as configs
from resolvent import experiment
from resolvent.errors import DamagedRun
from resolvent.runs import Folder, folders, lock
from resolvent.runs.folder import reading
from resolvent.ui import store as stores
from resolvent.ui.curves import Curves
from resolvent.ui.store import Store, Unknown, last_row, settings_of
from resolvent.ui.users import CAME, LATE, losses, presence, states

from .conftest import connected, make, serving


@pytest.fixture
def copied(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "runs"))


@pytest.mark.parametrize("heading", [b"round," + b"x" * 140_000, b"round,a\rb"])
def test_a_heading_that_no_reader_takes_is_damage(heading: bytes, copied: Path) -> None:
    run = next(run for run in folders(copied))
    run.metrics.write_bytes(heading + b"\n1,2\n")
    with pytest.raises(DamagedRun, match="do not fit together"), reading(run):
        Curves().since(run.metrics, 0)


def test_more_users_than_can_be_drawn_are_unknown(copied: Path) -> None:
    run = next(run for run in folders(copied) if run.config.get("participation", {}).get("probability"))
    run.about["problem"]["users"] = 10**9
    assert presence(run, 400)["kind"] == "unknown"


def test_only_what_has_changed_is_read_again(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = Store(copied), []
    whole = stores.summary
    monkeypatch.setattr(stores, "summary", lambda run, running: (read.append(run.id), whole(run, running))[1])
    changed, _ = store.refresh()
    assert len(changed) == len(read) == len(folders(copied))
    assert (store.refresh(), len(read)) == (([], []), len(changed))
    fresh = make(copied, rounds=3)
    assert [row["id"] for row in store.refresh()[0]] == [fresh.id] == read[-1:]
    shutil.rmtree(fresh.path)
    assert store.refresh() == ([], [fresh.id])
    with pytest.raises(Unknown):
        store.folder(fresh.id)


def test_runs_with_and_without_safeguards_look_different() -> None:
    config = {"scheme": {"eta": 0.1}, "run": {"seed": 0}}
    lines = [stores.in_words(config | {"anderson": {"memory": 2, "safeguard": safe}}) for safe in (True, False)]
    assert lines == ["η 0.1 · Anderson 2", "η 0.1 · Anderson 2 · no safeguards"]


def test_a_run_that_is_being_written(copied: Path) -> None:
    store, run = Store(copied), folders(copied)[0]
    store.refresh()
    rows = run.metrics.read_text()
    with lock.held(run.path):
        assert [(row["id"], row["status"]) for row in store.refresh()[0]] == [(run.id, "running")]
        last = rows.splitlines()[-1].split(",")
        with run.metrics.open("a") as file:
            file.write(",".join(["16", *last[1:]]) + "\n")
        assert [row["round"] for row in store.refresh()[0]] == [16]
        with run.metrics.open("a") as file:
            file.write("17,torn")
        assert store.refresh()[0] == []
    assert [row["status"] for row in store.refresh()[0]] == ["finished"]


def test_a_killed_run_is_seen_without_its_folder_changing(copied: Path) -> None:
    store, run = Store(copied), make(copied, rounds=2)
    (run.path / "events.jsonl").write_bytes((run.path / "events.jsonl").read_bytes().splitlines(True)[0])
    (run.path / "holder.json").write_text(json.dumps({"pid": 1, "machine": "elsewhere", "since": ""}))
    store.refresh()
    assert store.row(run.id)["status"] == Folder(run.path).status == "killed"


@pytest.mark.parametrize(
    ("file", "content"),
    [("about.json", b"{"), ("about.json", b"[]"), ("config.toml", b"\xff"), ("config.toml", b"[scheme]\n"),
     ("metrics.csv", b"round,gap\n1\n"), ("metrics.csv", b"round,gap\n1,<b>\n"), ("about.json", None)],
)  # fmt: skip
def test_damaged_runs_are_listed_as_such(copied: Path, file: str, content: bytes | None) -> None:
    run = folders(copied)[0]
    (run.path / file).unlink()
    if content is not None:
        (run.path / file).write_bytes(content)
    store = Store(copied)
    store.refresh()
    rows = {row["id"]: row["status"] for row in store.rows()}
    assert rows.pop(run.id) == "damaged"
    assert set(rows.values()) == {"finished"}


@pytest.fixture
def patience() -> Iterator[None]:
    """A read that waits for ever fails instead."""

    def ring(*_: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


DEEP = "[" * 900 + "]" * 900
HUGE = "0x" + "f" * 5000
FOREIGN: dict[str, tuple[str, Any]] = {
    "an infinite number of rounds": ("config.toml", lambda text: re.sub("rounds = .*", "rounds = Infinity", text)),
    "an infinite number in TOML's words": ("config.toml", lambda text: re.sub("rounds = .*", "rounds = inf", text)),
    "a number of 5,000 digits": ("config.toml", lambda text: re.sub("seed = .*", f"seed = {HUGE}", text)),
    "a date as a seed": ("config.toml", lambda text: re.sub("seed = .*", "seed = 1979-05-27", text)),
    "a number as a section": ("config.toml", lambda text: "local = 3\n" + re.sub(r"\[local\][^\[]*", "", text)),
    "a deep list as a setting": ("config.toml", lambda text: text + f"deep = {DEEP}\n"),
    "a key of 50,000 parts": ("config.toml", lambda text: "a" + ".a" * 50_000 + " = 1\n" + text),
    "infinitely many users": ("about.json", lambda text: re.sub('"users": 4', '"users": Infinity', text)),
    "a deep list as a description": ("about.json", lambda text: text.replace("{", f'{{"deep": {DEEP},', 1)),
    "40 GB of nothing as rows": ("metrics.csv", 40_000_000_000),
    "40 GB of nothing as events": ("events.jsonl", 40_000_000_000),
    "a pipe as configuration": ("config.toml", None),
    "a pipe as description": ("about.json", None),
    "a pipe as rows": ("metrics.csv", None),
    "a pipe as events": ("events.jsonl", None),
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.usefixtures("patience")
def test_one_damaged_folder_stops_nothing(what: str, copied: Path) -> None:
    """Its row says so, each of its own answers is a sentence, and the other runs are shown and compared."""
    (file, change), (run, *others) = FOREIGN[what], folders(copied)
    text = (run.path / file).read_text()
    (run.path / file).unlink()
    if change is None:
        os.mkfifo(run.path / file)
    elif isinstance(change, int):
        (run.path / file).touch()
        os.truncate(run.path / file, change)
    else:
        assert change(text) != text
        (run.path / file).write_text(change(text))
    ids = [run.id, *(other.id for other in others)]
    with serving(copied) as address, connected(address) as client:
        rows = {row["id"]: row["status"] for row in client.get("/api/runs").json()["runs"]}
        assert rows.pop(run.id) == "damaged"
        assert set(rows.values()) == {"finished"}
        shown = client.get(f"/api/runs/{run.id}").json()
        assert shown["row"]["status"] == "damaged"
        assert len(shown["damage"]) == 1
        for part in ("metrics", "participation", "losses"):
            assert client.get(f"/api/runs/{run.id}/{part}").status_code in (200, 400)
        compared = client.post("/api/compare", json={"runs": ids})
        assert compared.status_code == 200
        assert set(compared.json()["runs"]) >= set(ids[1:])


@pytest.mark.parametrize("file", ["about.json", "SHA256SUMS", "config.toml", "events.jsonl", "holder.json", "lock"])
@pytest.mark.usefixtures("patience")
def test_a_pipe_among_the_files_of_a_run_stops_nobody(file: str, copied: Path) -> None:
    run = folders(copied)[0]
    if file == "lock":
        (run.path / "holder.json").write_text("{}")
    (run.path / file).unlink(missing_ok=True)
    os.mkfifo(run.path / file)
    rows = json.loads(resolvent("ls", "--out", copied, "--format", "json").out)
    assert len(rows) == len(folders(copied))
    assert {row["status"] for row in rows if row["run"] != run.id} == {"finished"}
    store = Store(copied)
    store.refresh()
    assert len(store.rows()) == len(rows)


def test_what_is_no_run_is_not_listed(copied: Path, tmp_path: Path) -> None:
    (copied / "notes").mkdir()
    (copied / ".lock").write_text("")
    (copied / "a file").write_text("")
    store = Store(copied)
    store.refresh()
    assert len(store.rows()) == len(folders(copied))
    assert Store(tmp_path / "nothing").refresh() == ([], [])
    for name in ("notes", "..", "", ".", "a file", "../runs"):
        with pytest.raises(Unknown):
            store.folder(name)


def test_configurations_are_read_as_toml_reads_them(stored: Path, tmp_path: Path) -> None:
    for run in folders(stored):
        assert settings_of(Folder(run.path)) == tomllib.loads((run.path / "config.toml").read_text())
    odd = '[problem]\nname = "a \\"b\\" = [c]\\u007f"\n\n[x] # a comment\ny = 1_000\nz = 2026-01-01\n'
    (tmp_path / "config.toml").write_text(odd)
    assert settings_of(Folder(tmp_path)) == tomllib.loads(odd)


def test_a_run_with_more_rounds_than_at_first(tmp_path: Path) -> None:
    run = make(tmp_path)
    store = Store(tmp_path)
    store.refresh()
    run.note("extended", rounds=40)
    os.utime(run.path)  # as the lock of whoever writes does
    ((row,), gone) = store.refresh()
    assert (row["rounds"], row["status"], gone) == (40, "killed", [])  # told to go on, and nobody does
    assert settings_of(store.folder(run.id))["run"]["rounds"] == 40
    assert Folder(run.path).status == "killed"
    experiment.resume(run, progress=False)
    ((row,), gone) = store.refresh()
    assert (row["rounds"], row["round"], row["status"]) == (40, 40, "finished")


def test_curves_grow_by_what_was_appended(tmp_path: Path) -> None:
    path, curves = tmp_path / "metrics.csv", Curves()
    assert curves.since(path, 0) | {"edition": ""} == {"start": 0, "rows": 0, "edition": "", "columns": {}}
    path.write_text("round,gap,bytes_up,bytes_down\n1,0.1,8,8\n2,nan,8,8\n5,-inf,8,8\n6,")
    told = curves.since(path, 0)
    assert told["columns"]["gap"] == [0.1, None, None]
    assert told["columns"]["bytes"] == [16, 32, 48]  # a row has those of all rounds since the one before
    with path.open("a") as file:
        file.write("1e-300,8,8\n")
    assert curves.since(path, 3)["columns"] == {"round": [6.0], "gap": [1e-300], "bytes_up": [8.0],
                                                "bytes_down": [8.0], "bytes": [64.0]}  # fmt: skip
    path.write_text("round,gap,bytes_up,bytes_down\n1,0.2,8,8\n")  # a resumed run begins before
    assert curves.since(path, 4)["start"] == 0
    assert curves.since(path, 0)["columns"]["gap"] == [0.2]
    path.write_text("round,gap,bytes_up,bytes_down\n" + "".join(f"{n},{1 / n!r},1,1\n" for n in range(1, 10_001)))
    told = curves.since(path, 0)
    assert told["rows"] == 10_000
    assert len(told["columns"]["gap"]) <= 4001
    assert told["columns"]["round"][-1] == 10_000


@pytest.mark.parametrize("kept", range(4))
@pytest.mark.parametrize("digits", range(1, 6))
def test_a_file_that_was_cut_and_has_grown_again_is_read_anew(kept: int, digits: int, tmp_path: Path) -> None:
    """Rows of a resumed run take other seconds, so that what was the end of a row may lie within one."""
    path, curves, lines = tmp_path / "metrics.csv", Curves(), ["round,seconds\n", "1,0.5\n", "2,0.5\n", "3,0.5\n"]
    path.write_text("".join(lines))
    told = curves.since(path, 0)
    seconds = [0.5] * kept + [round(1 / 3, digits)] * (12 - kept)
    with path.open("r+") as file:
        file.truncate(len("".join(lines[: 1 + kept])))
        file.seek(0, os.SEEK_END)
        file.writelines(f"{kept + n},{value!r}\n" for n, value in enumerate(seconds[kept:], 1))
    again = curves.since(path, 3, told["edition"])
    begin = again["start"]
    assert begin == (3 if kept == 3 else 0)
    assert again["rows"] == 12
    assert again["columns"] == {"round": [float(n) for n in range(begin + 1, 13)], "seconds": seconds[begin:]}
    assert curves.since(path, 12, again["edition"])["columns"] == {"round": [], "seconds": []}


def test_the_row_of_a_given_round(stored: Path) -> None:
    run = folders(stored)[0]
    history = run.history()
    for number in (1, 7, 15):
        wanted = history[history["round"] == number].iloc[0].to_dict()
        found = last_row(run.metrics, number)
        assert {k: v for k, v in found.items() if v is not None} == {
            k: v for k, v in wanted.items() if not math.isnan(v)
        }


def test_of_a_run_that_was_saved_from_python_little_is_known_and_nothing_fails(tmp_path: Path) -> None:
    run = Folder(rs.solve(rs.make_least_squares(users=2, dim=3, rows=9), "fedpi", rounds=5).save(tmp_path / "mine"))
    assert presence(run, 5)["kind"] == "unknown"
    assert losses(run)["words"].startswith("Known for problems")


def test_who_took_part_is_what_the_runs_counted(stored: Path) -> None:
    seen = set()
    for run in folders(stored):
        history, told = run.history(), presence(run, 15)
        if told["kind"] == "everyone":
            assert (history["participants"] == 4).all()
            continue
        seen.add(told["kind"])
        rounds, config = len(history), configs.read(run.config)
        table = states(config.participation, config.run.seed, 4, 0, rounds)
        assert np.isin(table, (CAME, LATE)).sum(0).tolist() == history["participants"].tolist()
        assert told["who"] == ["".join(map(str, row)) for row in table[:, :15].tolist()]
        later = states(config.participation, config.run.seed, 4, 6, rounds)
        assert later.tolist() == table[:, 6:].tolist()
        if told["kind"] == "stragglers":
            assert (table == LATE).any()
    assert seen == {"drawn", "stragglers"}
