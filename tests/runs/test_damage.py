"""What is read from a run's folder is what was written, or the file that is not is named; the other runs go on."""

import hashlib
import json
import os
import random
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import model, resolvent
from command_line import rows as rows_of
from resolvent import config, experiment, toml
from resolvent.errors import DamagedRun, InputError
from resolvent.runs import Folder, checkpoints, durable, events, sums
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.recorder import Recorder

TREE = {
    "problem": {"name": "least-squares", "users": 3, "dim": 4, "rows": 8},
    "scheme": {"eta": 0.02},
    "participation": {"probability": 0.6},
    "run": {"rounds": 12},
}


def build(tree: dict[str, Any] = TREE) -> experiment.Experiment:
    return experiment.build(config.read(tree))


def interrupted(out: Path, at: int = 7, tree: dict[str, Any] = TREE) -> Folder:
    keep = Recorder.__call__

    def press(recorder: Any, happened: Any, *rest: Any) -> Any:
        if happened.number == at + 1:
            raise KeyboardInterrupt
        return keep(recorder, happened, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "__call__", press)
        return experiment.begin(build(tree), out, progress=False).run


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    out = tmp_path_factory.mktemp("originals")
    whole = experiment.begin(build(), out / "whole", progress=False).run
    return {"whole": whole, "torn": interrupted(out / "torn")}


def copied(run: Folder, to: Path) -> Folder:
    shutil.copytree(run.path, to / run.id)
    return Folder(to / run.id)


# --- one damaged folder does not take the others down ----------------------------------------------------------------

DAMAGE = {
    "empty about": ("about.json", lambda content: b""),
    "empty config": ("config.toml", lambda content: b""),
    "no about": ("about.json", None),
    "no config": ("config.toml", None),
    "no checksums": ("SHA256SUMS", None),
    "about is a list": ("about.json", lambda content: b"[]"),
    "about is nested": ("about.json", lambda content: b"[" * 100_000),
    "config is bytes": ("config.toml", lambda content: b"\xff\xfe" * 50),
    "config is nested": ("config.toml", lambda content: b"x = " + b"[" * 5000),
    "metrics are bytes": ("metrics.csv", lambda content: bytes(range(256)) * 4 + b"\n"),
    "metrics lose a digit": ("metrics.csv", lambda content: content.replace(b"7", b"8", 1)),
    "metrics lose a row": ("metrics.csv", lambda content: content[: content.rfind(b"\n", 0, -1) + 1]),
    "metrics gain a row": ("metrics.csv", lambda content: content + content[content.rfind(b"\n", 0, -1) + 1 :]),
    "checksums are bytes": ("SHA256SUMS", lambda content: b"\0" * 9),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_listed_and_the_others_go_on(
    name: str, originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = copied(originals["whole"], Path("runs")), Path("runs/zzz-bad-0001")
    shutil.copytree(originals["whole"].path, bad)
    file, change = DAMAGE[name]
    if change is None:
        (bad / file).unlink()
    else:
        (bad / file).write_bytes(change((bad / file).read_bytes()))
    listed = {line["run"]: line for line in resolvent("ls", "--format", "json").json}
    assert listed[good.id]["status"] == "finished"
    assert listed[bad.name]["status"] == "damaged"
    assert file in listed[bad.name]["damage"]
    assert "delete" in listed[bad.name]["damage"]
    seen = resolvent("ls")
    assert seen.code == 0
    assert f"run {bad.name} is damaged: {file}" in seen.err
    command: tuple[Any, ...]
    for command in (("report", "--to", "report.html"), ("export", "--to", "metrics.csv")):
        said = resolvent(*command)
        assert said.code == 0
        assert "left out: run zzz-bad-0001 is damaged" in said.err
    for command in (("show", "zzz"), ("resume", "0001"), ("report", "zzz"), ("export", bad), ("fork", "zzz")):
        said = resolvent(*command)
        assert said.code == 2, (command, said)
        assert said.err.startswith("resolvent: run zzz-bad-0001 is damaged: ")
        assert said.err.count("\n") == 1
    sweep = (
        "sweep",
        "least-squares",
        "--grid",
        "scheme.eta=0.02",
        "--users",
        3,
        "--dim",
        4,
        "--rows",
        8,
        "--rounds",
        3,
    )
    assert resolvent(*sweep, "--quiet").code == 0
    assert resolvent("show", good.id).code == 0


@pytest.mark.parametrize("status", ["whole", "torn"])
@pytest.mark.parametrize("file", ["about.json", "config.toml", "events.jsonl", "metrics.csv", "SHA256SUMS"])
def test_a_file_of_many_bytes_without_content_is_damage(
    file: str, status: str, originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, good = copied(originals[status], Path("runs")), Path("runs/good")
    shutil.copytree(originals["whole"].path, good)
    os.truncate(run.path / file, 40_000_000_000)
    listed = {line["run"]: line for line in resolvent("ls", "--format", "json").json}
    assert listed[good.name]["status"] == "finished"
    assert listed[run.id]["status"] == "damaged"
    assert f"{file} cannot be read (" in listed[run.id]["damage"]
    assert resolvent("resume", run.id).code == 2


@pytest.mark.parametrize("status", ["whole", "torn"])
@pytest.mark.parametrize("file", ["events.jsonl", "metrics.csv"])
def test_a_pipe_instead_of_a_file_is_damage(
    file: str, status: str, originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = copied(originals[status], Path("runs"))
    (run.path / file).unlink()
    os.mkfifo(run.path / file)
    [line] = resolvent("ls", "--format", "json").json
    assert line["status"] == "damaged"
    assert f"{file} cannot be read (" in line["damage"]
    with pytest.raises(OSError, match=file):  # rather than wait for somebody who reads
        durable.append(run.path / file, b"")
    with pytest.raises(OSError, match=file):
        durable.put(run.path / file, b"")
    said = resolvent("resume", run.id)
    assert said.code == 2
    assert said.err.startswith(f"resolvent: run {run.id} is damaged: ")
    assert f"{file} cannot be read (it is not a regular file" in said.err.replace("[Errno 22] ", "")


def test_a_run_that_memory_does_not_hold_is_listed_as_damaged(
    originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path) -> None:
        raise MemoryError

    monkeypatch.setattr("resolvent.runs.metrics.rows", fill)
    run = copied(originals["whole"], tmp_path)
    assert run.damage() == ["metrics.csv cannot be read (MemoryError)"]


LONG = ".a" * 50_000
KEYS = {
    "plain": f"a{LONG} = 1\n",
    "with spaces": f"a{LONG} = 1\n".replace(".", " . "),
    "quoted": f"a{LONG} = 1\n".replace("a", '"a"'),
    "of a section": f"[a{LONG}]\n",
    "within a value": f"x = {{a{LONG} = 1}}\n",
    "after a quote in a comment": f'# "\na{LONG} = 1\n',
    "after a quote in a text": f'x = """\\"""""\ny = \'"\'\na{LONG} = 1\n',
    "or a list of millions": f"x = [{'1,' * (1 << 21)}]\n",
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("command", ["ls", "show", "resume", "report"])
def test_a_key_of_thousands_of_parts_is_damage(
    command: str, name: str, originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = copied(originals["whole"], Path("runs"))
    contents = {"config.toml": KEYS[name].encode(), "about.json": (run.path / "about.json").read_bytes()}
    for file, content in (contents | {sums.FILE: sums.listing(contents)}).items():
        (run.path / file).write_bytes(content)
    monkeypatch.setattr("resolvent.config.toml.tomllib.loads", lambda text: pytest.fail("it would take minutes"))
    said = resolvent(command, *([] if command == "ls" else [run.id]))
    assert said.code == (0 if command == "ls" else 2)
    reason = "it has more than 4194304 characters" if "list" in name else "a key in it has more than 32 parts"
    assert f"run {run.id} is damaged: config.toml cannot be read ({reason}" in said.err


def test_dots_that_join_no_keys_are_read() -> None:
    dots = "1.5, " * 1000, "a." * 1000
    text = f'x = [{dots[0]}]\ny = \'{dots[1]}\'\nz = """{dots[1]}"""  # {dots[1]}\na{".a" * 31} = 1\n'
    assert toml.parse(text) == tomllib.loads(text)


def test_runs_that_are_deleted_while_they_are_listed(
    originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for k in range(3):
        shutil.copytree(originals["whole"].path, f"runs/run-{k}")
    damage = Folder.damage

    def deleting(run: Folder) -> list[str]:
        if run.id == "run-1":
            shutil.rmtree(run.path)
        return damage(run)

    monkeypatch.setattr(Folder, "damage", deleting)
    assert [line["run"] for line in resolvent("ls", "--format", "json").json] == ["run-0", "run-2"]
    assert resolvent("export", "--to", "metrics.csv").err == "metrics.csv: 2 runs\n"
    history = Folder.history

    def deleting_later(run: Folder) -> Any:
        shutil.rmtree(run.path, ignore_errors=True)
        return history(run)

    monkeypatch.setattr(Folder, "history", deleting_later)
    assert resolvent("ls").code == 0


# --- what is read is trusted only if it is what was written ----------------------------------------------------------


@pytest.mark.parametrize("status", ["whole", "torn"])
def test_an_edited_configuration_is_refused(status: str, originals: dict[str, Folder], tmp_path: Path) -> None:
    run = copied(originals[status], tmp_path)
    path = run.path / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    with pytest.raises(DamagedRun, match=r"config\.toml .*(changed|not the configuration)"):
        experiment.resume(run, progress=False)
    assert experiment.find(run.about["fingerprint"], tmp_path) is None  # and no sweep is served it
    assert experiment.begin_or_resume(build(), tmp_path, False).run.id != run.id


def test_edited_rows_are_refused(originals: dict[str, Folder], tmp_path: Path) -> None:
    run = copied(originals["torn"], tmp_path)
    content = run.metrics.read_bytes()
    row = content.splitlines(keepends=True)[3]
    run.metrics.write_bytes(content.replace(row, row.replace(b"0.02", b"0.03")))
    assert run.metrics.stat().st_size == len(content)
    with pytest.raises(DamagedRun, match=r"metrics\.csv was changed"):
        experiment.resume(run, progress=False)


def test_a_finished_run_is_verified(originals: dict[str, Folder], tmp_path: Path) -> None:
    run = copied(originals["whole"], tmp_path)
    assert experiment.resume(run, progress=False).messages[0].endswith("verified by its checksums")
    last = max(run.checkpoints.iterdir())
    content = last.read_bytes()
    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedRun, match=f"checkpoint {last.name} is damaged"):
        experiment.resume(run, progress=False)
    last.unlink()
    with pytest.raises(DamagedRun, match=f"checkpoint {last.name} is missing"):
        experiment.resume(run, progress=False)


def test_a_checkpoint_of_another_run_is_skipped(originals: dict[str, Folder], tmp_path: Path) -> None:
    run = copied(originals["torn"], tmp_path / "torn")
    other = interrupted(tmp_path / "other", at=9, tree=TREE | {"scheme": {"eta": 0.5}})
    for path in other.checkpoints.iterdir():
        shutil.copy(path, run.checkpoints)
    outcome = experiment.resume(run, progress=False)
    assert "belongs to another run" in outcome.messages[0]
    assert rows_of(run) == rows_of(originals["whole"])


# --- checksums that fit, around files that do not ---------------------------------------------------------------------


def forged(run: Folder, to: Path, file: str, change: Callable[[str], str]) -> Folder:
    """A copy with another file, and with every checksum made anew."""
    run = copied(run, to)
    (run.path / file).write_text(change((run.path / file).read_text()))
    listed = [line.split("  ", 1)[1] for line in (run.path / sums.FILE).read_text().splitlines()]
    (run.path / sums.FILE).write_bytes(sums.listing({name: (run.path / name).read_bytes() for name in listed}))
    content = run.metrics.read_bytes()
    lines = []
    for event in run.events:
        told = {key: value for key, value in event.items() if key not in ("time", "kind", "sum")}
        told |= {"metrics": {"bytes": len(content), "sha256": sums.of(content)}} if "metrics" in told else {}
        lines.append(events.line(event["kind"], **told) + b"\n")
    (run.path / events.FILE).write_bytes(b"".join(lines))
    return Folder(run.path)


@pytest.mark.parametrize(("file", "change"), [
    ("metrics.csv", lambda text: re.sub(r"(?m)^(\d+|round),.*$", r"\1", text)),
    ("about.json", lambda text: text.replace('"partition": {}', '"partition": {"users": ["a", 1]}')),
    ("about.json", lambda text: re.sub(r'"solves": "[^"]*"', '"other": 1', text)),
])  # fmt: skip
def test_a_forged_run_is_damaged_and_the_others_are_drawn(
    file: str, change: Callable[[str], str], originals: dict[str, Folder], tmp_path: Path
) -> None:
    bad = forged(originals["whole"], tmp_path / "bad", file, change).path.rename(tmp_path / "bad-1")
    good = copied(originals["whole"], tmp_path)
    assert Folder(bad).damage() == []
    said = resolvent("report", "--to", tmp_path / "all.html", "--out", tmp_path)
    assert (said.code, (tmp_path / "all.html").is_file()) == (0, True)
    assert "left out: run bad-1 is damaged" in said.err
    assert resolvent("report", good.id, "--to", tmp_path / "one.html", "--out", tmp_path).code == 0
    named = resolvent("report", "bad-1", good.id, "--to", tmp_path / "two.html", "--out", tmp_path)
    assert (named.code, named.err.count("\n")) == (2, 1)
    assert named.err.startswith("resolvent: run bad-1 is damaged: ")


def test_runs_begin_beside_one_whose_fingerprint_is_a_number(originals: dict[str, Folder], tmp_path: Path) -> None:
    def number(text: str) -> str:
        return re.sub(r'"fingerprint": "[^"]*"', '"fingerprint": 5', text)

    forged(originals["whole"], tmp_path, "about.json", number).note("extended", rounds=20)
    assert experiment.begin_or_resume(build(), tmp_path, progress=False).status == "finished"


@pytest.mark.parametrize("name", ["1x-a", "9" * 30 + "-a"])
def test_a_file_that_is_no_checkpoint_stays_where_it_is(
    name: str, originals: dict[str, Folder], tmp_path: Path
) -> None:
    run = copied(originals["torn"], tmp_path)
    (run.checkpoints / f"{name}.safetensors").write_bytes(b"x")
    assert experiment.resume(run, progress=False).messages == ()
    assert rows_of(run) == rows_of(originals["whole"])
    assert (run.checkpoints / f"{name}.safetensors").exists()


def test_a_checkpoint_under_another_round_is_skipped(originals: dict[str, Folder], tmp_path: Path) -> None:
    run = copied(originals["torn"], tmp_path)
    last = max(run.checkpoints.iterdir())
    last.rename(last.with_name("00000099" + last.name[8:]))
    assert "belongs to another run or round" in experiment.resume(run, progress=False).messages[0]
    assert rows_of(run) == rows_of(originals["whole"])


@pytest.mark.parametrize("line", ['{"time": "now", "kind": "finished", "reason": "12 rounds"}', "[]", "{", "nothing"])
def test_an_event_that_was_added_ends_nothing(line: str, originals: dict[str, Folder], tmp_path: Path) -> None:
    run = copied(originals["torn"], tmp_path)
    with (run.path / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    outcome = experiment.resume(run, progress=False)
    assert outcome.messages == (f"line {len(originals['torn'].events) + 1} of events.jsonl is damaged and was skipped",)
    assert rows_of(run) == rows_of(originals["whole"])


def test_of_many_damaged_events_a_few_are_named(originals: dict[str, Folder], tmp_path: Path) -> None:
    """Each was printed, and noted as an event of its own where the run was resumed: half a million took minutes."""
    run = copied(originals["torn"], tmp_path)
    with (run.path / events.FILE).open("a") as file:
        file.write("no event\n" * 1000)
    said = resolvent("resume", run.id, "--out", tmp_path, "--quiet")
    assert said.code == 0
    assert f"{1000 - events.MAX_COMPLAINTS} more lines of {events.FILE} are damaged" in said.err
    assert len(said.err.splitlines()) < 2 * events.MAX_COMPLAINTS
    assert len(Folder(run.path).events) < 4 * events.MAX_COMPLAINTS


def test_export_says_that_the_last_checkpoint_is_damaged(
    originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = copied(originals["whole"], Path("runs"))
    before = min(run.checkpoints.iterdir())
    last = max(run.checkpoints.iterdir())
    last.write_bytes(last.read_bytes()[:-1])
    said = resolvent("export", run.id, "--to", "model.npz")
    assert said.code == 0
    assert f"checkpoint {last.name} is damaged and was skipped: the model is that of round 11" in said.err
    last.unlink()
    assert (
        f"checkpoint {last.name} is missing: the model is that of round 11"
        in resolvent("export", run.id, "--to", "model.npz").err
    )
    before.write_bytes(b"")
    said = resolvent("export", run.id, "--to", "model.npz")
    assert said.code == 2
    assert "is damaged" in said.err


# --- runs of other versions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "whose"), [(99, "a later"), (1, "another")])
def test_a_run_of_another_version_is_refused_by_name(
    layout: int, whose: str, originals: dict[str, Folder], tmp_path: Path
) -> None:
    run = copied(originals["torn"], tmp_path)
    about = json.loads((run.path / "about.json").read_text()) | {"format": layout}
    contents = {"config.toml": (run.path / "config.toml").read_bytes(), "about.json": json.dumps(about).encode()}
    (run.path / "about.json").write_bytes(contents["about.json"])
    (run.path / sums.FILE).write_bytes(sums.listing(contents))
    with pytest.raises(DamagedRun, match=f"format {layout} is that of {whose} version"):
        experiment.resume(run, progress=False)


@pytest.mark.parametrize("status", ["whole", "torn"])
def test_a_run_without_checksums_is_refused(status: str, originals: dict[str, Folder], tmp_path: Path) -> None:
    run = copied(originals[status], tmp_path)
    (run.path / sums.FILE).unlink()
    with pytest.raises(DamagedRun, match="SHA256SUMS is missing"):
        experiment.resume(run, progress=False)


def test_a_monitor_state_of_another_version_is_refused_by_name(
    originals: dict[str, Folder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(originals["torn"], tmp_path)
    monkeypatch.setattr("resolvent.runs.recorder.MonitorState", lambda: None)  # takes nothing of what was stored
    with pytest.raises(InputError, match=r"was left by resolvent .* this version cannot go on from"):
        experiment.resume(run, progress=False)


def _flat(stored: Checkpoint, name: str) -> None:
    stored.tensors[name] = stored.tensors[name].flatten()


@pytest.mark.parametrize("change", [
    lambda stored: stored.numbers["state"].update(u="text"),
    lambda stored: stored.numbers["state"].update(round=8.0),
    lambda stored: stored.numbers["state"].update(yardstick={"tensor": "u"}),
    lambda stored: stored.numbers["state"]["parts"].update(participation={"tuple": []}),
    lambda stored: stored.numbers.update(verdict=3),
    lambda stored: stored.numbers.update(metrics="all"),
    lambda stored: stored.numbers.update(pulse=[0.0, 0.0, 0.0, 0, 0.5, 0]),
    lambda stored: stored.tensors.update(p=stored.tensors["p"].bool()),
    lambda stored: stored.tensors.update(w=stored.tensors["w"].float()),
    lambda stored: _flat(stored, "next"),
    lambda stored: _flat(stored, "w"),
    lambda stored: _flat(stored, "yardstick.origin"),
])  # fmt: skip
@pytest.mark.parametrize("command", [("fork", "--eta", 0.01), ("fork", "--algorithm", "fedavg")])
def test_a_checkpoint_whose_checksum_fits_and_whose_state_does_not_is_no_state(
    command: tuple[object, ...], change: Callable[[Checkpoint], None], originals: dict[str, Folder], tmp_path: Path
) -> None:
    run = copied(originals["torn"], tmp_path)
    newest, _ = run.newest()
    assert newest is not None
    change(newest)
    content = checkpoints.encode(newest.tensors, newest.numbers)
    for path in run.checkpoints.iterdir():
        path.unlink()
    checksum = hashlib.sha256(content).hexdigest()[:32]
    (run.checkpoints / f"{newest.round:08d}-{checksum}{checkpoints.SUFFIX}").write_bytes(content)
    said = resolvent(command[0], run.id, *command[1:], "--quiet", "--out", tmp_path)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert said.err.startswith(f"resolvent: run {run.id} has no state to go on from (checkpoint {newest.round:08d}-")


# --- random damage ---------------------------------------------------------------------------------------------------


def mutated(path: Path, rng: random.Random) -> str:
    """Damage one file of a run; what was done."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != "lock")
    file = rng.choice(files)
    content = bytearray(file.read_bytes())
    how = rng.choice(["flip", "cut", "empty", "delete", "garbage", "insert", "swap", "double"])
    at = rng.randrange(max(len(content), 1))
    if how == "flip" and content:
        content[at] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[at:]
    elif how == "empty":
        content.clear()
    elif how == "garbage":
        content[at : at + 20] = rng.randbytes(20)
    elif how == "insert":
        content[at:at] = rng.choice([b"\n", b"0", b"[" * 3000, b"\0", b"9" * 400, b'"'])
    elif how == "swap":
        content = bytearray(rng.choice(files).read_bytes())
    elif how == "double":
        content = content * 2
    if how == "delete":
        file.unlink()
    else:
        file.write_bytes(content)
    return f"{how} {file.name} at {at}"


def outcome_of(run: Folder, whole: Folder) -> str:
    """How a damaged run is taken up: "the same bits" or "refused"; anything else is wrong."""
    try:
        experiment.resume(run, progress=False)
    except InputError as error:
        return "refused" if "\n" not in str(error) else f"refused in many lines: {error}"
    assert rows_of(run) == rows_of(whole)
    assert model(run) == model(whole)
    assert run.config == whole.config
    assert run.damage() == []
    return "the same bits"


@pytest.mark.parametrize("status", ["whole", "torn"])
def test_random_damage_is_refused_or_does_not_matter(status: str, originals: dict[str, Folder], tmp_path: Path) -> None:
    seen = set()
    for seed in range(40):
        run = copied(originals[status], tmp_path / str(seed))
        what = mutated(run.path, random.Random(f"{status} {seed}"))
        try:
            seen.add(outcome_of(Folder(run.path), originals["whole"]))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}") from error
    assert seen == {"refused", "the same bits"}
