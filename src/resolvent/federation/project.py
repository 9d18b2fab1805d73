"""A federation's folder: where things lie in it, and what it is configured to do."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent import config as configs
from resolvent.config import Config
from resolvent.errors import InputError, quoted, refuse
from resolvent.federation import settings

FILE = "federation.toml"


@dataclass(frozen=True)
class Server:
    """Where nodes find the server: a name or address that its certificate has, and a port."""

    host: str = "127.0.0.1"
    port: int = 9443
    bind: str | None = None
    """The address to listen at; None: the host itself."""
    control: int = 0
    """The port of 127.0.0.1 for commands, while the server runs."""

    @property
    def listen(self) -> str:
        """The address to listen at."""
        return self.bind or self.host


@dataclass(frozen=True)
class Project:
    """A federation's folder. Paths are absolute."""

    path: Path

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def nodes(self) -> Path:
        """Where the keys of nodes are; the server needs their public ones only."""
        return self.keys / "nodes"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def state(self) -> Path:
        """What processes leave: logs, Flower's files, process numbers."""
        return self.path / ".federation"

    def names(self) -> list[str]:
        """The names of the nodes whose public keys are here."""
        return sorted(path.stem for path in self.nodes.glob("*.pub"))

    def tree(self) -> dict[str, Any]:
        return configs.load(self.path / FILE)

    def server(self) -> Server:
        """Where the server is, as configured."""
        given = self.tree().get("server", {})
        names = [field.name for field in dataclasses.fields(Server) if field.name != "control"]
        for key, value in given.items():
            if key not in names:
                raise InputError(f"there is no key server.{key}{configs.nearest(key, names)}")
            kind = int if key == "port" else str
            if not isinstance(value, kind) or isinstance(value, bool):
                refuse(f"server.{key}", quoted(value), "a number is needed" if kind is int else "text is needed")
        server = Server(**given)
        if not 0 < server.port < 65536:
            refuse("server.port", server.port, "a port from 1 to 65535 is needed")
        return server

    def config(self, values: list[tuple[str, Any]] | None = None) -> Config:
        """What a run does, as configured; [federation] is what other runs call their problem."""
        tree = {name: section for name, section in self.tree().items() if name != "server"}
        tree = configs.with_values(tree, values or [])
        problem, table = tree.pop("federation", {}), tree.pop("data", None)
        if "problem" in tree or not isinstance(problem, dict):
            refuse(FILE, "a file with a section [problem]", "a federation's users bring their own: see user.py")
        if table is not None:
            problem = settings.with_data(problem, table)
        config = configs.read(tree | {"problem": {"name": "federation"} | problem})
        settings.check(config)
        return config


def opened(folder: Path) -> Project:
    """The project in this folder."""
    path = Path(os.path.realpath(folder))  # unlike resolve, it raises nothing where links lead to themselves
    if not (path / FILE).is_file():
        raise InputError(f"{folder} has no {FILE}; `resolvent federate init {folder}` makes a project there")
    return private(Project(path))


def private(project: Project) -> Project:
    """The same, with a folder for what its processes leave that other users of this machine cannot enter."""
    with suppress(OSError):  # to look at somebody else's project is no error; to write there will be
        project.state.mkdir(exist_ok=True)
        project.state.chmod(0o700)
    return project
