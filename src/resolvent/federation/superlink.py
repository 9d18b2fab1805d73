"""Flower's superlink with its doors closed: nodes at one port, and whoever begins runs at another, with a token.

    python -P superlink.py CONTROL [the arguments of flower-superlink]

Flower 1.41 serves all of its interfaces at one port, and to begin a run there no account is needed. Here `--host` and
`--port` serve registered nodes alone. Port CONTROL of 127.0.0.1 serves the rest: commands need the token, and processes
of runs prove themselves to Flower. The file is run by its path: the package around it would import torch.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

LOOPBACK = "127.0.0.1"
FLEET = "/v1/fleet/"
"""Where nodes call; these calls Flower checks by the nodes' keys."""
MAX_BODY = 1 << 25
"""Bytes of a call's body, at most: Flower reads it before it looks at a token. It cuts arrays into parts of 5 MiB."""
UNKNOWN = "the server knows no node with this key: it needs the file NAME.pub in its keys/nodes"


def token(secret: bytes) -> str:
    """What commands show the superlink."""
    return hmac.new(secret, b"resolvent control", hashlib.sha256).hexdigest()


class Doors:
    """An ASGI app: passes nodes' calls on where a registered key has signed them, and others at the control port."""

    def __init__(self, app: Any, control: int) -> None:
        self._app, self._control = app, control

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse

        if scope["type"] == "lifespan":
            open_ = True
        elif scope["path"].startswith(FLEET):  # before a byte of the body is read
            open_ = await run_in_threadpool(self._registered, scope)
        else:
            open_ = scope["server"][1] == self._control
        code, detail = (404, UNKNOWN) if not open_ else (413, f"a body of at most {MAX_BODY} bytes is taken")
        open_ = open_ and (scope["type"] != "http" or self._short(scope))
        refusal = JSONResponse({"code": code, "detail": detail}, code)  # in the form of Flower's own
        await (self._app if open_ else refusal)(scope, receive, send)

    def _registered(self, scope: Any) -> bool:
        """Whether a registered key has signed the call. Flower checks it again, and its age, but after the body."""
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
        from starlette.datastructures import Headers

        headers = Headers(scope=scope)
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            if self._app.state.linkstate_factory.state().get_node_id_by_public_key(key) is None:
                return False
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            return bool(verify_signature(bytes_to_public_key(key), headers[TIMESTAMP_HEADER].encode(), signature))
        except (KeyError, ValueError):
            return False

    def _short(self, scope: Any) -> bool:
        """Whether the body says how long it is, and is not too long."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        length = headers.get(b"content-length", b"0")
        return b"transfer-encoding" not in headers and length.isdigit() and len(length) < 12 and int(length) <= MAX_BODY


def main() -> None:
    import uvicorn
    from flwr.common.constant import ACCESS_TOKEN_KEY
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    control = int(sys.argv.pop(1))
    config = _parse_superlink_lifespan_config()
    assert config.superexec_auth_secret is not None
    expected = token(config.superexec_auth_secret)

    class ByToken(NoOpControlAuthnPlugin):
        def validate_tokens_in_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> Any:
            given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
            right = hmac.compare_digest(given.encode(), expected.encode())
            return super().validate_tokens_in_metadata(metadata) if right else (False, None)

    app = Doors(create_app(replace(config, authn_plugin=ByToken()), SuperLinkLifespan), control)
    settings: dict[str, Any] = {
        "log_config": get_uvicorn_log_config(console_handler.level),
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_certfile": config.ssl_certfile,
    }
    doors = [uvicorn.Config(app, *at, **settings) for at in ((config.host, config.port), (LOOPBACK, control))]
    uvicorn.Server(doors[0]).run(sockets=[door.bind_socket() for door in doors])


if __name__ == "__main__":
    main()
