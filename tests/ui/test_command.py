"""`resolvent ui` on the command line: what it refuses in one sentence, and what it serves."""

from __future__ import annotations

import importlib
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from command_line import Process, resolvent

command = importlib.import_module("resolvent.cli.ui")


def test_help_has_examples() -> None:
    said = resolvent("ui", "--help")
    assert said.code == 0
    assert "resolvent ui --runs out --port 9000" in " ".join(said.out.split())


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in ("fastapi", "uvicorn") else object())
    said = resolvent("ui")
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(
        r"resolvent: the page needs fastapi, uvicorn, which are not installed; pip install .*\n", said.err
    )


def test_what_cannot_be_listened_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = resolvent("ui", "--runs", tmp_path, "--port", taken.getsockname()[1])
    assert said.code == 2
    assert "cannot be listened on" in said.err
    assert resolvent("ui", "--host", "no.such.host.invalid").code == 2
    assert resolvent("ui", "--port", "70000").code == 2


@pytest.mark.parametrize("arguments", [("--token", "short"), ("--runs", __file__)])
def test_bad_arguments(arguments: tuple[Any, ...]) -> None:
    said = resolvent("ui", *arguments)
    assert said.code == 2
    assert arguments[0] in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_printed_address_is_that_of_the_page(host: str, tmp_path: Path) -> None:
    """It carries a token, without which nothing is answered; Ctrl-C ends it quietly."""
    child = Process("ui", "--runs", tmp_path / "none", "--port", "0", "--host", host)
    try:
        line = child.first_line()
        found = re.fullmatch(r"The page of .+: http://[^/]+:(\d+)/\?token=([\w-]{24,})\n", line)
        assert found is not None, line
        place = f"http://127.0.0.1:{found[1]}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(place)
        asked = urllib.request.Request(f"{place}api/runs", headers={"Authorization": f"Bearer {found[2]}"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.read() == b'{"folder":"none","runs":[]}'
        assert not (tmp_path / "none").exists()  # looking makes nothing
    finally:
        code = child.end()
    assert child.err == line
    assert code in (0, 130, -15)
