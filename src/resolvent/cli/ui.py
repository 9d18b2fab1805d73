"""The command that opens the live page."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from resolvent.cli.arguments import RUNS
from resolvent.cli.output import say
from resolvent.errors import InputError
from resolvent.installed import install

PAGE = """<!doctype html><title>Resolvent</title><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Resolvent</a>
"""


def has_screen() -> bool:
    """Whether somebody sits in front of this: a terminal, and a screen that a browser can show a page on."""
    graphical = sys.platform in ("darwin", "win32") or any(
        os.environ.get(f"{kind}DISPLAY") for kind in ("", "WAYLAND_")
    )
    return sys.stderr.isatty() and graphical


@contextmanager
def visiting(address: str) -> Iterator[Path]:
    """Open an address, by a file that only this user can read; it is there as long as the server runs."""
    with tempfile.TemporaryDirectory(prefix="resolvent-ui-") as folder:  # mode 0700
        file = Path(folder) / "open.html"
        file.write_text(PAGE.format(html.escape(address)), encoding="utf-8")
        threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
        yield file


NEEDED = ("fastapi", "uvicorn", "plotly", "matplotlib")
PORT = 8400


def ui(
    runs: Annotated[Path, typer.Option("--runs", "--out", metavar="DIR", help="The folder of runs.")] = RUNS,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="The address to listen on: by default, this machine's own.")]
    = "127.0.0.1",
    token: Annotated[str | None, typer.Option(envvar="RESOLVENT_UI_TOKEN",
                                              help="What a browser must show; drawn where none is given.")] = None,
    browser: Annotated[bool | None, typer.Option("--browser/--no-browser", show_default="where there is a screen",
                                                 help="Open the page in a browser.")] = None,
) -> None:  # fmt: skip
    """Open the live page: runs as they grow, the explorer of alpha, beta, gamma and eta, the reproduced paper."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise InputError(f"the page needs {', '.join(missing)}, which {are} not installed; {install('ui')}")
    if runs.exists() and not runs.is_dir():
        raise InputError(f"--runs is {runs}, which is a file; name the folder of runs")
    from resolvent.ui import server

    guard = server.guard_for(host, token)
    with server.listening(host, port) as listener, ExitStack() as stack:
        address = server.address(host, listener, guard)
        say(f"The page of {runs}/ (Ctrl-C ends it, and runs go on): {address}")
        if has_screen() if browser is None else browser:
            stack.enter_context(visiting(address))
        server.serve(runs, listener, guard)


COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    ui: (
        "resolvent ui",
        "resolvent ui --runs out --port 9000",
        "resolvent ui --host 0.0.0.0",
        "The last one can be reached from other machines. Browsers need the token in the address that is printed.",
    ),
}
