"""What may keep a federation from working, looked at one thing after the other."""

from __future__ import annotations

import email.utils
import http.client
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.federation import control, keys, processes
from resolvent.federation.project import Project, opened
from resolvent.federation.running import server_here

Row = dict[str, Any]
SOON = timedelta(days=30)
APART = 30.0
"""Seconds by which clocks may differ."""
VERSION = "1.41."


def examine(folder: Path, node: str | None = None) -> list[Row]:
    """One row per thing: what, what was found, and whether that is fine."""
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
        rows.append(_user(project, node, config.problem.users))
    return rows


def _row(what: str, found: str, fine: bool) -> Row:
    return {"what": what, "found": found, "fine": fine}


def _flower() -> Row:
    from resolvent.installed import install

    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        return _row("flwr", f"not installed; {install('flower')}", False)
    fine = found.startswith(VERSION)
    return _row("flwr", found if fine else f"{found}, but {VERSION}x is needed; {install('flower')}", fine)


def _certificates(project: Project) -> Iterator[Row]:
    ca, own = project.keys / keys.CA, project.keys / keys.CERTIFICATE
    if not ca.is_file():
        how = "`resolvent federate keys --server` makes it on the server's machine; nodes need a copy"
        yield _row("keys/ca.crt", f"missing; {how}", False)
        return
    for path in (ca, own):
        if not path.is_file():
            continue
        begins, ends, names = keys.valid_until(path)
        now = datetime.now(UTC)
        words = f"valid until {ends:%Y-%m-%d}"
        if now < begins:
            words = f"not valid before {begins:%Y-%m-%d %H:%M} UTC: is this machine's clock right?"
        elif now + SOON > ends:
            words = f"ends on {ends:%Y-%m-%d}; `resolvent federate keys --server` makes a new one"
        host = project.server().host
        fine = begins <= now and now + SOON <= ends
        if path is own and host not in names:
            yield _row(
                f"keys/{path.name}", f"is for {', '.join(names)}, but server.host is {host}; make it anew", False
            )
        else:
            yield _row(f"keys/{path.name}", words, fine)


def _secrets(project: Project) -> Iterator[Row]:
    """Private keys must be this user's alone."""
    private = [project.keys / name for name in (keys.CA_KEY, keys.SERVER_KEY, keys.SECRET)]
    private += [path for path in project.nodes.glob("*") if path.suffix != ".pub"]
    wide = [path.name for path in private if path.is_file() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
    if wide:
        yield _row("private keys", f"{', '.join(wide)} can be read by others; chmod 600", False)


def _nodes(project: Project) -> Iterator[Row]:
    named = keys.public_keys(project)
    yield _row("nodes' keys", ", ".join(sorted(named.values())) or "none here", True)


def _server(project: Project) -> Iterator[Row]:
    """Whether the server is there, speaks TLS with the right certificate, and has the same time."""
    try:
        server, here = server_here(project), True
    except InputError:
        server, here = project.server(), False
    where = f"{server.host}:{server.port}"
    if not (project.keys / keys.CA).is_file():
        return
    wrong = control.reachable(project.keys / keys.CA, server)
    if wrong is None:
        yield _row("server", f"answers at {where} over TLS", True)
        apart = _clocks_apart(project.keys / keys.CA, server.host, server.port)
        if apart is not None:
            fine = abs(apart) <= APART
            words = f"{abs(apart):.0f} s apart from the server's" + ("" if fine else ": set this machine's clock")
            yield _row("clock", words, fine)
        if here:
            known = control.nodes(project, server)
            names = keys.public_keys(project)
            stand = [f"{names[key]} {status}" for key, status in known.items() if key in names]
            yield _row("nodes", ", ".join(sorted(stand)) or "none registered yet", True)
    elif processes.listening(server.host, server.port):
        yield _row("server", f"something else listens at {where}: {wrong}", False)
    else:
        mine = (project.keys / keys.SERVER_KEY).is_file()
        words = "the port is free here: `resolvent federate server`" if mine else f"cannot be reached ({wrong})"
        yield _row("server", f"{where}: {words}", mine)


def _clocks_apart(ca: Path, host: str, port: int) -> float | None:
    """Seconds between this machine's clock and the server's, by the date of a reply."""
    line = http.client.HTTPSConnection(host, port, timeout=5, context=ssl.create_default_context(cafile=str(ca)))
    try:
        line.request("GET", "/")
        date = line.getresponse().getheader("Date")
        return None if date is None else time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        line.close()


def _user(project: Project, node: str, users: int) -> Row:
    """Whether user.py makes a problem that a node can answer for."""
    from resolvent.engines.flower.messages import Question
    from resolvent.engines.flower.node import load_node

    try:
        made = load_node(project.path, {"name": node, "number": 0, "of": users}, project.state / "doctor")
        facts = made.handle(Question("describe", "doctor").packet()).header["facts"]
    except Exception as error:
        return _row("user.py", f"{type(error).__name__}: {error}", False)
    return _row(
        "user.py", f"{facts['problem']}, d = {facts['dim']}, {facts['samples']} samples, {facts['dtype']}", True
    )
