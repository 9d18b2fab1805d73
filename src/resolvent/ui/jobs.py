"""Runs that are started, stopped and resumed from the page: processes of their own, which outlive the page."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent import config as configs
from resolvent.config import problem_sections
from resolvent.errors import InputError
from resolvent.runs import Folder, lock, regular
from resolvent.ui.store import Store

MAX_RUNNING = 4
"""Processes that the page may have running at a time."""
RETAINED = 20
"""Jobs that are remembered after they have ended."""
MAX_MESSAGE = 2000
"""Characters of what a failed job said."""


class Conflict(InputError):
    """What was asked for does not fit the state that a run is in."""


class Busy(InputError):
    """Too much is running already."""


@dataclass
class Job:
    """A process that runs or resumes, and what it writes."""

    id: str
    process: subprocess.Popen[bytes]
    output: Path
    run: str | None = None
    searched: bool = False
    """Whether its run was looked for after it had ended."""


class Jobs:
    """The processes that were started from the page."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: dict[str, Job] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="resolvent-ui-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        weakref.finalize(self, _let_go, self._jobs)
        self._lock = threading.Lock()

    def begin(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Run a configuration. What would read files that the run store does not hold is refused."""
        return self._start([*command(tree), "--out", str(self._store.out)])

    def resume(self, run: Folder) -> dict[str, Any]:
        """Resume a run that was left."""
        if lock.is_held(run.path):
            raise Conflict(f"run {run.id} is running")
        if run.end is not None:
            raise Conflict(f"run {run.id} has {run.end['kind']}, so that there is nothing to resume")
        return self._start(["resume", str(run.path), "--out", str(self._store.out)], run.id)

    def stop(self, run: Folder) -> None:
        """Interrupt the process that writes a run; what it has done is stored, and can be resumed."""
        pid = holder(run.path)
        if pid is None or not lock.is_held(run.path):
            raise Conflict(f"run {run.id} is not running")
        mine = any(job.process.pid == pid and job.process.poll() is None for job in self._all())
        if not mine and not _writes(pid, run):
            raise Conflict(f"run {run.id} is written by a process that this page cannot stop; stop it where it began")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def rows(self) -> list[dict[str, Any]]:
        """Every job, oldest first: what it runs, and how it ended."""
        return [self._row(job) for job in self._all()]

    def _all(self) -> list[Job]:
        with self._lock:
            return list(self._jobs.values())

    def _start(self, arguments: list[str], run: str | None = None) -> dict[str, Any]:
        with self._lock:
            if sum(job.process.poll() is None for job in self._jobs.values()) >= MAX_RUNNING:
                raise Busy(f"{MAX_RUNNING} runs that this page has started are running; wait for one, or stop one")
            job_id = secrets.token_hex(4)
            output = self._folder / job_id
            with output.open("wb") as file:
                process = subprocess.Popen(
                    [sys.executable, "-m", "resolvent", *arguments, "--quiet", "--format", "json"],
                    stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                )  # fmt: skip
            job = self._jobs[job_id] = Job(job_id, process, output, run)
            ended = [old for old in self._jobs.values() if old.process.poll() is not None]
            for old in ended[: max(0, len(ended) - RETAINED)]:
                del self._jobs[old.id]
        return self._row(job)

    def _row(self, job: Job) -> dict[str, Any]:
        code = job.process.poll()
        if job.run is None and not job.searched:
            job.run, job.searched = self._begun(job), code is not None
        status = "running" if code is None else "failed" if code in (2, 4) or code < 0 else "ended"
        message = _said(job.output) if status == "failed" else ""
        return {"id": job.id, "run": job.run, "status": status, "words": message}

    def _begun(self, job: Job) -> str | None:
        """The run that a job has begun."""
        for row in self._store.rows():
            if row["status"] == "running" and holder(self._store.out / row["id"]) == job.process.pid:
                return str(row["id"])
        with suppress(OSError, ValueError, LookupError, TypeError):
            if job.process.poll() is not None:
                return str(json.loads(job.output.read_text(errors="replace"))["run"])
        return None


def _let_go(jobs: dict[str, Job]) -> None:
    """Runs go on without the page: Python need not warn of processes that nobody waits for."""
    for job in jobs.values():
        if job.process.poll() is None:
            job.process.returncode = 0


def command(tree: dict[str, Any]) -> list[str]:
    """The arguments of `resolvent` that run a configuration, checked."""
    problem = tree.get("problem", {})
    for key in ("data", "folder", "sha256"):
        if isinstance(problem, dict) and key in problem:
            raise InputError(f"problem.{key} names a file, which the page does not read; use `resolvent run` for that")
    if isinstance(problem, dict) and ".py:" in str(problem.get("name", "")):
        raise InputError("problem.name is code, which the page does not call; use `resolvent run` for that")
    config = configs.read(tree)
    name = str(configs.plain(config)["problem"]["name"])
    if name not in problem_sections.PROBLEMS:
        raise InputError(f"there is no problem {name!r}{configs.nearest(name, problem_sections.PROBLEMS)}")
    given = [(section, key, value) for section, values in tree.items() for key, value in values.items()]
    settings = [f"{section}.{key}={json.dumps(value)}" for section, key, value in given
                if value is not None and (section, key) != ("problem", "name")]  # fmt: skip
    return ["run", name, *(part for setting in settings for part in ("--set", setting))]


def holder(folder: Path) -> int | None:
    """The process that says it writes a run on this machine."""
    try:
        about = json.loads(regular.text(folder / "holder.json"))
        pid = about["pid"] if about["machine"] == platform.node() else None
        return pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 1 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _writes(pid: int, run: Folder) -> bool:
    """Whether a process has this run's lock open: a file that names it is not enough to stop it."""
    try:
        wanted = (run.path / "lock").stat()
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                opened = handle.stat()
                if (opened.st_dev, opened.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
    except OSError:
        pass
    return False


def _said(output: Path) -> str:
    """What a process that failed has said, without its name in front."""
    try:
        text = output.read_text(errors="replace").strip()
    except OSError:
        return "it ended without a word"
    return text.removeprefix("resolvent: ")[-MAX_MESSAGE:] or "it was killed"
