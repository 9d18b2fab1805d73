"""Who may ask: Host, Origin, the token, the length of a body."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from resolvent.errors import InputError
from resolvent.ui import guard
from resolvent.ui.guard import WINDOW, WRONG_TOKENS, Guard, WrongTokens, is_loopback
from resolvent.ui.server import guard_for

TOKEN = "a-token-of-some-length"
SHOWN = {"authorization": f"Bearer {TOKEN}"}
HERE = Guard("127.0.0.1", TOKEN, names=frozenset({"desktop"}))
OPEN = Guard("0.0.0.0", TOKEN, names=frozenset({"desktop"}))


def status(refused: tuple[int, str] | None) -> int | None:
    return None if refused is None else refused[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8400", "localhost:8400", "[::1]:8400", "localhost", "127.0.0.7:1"])
def test_loopback_answers_to_loopback(host: str) -> None:
    assert HERE.refusal("GET", {"host": host} | SHOWN, {}) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8400", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1",
     "desktop:8400", "127.0.0.1:99999", "[::1", "user@evil.example", "evil.example\\@127.0.0.1", "0x7f000001"],
)  # fmt: skip
def test_loopback_answers_to_nothing_else(host: str) -> None:
    assert status(HERE.refusal("GET", {"host": host} | SHOWN, {})) == 421


@pytest.mark.parametrize(
    ("origin", "code"),
    [(None, None), ("http://127.0.0.1:8400", None), ("http://evil.example", 403), ("null", 403),
     ("http://127.0.0.1:8401", 403), ("http://localhost:8400", 403), ("", 403), ("http://[", 403),
     ("http://[::1", 403), ("http://\u2100.example", 403), ("javascript://127.0.0.1:8400", 403)],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused(method: str, origin: str | None, code: int | None) -> None:
    headers = {"host": "127.0.0.1:8400"} | SHOWN | ({} if origin is None else {"origin": origin})
    assert status(HERE.refusal(method, headers, {})) == code


def test_a_form_of_another_page_is_refused_without_an_origin() -> None:
    headers = {"host": "127.0.0.1:8400", "sec-fetch-site": "cross-site"} | SHOWN
    assert status(HERE.refusal("POST", headers, {})) == 403
    assert HERE.refusal("GET", headers, {}) is None  # a link to the page, which shows nothing to the one that links


@pytest.mark.parametrize("length", ["65537", "99999999999999999999999", "0" * 12 + "65537", "-1", "x", ""])
def test_long_bodies_are_refused(length: str) -> None:
    assert status(HERE.refusal("POST", {"host": "127.0.0.1", "content-length": length} | SHOWN, {})) == 413


@pytest.mark.parametrize(
    ("headers", "query", "code"),
    [({}, {}, 401), ({"cookie": f"resolvent-8400={TOKEN}"}, {}, 401), ({"cookie": "resolvent-8400=no"}, {}, 401),
     ({"authorization": f"Bearer {TOKEN}"}, {}, None), ({}, {"token": TOKEN}, None), ({}, {"token": TOKEN[:-1]}, 401),
     ({"cookie": "a=b; resolvent-8400=session; c=d"}, {}, None), ({"authorization": "Bearer é"}, {}, 401),
     ({"cookie": "resolvent-8401=session"}, {}, 401), ({"cookie": "resolvent-8400=session"}, {}, None)],
)  # fmt: skip
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_is_needed_on_every_address(
    host: str, headers: dict[str, str], query: dict[str, str], code: int | None
) -> None:
    """Other accounts of this machine reach its own address too. The cookie's value is not the token."""
    guard = Guard(host, TOKEN, session="session")
    assert status(guard.refusal("GET", {"host": "127.0.0.1:8400"} | headers, query)) == code


def test_tokens_cannot_be_tried_out() -> None:
    """After many wrong ones none is looked at for a while, the right one neither; open browsers go on."""
    now = [0.0]
    guard = Guard("127.0.0.1", TOKEN, session="session", wrong=WrongTokens(lambda: now[0]))
    here = {"host": "127.0.0.1:8400"}
    for _ in range(WRONG_TOKENS):
        assert guard.refusal("GET", here | SHOWN, {}) is None  # right ones do not count
        assert status(guard.refusal("GET", here, {})) == 401  # nor those that show none
        assert status(guard.refusal("GET", here, {"token": "wrong"})) == 401
        now[0] += 0.1
    for query in ({"token": "wrong"}, {"token": TOKEN}):
        assert status(guard.refusal("GET", here, query)) == 429
    assert guard.refusal("GET", here | {"cookie": "resolvent-8400=session"}, {}) is None
    now[0] = WINDOW + 0.05
    assert guard.refusal("GET", here, {"token": TOKEN}) is None
    for _ in range(2):  # the oldest of the wrong ones has left the window
        code = status(guard.refusal("GET", here, {"token": "wrong"}))
    assert code == 429


@pytest.mark.parametrize(("host", "known"), [("10.1.2.3", True), ("desktop:8400", True), ("evil.example", False)])
def test_names_must_be_known_where_others_can_reach_the_page(host: str, known: bool) -> None:
    assert OPEN.knows(host) is known


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_is_drawn_where_none_is_given(host: str) -> None:
    guards = [guard_for(host, None) for _ in range(3)]
    secrets = {secret for guard in guards for secret in (guard.token, guard.session)}
    assert len(secrets) == 6
    assert all(len(secret) >= 24 for secret in secrets)
    own = [guard_for(host, TOKEN) for _ in range(2)]
    assert own[0].session == own[1].session != TOKEN  # a page that is open goes on when its server is restarted
    assert guard_for(host, TOKEN + "-").session != own[0].session
    for wrong in ("short", "has spaces in it and more", "ümlaut-ümlaut-ümlaut", "a;b=c;Domain=evil.example"):
        with pytest.raises(InputError, match="--token"):
            guard_for("0.0.0.0", wrong)


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("::1", True), ("[::1]", True), ("LocalHost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("", False)],
)  # fmt: skip
def test_which_addresses_are_this_machine_alone(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_a_body_that_comes_in_pieces_is_no_json_once_it_is_too_long() -> None:
    """Whatever was sent before would be taken by itself."""
    pieces = iter([b"{}", *[b" " * 10_000] * 8])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    async def read() -> bytes:
        take, body = guard._bounded(receive), b""
        while (message := await take())["more_body"]:
            body += message["body"]
        return body + bytes(message["body"])

    with ThreadPoolExecutor(1) as pool:  # a browser of other tests may have a loop in this thread
        body = pool.submit(lambda: asyncio.run(read())).result()
    assert len(body) <= guard.MAX_BODY
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
