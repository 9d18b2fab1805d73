"""`resolvent data`: what it writes, where it comes from, and what it refuses."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest

from command_line import resolvent
from resolvent.cli.getting import ABOUT
from resolvent.data import samples
from resolvent.data.samples import Sample, hospitals

CONTENT = b"+1 1:0.5 3:1\n-1 2:2\n" * 10


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server that has a9a, as far as this machine knows."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *about: object) -> None:
            pass

    (tmp_path / "served").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    known = Sample("", f"http://127.0.0.1:{server.server_port}/a9a", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(samples, "SAMPLES", {"a9a": known})
    yield tmp_path / "served"
    server.shutdown()
    server.server_close()
    thread.join()


def test_every_set_is_listed() -> None:
    listed = [row["set"] for row in resolvent("data", "--format", "json").json]
    assert listed == list(ABOUT) == ["hospitals", "a9a", "w8a", "mushrooms", "mnist", "fashion-mnist", "cifar10"]


def test_hospitals_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = resolvent("data", "hospitals")
    assert said.code == 0
    command = "resolvent run hospitals.csv --user-column hospital --target ill --test 0.2 --anderson 5 --rounds 60"
    assert said.err.splitlines()[-1] == f"next: {command}"
    tutorial = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert command.replace("hospitals.csv", "patients.csv") in tutorial
    written = pd.read_csv("hospitals.csv")
    pd.testing.assert_frame_equal(written, hospitals(), check_dtype=False)
    assert dict(written.groupby("hospital").size()) == samples.HOSPITALS
    assert written.groupby("hospital")["ill"].nunique().eq(2).all()


@pytest.mark.parametrize("to", ["a9a.gz", "a9a.txt"])
def test_a_set_is_fetched(elsewhere: Path, to: str) -> None:
    (elsewhere / "a9a").write_bytes(CONTENT)
    assert resolvent("data", "a9a", "--to", to).code == 0
    written = Path(to).read_bytes()
    assert (gzip.decompress(written) if to.endswith(".gz") else written) == CONTENT


def test_what_is_not_the_set_is_not_written(elsewhere: Path) -> None:
    (elsewhere / "a9a").write_bytes(CONTENT + b"more")
    said = resolvent("data", "a9a")
    assert said.code == 2
    assert "its checksum differs" in said.err
    (elsewhere / "a9a").unlink()
    said = resolvent("data", "a9a")
    assert said.code == 2
    assert "resolvent data hospitals" in said.err
    assert not list(Path().iterdir())


def test_bad_requests(tmp_path: Path) -> None:
    assert "there is no data set 'a9b'" in resolvent("data", "a9b").err
    assert "leave --to out" in resolvent("data", "mnist", "--to", tmp_path / "x").err
    (tmp_path / "file").write_text("")
    said = resolvent("data", "hospitals", "--to", tmp_path / "file" / "x.csv")
    assert said.code == 2
    assert "cannot be written" in said.err
