"""Who may ask: Host, Origin, the token, the length of a body."""

from __future__ import annotations

import pytest

from resolvent.errors import InputError
from resolvent.ui.guard import Guard, is_loopback
from resolvent.ui.server import guard_for

HERE = Guard("127.0.0.1", names=frozenset({"desktop"}))
TOKEN = "a-token-of-some-length"
OPEN = Guard("0.0.0.0", TOKEN, names=frozenset({"desktop"}))


def status(refused: tuple[int, str] | None) -> int | None:
    return None if refused is None else refused[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8400", "localhost:8400", "[::1]:8400", "localhost", "127.0.0.7:1"])
def test_loopback_answers_to_loopback(host: str) -> None:
    assert HERE.refusal("GET", {"host": host}, {}) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8400", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1",
     "desktop:8400", "127.0.0.1:99999", "[::1", "user@evil.example", "0x7f000001"],
)  # fmt: skip
def test_loopback_answers_to_nothing_else(host: str) -> None:
    assert status(HERE.refusal("GET", {"host": host}, {})) == 421


@pytest.mark.parametrize(
    ("origin", "code"),
    [(None, None), ("http://127.0.0.1:8400", None), ("http://evil.example", 403), ("null", 403),
     ("http://127.0.0.1:8401", 403), ("http://localhost:8400", 403), ("", 403)],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused(method: str, origin: str | None, code: int | None) -> None:
    headers = {"host": "127.0.0.1:8400"} | ({} if origin is None else {"origin": origin})
    assert status(HERE.refusal(method, headers, {})) == code


def test_a_form_of_another_page_is_refused_without_an_origin() -> None:
    headers = {"host": "127.0.0.1:8400", "sec-fetch-site": "cross-site"}
    assert status(HERE.refusal("POST", headers, {})) == 403
    assert HERE.refusal("GET", headers, {}) is None  # a link to the page, which shows nothing to the one that links


@pytest.mark.parametrize("length", ["65537", "99999999999999999999999", "-1", "x", ""])
def test_long_bodies_are_refused(length: str) -> None:
    assert status(HERE.refusal("POST", {"host": "127.0.0.1", "content-length": length}, {})) == 413


@pytest.mark.parametrize(
    ("headers", "query", "code"),
    [({}, {}, 401), ({"cookie": f"resolvent-token={TOKEN}"}, {}, None), ({"cookie": "resolvent-token=no"}, {}, 401),
     ({"authorization": f"Bearer {TOKEN}"}, {}, None), ({}, {"token": TOKEN}, None), ({}, {"token": TOKEN[:-1]}, 401),
     ({"cookie": f"a=b; resolvent-token={TOKEN}; c=d"}, {}, None), ({"authorization": "Bearer é"}, {}, 401)],
)  # fmt: skip
def test_a_token_is_needed_where_others_can_reach_the_page(
    headers: dict[str, str], query: dict[str, str], code: int | None
) -> None:
    assert status(OPEN.refusal("GET", {"host": "10.0.0.1:8400"} | headers, query)) == code


@pytest.mark.parametrize(("host", "known"), [("10.1.2.3", True), ("desktop:8400", True), ("evil.example", False)])
def test_names_must_be_known_where_others_can_reach_the_page(host: str, known: bool) -> None:
    assert OPEN.knows(host) is known


def test_a_token_is_drawn_for_any_other_address() -> None:
    assert guard_for("127.0.0.1", None).token is None
    drawn = {guard_for("0.0.0.0", None).token for _ in range(3)}
    assert len(drawn) == 3
    assert all(token is not None and len(token) >= 24 for token in drawn)
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
