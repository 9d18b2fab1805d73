"""The same federation in Flower's simulation engine, for those who have Ray: no network, no keys."""

from __future__ import annotations

import os
from pathlib import Path

from resolvent.errors import InputError
from resolvent.federation import server_app
from resolvent.federation.project import Project
from resolvent.runs import Folder

PROJECT = "RESOLVENT_FEDERATION"
"""Tells the simulated nodes where the project is."""


def simulate(project: Project, nodes: int, out: Path) -> Folder:
    """Run the federation with simulated nodes. user.py finds its number in node_config["partition-id"]."""
    try:
        import ray  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        raise InputError(
            "a simulation needs Ray, which is not installed; pip install 'flwr[simulation]==1.41.*', or leave out "
            "--simulation: `resolvent federate up` runs real nodes on this machine"
        ) from None
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from resolvent.engines.flower import forward

    made: list[Folder] = []
    app = ServerApp()

    @app.main()
    def main(grid: object, context: object) -> None:
        made.append(server_app.conduct(grid, project, out, simulated=True))

    os.environ[PROJECT] = str(project.path)
    run_simulation(app, forward.app(), num_supernodes=nodes)
    if not made:
        raise InputError("the simulation failed; see what Flower printed above")
    return made[0]
