"""A federation's command in the background, and whether one runs there already."""

from __future__ import annotations

import subprocess
import sys
import time

from resolvent.cli.output import say
from resolvent.errors import InputError
from resolvent.federation import processes
from resolvent.federation.project import Project


def alone(project: Project, role: str) -> None:
    """Refuse to start what runs already."""
    told = processes.noted(project.state).get(role)
    if told is not None and told["running"]:
        raise InputError(f"{role} of this federation runs here already (pid {told['pid']}); `federate stop` ends it")


def detached(project: Project, role: str, *command: str) -> None:
    """The same command in the background, once it is ready."""
    log = project.state / f"{role}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "resolvent", "federate", *command, "--project", str(project.path)]
    with log.open("ab") as file:
        begun = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    while not processes.noted(project.state).get(role, {}).get("running"):
        if begun.poll() is not None:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise InputError(f"{role} ended at once: {' '.join(last).removeprefix('resolvent: ')}")
        time.sleep(0.2)
    say(f"{role} runs in the background (pid {begun.pid}); `resolvent federate stop` ends it")
