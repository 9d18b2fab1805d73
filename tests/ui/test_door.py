"""Connections that have not shown the token: slow, many, or with endless headers. The page goes on."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Process
from resolvent.ui import door

from .conftest import TOKEN, connected, serving

FILES, SLOW = 300, 400
"""Files that the server may have open, and clients that are slow."""


def port_of(place: str) -> int:
    return int(place.rpartition(":")[2])


@contextlib.contextmanager
def few_files(out: Path) -> Iterator[tuple[int, str]]:
    """`resolvent ui` in a process of its own that may open few files: its port and token."""
    child = Process("ui", "--runs", out, "--port", "0", most_files=FILES)
    try:
        line = child.first_line()
        address = re.search(r":(\d+)/\?token=([\w-]+)", line)
        assert address is not None, line
        yield int(address[1]), address[2]
    finally:
        child.end()


def test_many_slow_clients_do_not_make_the_page_dead(tmp_path: Path) -> None:
    with few_files(tmp_path) as (port, token), contextlib.ExitStack() as stack:
        for _ in range(SLOW):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1")
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/runs", headers={"Authorization": f"Bearer {token}"}
        )
        for _ in range(3):
            with urllib.request.urlopen(
                asked, timeout=door.MAX_SECONDS_UNKNOWN / 2
            ) as answer:  # before the slow ones are let go
                assert answer.status == 200


def test_whoever_was_let_in_stays_when_strangers_come(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_STRANGERS", 4)
    with serving(stored) as place, contextlib.ExitStack() as stack:
        guest = stack.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", port_of(place))))

        def asked() -> int:
            guest.request("GET", "/api/runs", headers={"authorization": f"Bearer {TOKEN}"})
            with guest.getresponse() as answer:
                answer.read()
                return answer.status

        assert asked() == 200
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(place)), 30))
        with connected(place) as other:  # it comes after the strangers
            assert other.get("/api/runs").status_code == 200
        assert asked() == 200


def closed_after(place: str, sent: bytes) -> float:
    """Seconds until the server closes a connection on which this was sent."""
    with socket.create_connection(("127.0.0.1", port_of(place)), 30) as client:
        began = time.monotonic()
        client.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass
        return time.monotonic() - began


def test_whoever_does_not_show_the_token_in_time_is_let_go(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a head, with half of one, and after being refused; whoever has shown it may be slow."""
    monkeypatch.setattr(door, "MAX_SECONDS_UNKNOWN", 0.5)
    with serving(stored) as place, connected(place) as client:
        refused = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port_of(place)}\r\n\r\n".encode()
        for sent in (b"", b"GET / HTTP/1.1\r\nHost:", refused):
            assert closed_after(place, sent) < 5
        with client.stream("GET", "/api/stream") as stream:
            began, beats = time.monotonic(), 0
            for _ in stream.iter_lines():
                beats += 1
                if time.monotonic() - began > 1.5:
                    break
        assert beats >= 2


def test_a_head_without_end_is_refused(stored: Path) -> None:
    with serving(stored) as place, socket.create_connection(("127.0.0.1", port_of(place)), 30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        answer = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(64):  # 1 MiB, but for what is refused
                client.sendall(b"X-A: " + b"a" * (1 << 14))
            client.settimeout(1)
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 400") or answer == b""
        with connected(place) as other:
            assert other.get("/api/runs").status_code == 200
