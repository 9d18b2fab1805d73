"""Flower's programs, as a federation runs them: TLS, keys, a database that survives, and no dependency installed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from resolvent.errors import InputError
from resolvent.federation import keys
from resolvent.federation.control import address
from resolvent.federation.processes import Process, listening, start, stop
from resolvent.federation.project import Project, Server
from resolvent.federation.superlink import LOOPBACK

MAX_SECONDS_TO_START = 180.0
"""On a machine that is busy; a process that ends before it is ready is noticed at once."""
SERVER = "server"


def environment(project: Project, role: str) -> dict[str, str]:
    """For Flower's programs: a home of their own, no telemetry, and none of its settings that open further ports."""
    home = project.state / "flwr" / role
    home.mkdir(parents=True, exist_ok=True)
    beside = str(Path(sys.executable).parent)
    return {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")} | {
        "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }


# --- the server ------------------------------------------------------------------------------------------------------


def superlink(project: Project, server: Server) -> Process:
    """The process that nodes talk to. Its database survives it."""
    reach = "127.0.0.1" if server.listen in ("0.0.0.0", "::") else server.listen
    if listening(reach, server.port):
        raise InputError(f"port {server.port} of {server.listen} is taken; stop what listens there, or set server.port")
    for name in (keys.CA, keys.CERTIFICATE, keys.SERVER_KEY, keys.SECRET):
        if not (project.keys / name).is_file():
            raise InputError(f"{project.keys / name} is missing; `resolvent federate keys --server` makes it")
    command = [
        *(*_program("superlink.py"), str(server.control)),
        *("--ssl-ca-certfile", str(project.keys / keys.CA)),
        *("--ssl-certfile", str(project.keys / keys.CERTIFICATE)),
        *("--ssl-keyfile", str(project.keys / keys.SERVER_KEY)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--isolation", "process", "--superexec-auth-secret-file", str(project.keys / keys.SECRET)),
        *("--database", str(project.state / "superlink.db")),
        *("--host", server.listen, "--port", str(server.port)),
    ]
    process = start("superlink", command, project.state / "superlink.log", environment(project, SERVER))
    await_ready(
        process, lambda: listening(LOOPBACK, server.control), f"listen at {reach}:{server.port}"
    )  # its last port
    return process


def superexec(project: Project, server: Server) -> Process:
    """The process that starts the server's side of runs; runs survive the superlink because it is not a part of it."""
    command = [
        *_program("superexec.py"),
        *("--runtime-api-address", address(server)),
        *("--root-certificates", str(project.keys / keys.CA)),
        *("--superexec-auth-secret-file", str(project.keys / keys.SECRET)),
    ]
    return start("superexec", command, project.state / "superexec.log", environment(project, SERVER))


# --- a node ----------------------------------------------------------------------------------------------------------


def supernode(project: Project, name: str, server: Server, socket: Path, state: Path) -> Process:
    """The process that takes a node's part in the network; the one with the data is behind the socket."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    command = [
        *(*_program("supernode.py"), f"{host}:{server.port}"),
        *(str(path) for path in (project.keys / keys.CA, project.nodes / name, socket)),
    ]
    return start(name, command, state / "supernode.log", environment(project, f"node-{name}"))


# --- what they are made of -------------------------------------------------------------------------------------------


def _program(name: str) -> list[str]:
    """A file of this folder as a program, without the package around it."""
    return [sys.executable, "-P", str(Path(__file__).with_name(name))]


def await_ready(process: Process, ready: Callable[[], bool], what: str, seconds: float = MAX_SECONDS_TO_START) -> None:
    """Wait until a process is ready; one that ends instead is an error with the end of its log."""
    until = time.monotonic() + seconds
    while not ready():
        if not process.running:
            raise InputError(f"{process.name} ended before it could {what}: {process.last_words()}; see {process.log}")
        if time.monotonic() > until:
            stop(process)
            raise InputError(f"{process.name} did not {what} within {seconds:g} s: {process.last_words()}")
        time.sleep(0.1)
