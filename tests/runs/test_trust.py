"""Code that a folder names is called only if this user made the folder or says so; no link is written through."""

import shutil
from pathlib import Path

import pytest

from command_line import SMALL, resolvent
from resolvent import config, experiment
from resolvent.errors import StorageError
from resolvent.runs import Folder, folders, lock, regular, trust

OWN = """
from pathlib import Path
import resolvent as rs
Path("called").write_text("")
def make(): return rs.make_least_squares(users=3, dim=3, rows=6)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))


@pytest.fixture
def own() -> Folder:
    """A run of a function that can go on."""
    Path("own.py").write_text(OWN)
    assert resolvent("run", "own.py:make", "--rounds", 5, "--eta", 0.1, "--quiet").code == 0
    (run,) = folders(Path("runs"))
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes().splitlines(keepends=True)[0])
    Path("called").unlink()
    return run


def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("theirs").absolute()))


def test_one_s_own_run_goes_on(own: Folder) -> None:
    assert (own.path / "seal").is_file()
    assert resolvent("resume", own.id, "--quiet").code == 0


@pytest.mark.parametrize("key", ["none", "another"])
def test_resume_of_a_folder_from_elsewhere_calls_nothing_unless_told(
    key: str, own: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody_else(monkeypatch)
    if key == "another":
        trust.seal(b"")
    toml = own.path / "config.toml"
    commands = [("resume", own.id), ("fork", own.id, "--rounds", 9), ("explain", toml), ("run", toml)]
    for command in (*commands, ("sweep", toml, "--grid", "scheme.eta=1")):
        said = resolvent(*command)
        assert said.code == 2, command
        assert "calls code, " in said.err
        assert "--trust" in said.err
        assert not Path("called").exists()
    assert resolvent("resume", own.id, "--trust", "--quiet").code == 0
    assert Path("called").exists()


def test_an_edited_folder_of_one_s_own_calls_nothing(own: Folder) -> None:
    Path("evil.py").write_text(OWN)
    path = own.path / "config.toml"
    path.write_text(path.read_text().replace("own.py", "evil.py"))
    assert resolvent("resume", own.id).code == 2
    said = resolvent("explain", path)
    assert said.code == 2
    assert "--trust" in said.err
    assert not Path("called").exists()


def test_a_sweep_calls_only_what_was_asked_for(own: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the same fingerprint is gone on with by the code that the user named."""
    shutil.copytree(own.path, own.path.with_name("copy-of-somebody"))
    said = resolvent("sweep", "own.py:make", "--rounds", 5, "--grid", "scheme.eta=0.1", "--quiet")
    assert said.code == 0, said
    assert all(run.code == f"{Path('own.py').absolute()}:make" for run in folders(Path("runs")))


def test_a_configuration_s_code_is_said(own: Folder) -> None:
    Path("mine.toml").write_text('[problem]\nname = "own.py:make"\n[scheme]\neta = 0.1\n')
    said = resolvent("explain", "mine.toml")
    assert said.code == 0
    assert said.err.splitlines()[0] == "note: mine.toml calls code, own.py:make"


@pytest.mark.parametrize("name", ["metrics.csv", "events.jsonl", "holder.json", "lock", "checkpoints", "config.toml"])
def test_nothing_is_written_through_a_link(name: str) -> None:
    tree = {"problem": {"users": 3, "dim": 3, "rows": 6}, "run": {"rounds": 4}, "scheme": {"eta": 0.1}}
    run = experiment.begin(experiment.build(config.read(tree)), Path("runs"), progress=False).run
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes().splitlines(keepends=True)[0])
    target = Path("precious").absolute()
    if name == "checkpoints":
        (run.path / name).rename(target)
    else:
        target.write_bytes((run.path / name).read_bytes() if (run.path / name).exists() else b"precious")
        (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(target)
    before = {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()}
    said = resolvent("resume", run.id)
    assert said.code == 2
    assert f"{name} is a symbolic link" in said.err
    assert {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()} == before


def test_a_lock_through_a_link_is_neither_held_nor_taken(tmp_path: Path) -> None:
    """Whoever links a run's lock to a file that a process has locked could otherwise make that run look alive."""
    for name in ("alive", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "alive" / "lock")
    with lock.held(tmp_path / "alive"):
        shutil.copy(tmp_path / "alive" / "holder.json", tmp_path / "run")
        assert lock.is_held(tmp_path / "alive")
        assert not lock.is_held(tmp_path / "run")
        assert lock._is_held(tmp_path / "run" / "lock") is False  # linked after the first look
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    for taken in (lock.held(tmp_path / "run"), lock.claiming(tmp_path)):
        with pytest.raises(StorageError, match="is a symbolic link, through which nothing is written"), taken:
            pass
    assert not (tmp_path / "precious").exists()


def test_the_key_is_this_user_s_alone(own: Folder) -> None:
    assert Path("mine/resolvent/key").stat().st_mode & 0o777 == 0o600
    assert trust.sealed(own.path)


def test_the_key_lies_where_the_docs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trust.seal(b"listing") is not None
    assert (tmp_path / ".local/state/resolvent/key").stat().st_size == 32


def test_documents_are_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without end would fill the memory."""
    monkeypatch.setattr(regular, "MAX_DOCUMENT_BYTES", 10)
    path = tmp_path / "about.json"
    path.write_text("0123456789")
    assert regular.text(path) == "0123456789"
    path.write_text("0123456789x")
    with pytest.raises(OSError, match="it has more than 10 bytes"):
        regular.text(path)


def test_without_a_place_for_a_key_runs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("file").absolute()))
    Path("own.py").write_text(OWN)
    assert resolvent("run", "own.py:make", "--rounds", 2, "--eta", 0.1, "--quiet").code == 0


def test_control_characters_are_shown_escaped() -> None:
    name = "red\x1b[31m\u202e.py"
    Path(name).write_text(OWN)
    said = resolvent("run", f"{name}:make", "--rounds", 2, "--eta", 0.1)
    assert said.code == 0
    (run,) = folders(Path("runs"))
    assert run.id.isprintable()
    shutil.copytree(run.path, run.path.with_name("x\x1b]0;title\x07"))
    for command in (("ls",), ("ls", "--format", "tsv"), ("show", run.id), ("show", run.id, "--format", "tsv"),
                    ("resume", "no\x1bsuch"), ("report", "--title", "a\x1bb", "--to", "x.html")):  # fmt: skip
        said = resolvent(*command)
        assert "\x1b" not in said.out + said.err, command
        assert "\x07" not in said.out + said.err
        assert "\u202e" not in said.out + said.err
    assert r"x\x1b]0;title\x07" in resolvent("ls").out
    said = resolvent("run", "least-squares", *SMALL, "--algorithm", "fed\x1b[2Jpi")
    assert said.code == 2
    assert "\x1b" not in said.err
