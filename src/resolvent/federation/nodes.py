"""A node's processes: one with the data, and Flower's supernode, which talks to the server."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from resolvent.errors import InputError
from resolvent.federation import deployment, keys
from resolvent.federation.processes import Process, private, start, stop
from resolvent.federation.project import Project, Server
from resolvent.federation.superlink import UNKNOWN

CONFIG = "config.json"
"""The node_config that a node was last started with."""
SECONDS_BETWEEN_STARTS, SETTLED_AFTER, GIVE_UP_AFTER = 5.0, 30.0, 180.0
"""Of a supernode that ended: how often it is started again, when one that runs counts as settled, and when no other
start is tried. After a power cut Flower refuses a node for about a minute: its key seems to be in use."""
MAX_SECONDS_TO_BUILD = 600.0
"""Seconds that building the problem may take."""


class NodeProcesses:
    """A node that runs. `check` starts again whichever of its processes has ended."""

    def __init__(
        self,
        project: Project,
        name: str,
        server: Server,
        config: Mapping[str, Any],
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        keys.check_name(name)
        if not (project.nodes / name).is_file():
            raise InputError(
                f"{project.nodes / name} is missing; `resolvent federate keys --node {name}` makes it here, and the "
                f"server needs {name}.pub"
            )
        if not (project.keys / keys.CA).is_file():
            raise InputError(f"{project.keys / keys.CA} is missing; copy it from the server's machine")
        self.project, self.name, self.server = project, name, server
        self.state = project.state / "nodes" / name
        self.state.mkdir(parents=True, exist_ok=True)
        self._short = Path(tempfile.mkdtemp(prefix="rs-"))  # paths of sockets must be short
        self._socket = self._short / "node"
        self.config = {"name": name, **config}
        with open(self.state / CONFIG, "w", opener=private) as file:
            json.dump(self.config, file)
        self._tried, self._say = 0.0, say
        self._failing: float | None = None
        self.worker: Process | None = None
        self.supernode: Process | None = None

    @property
    def memory(self) -> Path:
        return self.state / "memory"

    @property
    def processes(self) -> tuple[Process | None, ...]:
        return self.supernode, self.worker

    def open(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._start_worker()
            self._start_supernode()
            stack.pop_all()
        return self

    def _start_supernode(self) -> None:
        self._tried = time.monotonic()
        self.supernode = deployment.supernode(self.project, self.name, self.server, self._socket, self.state)

    def _start_worker(self) -> None:
        given = self.project.path, self._socket, self.memory, self.state / CONFIG  # others can read a command line
        command = [sys.executable, "-m", "resolvent.federation.worker", *map(str, given)]
        log = self.state / "worker.log"
        self.worker = start(
            f"the process with {self.name}'s data", command, log, deployment.environment(self.project, "worker")
        )

    def await_problem(self) -> None:
        """Wait until the problem is built."""
        assert self.worker is not None
        deployment.await_ready(self.worker, self._socket.exists, "build the problem", MAX_SECONDS_TO_BUILD)

    def check(self) -> None:
        """Start again whichever process has ended, and refuse to go on where the supernode ends again and again."""
        if self.worker is not None and not self.worker.running:
            stop(self.worker)  # what it has started
            self._start_worker()
        now = time.monotonic()
        if self.supernode is None or self.supernode.running:
            if now - self._tried > SETTLED_AFTER:
                self._failing = None
            return
        words = self.supernode.last_words()
        reason = UNKNOWN if UNKNOWN in words else words
        if self._failing is None:
            self._failing = now
            self._say(f"node {self.name} is not let in: {reason}; it tries again for {GIVE_UP_AFTER:g} s")
        if now - self._failing > GIVE_UP_AFTER:
            raise InputError(f"node {self.name} ended: {reason}")
        if now - self._tried > SECONDS_BETWEEN_STARTS:
            stop(self.supernode)
            self._start_supernode()

    def close(self) -> None:
        stop(*self.processes)
        with contextlib.suppress(OSError):
            shutil.rmtree(self._short)
