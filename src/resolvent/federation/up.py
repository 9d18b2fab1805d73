"""The processes of a federation: the server's, or all of them on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Never, Self

from resolvent.data import stem
from resolvent.errors import InputError
from resolvent.federation import control, deployment, keys, processes
from resolvent.federation.nodes import NodeProcesses
from resolvent.federation.processes import Process
from resolvent.federation.project import Project, Server

ROLE = "server"


def watch(check: Callable[[], None]) -> Never:
    """Look after processes until interrupted, or until `check` raises."""
    while True:
        check()
        time.sleep(1.0)


def nodes_of(tables: Iterable[Path], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each node is given, by its name: its own table, after which it is called."""
    nodes: dict[str, dict[str, Any]] = {}
    for path in tables:
        if not path.is_file():
            raise InputError(f"--data is {path}, but no such file is there; name a node's table")
        name = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem(path))[: keys.MAX_NAME]
        keys.check_name(name)
        if name in nodes:
            raise InputError(f"two tables are called {name!r}, and nodes are named after them; rename one")
        nodes[name] = {**given, "data": str(path.resolve())}
    return nodes


class ServerProcesses:
    """The superlink and its superexec. While they run, `.federation/server.json` says where."""

    def __init__(self, project: Project, server: Server) -> None:
        self.project, self.server = project, replace(server, control=processes.free_port())
        self.superlink: Process | None = None
        self.superexec: Process | None = None
        self._registered: dict[bytes, str] | None = None

    def open(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.close)
            self.superlink = deployment.superlink(self.project, self.server)
            self.superexec = deployment.superexec(self.project, self.server)
            self._register()
            processes.note(self.project.state, ROLE, **asdict(self.server))
            stack.pop_all()
        return self

    def check(self) -> None:
        """Start again what has ended; the superlink goes on with its database."""
        if self.superlink is None or self.superexec is None:
            raise InputError("the server ended: it was never started")
        if not self.superlink.running:
            processes.stop(self.superlink)  # what it has started
            self.superlink = deployment.superlink(self.project, self.server)
            return
        if not self.superexec.running:
            processes.stop(self.superexec)
            self.superexec = deployment.superexec(self.project, self.server)
        with suppress(InputError):  # the superlink may be busy, and a file half copied: the next look tries again
            self._register()

    def _register(self) -> None:
        """Let in the nodes whose public keys are here, and nobody else."""
        now = keys.public_keys(self.project)  # a key that was renewed has the name of the old one
        if now != self._registered:
            control.register(self.project, self.server)
            self._registered = now

    def close(self) -> None:
        processes.stop(self.superexec, self.superlink)
        (self.project.state / f"{ROLE}.json").unlink(missing_ok=True)


class Federation:
    """A server and nodes on this machine, for trying out: a free port, TLS, keys."""

    def __init__(
        self, project: Project, names: Iterable[str], configs: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self.project, self.names, self._configs = project, list(names), configs or {}
        for name in self.names:
            keys.make_node(project, name)
        if not (project.keys / keys.CERTIFICATE).is_file():
            keys.make_server(project, [project.server().host])
        self.processes = ServerProcesses(project, Server("127.0.0.1", processes.free_port(), "127.0.0.1"))
        self.server = self.processes.server
        self.nodes: dict[str, NodeProcesses] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self.__exit__)
            self.processes.open()
            for number, name in enumerate(self.names):
                self.start_node(name, number)
            for node in self.nodes.values():
                node.await_problem()
            stack.pop_all()
        return self

    def start_node(self, name: str, number: int) -> NodeProcesses:
        """Start a node, for the first time or again."""
        config = {"number": number, "of": len(self.names), **self._configs.get(name, {})}
        self.nodes[name] = NodeProcesses(self.project, name, self.server, config).open()
        return self.nodes[name]

    def check(self) -> None:
        """Start again what can be, and stop with a sentence where something ended for good."""
        self.processes.check()
        for node in self.nodes.values():
            node.check()

    def __exit__(self, *error: object) -> None:
        processes.stop(*(process for node in self.nodes.values() for process in node.processes))
        for node in self.nodes.values():
            node.close()
        self.processes.close()
