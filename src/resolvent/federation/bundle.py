"""The app by which Flower starts the server's side of a run: a few lines, written anew for every run."""

from __future__ import annotations

from pathlib import Path

PACKAGE = "resolvent_federation"

PYPROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "resolvent-federation"
version = "1.0.0"
description = "The rounds of a federation of resolvent."
license = {{ text = "Apache-2.0" }}
dependencies = []

[tool.flwr.app]
publisher = "resolvent"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server:app"
clientapp = "{PACKAGE}.client:app"

[tool.flwr.app.config]
project = ""
out = ""
resume = ""
ticket = ""
"""

SERVER = '''\
"""Runs the rounds, on the server's machine."""

from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    from resolvent.federation.server_app import main

    main(grid, dict(context.run_config))
'''

CLIENT = '''\
"""Flower wants this file. Nodes answer by themselves, and run nothing that arrives."""

from flwr.clientapp import ClientApp

app = ClientApp()
'''


def write(folder: Path) -> Path:
    """The app in a folder."""
    inner = folder / PACKAGE
    inner.mkdir(parents=True, exist_ok=True)
    files = {
        folder / "pyproject.toml": PYPROJECT,
        folder / "README.md": "The rounds of a federation of resolvent.\n",
        inner / "__init__.py": "",
        inner / "server.py": SERVER,
        inner / "client.py": CLIENT,
    }
    for path, text in files.items():
        path.write_text(text)
    return folder
