"""Opens the page in a browser, without the token on a command line, which every account of the machine can read."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
