"""The page in a browser: opened by the command with the token, which nobody else sees."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from resolvent.cli import ui as browsers

from .conftest import PATIENCE, TOKEN, serving


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser is started with."""
    urls: list[str] = []
    monkeypatch.setattr(webbrowser, "open", urls.append)
    return urls


def test_the_token_is_on_no_command_line(told: list[str]) -> None:
    """It is in a file that only this user can read, and that goes with the server."""
    with browsers.visiting(f"http://127.0.0.1:8400/?token={TOKEN}&x=1") as file:
        assert file.parent.stat().st_mode & 0o077 == 0
        assert f"url=http://127.0.0.1:8400/?token={TOKEN}&amp;x=1" in file.read_text()
    assert told == [file.as_uri()]
    assert TOKEN not in told[0]
    assert not file.parent.exists()


def test_the_browser_is_let_in_and_the_address_is_clean(stored: Path, told: list[str], browser: Any) -> None:
    """By the file that the command opens, which a browser takes for another site, and by the printed address."""
    with serving(stored) as place:
        address = f"{place}/?token={TOKEN}"
        with browsers.visiting(address) as file:
            for url in (file.as_uri(), address):
                context = browser.new_context()
                page = context.new_page()
                page.set_default_timeout(PATIENCE)
                asked: list[Any] = []
                page.on("request", lambda request, into=asked: into.append(request))
                page.goto(url)
                page.wait_for_url(f"{place}/")
                page.wait_for_selector(".line")
                (cookie,) = context.cookies()
                assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
                assert TOKEN not in cookie["value"]
                assert {request.headers.get("referer", "") for request in asked} == {""}
                assert not re.search(TOKEN, page.evaluate("location.href + document.referrer"))
                context.close()
