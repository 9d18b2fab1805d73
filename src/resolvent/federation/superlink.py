"""Flower's superlink with its doors closed: nodes at one port, and whoever begins runs at another, with a token.

    python -P superlink.py CONTROL [the arguments of flower-superlink]

Flower 1.41 serves all of its interfaces at one port, and to begin a run there no account is needed. Here `--host` and
`--port` serve registered nodes alone. Port CONTROL of 127.0.0.1 serves the rest: commands by their token, and processes
of runs by theirs. The file is run by its path: the package around it would import torch.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import sys
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

LOOPBACK = "127.0.0.1"
FLEET, COMMANDS, ACQUIRE, RUNS = "/v1/fleet/", "/v1/control/", "/v1/runtime/acquire-task", "/v1/runtime/"
"""Where nodes call, where commands, where the process that starts those of runs, and where these."""
NODES = {"activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "pull-object",
         "push-object", "confirm-message-received"}  # fmt: skip
"""What nodes ask for; Flower would also tell them where the server's folders are, and let them register others."""
PARTS = f"{FLEET}push-object"
"""Where nodes send the parts of their answers."""
MAX_BODY = 1 << 25
"""Bytes of a call's body, at most. Flower cuts arrays into parts of 5 MiB."""
MAX_LISTED = 1 << 16
"""The same for a node's other calls, one of which lists its answer's parts, in 68 bytes each. The database is locked
while they are stored, some 2 ms for each: with 100,000 of them all other calls failed for minutes."""
MAX_HEAD = 1 << 16
"""Bytes of a call's line and headers, at most."""
MAX_STRANGERS = 128
"""Connections to one port that have proven nothing, at most: where one more comes, the oldest of them is closed."""
PROVEN = "proven"
"""In a connection's state: called once a call on it has shown who calls."""
UNHEARD = logging.Logger("unheard", logging.CRITICAL + 1)
"""Logs what connections that have proven nothing do wrong: uvicorn writes up to 7 kB per call, which fills the disk."""
UNKNOWN = "the server knows no node with this key: it needs the file NAME.pub in its keys/nodes"
CLOSED = "nothing shows that this call comes from the server's own user"


def token(secret: bytes) -> str:
    """What commands show the superlink."""
    return hmac.new(secret, b"resolvent control", hashlib.sha256).hexdigest()


class Doors:
    """An ASGI app: passes a call on once its headers prove who calls, before a byte of its body is read.

    Flower checks most of it again, but after it has read the body, and takes some calls from everybody.
    """

    def __init__(self, app: Any, control: int, secret: bytes) -> None:
        self._app, self._control, self._secret = app, control, secret

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse

        refusal = None if scope["type"] == "lifespan" else await run_in_threadpool(self._refusal, scope)
        if refusal is None:
            scope.get("state", {}).get(PROVEN, lambda: None)()
            await self._app(scope, receive, send)
        else:
            code, detail = refusal  # in the form of Flower's own, whose programs end at 401
            await JSONResponse({"code": code, "detail": detail}, code)(scope, receive, send)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """Why a call is not passed on: a code of HTTP and a sentence."""
        from starlette.datastructures import Headers

        path, headers = scope["path"], Headers(scope=scope)
        control = scope["server"][1] == self._control
        try:
            if path.startswith(FLEET):
                proven = path.removeprefix(FLEET) in NODES and self._by_node(headers)
            elif not control:
                proven = False
            elif path.startswith(COMMANDS):
                proven = same(headers["authorization"], f"Bearer {token(self._secret)}")
            elif path == ACQUIRE:
                proven = self._by_superexec(headers)
            else:
                proven = path.startswith(RUNS) and self._by_run(headers)
        except (KeyError, ValueError):
            proven = False
        if not proven:
            return (401, CLOSED) if control and not path.startswith(FLEET) else (404, UNKNOWN)
        most = MAX_LISTED if path.startswith(FLEET) and path != PARTS else MAX_BODY
        return None if short(headers, most) else (413, f"a body of at most {most} bytes is taken")

    def _by_node(self, headers: Any) -> bool:
        """Whether a registered key has signed the call. Flower also checks its age."""
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        if self._state().get_node_id_by_public_key(key) is None:
            return False
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        return bool(verify_signature(bytes_to_public_key(key), headers[TIMESTAMP_HEADER].encode(), signature))

    def _by_superexec(self, headers: Any) -> bool:
        """Whether the call's headers are signed with the secret. Flower also checks their age and the body's hash."""
        from flwr.supercore import constant
        from flwr.supercore.auth import compute_superexec_signature, derive_auth_secret

        expected = compute_superexec_signature(
            auth_secret=derive_auth_secret(self._secret),
            method="/flwr.proto.Runtime/AcquireTask",
            timestamp=int(headers[constant.SUPEREXEC_AUTH_TIMESTAMP_HEADER]),
            nonce=headers[constant.SUPEREXEC_AUTH_NONCE_HEADER],
            body_sha256=headers[constant.SUPEREXEC_AUTH_BODY_SHA256_HEADER],
        )
        return same(headers[constant.SUPEREXEC_AUTH_SIGNATURE_HEADER], expected)

    def _by_run(self, headers: Any) -> bool:
        """Whether the call has the token of a run that goes on."""
        from flwr.supercore.constant import TASK_TOKEN_HEADER

        return self._state().get_task_by_token(headers[TASK_TOKEN_HEADER]) is not None

    def _state(self) -> Any:
        return self._app.state.linkstate_factory.state()


class Door(socket.socket):
    """A socket that listens, and lets go of those who come and prove nothing, or do not even finish TLS's handshake.

    Files that a process may have open are few: without a bound, silent connections would shut all nodes out.
    """

    strangers: dict[int, socket.socket]
    """Connections that have proven nothing, by their number, the oldest first."""

    def __init__(self, bound: socket.socket) -> None:
        super().__init__(fileno=bound.detach())
        self.strangers = {}

    def accept(self) -> tuple[socket.socket, Any]:
        line, address = super().accept()
        self.strangers = {number: each for number, each in self.strangers.items() if each.fileno() == number}
        while len(self.strangers) >= MAX_STRANGERS:
            oldest = self.strangers.pop(next(iter(self.strangers)))
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self.strangers[line.fileno()] = line
        return line, address


def connection(doors: Sequence[Door]) -> Any:
    """The protocol of a connection, on which a call may prove who calls."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], *more: Any, **named: Any) -> None:
            super().__init__(config, server_state, {**app_state, PROVEN: self._prove}, *more, **named)
            self._log, self.logger = self.logger, UNHEARD

        def _prove(self) -> None:
            self.logger = self.cycle.logger = self._log
            for door in doors:
                door.strangers.pop(self.transport.get_extra_info("socket").fileno(), None)

    return Connection


def same(given: str, expected: str) -> bool:
    """Whether two texts are the same, without telling by the time where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())


def short(headers: Any, most: int) -> bool:
    """Whether a call's body says how long it is, and is not too long."""
    length = headers.get("content-length", "0")
    known = "transfer-encoding" not in headers and length.isascii() and length.isdigit() and len(length) < 12
    return known and int(length) <= most


def main() -> None:
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    control = int(sys.argv.pop(1))
    config = _parse_superlink_lifespan_config()
    assert config.superexec_auth_secret is not None
    app = Doors(create_app(config, SuperLinkLifespan), control, config.superexec_auth_secret)
    settings: dict[str, Any] = {
        "log_config": get_uvicorn_log_config(console_handler.level),
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_certfile": config.ssl_certfile,
        "access_log": False,  # anybody could fill it
        "loop": "asyncio",  # it asks the doors for connections
        "h11_max_incomplete_event_size": MAX_HEAD,
        "ws": "none",
    }
    doors = list[Door]()
    settings["http"] = connection(doors)  # by h11: the other one takes headers without end
    configs = [uvicorn.Config(app, *at, **settings) for at in ((config.host, config.port), (LOOPBACK, control))]
    doors += [Door(each.bind_socket()) for each in configs]
    uvicorn.Server(configs[0]).run(sockets=[*doors])


if __name__ == "__main__":
    main()
