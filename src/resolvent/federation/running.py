"""A run of a federation, from the server's machine: submitted, followed, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from resolvent import runs
from resolvent.errors import InputError
from resolvent.federation import control, processes
from resolvent.federation.project import Project, Server
from resolvent.federation.up import ROLE
from resolvent.runs import Folder
from resolvent.runs.folder import standing

LOOK = 0.3
"""Seconds between two looks at how a run stands."""
ASK_FLOWER = 3.0
"""Seconds between two questions to Flower whether the run is alive."""
OVER = ("finished", "unknown")
STOPPED = "finished:stopped"


class Killed(RuntimeError):
    """The server's side of a run has ended before the run did."""


def server_here(project: Project) -> Server:
    """The server that runs on this machine, for this project."""
    about = processes.noted(project.state).get(ROLE)
    if about is None or not about["running"]:
        raise InputError(
            "no server of this federation runs here; `resolvent federate server`, or `up`, starts one: where that was "
            "done just now, it takes some seconds more"
        )
    return Server(about["host"], about["port"], about["bind"], about["control"])


def begin(project: Project, out: Path, resume: str = "") -> Following:
    """Submit a run to the server on this machine, or go on with one."""
    server = server_here(project)
    if resume:
        folder = latest(out) if resume == "latest" else runs.find(resume, out)
        if not _of_federation(folder):
            raise InputError(
                f"run {folder.id} is not one of a federation: `resolvent resume {folder.id}` goes on with it"
            )
        if folder.status == "running":
            raise InputError(f"run {folder.id} is running; `resolvent federate status` shows it")
        if folder.end is not None:
            raise InputError(
                f"run {folder.id} has ended ({folder.status}: {folder.end.get('reason')}), so that there is nothing to "
                "go on with; `resolvent federate run` begins another, `resolvent ls` lists all"
            )
        resume = folder.id
    else:
        section: Any = project.config().problem  # refused before anything is submitted
        if (there := len(project.names())) < section.users:
            raise InputError(
                f"federation.users is {section.users}, but {there} public keys of nodes are in {project.nodes}; copy "
                "the file NAME.pub of every node there"
            )
    control.register(project, server)
    ticket = project.state / "tickets" / f"{time.time_ns()}"
    ticket.parent.mkdir(parents=True, exist_ok=True)
    given = {"project": str(project.path), "out": str(out.resolve()), "resume": resume, "ticket": str(ticket)}
    return Following(project, server, control.begin(project, server, given), ticket, resume)


def latest(out: Path) -> Folder:
    """The newest run of a federation."""
    there = [run for run in runs.folders(out) if _of_federation(run)]
    if not there:
        raise InputError(f"there are no runs of a federation in {out}/; begin one without --resume")
    return there[-1]


def _of_federation(run: Folder) -> bool:
    return bool(run.config.get("problem", {}).get("name") == "federation")


class Following:
    """A run that was submitted. Flower's number of it is `number`; its process writes into the ticket how it stands.

    resumed: the name of a run that goes on.
    """

    def __init__(self, project: Project, server: Server, number: int, ticket: Path, resumed: str = "") -> None:
        self.project, self.server, self.number, self._ticket = project, server, number, ticket
        self._resumed = resumed

    def reported(self) -> dict[str, Any]:
        """What the process of the run has written so far: its folder, then its status, or why it failed."""
        with suppress(OSError, ValueError):
            report: dict[str, Any] = json.loads(self._ticket.read_text())
            return report
        return {}

    def wait(
        self,
        seen: Callable[[Folder], None] | None = None,
        check: Callable[[], None] | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> Folder:
        """Wait until the run has ended; `seen` is called now and then, once its folder is there, and at the end.

        waiting: told whom the run is waiting for, before its first round.
        """
        asked, said = time.monotonic(), ""
        while True:
            report = self.reported()
            if "failed" in report:
                raise InputError(f"the run failed: {report['failed']}")
            if waiting is not None and report.get("waiting", said) != said:
                waiting(said := report["waiting"])
            if "run" in report and seen is not None:
                seen(Folder(Path(report["run"])))
            if report.get("status"):
                return Folder(Path(report["run"]))
            if check is not None:
                check()
            if time.monotonic() - asked > ASK_FLOWER:
                asked = time.monotonic()
                if (done := self._ended()) is not None:
                    return done
            time.sleep(LOOK)

    def _ended(self) -> Folder | None:
        """The run, where it has ended without a word to us, or a refusal to wait for it any longer.

        Its lock tells at once; Flower takes a minute or so.
        """
        report = self.reported()
        if "run" not in report:
            self._begins()
            return None
        run = Folder(Path(report["run"]))
        if (status := run.status) == "running":
            return None
        if run.end is not None:
            return run
        reason = standing(run.events).get("reason") or self._last_words()
        raise Killed(f"run {run.id} ended ({status}: {reason}); `resolvent federate run --resume {run.id}` goes on")

    def _last_words(self) -> str:
        """What Flower says of a process that could say nothing more: once stopped, it has five seconds to end."""
        with suppress(InputError):
            if self.status() == STOPPED:
                return "it was stopped from outside"
        return "its process ended without a word"

    def _begins(self) -> None:
        """Refuse to wait for a run that will never begin."""
        try:
            server_here(self.project)
        except InputError:
            raise Killed("the server ended before the run began; start it again, and then the run") from None
        with suppress(InputError):  # the superlink may be starting again
            status = self.status()
            if status.startswith(OVER) and not self.reported().keys() & {"run", "failed"}:
                raise Killed(f"the server's side of the run ended ({status}); see .federation/superexec.log")

    def next_command(self) -> str:
        """What a person can do once the run was stopped: one that was waiting for its nodes has stored nothing."""
        report = self.reported()
        name = Path(report["run"]).name if "run" in report else self._resumed
        if name:
            return f"go on with: resolvent federate run --resume {name}"
        return "it had not begun, so begin it again with: resolvent federate run"

    def status(self) -> str:
        """What Flower says of it."""
        return control.status(self.project, self.server, self.number)

    def stop(self) -> None:
        """End the run; it can be resumed."""
        with suppress(InputError):
            control.stop(self.project, self.server, self.number)
