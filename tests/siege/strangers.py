"""Campaigns over loopback: strangers at the live page and at both ports of a federation."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from siege.forge import WEIRD, Ends, scrambled
from ui.test_door import few_files

WAIT = 10.0
"""Seconds for an answer of the page, on a machine that is busy."""
SILENT = 0.7
"""Seconds for an answer to bytes that need not be a request."""
REFUSALS = {400, 401, 403, 413, 421, 429}
"""With these a stranger is refused: no other tells what there is."""
PATHS = ("/", "/run", "/explorer", "/paper", "/static/style.css", "/api/runs", "/api/runs/{}", "/api/runs/{}/metrics",
         "/api/runs/{}/participation", "/api/runs/{}/losses", "/api/download/{}", "/api/form", "/api/jobs",
         "/api/explorer", "/api/paper", "/api/paper/{}/{}", "/api/openapi.json", "/api/compare", "/api/explore",
         "/api/runs/{}/stop", "/api/runs/{}/resume")  # fmt: skip
NAMES = ("..", "../../etc/passwd", "\0", "a" * 300, "%", "\u202e", "csv", "fig-gap", "null", "-1", "{}", "\ud800", ".")
HOSTS = ("127.0.0.1:{}", "127.0.0.1:{}", "localhost:{}", "[::1]:{}", "evil.example:{}", "", "[", "127.0.0.1:99999",
         "a@b:{}", "127.0.0.1.evil.example", "0x7f.1:{}", "127.0.0.1:{}\t", "\xff")  # fmt: skip
ORIGINS = (None, None, "http://127.0.0.1:{}", "null", "http://[", "http://evil.example", "", "\xff", "http://[::1")


def page(seeds: Iterable[int], at: Path) -> Ends:
    """A real server: never an answer without the token, never a 5xx, and still there for whoever was let in."""
    at.mkdir(parents=True, exist_ok=True)
    with few_files(at) as (port, token), contextlib.ExitStack() as slow:
        cookie = _cookie(port, token)
        for seed in seeds:
            rng = random.Random(seed)
            if rng.random() < 0.2:  # a head that never ends; the door lets the oldest go
                line = slow.enter_context(socket.create_connection(("127.0.0.1", port), WAIT))
                line.sendall(_head(rng, port)[: rng.randrange(1, 60)])
            attack = rng.choice((_garbage, _uninvited, _guest))
            yield seed, attack(rng, port, cookie)
            if seed % 10 == 0 and (status := _asked(port, "GET", "/api/runs", {"Cookie": cookie})) != 200:
                yield seed, f"a guest is answered with {status} now"


def _cookie(port: int, token: str) -> str:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    with contextlib.closing(line):
        line.request("GET", f"/?token={token}")
        return str(line.getresponse().getheader("set-cookie")).partition(";")[0]


def _asked(port: int, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> int | str:
    """The status of an answer, or how there was none."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    with contextlib.closing(line):
        try:
            line.request(method, path, body, headers)
            return line.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"


def _head(rng: random.Random, port: int, show: str = "") -> bytes:
    path = rng.choice(PATHS).replace("{}", quote(rng.choice(NAMES), errors="replace"))
    query = (
        rng.choice(["", "?token=wrong", "?after=-1", "?run=..&run=%00", "?" + "&" * 50, "?x=%ff"]) if not show else ""
    )
    lines = [f"{rng.choice(['GET', 'GET', 'POST', 'PUT', 'HEAD', 'X'])} {path}{query} HTTP/1.1"]
    lines += [f"Host: {rng.choice(HOSTS[:1] if show else HOSTS).format(port)}"]
    if (origin := rng.choice(ORIGINS)) is not None and not show:
        lines += [f"Origin: {origin.format(port)}"]
    lines += [
        rng.choice(["Cookie: resolvent=1; =;;", "Authorization: Bearer wrong", "Authorization: Basic Og==", "A: b"])
    ]
    return "\r\n".join([*lines, *([show] if show else []), "Connection: close", "", ""]).encode("latin-1")


def _sent(port: int, content: bytes, wait: float) -> int | str:
    with socket.create_connection(("127.0.0.1", port), WAIT) as line:
        line.settimeout(wait)
        answer = b""
        try:
            line.sendall(content)
            while len(answer) < 12 and (more := line.recv(1 << 12)):
                answer += more
        except TimeoutError:
            return "no answer"
        except OSError:
            pass
    return int(answer[9:12]) if answer else "closed"


def _garbage(rng: random.Random, port: int, cookie: str) -> str:
    """Bytes that are nearly a request of a stranger."""
    content = scrambled(_head(rng, port), rng) if rng.random() < 0.8 else rng.randbytes(rng.randrange(1, 5000))
    status = _sent(port, content + b"\r\n\r\n", SILENT)
    return "refused" if status in REFUSALS | {"closed", "no answer"} else f"{status} to the garbage {content[:300]!r}"


def _uninvited(rng: random.Random, port: int, cookie: str) -> str:
    """Requests without the token, or with another one, or with a cookie that is nearly right."""
    head = _head(rng, port)
    status = _sent(port, head, WAIT)
    return "refused" if status in REFUSALS | {"closed"} else f"{status} to the stranger's {head!r}"


def _guest(rng: random.Random, port: int, cookie: str) -> str:
    """Odd requests of somebody who was let in. None of them starts a run."""
    if rng.random() < 0.4:
        head = _head(rng, port, f"Cookie: {cookie}")
        status = _sent(port, head, WAIT)
    else:
        path = rng.choice(("/api/explore", "/api/compare", "/api/runs", "/api/runs/x/resume"))
        body = _body(rng)
        head = f"{path} {body[:300]!r}".encode()
        status = _asked(port, "POST", path, {"Cookie": cookie, "Content-Type": "application/json"}, body)
    fine = isinstance(status, int) and (200 <= status < 500) and status != 202
    return "answered" if fine else f"{status} to the guest's {head!r}"


def _body(rng: random.Random) -> bytes:
    """JSON that is nearly what is taken; the section `siege` keeps every configuration from being started."""
    odd: list[Any] = [0, -1, 1e400, 10**400, None, True, "", "a" * 9000, "\ud800", [], [[]] * 50, {}, "../..", *WEIRD]
    keys = ("eta", "rounds", "problem", "algorithm", "gamma", "runs", "x", "config", "schedule", "")
    tree: dict[str, Any] = {rng.choice(keys): rng.choice(odd) for _ in range(rng.randrange(4))}
    if rng.random() < 0.5:
        sections = ("problem", "scheme", "run", "participation", "anderson")
        tree["config"] = {rng.choice(sections): {rng.choice(keys): rng.choice(odd)}, "siege": {}}
    text = json.dumps(tree).encode()
    return scrambled(text, rng) if rng.random() < 0.3 and b"config" not in text else text


def federation(seeds: Iterable[int], at: Path) -> Ends:
    """A federation in which a stranger and garbage come to both ports: it computes what it would have, to the end."""
    import torch

    from federation.attack import InTheDemo
    from federation.test_deployment import in_process
    from resolvent.federation import demo, running
    from resolvent.federation.project import opened

    class Besieged(InTheDemo):
        def __call__(self, message: str) -> None:
            if message.startswith("round 1:") and self._project is not None:
                server = running.server_here(opened(self._project))
                for port in (server.port, server.control):
                    for _ in range(20):
                        _sent(port, scrambled(_head(rng, port), rng), SILENT)
            super().__call__(message)

    expected = in_process(3)
    for seed in seeds:
        rng, folder = random.Random(seed), at / str(seed)
        folder.mkdir(parents=True)
        stranger = Besieged(folder)
        try:
            run, _ = demo.demo(3, folder / "runs", stranger)
            model = run.model()
            assert stranger.tried
            assert model is not None
            torch.testing.assert_close(model, expected.model, rtol=1e-9, atol=1e-10)
        except Exception as error:
            yield seed, f"{type(error).__name__}: {error}"
        else:
            yield seed, "refused" if run.status == "finished" else f"the run has {run.status}"
