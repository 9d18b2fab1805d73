"""What a stranger tries on a federation that runs (stranger.py), and that he gets nowhere."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from federation.stranger import LOGGED
from resolvent.federation import bundle, control, keys, running
from resolvent.federation.project import Project, Server, opened
from resolvent.federation.superlink import LOOPBACK

CALLS = {"StartRun", "ListRuns", "StopRun", "RegisterNode", "Fleet.RegisterNode", "Fleet.ActivateNode", "AcquireTask",
         "GetNodes", "a body", "a long path", "headers without end"}  # fmt: skip
OTHER = "nobody" if os.geteuid() == 0 else ""
"""Another account of the machine; only root can take one."""
MARK = """\
import os, time

open(os.path.join({markers!r}, "{side}-" + str(time.time_ns())), "w").close()
"""


def marking_app(folder: Path) -> Path:
    """The federation's own app, which leaves a file in the folder `markers` beside it wherever it is loaded."""
    markers = folder.parent / "markers"
    markers.mkdir(exist_ok=True)
    markers.chmod(0o777)
    bundle.write(folder)
    for side in ("server", "client"):
        path = folder / bundle.PACKAGE / f"{side}.py"
        path.write_text(MARK.format(markers=str(markers), side=side) + path.read_text())
    return folder


def assert_refused(project: Project, folder: Path, account: str, *more: str) -> None:
    """A stranger calls at both ports of the server, and at more addresses: every call is refused."""
    from flwr.cli.build import build_fab_from_disk

    server, fab = running.server_here(project), folder / "app.fab"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        fab.write_bytes(build_fab_from_disk(marking_app(folder / "app")))
    runs = _runs(project, server)
    stranger = [sys.executable, str(Path(__file__).with_name("stranger.py")), str(project.keys / keys.CA), str(fab)]
    addresses = f"{LOOPBACK}:{server.port}", f"{LOOPBACK}:{server.control}", *more
    tried = subprocess.run([*stranger, str(runs[-1]), account, *addresses], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr
    for address, outcomes in json.loads(tried.stdout).items():
        assert outcomes.keys() == CALLS
        for call, outcome in outcomes.items():
            assert outcome.startswith("refused: "), (address, call, outcome)
    assert _runs(project, server) == runs
    assert control.nodes(project, server).keys() == keys.public_keys(project).keys()
    assert LOGGED not in (project.state / "superlink.log").read_text()
    assert not list((folder / "markers").iterdir())


def _runs(project: Project, server: Server) -> list[int]:
    """By a connection of its own: the server lets go of one that has been idle for some seconds."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with control._client(project, server) as client:
        return list(client.ListRuns(ListRunsRequest()).run_dict)


class InTheDemo:
    """Listens to what the demo says, and has a stranger try in its first round."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tried = folder, False
        self._project: Path | None = None

    def __call__(self, message: str) -> None:
        self._project = self._project or Path(message.split(" in ")[-1])
        if message.startswith("round 1:"):
            assert_refused(opened(self._project), self.folder, OTHER)
            self.tried = True


def own_address() -> str:
    """An address of this machine that is not a loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(("192.0.2.1", 9))  # sends nothing
            found = str(line.getsockname()[0])
        except OSError:
            found = LOOPBACK
    if found.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return found
