"""The command line inside the test's own process, and beside it: what several folders of tests share."""

import atexit
import importlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import weakref
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from resolvent.runs import Folder, lock

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


class Process:
    """A command beside the test, forked from a process that has imported the package: importing torch takes seconds.

    Its interface is a part of `subprocess.Popen`'s. What it writes goes into two files.
    """

    def __init__(self, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None,
                 most_files: int | None = None) -> None:  # fmt: skip
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder)
        self._files = [folder / name for name in ("out", "err")]
        for path in self._files:
            path.touch()
        given = [str(argument) for argument in arguments]
        more = (str(cwd or Path.cwd()), dict(os.environ) | (env or {}), most_files, *map(str, self._files))
        self._process = FORKS.Process(target=_forked, args=(given, *more), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def out(self) -> str:
        """What it has written until now."""
        return self._files[0].read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._files[1].read_text(encoding="utf-8")

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.poll()

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def end(self) -> int | None:
        """Ask it to end, and wait for it."""
        self.terminate()
        return self.wait(30)

    def first_line(self, timeout: float = 120) -> str:
        """The first line that it writes to its standard error; "" if it ends without."""
        deadline = time.monotonic() + timeout
        while "\n" not in self.err and self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.err.partition("\n")[0] + "\n"


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["resolvent.face", "resolvent.experiment", "resolvent.cli.running", "pandas"])


def _forked(arguments: list[str], cwd: str, env: dict[str, str], most_files: int | None, *files: str) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a process in the background it would be ignored
    if most_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    for handle, path in zip((1, 2), files, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), handle)
    sys.argv = ["resolvent", *arguments]
    try:
        main.main()
    finally:
        atexit._run_exitfuncs()  # a forked process ends without


def hold(folder: str) -> None:
    """What a process does that holds the lock of a run."""
    with lock.held(Path(folder)):
        time.sleep(600)


def rows(run: Folder) -> str:
    """Every bit of a run's metrics but the time it took."""
    return run.history().drop(columns="seconds").map(repr).to_csv()


def model(run: Folder) -> bytes:
    """Every bit of a run's model."""
    found = run.model()
    assert found is not None
    return bytes(found.numpy().tobytes())
