"""A round over Flower, ours beside Flower's own FedAvg with the same payload, on the same server and machine.

    python -m bench.federation [ROUNDS [TURNS]]

Flower's FedAvg is its strategy as it is, without evaluation, with a ClientApp that returns what it was sent: nothing
can be cheaper. Its nodes are Flower's own supernodes, since ours run no app that arrives. Ours is FedAvg and FedPi on
f_i(w) = |w - c_i|^2 / 2, whose local step costs next to nothing. What is left is the cost of a round itself.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from resolvent.federation import control, deployment, keys, processes, running, template
from resolvent.federation.project import Project
from resolvent.federation.up import Federation

ROUNDS = 8
SIZES = {"d = 10": 10, "d = 800,000 (6.4 MB)": 800_000}
NODES = ("site-0", "site-1", "site-2")

USER = """\
import numpy as np
import resolvent as rs


def problem(node_config):
    return rs.Quadratics([1.0], np.full((1, {dim}), float(node_config["number"])))
"""

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "plain-fedavg"
version = "1.0.0"
description = "Flower's FedAvg."
license = { text = "Apache-2.0" }
dependencies = []

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "plain_fedavg.server:app"
clientapp = "plain_fedavg.client:app"

[tool.flwr.app.config]
rounds = 1
dim = 1
times = ""
"""

SERVER = """\
import json
import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    began = []

    def configure_train(self, *given):
        self.began.append(time.time())
        return super().configure_train(*given)


@app.main()
def main(grid, context):
    settings = context.run_config
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    first = ArrayRecord([np.zeros(int(settings["dim"]))])
    strategy.start(grid=grid, initial_arrays=first, num_rounds=int(settings["rounds"]))
    with open(settings["times"], "w") as file:
        json.dump([*strategy.began, time.time()], file)
"""

CLIENT = """\
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    (arrays,) = message.content.array_records.values()
    sent = ArrayRecord([array + 1 for array in arrays.to_numpy_ndarrays()])
    return Message(RecordDict({"arrays": sent, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
"""


@contextmanager
def flower_nodes(project: Project, federation: Federation) -> Iterator[None]:
    """Flower's own supernodes in the stead of ours, with the same keys."""
    processes.stop(*(node.supernode for node in federation.nodes.values()))
    started = []
    for name in federation.nodes:
        command = [
            str(Path(sys.executable).with_name("flower-supernode")),
            *("--root-certificates", str(project.keys / keys.CA)),
            *("--auth-supernode-private-key", str(project.nodes / name)),
            *("--superlink", f"127.0.0.1:{federation.server.port}"),
            *("--host", "127.0.0.1", "--port", str(processes.free_port())),
        ]
        environment = deployment.environment(project, f"flower-{name}") | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
        started.append(processes.start(name, command, project.state / f"flower-{name}.log", environment))
    try:
        yield
    finally:
        processes.stop(*started)
        for node in federation.nodes.values():
            node._start_supernode()


def plain_fedavg(project: Project, federation: Federation, dim: int, rounds: int) -> list[float]:
    """Seconds per round of Flower's own FedAvg."""
    app = project.state / "plain"
    (app / "plain_fedavg").mkdir(parents=True, exist_ok=True)
    files = {"pyproject.toml": PYPROJECT, "plain_fedavg/__init__.py": "", "plain_fedavg/server.py": SERVER,
             "plain_fedavg/client.py": CLIENT}  # fmt: skip
    for name, text in files.items():
        (app / name).write_text(text)
    times = project.state / f"times-{time.time_ns()}.list"
    settings: dict[str, Any] = {"rounds": rounds, "dim": dim, "times": str(times)}
    with flower_nodes(project, federation):
        number = control.begin(project, federation.server, settings, app)
        while not times.is_file() or not times.read_text():
            status = control.status(project, federation.server, number)
            if status.startswith("finished") and not times.is_file():
                raise SystemExit(f"Flower's FedAvg ended: {status}")
            time.sleep(0.5)
    return [float(x) for x in np.diff(json.loads(times.read_text()))]


def ours(project: Project, algorithm: str, rounds: int) -> list[float]:
    """Seconds per round of ours, storing included: between one row on disk and the next."""
    path = project.path / "federation.toml"
    path.write_text(
        f'[federation]\nusers = 3\nweights = "users"\n[scheme]\nalgorithm = "{algorithm}"\neta = 0.5\n'
        f"[run]\nrounds = {rounds}\n"
    )
    done = running.begin(project, project.runs).wait()
    return [float(x) for x in done.history()["seconds"].diff().dropna()]


def main(rounds: int = ROUNDS, turns: int = 2) -> None:
    print("| payload | Flower's FedAvg | FedAvg, ours | FedPi, ours | FedAvg, ours / Flower's |\n|---|---|---|---|---|")
    for size, dim in SIZES.items():
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        try:
            project = template.write(folder / "project")
            (project.path / "user.py").write_text(USER.format(dim=dim))
            with Federation(project, NODES) as federation:
                taken: dict[str, list[float]] = {"plain": [], "fedavg": [], "fedpi": []}
                for _ in range(turns):  # in turns: other work on the machine hits all alike
                    taken["plain"] += plain_fedavg(project, federation, dim, rounds)[1:]
                    for algorithm in ("fedavg", "fedpi"):
                        taken[algorithm] += ours(project, algorithm, rounds)
            median = {name: float(np.median(seconds)) for name, seconds in taken.items()}
            times = " | ".join(f"{median[name]:.2f} s" for name in taken)
            print(f"| {size} | {times} | {median['fedavg'] / median['plain']:.2f} |", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
