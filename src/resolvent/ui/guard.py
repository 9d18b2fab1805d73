"""Who may ask: checks on every request before anything looks at it, and headers on every answer.

The page listens on this machine's own address. A web page from elsewhere, open in the same browser, could still send
requests here, or point a name of its own at this address; and so could other accounts of this machine. So a request
must name this server as its Host, must not come from another Origin, and must carry the token, or the cookie that it
was exchanged for.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
import platform
import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1 << 16
"""Bytes of a request's body, at most."""
WRONG_TOKENS, WINDOW = 60, 60.0
"""After so many wrong tokens within so many seconds no token is looked at; browsers that were let in go on."""
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self' 'unsafe-inline'", "img-src 'self' data: blob:",
    "connect-src 'self'",
    "font-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
"""Scripts are those of this server alone. Styles may be inline, since Plotly writes its own into the page."""
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
AUTHORITY = re.compile(r"[\w.:\[\]%-]+")
"""What a Host may consist of."""
ADMITTED = "admitted"
"""In a connection's state: called when a request on it has shown the token, or the cookie."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class WrongTokens:
    """When the last wrong tokens were shown."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=WRONG_TOKENS)

    def add(self) -> None:
        self._times.append(self._clock())

    @property
    def too_many(self) -> bool:
        return len(self._times) == WRONG_TOKENS and self._clock() - self._times[0] < WINDOW


@dataclass(frozen=True)
class Guard:
    """What a request must show: one of the names that this server answers to, and the token or the session's cookie."""

    host: str
    token: str
    names: frozenset[str] = field(default_factory=lambda: frozenset({platform.node().lower()} - {""}))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The cookie's value: another secret, so that it cannot be guessed even where a short token was chosen."""
    wrong: WrongTokens = field(default_factory=WrongTokens, compare=False)

    def knows(self, authority: str) -> bool:
        """Whether a Host header names this server.

        A name that somebody else registered may lead here, an address cannot: so addresses pass, and names must be
        known. On loopback only loopback passes.
        """
        try:
            name = urlsplit(f"//{authority}").hostname or ""
            _ = urlsplit(f"//{authority}").port
        except ValueError:
            return False
        if not AUTHORITY.fullmatch(authority):  # no user in front of it, nothing behind it
            return False
        if is_loopback(self.host):
            return is_loopback(name)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", self.host.lower(), *self.names}
        return True

    def refusal(self, method: str, headers: dict[str, str], query: dict[str, str]) -> tuple[int, str] | None:
        """The status and the sentence with which a request is refused; None where it may pass."""
        host = headers.get("host", "")
        if not self.knows(host):
            return 421, "this server answers to its own address only; open the address that `resolvent ui` printed"
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != host:
            return 403, "requests from other web pages are not answered"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and method != "GET":
            return 403, "requests from other web pages are not answered"
        if (stranger := self._stranger(headers, query)) is not None:
            return stranger
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > MAX_BODY or len(length) > 12:
            return 413, f"a body of at most {MAX_BODY} bytes is taken"
        return None

    def _stranger(self, headers: dict[str, str], query: dict[str, str]) -> tuple[int, str] | None:
        """With what a request is refused that shows neither the session's cookie nor the token; None where it does."""
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        if _same(cookies.get(cookie_name(headers["host"]), ""), self.session):
            return None
        shown = [headers.get("authorization", "").removeprefix("Bearer "), query.get("token", "")]
        if not any(shown):
            return 401, "a token is needed; open the address with ?token=... that `resolvent ui` printed"
        if self.wrong.too_many:
            return 429, f"{WRONG_TOKENS} wrong tokens were shown within {WINDOW:g} seconds; wait as long"
        if any(_same(given, self.token) for given in shown):
            return None
        self.wrong.add()
        return 401, "the token is wrong; open the address with ?token=... that `resolvent ui` printed"


def cookie_name(host: str) -> str:
    """A cookie of one address is sent to all of its ports: each page there has a name of its own."""
    return f"resolvent-{urlsplit(f'//{host}').port or 80}"


def _same(given: str, secret: str) -> bool:
    """In time that does not depend on how much of it is right."""
    return hmac.compare_digest(given.encode(), secret.encode())


def _authority(origin: str) -> str | None:
    """The host and port of an Origin; None where it is none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") else None


class Guarded:
    """An application behind a guard."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self.app, self.guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        request = Request(scope)
        headers, query = dict(request.headers.items()), dict(request.query_params)
        answer, send = self.app, _with_headers(send)
        if (refused := self.guard.refusal(scope["method"], headers, query)) is not None:
            answer = PlainTextResponse(refused[1], refused[0], {"cache-control": "no-store"})
        else:
            scope.get("state", {}).get(ADMITTED, lambda: None)()
            if "token" in query and scope["method"] == "GET":
                answer = _admission(scope["path"], query, f"{cookie_name(headers['host'])}={self.guard.session}")
        await answer(scope, _bounded(receive), send)


def _admission(path: str, query: dict[str, str], cookie: str) -> Response:
    """Exchange the token in the address for a cookie, so that it stays neither in the address nor in the history.

    By a page that goes on at once, since a browser that came from elsewhere (another page, a file) would not show a
    strict cookie to what it is redirected to.
    """
    rest = urlencode({name: value for name, value in query.items() if name != "token"})
    place = html.escape("/" + quote(path.lstrip("/")) + (f"?{rest}" if rest else ""))
    page = f'<!doctype html><title>Resolvent</title><meta http-equiv="refresh" content="0; url={place}">'
    page += f'<a href="{place}">Resolvent</a>'
    headers = {"cache-control": "no-store", "set-cookie": f"{cookie}; Path=/; HttpOnly; SameSite=Strict"}
    return HTMLResponse(page, headers=headers)


def _bounded(receive: Receive) -> Receive:
    """A body that has no length is cut off where it becomes too long, with a byte after which nothing is JSON."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return message if seen <= MAX_BODY else {"type": "http.request", "body": b"\0", "more_body": False}

    return limited


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", [])}
            extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return wrapped
