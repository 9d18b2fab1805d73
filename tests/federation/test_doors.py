"""What keeps strangers out, part by part. test_deployment.py tries all of it on real federations."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import stat
import subprocess
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import resolvent
from resolvent.errors import InputError
from resolvent.federation import control, deployment, doctor, keys, processes, superexec, superlink, template, up
from resolvent.federation.nodes import NodeProcesses
from resolvent.federation.project import Server, opened

pytest.importorskip("flwr")
import uvicorn
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    SUPEREXEC_AUTH_BODY_SHA256_HEADER,
    SUPEREXEC_AUTH_NONCE_HEADER,
    SUPEREXEC_AUTH_TIMESTAMP_HEADER,
    TASK_TOKEN_HEADER,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from uvicorn.server import ServerState

CONTROL = 4321
SECRET, PUBLIC = generate_key_pairs()
KEY = public_key_to_bytes(PUBLIC)
MASTER, RUN = b"the secret of this server", "0123"


class Inside:
    """Flower's app, which knows one key and one run, and answers 200 to whoever comes through."""

    def __init__(self) -> None:
        link = SimpleNamespace(
            get_node_id_by_public_key=lambda key: 7 if key == KEY else None,
            get_task_by_token=lambda token: object() if token == RUN else None,
        )
        self.state = SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: link))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})


def status(path: str, port: int, *headers: tuple[bytes, bytes], kind: str = "http", **more: Any) -> int:
    """What a call gets."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a stranger's body is read")

    scope = {"type": kind, "path": path, "server": ("127.0.0.1", port), "headers": list(headers)} | more
    with ThreadPoolExecutor(1) as pool:  # a browser of other tests may have a loop in this thread
        pool.submit(lambda: asyncio.run(superlink.Doors(Inside(), CONTROL, MASTER)(scope, receive, send))).result()
    return int(sent[0]["status"])


def signed(
    key: bytes = KEY, secret: Any = SECRET, said: bytes = b"now", at: bytes = b"now"
) -> list[tuple[bytes, bytes]]:
    """The headers of a call by the owner of a key, signed by `secret`."""
    told = {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key), TIMESTAMP_HEADER: at}
    told[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(sign_message(secret, said))
    return [(name.encode(), value) for name, value in told.items()]


def command(secret: bytes = MASTER) -> list[tuple[bytes, bytes]]:
    """The header of a command, by whoever has a secret."""
    return [(b"authorization", f"Bearer {superlink.token(secret)}".encode())]


def acquiring(secret: bytes = MASTER, other: dict[str, str] | None = None) -> list[tuple[bytes, bytes]]:
    """The headers with which Flower's superexec asks for the next run, some of them changed on the way."""
    method, auth = "/flwr.proto.Runtime/AcquireTask", derive_auth_secret(secret)
    made = create_superexec_auth_metadata(auth_secret=auth, method=method, request=AcquireTaskRequest())
    return [(name.encode(), value.encode()) for name, value in (made | (other or {})).items()]


def test_each_door_is_open_to_its_own_callers() -> None:
    other, key = generate_key_pairs()
    for port in (CONTROL, 9443):
        assert status("/v1/fleet/pull-messages", port, *signed()) == 200
        assert status("/v1/fleet/pull-messages", port, *signed(public_key_to_bytes(key), other)) == 404
        assert status("/v1/fleet/pull-messages", port, (FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), b"no base64")) == 404
        for path in ("register-node", "unregister-node", "get-run", "get-fab", "", "../control/list-runs"):
            assert status(f"/v1/fleet/{path}", port, *signed()) == 404
    run, everything = (TASK_TOKEN_HEADER.encode(), RUN.encode()), [*command(), *acquiring(), *signed()]
    own = {
        "/v1/control/start-run": command(),
        "/v1/runtime/acquire-task": acquiring(),
        "/v1/runtime/push-object": [run],
    }
    for path, headers in own.items():
        assert status(path, CONTROL, *headers) == 200
        assert status(path, 9443, *headers) == 404
    for path in ("/docs", "/openapi.json", "/health", "/v1/fleet", "//v1/control/start-run", "/v1/runtime", ""):
        assert status(path, CONTROL, *everything, run) == 401
        assert status(path, 9443, *everything, run) == 404
    assert status("", 9443, kind="lifespan") == 200


@pytest.mark.parametrize("known", [True, False])
def test_the_doctor_says_whether_the_server_knows_the_node_s_key(tmp_path: Path, known: bool) -> None:
    project = template.write(tmp_path / "project")
    keys.make_server(project, ["127.0.0.1"])
    key = keys.make_node(project, "site-0")
    if known:
        key.write_bytes(SECRET.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
            self.send_response(status(self.path, 9443, *given))
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(project.keys / keys.CERTIFICATE, project.keys / keys.SERVER_KEY)
    with HTTPServer(("127.0.0.1", 0), Door) as server, ThreadPoolExecutor(1) as pool:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.timeout = 30.0
        answering = pool.submit(server.handle_request)
        row = doctor.admission(project.keys / keys.CA, Server("127.0.0.1", server.server_port), key)
        answering.result()
    assert row["fine"] == known
    assert row["found"] == ("the server knows it" if known else f"refused: {superlink.UNKNOWN}")


def test_a_node_that_is_refused_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, said = template.write(tmp_path / "project"), list[str]()
    keys.make_server(project, ["127.0.0.1"])
    keys.make_node(project, "site-0")
    node = NodeProcesses(project, "site-0", project.server(), {}, said.append)
    words = f"ERROR :     Exit Code: 305 | [code: 404] {superlink.UNKNOWN}"
    node.supernode = SimpleNamespace(running=False, last_words=lambda: words)  # type: ignore[assignment]
    monkeypatch.setattr(NodeProcesses, "_start_supernode", lambda self: None)
    monkeypatch.setattr("resolvent.federation.nodes.stop", lambda *given: None)
    node.check()
    node.check()
    assert said == [f"node site-0 is not let in: {superlink.UNKNOWN}; it tries again for 180 s"]
    monkeypatch.setattr("resolvent.federation.nodes.GIVE_UP_AFTER", -1.0)
    with pytest.raises(InputError, match="node site-0 ended: the server knows no node with this key"):
        node.check()


def test_at_the_control_port_nobody_s_body_is_read_without_a_proof() -> None:
    """Every account of the machine reaches it, and Flower reads bodies, of any number, before it looks at proofs."""
    run, wrong = TASK_TOKEN_HEADER.encode(), b"\xe9" * 4
    proofs = [[], [(run, b"4567")], [(run, b"")], [(run, wrong)], command(b"x"), [(b"authorization", wrong)],
              [(b"authorization", b"Bearer")], acquiring(b"x"), acquiring()[:3], signed()]  # fmt: skip
    for changed in (SUPEREXEC_AUTH_TIMESTAMP_HEADER, SUPEREXEC_AUTH_NONCE_HEADER, SUPEREXEC_AUTH_BODY_SHA256_HEADER):
        proofs += [acquiring(other={changed: value}) for value in ("1", "9" * 5000, "")]
    for path in ("control/start-run", "control/get-login-details", "runtime/acquire-task", "runtime/push-object",
                 "runtime/responses", "runtime/", "control/"):  # fmt: skip
        for headers in proofs:
            assert status(f"/v1/{path}", CONTROL, *headers) == 401, (path, headers)
    for path, headers in (("control/x", acquiring()), ("runtime/acquire-task", command()), ("runtime/x", acquiring())):
        assert status(f"/v1/{path}", CONTROL, *headers) == 401, path


def test_flower_s_own_settings_open_no_further_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLWR_INTERNAL_GRPC_CONTROL_API=1 would serve commands at a port of every address, without a token."""
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API", "FLWR_OIDC_ENABLED"):
        monkeypatch.setenv(name, "1")
    given = deployment.environment(template.write(tmp_path / "project"), "server")
    assert {name for name in given if name.startswith("FLWR_")} == {
        "FLWR_HOME", "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"
    }  # fmt: skip


def test_a_public_key_alone_opens_no_door() -> None:
    """Flower reads a call's body, of any length, before it looks at the signature."""
    other, _ = generate_key_pairs()
    for headers in (signed()[:1], signed()[:2], signed(secret=other), signed(said=b"then")):
        assert status("/v1/fleet/pull-messages", 9443, *headers) == 404


def test_no_body_is_longer_than_what_is_sent_here() -> None:
    for path, headers in (("/v1/runtime/acquire-task", acquiring()), ("/v1/fleet/push-object", signed())):
        for length, code in ((b"6000000", 200), (b"33554433", 413), (b"9" * 30, 413), (b"-1", 413), (b"\xb2", 413)):
            assert status(path, CONTROL, *headers, (b"content-length", length)) == code
        assert status(path, CONTROL, *headers, (b"transfer-encoding", b"chunked")) == 413


def test_a_node_lists_no_more_parts_than_the_database_stores_in_a_moment() -> None:
    """While it stores a hundred thousand of them, the calls of all others fail: one node ended everybody's run."""
    for length, code in ((b"65536", 200), (b"65537", 413)):
        assert status("/v1/fleet/push-messages", 9443, *signed(), (b"content-length", length)) == code
    assert (
        status(
            "/v1/runtime/push-messages",
            CONTROL,
            (TASK_TOKEN_HEADER.encode(), RUN.encode()),
            (b"content-length", b"65537"),
        )
        == 200
    )


def test_the_token_of_commands_is_not_the_secret_itself() -> None:
    assert superlink.token(b"one") != superlink.token(b"other")
    assert "6f6e65" not in superlink.token(b"one")


def test_the_token_of_a_run_is_on_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process reads it all the same."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

    given: list[list[str]] = []
    read: list[str] = []

    def popen(command: list[str], pass_fds: list[int]) -> None:
        given.append(command)
        cat = [
            sys.executable,
            "-c",
            "import sys; print(open(sys.argv[1]).read())",
            command[command.index("--token-file") + 1],
        ]
        read.append(subprocess.run(cat, pass_fds=pass_fds, capture_output=True, text=True, check=True).stdout.strip())

    monkeypatch.setattr(superexec, "subprocess", SimpleNamespace(Popen=popen))
    about = {"runtime_api_address": "127.0.0.1:1", "root_certificates_path": "ca.crt", "parent_pid": 1}
    spec = SimpleNamespace(token="abcdef", task_type=TaskType.SERVER_APP, **about)
    assert superexec.launch(None, spec).status == "accepted"
    assert read == ["abcdef"]
    assert given[0][0] == TASK_TYPE_TO_COMMAND[TaskType.SERVER_APP]
    assert not any("abcdef" in word for word in given[0])


def test_what_processes_write_is_for_their_user_alone(tmp_path: Path) -> None:
    project = template.write(tmp_path / "project")
    assert stat.S_IMODE(project.state.stat().st_mode) == 0o700
    project.state.chmod(0o755)  # a project of an earlier version
    assert stat.S_IMODE(opened(project.path).state.stat().st_mode) == 0o700
    code = "import os; os.mkdir('folder'); open('folder/file', 'w').close()"
    made = processes.start("one", [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {code}"],
                           tmp_path / "log", dict(os.environ))  # fmt: skip
    made.popen.wait(60)
    processes.stop(made)
    for path in (tmp_path / "log", tmp_path / "folder", tmp_path / "folder" / "file"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_a_node_is_given_is_in_a_file_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = template.write(tmp_path / "project")
    keys.make_server(project, ["127.0.0.1"])
    keys.make_node(project, "site-0")
    commands: list[str] = []
    monkeypatch.setattr("resolvent.federation.nodes.start", lambda name, command, *more: commands.append(str(command)))
    node = NodeProcesses(project, "site-0", project.server(), {"data": "/srv/patients.csv"})
    node._start_worker()
    assert "patients" not in commands[0]
    path = node.state / "config.json"
    assert json.loads(path.read_text())["data"] == "/srv/patients.csv"
    assert path.stat().st_mode & 0o077 == 0
    node.close()


@pytest.mark.parametrize("setting", ["password=x", "db-token=1", "API_SECRET=x"])
def test_a_password_on_the_command_line_is_refused(tmp_path: Path, setting: str) -> None:
    project = template.write(tmp_path / "project")
    for command in (("up",), ("node", "site-0")):
        said = resolvent("federate", *command, "--set", setting, "--project", project.path)
        assert said.code == 2
        assert "is on a command line, but others can read that" in said.err
        assert "os.environ" in said.err


def test_a_server_knows_no_other_keys_than_those_of_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has none: its database may be of a time when strangers could register."""
    project, called = template.write(tmp_path / "project"), []
    monkeypatch.setattr(control, "register", lambda *given: called.append(given))
    serving = up.ServerProcesses(project, project.server())
    serving.superlink = serving.superexec = SimpleNamespace(running=True)  # type: ignore[assignment]
    serving.check()
    assert len(called) == 1


def test_connections_that_prove_nothing_are_few_and_the_oldest_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "MAX_STRANGERS", 8)
    with superlink.Door(socket.create_server((superlink.LOOPBACK, 0))) as door, contextlib.ExitStack() as stack:

        def connected() -> tuple[socket.socket, socket.socket]:
            line = stack.enter_context(socket.create_connection(door.getsockname()))
            line.settimeout(10.0)
            return line, stack.enter_context(door.accept()[0])

        node, its_end = connected()
        transport = SimpleNamespace(get_extra_info=lambda name: its_end)
        made = superlink.connection([door]).__new__(superlink.connection([door]))
        made.transport, made.cycle, made._log = transport, SimpleNamespace(), None
        made._prove()
        _, gone_end = connected()
        gone_end.close()  # whose number is given to the next
        lines = [connected()[0] for _ in range(20)]
        assert [line.recv(1) for line in lines[:12]] == [b""] * 12
        for line in (node, *lines[12:]):
            line.setblocking(False)
            with pytest.raises(BlockingIOError):
                line.recv(1)
        assert len(door.strangers) == 8


def test_nothing_is_logged_of_connections_that_prove_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Calls that are none, upgrades, and bodies that end wrongly while the refusal is on its way: a traceback each."""
    post = b"POST / HTTP/1.1\r\nhost: a\r\n"
    strange = (b"\0\r\n\r\n", post + b"connection: upgrade, close\r\nupgrade: websocket\r\n\r\n",
               post + b"transfer-encoding: chunked\r\n\r\nno number\r\n")  # fmt: skip
    proof = b"".join(b"%s: %s\r\n" % header for header in signed())
    known = b"GET /v1/fleet/pull-messages HTTP/1.1\r\nhost: a\r\n" + proof + b"\r\n"  # Inside ends too early

    async def called(content: bytes) -> bytes:
        config = uvicorn.Config(
            superlink.Doors(Inside(), CONTROL, MASTER), log_config=None, access_log=False, ws="none"
        )
        config.load()
        made = lambda: superlink.connection([])(config, ServerState(), {})  # noqa: E731
        async with await asyncio.get_running_loop().create_server(made, superlink.LOOPBACK) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(content)
            with contextlib.closing(writer):
                return await reader.read()

    with caplog.at_level(logging.INFO), ThreadPoolExecutor(1) as pool:
        for content in strange:
            assert b" 40" in pool.submit(asyncio.run, called(content)).result(30)
        assert caplog.messages == []
        pool.submit(asyncio.run, called(known)).result(30)
        assert caplog.messages == ["ASGI callable returned without completing response."]


def test_a_call_that_proves_who_calls_is_no_stranger_s() -> None:
    proven: list[int] = []
    for headers, count in ([], 0), (signed(said=b"then"), 0), (signed(), 1):
        status("/v1/fleet/pull-messages", 9443, *headers, state={superlink.PROVEN: lambda: proven.append(1)})
        assert len(proven) == count
