"""What docs/federation.md and a new project's README tell people to write and to type is understood."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from resolvent.cli.federate import app
from resolvent.federation import template
from resolvent.federation.project import opened

PAGE = (Path(__file__).parents[2] / "docs" / "federation.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """`resolvent federate ...`, as a shell splits it."""
    found = re.findall(r"resolvent federate ([^`;&\n\"]+)", text)
    return [shlex.split(words, comments=True) for words in found]


def understood(words: list[str]) -> None:
    """That there is such a command, with these options and not too many arguments; "a|b" stands for one of several."""
    for name in words[0].split("|"):
        assert name in COMMANDS, words
        context = COMMANDS[name].make_context(name, list(words[1:]))
        assert not context.args, words


@pytest.mark.parametrize("words", commands(PAGE + template.README.format(users=3)), ids=" ".join)
def test_every_command_that_is_told_exists(words: list[str]) -> None:
    understood(words)


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    import click

    for wrong in (["fly"], ["up", "--node", "3"], ["node", "a", "b"]):
        with pytest.raises((AssertionError, click.UsageError)):
            understood(wrong)


@pytest.mark.parametrize("text", blocks("toml"), ids=lambda text: text.splitlines()[0])
def test_every_setting_that_is_told_exists(text: str, tmp_path: Path) -> None:
    project = template.write(tmp_path / "it")
    (project.path / "federation.toml").write_text(text)
    opened(project.path).config()


def test_the_systemd_unit_is_one(tmp_path: Path) -> None:
    (text,) = blocks("ini")
    unit = configparser.ConfigParser()
    unit.read_string(text)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/resolvent")
    assert words[0] == "federate"
    understood(words[1:])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze to ask")
    own = text.replace(program, sys.executable).replace("User=federation\n", "").replace("=/srv/trial", f"={tmp_path}")
    file = tmp_path / "resolvent-node.service"
    file.write_text(own)
    asked = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert file.name not in asked.stderr, asked.stderr  # of other units of this machine it may complain


def test_the_compose_file_is_one() -> None:
    yaml = pytest.importorskip("yaml")
    (text,) = blocks("yaml")
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"server", "node"}
    for service in services.values():
        assert set(service) <= {"image", "command", "volumes", "ports", "restart"}
        shell, flag, script = shlex.split(service["command"])
        assert (shell, flag) == ("sh", "-c")
        (told,) = commands(script)
        understood(told)
