"""The page's server inside the test's process, a client of it, and a browser that may complain of nothing."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from resolvent import config as configs
from resolvent import experiment
from resolvent.runs import Folder
from resolvent.ui import server
from resolvent.ui.guard import cookie_name

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--no-first-run"]  # fmt: skip
PATIENCE = 120_000
"""Milliseconds after which what should come is taken not to; as many as a busy machine may need."""
TOKEN = "a-token-of-some-length"
SMALL = {"name": "least-squares", "users": 4, "dim": 5, "rows": 12}


def make(out: Path, algorithm: str = "fedpi", seed: int = 0, rounds: int = 15, **more: Any) -> Folder:
    """A small run, stored as any other."""
    tree: dict[str, Any] = {"problem": SMALL, "scheme": {"algorithm": algorithm, "eta": 0.01}}
    tree |= {"run": {"rounds": rounds, "seed": seed}} | more
    return experiment.begin(experiment.build(configs.read(tree)), out, progress=False).run


@contextmanager
def serving(out: Path, host: str = "127.0.0.1", listener: socket.socket | None = None) -> Iterator[str]:
    """The address of a server over a folder of runs, without the token."""
    listener = listener or server.listening("127.0.0.1", 0)
    place = f"http://127.0.0.1:{listener.getsockname()[1]}"
    running = server.prepared(out, server.guard_for(host, TOKEN))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield place
    finally:
        running.should_exit = True
        thread.join(60)
        listener.close()


def connected(place: str) -> httpx.Client:
    """A client that shows the token."""
    return httpx.Client(base_url=place, timeout=30, headers={"authorization": f"Bearer {TOKEN}"})


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some runs: three algorithms, three seeds of one, sampling, delays."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        for algorithm in ("fedavg", "fedprox"):
            make(out, algorithm)
        for seed in range(3):
            make(out, "fedpi", seed, problem=SMALL | {"seed": 0}, participation={"probability": 0.5})
        make(out, "fedpi", participation={"stragglers": 5.0}, rounds=40)
    return out


@pytest.fixture(scope="session")
def address(stored: Path) -> Iterator[str]:
    with serving(stored) as place:
        yield place


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[Any]:
    with connected(address) as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield found
        found.close()


Open = Callable[..., Any]


def admit(context: Any, url: str) -> None:
    """Give a browser the cookie, as opening the address with the token does."""
    host = url.split("/")[2]
    session = server.guard_for("127.0.0.1", TOKEN).session
    context.add_cookies([{"name": cookie_name(host), "value": session, "url": f"http://{host}/"}])


def _complained(message: Any, expected: str | None) -> list[str]:
    return [] if expected is not None and expected in message.text else [f"{message.type}: {message.text}"]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a page of the server. Nothing may be complained of, and nobody else be asked."""
    complaints: list[str] = []
    asked: list[str] = []
    contexts: list[Any] = []

    def open_page(url: str, expected: str | None = None) -> Any:
        """`expected`: what the browser itself logs of a request that the test means to be refused."""
        context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="light")
        context.set_default_timeout(PATIENCE)
        if url.startswith("http"):
            admit(context, url)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.extend(_complained(message, expected)))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        own = url.split("/")[2:3]
        asked[:] = [each for each in asked if each.split("/")[2:3] != own and not each.startswith(("data:", "blob:"))]
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [each for each in asked if "127.0.0.1" not in each and not each.startswith(("data:", "blob:"))] == []
