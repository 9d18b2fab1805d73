"""The page's server: its files, the API, and the guard in front of both."""

from __future__ import annotations

import hashlib
import platform
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

import resolvent
from resolvent.errors import InputError, refuse
from resolvent.runs import trust
from resolvent.ui.api import Json, router
from resolvent.ui.guard import Guard, Guarded
from resolvent.ui.jobs import Busy, Conflict
from resolvent.ui.store import Unknown

if TYPE_CHECKING:
    import uvicorn

PAGES = {"/": "runs.html", "/run": "run.html", "/explorer": "explorer.html", "/paper": "paper.html"}
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}  # fmt: skip
PLOTLY = "plotly.min.js"
MIN_TOKEN = 16
"""Characters of a token, at least."""


def build(out: Path, guard: Guard, ending: Callable[[], bool] = lambda: False) -> Guarded:
    """The application over a folder of runs; `ending` says whether the server is about to end."""
    app = FastAPI(title="Resolvent", version=resolvent.__version__, docs_url=None, redoc_url=None,
                  openapi_url="/api/openapi.json", redirect_slashes=False)  # fmt: skip
    app.include_router(router(out, ending))
    _files(app)

    @app.exception_handler(InputError)
    def refused(request: Request, error: Exception) -> Response:
        codes = {Unknown: 404, Conflict: 409, Busy: 429}
        code = next((code for kind, code in codes.items() if isinstance(error, kind)), 400)
        return Json({"detail": " ".join(str(error).split())[:1000]}, status_code=code)

    @app.exception_handler(FileNotFoundError)
    def deleted(request: Request, error: Exception) -> Response:
        return refused(request, Unknown("a file of that run is not there any more; it may have been deleted"))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}"[:300] for each in error.errors()[:5]]
        return Json({"detail": "; ".join(problems)}, status_code=422)

    return Guarded(app, guard)


def _files(app: FastAPI) -> None:
    """The page's own files, by name: nothing else can be asked for."""
    folder = resources.files("resolvent.ui").joinpath("pages")
    files = {item.name: item for item in folder.iterdir() if Path(item.name).suffix in (".js", ".css", ".svg")}
    files[PLOTLY] = resources.files("plotly").joinpath("package_data", PLOTLY)

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str, request: Request) -> Response:
        if name not in files:
            raise Unknown(f"there is no file {name[:80]!r}; the pages name those there are")
        content = files[name].read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        code = 304 if request.headers.get("if-none-match") == tag else 200
        headers = {"etag": tag, "cache-control": "no-cache"}
        return Response(content if code == 200 else b"", code, headers, TYPES[Path(name).suffix])

    for path, page in PAGES.items():
        app.get(path, include_in_schema=False)(_page(folder.joinpath(page)))


def _page(file: Traversable) -> Callable[[], Response]:
    def shown() -> Response:
        return Response(file.read_bytes(), media_type=TYPES[".html"], headers={"cache-control": "no-cache"})

    return shown


def guard_for(host: str, token: str | None) -> Guard:
    """The guard of an address. A token is drawn where none is given; pages opened with one's own outlive a restart."""
    if token is not None and (len(token) < MIN_TOKEN or not re.fullmatch(r"[A-Za-z0-9_-]+", token)):
        refuse("--token", "not what a token may be", f"at least {MIN_TOKEN} letters, digits, - or _ are needed")
    sealed = None if token is None else trust.seal(f"session of the page: {token}".encode())
    guard = Guard(host, token or secrets.token_urlsafe(24))
    return guard if sealed is None else replace(guard, session=sealed.decode().strip())


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; where that is not possible, a sentence says why."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        what = error.strerror or str(error)
        raise InputError(f"{host} port {port} cannot be listened on ({what}); choose another with --port") from None


def address(host: str, listener: socket.socket, guard: Guard) -> str:
    """What to open in a browser."""
    anywhere = host in ("0.0.0.0", "::", "")
    name = platform.node() if anywhere else f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}/?token={guard.token}"


def prepared(out: Path, guard: Guard) -> uvicorn.Server:
    """The server, not yet running."""
    import uvicorn

    from resolvent.ui import door

    app = build(out, guard, lambda: running.should_exit)
    config = uvicorn.Config(app, log_level="error", access_log=False, server_header=False, ws="none", lifespan="off",
                            timeout_graceful_shutdown=2, http=door.Door, loop="asyncio", backlog=door.MAX_BACKLOG,
                            limit_concurrency=door.MAX_CONNECTIONS,
                            h11_max_incomplete_event_size=door.MAX_HEADER_BYTES)  # fmt: skip
    running = uvicorn.Server(config)
    return running


def serve(out: Path, listener: socket.socket, guard: Guard) -> None:
    """Answer until interrupted."""
    prepared(out, guard).run(sockets=[listener])
