"""The command line inside the test's own process, and beside it: what several folders of tests share."""

import importlib
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest import mock

from resolvent.runs import Folder

main = importlib.import_module("resolvent.cli.main")  # the package has a function of that name
SMALL = ("--users", "4", "--dim", "5", "--rows", "12")


class Said(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, by a reader that takes no NaN."""
        return strictly(self.out)


def strictly(text: str) -> Any:
    """JSON as the standard has it."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def resolvent(*arguments: object) -> Said:
    """Run a command."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["resolvent", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code = main._run()
        except SystemExit as ending:  # completion ends so
            code = int(ending.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def beside(*arguments: object) -> list[str]:
    """The same as a process of its own."""
    return [sys.executable, "-c", "from resolvent.cli import main; main()", *map(str, arguments)]


def rows(run: Folder) -> str:
    """Every bit of a run's metrics but the time it took."""
    return run.history().drop(columns="seconds").map(repr).to_csv()


def model(run: Folder) -> bytes:
    """Every bit of a run's model."""
    found = run.model()
    assert found is not None
    return bytes(found.numpy().tobytes())
