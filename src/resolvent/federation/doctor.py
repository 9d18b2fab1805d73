"""What may keep a federation from working, looked at one thing after the other."""

from __future__ import annotations

import email.utils
import http
import http.client
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.federation import control, keys, processes
from resolvent.federation.project import Project, Server, opened
from resolvent.federation.running import server_here
from resolvent.federation.superlink import FLEET, MAX_BODY, UNKNOWN
from resolvent.installed import install

Row = dict[str, Any]
WARN_BEFORE_END = timedelta(days=30)
"""How long before its end a certificate is pointed out."""
MAX_CLOCK_DIFFERENCE = 30.0
"""Seconds by which clocks may differ."""
FLOWER_VERSION = "1.41."
PROBED = f"{FLEET}pull-messages"
"""What a node is asked to be let in to; nothing is pulled."""


def examine(folder: Path, node: str | None = None, given: Mapping[str, Any] | None = None) -> list[Row]:
    """One row per thing: what, what was found, and whether that is fine. given: what the node is started with."""
    rows = [_flower()]
    try:
        project = opened(folder)
        server = project.server()
        config: Any = project.config()
    except InputError as error:
        return [*rows, _row("federation.toml", str(error), False)]
    rows.append(_row("federation.toml", f"{config.problem.users} users, server {server.host}:{server.port}", True))
    checks: list[Callable[[Project], Iterator[Row]]] = [_certificates, _secrets, _nodes, _server]
    for check in checks:
        try:
            rows.extend(check(project))
        except (InputError, OSError, ValueError) as error:
            rows.append(_row(check.__name__.strip("_"), str(error), False))
    if node is not None:
        rows.append(_user(project, node, config.problem.users, given or {}))
    return rows


def _row(what: str, found: str, fine: bool) -> Row:
    return {"what": what, "found": found, "fine": fine}


def _flower() -> Row:
    try:
        installed = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        return _row("flwr", f"not installed; {install('flower')}", False)
    fine = installed.startswith(FLOWER_VERSION)
    needed = "" if fine else f", but {FLOWER_VERSION}x is needed; {install('flower')}"
    return _row("flwr", f"{installed}{needed}", fine)


def _certificates(project: Project) -> Iterator[Row]:
    ca, own = project.keys / keys.CA, project.keys / keys.CERTIFICATE
    if not ca.is_file():
        how = "`resolvent federate keys --server` makes it on the server's machine; nodes need a copy"
        yield _row("keys/ca.crt", f"missing; {how}", False)
        return
    host, now = project.server().host, datetime.now(UTC)
    for path in filter(Path.is_file, (ca, own)):
        begins, ends, names = keys.valid_until(path)
        fine, message = False, f"ends on {ends:%Y-%m-%d}; `resolvent federate keys --server` makes a new one"
        if path == own and host not in names:
            message = f"is for {', '.join(names)}, but server.host is {host}; make it anew"
        elif now < begins:
            message = f"not valid before {begins:%Y-%m-%d %H:%M} UTC: is this machine's clock right?"
        elif now + WARN_BEFORE_END <= ends:
            fine, message = True, f"valid until {ends:%Y-%m-%d}"
        yield _row(f"keys/{path.name}", message, fine)


def _secrets(project: Project) -> Iterator[Row]:
    """Private keys must be this user's alone."""
    private = [project.keys / name for name in (keys.CA_KEY, keys.SERVER_KEY, keys.SECRET)]
    private += [path for path in project.nodes.glob("*") if path.suffix != ".pub"]
    wide = [path.name for path in private if path.is_file() and path.stat().st_mode & 0o077]
    if wide:
        yield _row("private keys", f"{', '.join(wide)} can be read by others; chmod 600", False)


def _nodes(project: Project) -> Iterator[Row]:
    names = keys.public_keys(project).values()
    yield _row("nodes' keys", ", ".join(sorted(names)) or "none here", True)


def _server(project: Project) -> Iterator[Row]:
    """Whether the server is there, speaks TLS with the right certificate, and has the same time."""
    try:
        server, here = server_here(project), True
    except InputError:
        server, here = project.server(), False
    where = f"{server.host}:{server.port}"
    if not (project.keys / keys.CA).is_file():
        return
    wrong, apart = greet(project.keys / keys.CA, server)
    if wrong is None:
        yield _row("server", f"answers at {where} over TLS", True)
        if apart is not None:
            fine = abs(apart) <= MAX_CLOCK_DIFFERENCE
            advice = "" if fine else ": set this machine's clock"
            yield _row("clock", f"{abs(apart):.0f} s apart from the server's{advice}", fine)
        for path in sorted(project.nodes.glob("*.pub")):
            if (own := path.with_suffix("")).is_file():
                yield admission(project.keys / keys.CA, server, own)
        if here:
            names = keys.public_keys(project)
            standing = [
                f"{names[key]} {status}" for key, status in control.nodes(project, server).items() if key in names
            ]
            yield _row("nodes", ", ".join(sorted(standing)) or "none registered yet", True)
    elif processes.listening(server.host, server.port):
        yield _row("server", f"something else listens at {where}: {wrong}", False)
    else:
        mine = (project.keys / keys.SERVER_KEY).is_file()
        message = "the port is free here: `resolvent federate server`" if mine else f"cannot be reached ({wrong})"
        yield _row("server", f"{where}: {message}", mine)


def greet(ca: Path, server: Server, seconds: float = 3.0) -> tuple[str | None, float | None]:
    """Why a node could not speak to the server over TLS (None: it could), and the seconds between their clocks."""
    context = ssl.create_default_context(cafile=str(ca))
    with closing(http.client.HTTPSConnection(server.host, server.port, timeout=seconds, context=context)) as line:
        try:
            line.connect()
        except ssl.SSLCertVerificationError as error:
            return f"its certificate is not one that {ca.name} vouches for ({error.verify_message})", None
        except OSError as error:
            return f"{error.strerror or error}", None
        with suppress(OSError, ValueError, http.client.HTTPException):
            line.request("GET", "/")
            if date := line.getresponse().getheader("Date"):
                return None, time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    return None, None


def admission(ca: Path, server: Server, key: Path) -> Row:
    """Whether the server knows a node's key. The call promises a body that nobody takes, so that nothing is done."""
    context = ssl.create_default_context(cafile=str(ca))
    with closing(http.client.HTTPSConnection(server.host, server.port, timeout=3.0, context=context)) as line:
        try:
            line.putrequest("POST", PROBED)
            for name, value in signed(key).items():
                line.putheader(name, value)
            line.endheaders()
            known = line.getresponse().status == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        except (OSError, http.client.HTTPException) as error:
            return _row(f"key {key.name}", f"the server did not say whether it knows it: {error}", False)
    return _row(f"key {key.name}", "the server knows it" if known else f"refused: {UNKNOWN}", known)


def signed(key: Path) -> dict[str, str]:
    """The headers of a node's call, with a body longer than any that is taken."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    own: Any = load_ssh_private_key(key.read_bytes(), None)
    now = datetime.now(UTC).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(own.public_key())).decode(),
        TIMESTAMP_HEADER: now,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(own, now.encode())).decode(),
        "content-length": str(MAX_BODY + 1),
    }


def _user(project: Project, node: str, users: int, given: Mapping[str, Any]) -> Row:
    """Whether user.py, or the node's table, makes a problem that a node can answer for."""
    from resolvent.engines.flower.messages import Question
    from resolvent.federation.site import TableNode, load

    try:
        loaded = load(project.path, {"name": node, "number": 0, "of": users, **given}, project.state / "doctor")
        if isinstance(loaded, TableNode):
            told = loaded.table.report()
            columns = ", ".join(column["name"] for column in told["columns"][:12])
            return _row("table", f"{told['rows']} rows to train on, {told['held_out']} held out: {columns}", True)
        facts = loaded.handle(Question("describe", "doctor").packet()).header["facts"]
    except InputError as error:
        return _row("table" if "data" in given else "user.py", str(error), False)
    except Exception as error:
        return _row("user.py", f"{type(error).__name__}: {error}", False)
    return _row(
        "user.py", f"{facts['problem']}, d = {facts['dim']}, {facts['samples']} samples, {facts['dtype']}", True
    )
