"""Arguments and options that several commands share. Nothing here computes, so nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resolvent import runs
from resolvent.cli.output import Format
from resolvent.runs import Folder

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of runs.")]
Form = Annotated[Format, typer.Option("--format", help="For people or for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, and nothing but the result.")]
RUNS = Path("runs")
CODES = {"diverged": 3, "interrupted": 130}


def run_names(incomplete: str) -> list[str]:
    """For the shell: the runs under the usual folder."""
    return [run.id for run in runs.folders(RUNS) if run.id.startswith(incomplete)]


RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, its beginning or end, its folder, or latest.", autocompletion=run_names
    ),
]


def sound(run: Folder) -> Folder:
    """The run, if its files are what was written."""
    if wrong := run.damage():
        raise runs.damaged(run, wrong)
    return run
