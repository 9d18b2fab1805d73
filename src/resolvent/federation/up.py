"""The processes of a federation: the server's, or all of them on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import Any, Self

from resolvent.errors import InputError
from resolvent.federation import control, deployment, keys, processes
from resolvent.federation.nodes import NodeProcesses
from resolvent.federation.processes import Process
from resolvent.federation.project import Project, Server

ROLE = "server"


class ServerProcesses:
    """The superlink and its superexec. While they run, `.federation/server.json` says where."""

    def __init__(self, project: Project, server: Server) -> None:
        self.project, self.server = project, replace(server, control=processes.free_port())
        self.superlink: Process | None = None
        self.superexec: Process | None = None
        self._registered: list[str] | None = None

    def open(self) -> Self:
        try:
            self.superlink = deployment.superlink(self.project, self.server)
            self.superexec = deployment.superexec(self.project, self.server)
            self._register()
            self._note = processes.note(self.project.state, ROLE, **asdict(self.server))
        except BaseException:
            self.close()
            raise
        return self

    def check(self) -> str | None:
        """What is wrong, if anything is: a superlink that has ended is started again, with its database."""
        if self.superlink is None or self.superexec is None:
            return "it was never started"
        if not self.superlink.running:
            self.superlink = deployment.superlink(self.project, self.server)
            return None
        if not self.superexec.running:
            self.superexec = deployment.superexec(self.project, self.server)
        with suppress(InputError):  # the superlink may be busy, and a file half copied: the next look tries again
            self._register()
        return None

    def _register(self) -> None:
        """Let in the nodes whose public keys are here, and nobody else."""
        names = self.project.names()
        if names != self._registered:
            control.register(self.project, self.server)
            self._registered = names

    def close(self) -> None:
        processes.stop(self.superexec, self.superlink)
        (self.project.state / f"{ROLE}.json").unlink(missing_ok=True)


class Federation:
    """A server and nodes on this machine, for trying out: a free port, TLS, keys."""

    def __init__(
        self, project: Project, names: Iterable[str], configs: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self.project = project
        self.server = Server("127.0.0.1", processes.free_port(), "127.0.0.1")
        self.names = list(names)
        for name in self.names:
            keys.make_node(project, name)
        if not (project.keys / keys.CERTIFICATE).is_file():
            keys.make_server(project, [project.server().host])
        self._configs = configs or {}
        self.processes = ServerProcesses(project, self.server)
        self.server = self.processes.server
        self.nodes: dict[str, NodeProcesses] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._close)
            self.processes.open()
            for number, name in enumerate(self.names):
                self.start_node(name, number)
            for node in self.nodes.values():
                node.await_problem()
            self._stack = stack.pop_all()
        return self

    def start_node(self, name: str, number: int) -> NodeProcesses:
        """Start a node, for the first time or again."""
        config = {"number": number, "of": len(self.names), **self._configs.get(name, {})}
        self.nodes[name] = NodeProcesses(self.project, name, self.server, config).open()
        return self.nodes[name]

    def check(self) -> None:
        """Start again what can be, and stop with a sentence where something ended for good."""
        wrong = self.processes.check()
        if wrong is not None:
            raise InputError(f"the server ended: {wrong}")
        for name, node in self.nodes.items():
            if (words := node.check()) is not None:
                raise InputError(f"node {name} ended: {words}")

    def watch(self) -> None:
        """Until interrupted."""
        while True:
            self.check()
            time.sleep(1.0)

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        processes.stop(*(process for node in self.nodes.values() for process in node.processes))
        for node in self.nodes.values():
            node.close()
        self.processes.close()
