"""Who may ask: checks on every request before anything looks at it, and headers on every answer.

The page listens on this machine's own address. A web page from elsewhere, open in the same browser, could still send
requests here, or point a name of its own at this address. So a request must name this server as its Host, must not come
from another Origin, and must carry the token where one is set.
"""

from __future__ import annotations

import hmac
import ipaddress
import platform
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

LARGEST = 1 << 16
"""Bytes of a request's body, at most."""
COOKIE = "resolvent-token"
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
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True)
class Guard:
    """What a request must show: the names that this server answers to, and the token where one is set."""

    host: str
    token: str | None = None
    names: frozenset[str] = field(default_factory=lambda: frozenset({platform.node().lower()} - {""}))

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
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "requests from other web pages are not answered"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and method != "GET":
            return 403, "requests from other web pages are not answered"
        if self.token is not None and not self._admits(headers, query):
            return 401, "a token is needed; open the address with ?token=... that `resolvent ui` printed"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > LARGEST or len(length) > 12:
            return 413, f"a body of at most {LARGEST} bytes is taken"
        return None

    def _admits(self, headers: dict[str, str], query: dict[str, str]) -> bool:
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return any(self.right(given) for given in (cookies.get(COOKIE, ""), bearer, query.get("token", "")))

    def right(self, given: str) -> bool:
        """Whether this is the token, in time that does not depend on how much of it is right."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


class Guarded:
    """An application behind a guard."""

    def __init__(self, app: App, guard: Guard) -> None:
        self.app, self.guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        refused = self.guard.refusal(scope["method"], headers, query)
        if refused is not None:
            await _say(send, *refused)
        elif self.guard.token is not None and "token" in query and scope["method"] == "GET":
            await _admit(send, scope["path"], query, self.guard.token)
        else:
            await self.app(scope, _bounded(receive), _with_headers(send))


async def _say(send: Send, status: int, sentence: str, more: list[tuple[bytes, bytes]] | None = None) -> None:
    body = sentence.encode()
    own = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": own + (more or [])})
    await send({"type": "http.response.body", "body": body})


async def _admit(send: Send, path: str, query: dict[str, str], token: str) -> None:
    """Exchange the token in the address for a cookie, so that it stays neither in the address nor in the history."""
    rest = urlencode({name: value for name, value in query.items() if name != "token"})
    place = "/" + path.lstrip("/") + (f"?{rest}" if rest else "")
    cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict"
    more = [(b"location", place.encode("ascii", "replace")), (b"set-cookie", cookie.encode("latin-1"))]
    await _say(send, 303, "", more)


def _bounded(receive: Receive) -> Receive:
    """A body that has no length is cut off where it becomes too long: what is left is not JSON."""
    seen = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return message if seen <= LARGEST else {"type": "http.request", "body": b"", "more_body": False}

    return limited


def _with_headers(send: Send) -> Send:
    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", [])}
            extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return wrapped
