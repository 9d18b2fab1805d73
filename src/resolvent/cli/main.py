"""The application: its commands, and how every ending becomes an exit code."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from resolvent.cli import looking, many, reproducing, running
from resolvent.cli.output import ReaderLeft
from resolvent.errors import InputError

DONE, BAD_INPUT, DIVERGED, INTERRUPTED = 0, 2, 3, 130

app = typer.Typer(
    name="resolvent",
    help="Federated learning by operator splitting: one scheme, every algorithm.",
    epilog="""Examples:

        resolvent compare least-squares

        resolvent run logistic --data a9a.gz --users 20 --partition dirichlet:0.3

    Exit codes: 0 done, 2 bad input, 3 diverged, 130 interrupted.""",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        import resolvent

        print(resolvent.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """Options of every command."""


for commands in (running.COMMANDS, many.COMMANDS, reproducing.COMMANDS, looking.COMMANDS):
    for command, words in commands.items():
        app.command(epilog=words)(command)


def main() -> None:
    """Run a command; bad input is one sentence and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(standalone_mode=False, prog_name="resolvent")
        return int(code or DONE)
    except InputError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except ReaderLeft:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        words = getattr(error, "format_message", None)  # what typer raises for a wrong option has one
        if words is None:
            raise
        return _refuse(words()) if words() else BAD_INPUT  # without any command it has printed its help


def _refuse(sentence: str) -> int:
    print(f"resolvent: {' '.join(sentence.split())}", file=sys.stderr)
    return BAD_INPUT


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
