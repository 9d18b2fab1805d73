"""The application: its commands, and how every ending becomes an exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

import resolvent
from resolvent.cli import output
from resolvent.cli.commands import Commands
from resolvent.cli.output import ReaderLeft
from resolvent.errors import BadAnswer, InputError, NotJoined, RankLost, RoundFailed

DONE, BAD_INPUT, DIVERGED, FAILED, INTERRUPTED = 0, 2, 3, 4, 130

app = typer.Typer(
    name="resolvent",
    cls=Commands,
    help="Federated learning by operator splitting: one scheme, every algorithm.",
    epilog="""Examples:

        resolvent compare least-squares

        resolvent run logistic --data a9a.gz --users 20 --partition dirichlet:0.3

    Exit codes: 0 done, 2 bad input, 3 diverged, 4 code of yours failed, 130 interrupted.""",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(resolvent.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run a command; bad input is one sentence and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    if not output.first_rank():
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    try:
        code = _run()
    except Exception as error:
        sys.stderr = sys.__stderr__  # what nobody expected is shown, whichever rank it came from
        _announce(f"{type(error).__name__}: {error}")
        raise
    sys.exit(code)


def _run() -> int:
    try:
        code = app(standalone_mode=False, prog_name="resolvent")
        return int(code or DONE)
    except InputError as error:
        return _refuse(str(error))
    except NotJoined as error:
        sys.stderr = sys.__stderr__  # rank 0 may not know of it
        _refuse(str(error))
        return FAILED
    except RankLost as error:
        _refuse(f"{error}; what was done is stored, and the same command with `resume` goes on")
        return FAILED
    except RoundFailed as error:
        _refuse(str(error))
        print(output.escaped(_traceback(error.__cause__)), file=sys.stderr, end="")
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:  # what no command expects: names that no file can have, say
        named = f"{str(error.filename)[:100]!r}: " if error.filename else ""
        return _refuse(f"{named}{error.strerror or error}; name a file or folder that can be used")
    except MemoryError as error:
        return _refuse(f"the memory does not suffice ({error}); take fewer users, rows or features")
    except ReaderLeft:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        words = getattr(error, "format_message", None)  # what typer raises for a wrong option has one
        if words is None:
            raise
        return _refuse(words()) if words() else BAD_INPUT  # without any command it has printed its help


def _refuse(sentence: str) -> int:
    print(output.escaped(f"resolvent: {' '.join(sentence.split())}"), file=sys.stderr, flush=True)
    _announce(sentence)
    return BAD_INPUT


def _announce(words: str) -> None:
    """Tell other ranks, where torchrun has started some."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        from resolvent.engines import process_group

        process_group.announce(words)


def _traceback(error: BaseException | None) -> str:
    """The traceback of what a user's code raised, from where that code begins."""
    if error is None:
        return ""
    while isinstance(error, BadAnswer) and error.__cause__ is not None:  # the engine's words are in the sentence
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(resolvent.__file__).parent)
    first = next((k for k, frame in enumerate(frames) if not frame.filename.startswith(ours)), 0)
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])]
    return "".join([*lines, *traceback.format_exception_only(error)])


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
